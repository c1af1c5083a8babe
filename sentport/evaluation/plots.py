"""The shape of embedding spaces as pictures, several systems side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from sentport.errors import SentportError
from sentport.evaluation.geometry import Geometry
from sentport.files import file_written_aside

try:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
except ModuleNotFoundError as missing:
    raise SentportError(f"{missing.name} is not installed; pip install 'sentport[evaluate]'") from missing

_DOTS_PER_INCH = 150
Systems = Mapping[str, Geometry]


def write_plots(folder: Path, systems: Systems, pairs: str) -> list[Path]:
    """Draw every figure, each file written aside and renamed.

    Args:
        folder: Where they go; made where it is missing.
        systems: What was found, by system.
        pairs: What the pairs are, for the titles.

    Returns:
        The files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, draw in _FIGURES.items():
        figure = draw(systems, pairs)
        FigureCanvasAgg(figure)
        with file_written_aside(folder / f"{name}.png") as aside:
            figure.savefig(aside, format="png", dpi=_DOTS_PER_INCH)
        files.append(folder / f"{name}.png")
    return files


def _alignment_uniformity(systems: Systems, pairs: str) -> Figure:
    """One point a system; the lower left is best."""
    figure = Figure(figsize=(6, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, found in systems.items():
        axes.plot(found.uniformity, found.alignment, "o", label=name)
    axes.set(xlabel="uniformity (lower is better)", ylabel="alignment (lower is better)", title=pairs)
    axes.legend()
    return figure


def _singular_values(systems: Systems, pairs: str) -> Figure:
    figure = Figure(figsize=(6, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, found in systems.items():
        axes.plot(np.arange(1, len(found.singular_values) + 1), found.singular_values, label=name)
    axes.set(xlabel="rank", ylabel="singular value, the largest = 1", title=pairs, ylim=(0, 1.02))
    axes.legend()
    return figure


def _cosines(systems: Systems, pairs: str) -> Figure:
    """One row a system, one panel a group of ratings."""
    groups = list(next(iter(systems.values())).histograms)
    figure = Figure(figsize=(2.6 * len(groups), 0.6 + 2.2 * len(systems)), layout="constrained")
    panels = figure.subplots(len(systems), len(groups), sharex=True, squeeze=False)
    for row, (name, found) in zip(panels, systems.items(), strict=True):
        row[0].set_ylabel(name, fontsize="small")
        for axes, (low, high) in zip(row, groups, strict=True):
            axes.stairs(found.histograms[low, high], found.edges, fill=True)
            axes.set_title(f"rated {low} to {high}", fontsize="small")
    figure.suptitle(f"{pairs}: cosines of pairs by rating")
    return figure


_FIGURES: Mapping[str, Callable[[Systems, str], Figure]] = {
    "alignment_uniformity": _alignment_uniformity,
    "singular_values": _singular_values,
    "cosines_by_rating": _cosines,
}
