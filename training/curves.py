"""``python -m training.curves FILE.json … --out FILE.svg``: how alignment, uniformity and the dev score went.

Each file is a ``training.json``. Points are medians over its seeds, one a checkpoint; the left panel is that of Gao,
Yao & Chen 2021 (figure 2), where training begins at the first mark and ends at the arrow's head.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from sentport.errors import SentportError
from sentport.files import file_written_aside

Curve = Mapping[str, Sequence[float]]


def median_curve(record: Mapping[str, Any]) -> Curve:
    """Step, dev, alignment and uniformity of each checkpoint, the medians over a record's seeds."""
    checkpoints = list(zip(*(seed["curve"] for seed in record["seeds"]), strict=True))
    return {
        name: [median(point[name] for point in points) for points in checkpoints]
        for name in ("step", "dev", "alignment", "uniformity")
    }


def draw(curves: Mapping[str, Curve], out: Path) -> None:
    """Write the picture of several curves, by name."""
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ModuleNotFoundError as missing:
        raise SentportError(f"{missing.name} is not installed; pip install 'sentport[evaluate]'") from missing
    figure = Figure(figsize=(10, 4), layout="constrained")
    space, score = figure.subplots(1, 2)
    for name, curve in curves.items():
        (line,) = space.plot(curve["uniformity"], curve["alignment"], ".-", label=name)
        ends = [(curve["uniformity"][place], curve["alignment"][place]) for place in (-2, -1)]
        space.annotate("", ends[1], ends[0], arrowprops={"arrowstyle": "->", "color": line.get_color()})
        score.plot(curve["step"], curve["dev"], ".-", label=name)
    space.set(xlabel="uniformity (lower is better)", ylabel="alignment (lower is better)")
    score.set(xlabel="step", ylabel="Spearman x 100 on the dev pairs")
    score.legend()
    FigureCanvasSVG(figure)
    with file_written_aside(out) as aside, rc_context({"svg.hashsalt": "sentport"}):
        figure.savefig(aside, format="svg", metadata={"Date": None})


def main(argv: list[str] | None = None) -> int:
    """Draw."""
    parser = argparse.ArgumentParser(prog="python -m training.curves", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("files", metavar="FILE.json", type=Path, nargs="+", help="training.json of a checkpoint")
    parser.add_argument("--out", metavar="FILE.svg", type=Path, required=True, help="picture to make")
    options = parser.parse_args(argv)
    try:
        records = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in options.files}
        draw({name: median_curve(record) for name, record in records.items()}, options.out)
    except SentportError as error:
        sys.stderr.write(f"training.curves: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
