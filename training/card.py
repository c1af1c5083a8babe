"""The model card: what was trained, on what, how, and how good it became."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

_CURVE_ROWS = 20
_COLUMNS = ("step", "loss", "dev", "alignment", "uniformity")

# Text encoders on the hub are found under these.
_FRONT_MATTER = """\
---
library_name: sentence-transformers
pipeline_tag: sentence-similarity
tags:
- sentence-transformers
- sentence-similarity
- feature-extraction
- sentport
---
"""


def model_card(name: str, results: Sequence[Mapping[str, Any]], chosen: int) -> str:
    """README.md of a checkpoint.

    Args:
        name: The recipe's.
        results: What each seed came to, as ``training.json`` has it.
        chosen: Which of them the checkpoint is.
    """
    result = results[chosen]
    parts = [
        f"{_FRONT_MATTER}\n# {name}",
        f"Trained from `{result['base']}` by sentport {result['conditions']['sentport']}: {result['chain']}, "
        f"vectors of {result['dim']} values, texts up to {result['max_tokens']} tokens.",
        "## Use\n\n```python\nfrom sentence_transformers import SentenceTransformer\n\n"
        'vectors = SentenceTransformer("path/of/this/folder").encode(["A text."])\n```\n\n'
        "or `sentport export path/of/this/folder --out model.bundle`.",
        f"## Scores\n\n{_scores(results, chosen)}",
        f"## Data\n\n{_data(result['data'])}",
        f"## Training\n\n{_table(_COLUMNS, _thinned(result['curve']))}\n\n{_conditions(result)}",
        f"## Recipe\n\n{_recipe(result['recipe'])}",
    ]
    return "\n\n".join(parts) + "\n"


def summary(results: Sequence[Mapping[str, Any]]) -> dict[str, tuple[float, float]]:
    """Mean and sample deviation over the seeds of each score; the deviation of one seed is 0."""
    names = results[0]["scores"]
    columns = {name: [float(result["scores"][name]) for result in results] for name in names}
    return {name: (mean(column), stdev(column) if len(column) > 1 else 0.0) for name, column in columns.items()}


def _scores(results: Sequence[Mapping[str, Any]], chosen: int) -> str:
    if not results[0]["scores"]:
        return "This recipe scores nothing: its last checkpoint is kept."
    names = list(results[0]["scores"])
    rows = [
        [f"{result['seed']}{' (this one)' if place == chosen else ''}", *(f"{result['scores'][n]:.2f}" for n in names)]
        for place, result in enumerate(results)
    ]
    if len(results) > 1:
        rows.append(
            ["mean ± deviation", *(f"{centre:.2f} ± {spread:.2f}" for centre, spread in summary(results).values())]
        )
    return "Spearman's correlation x 100 of cosines and gold scores.\n\n" + _table(("seed", *names), rows)


def _data(sources: Sequence[Mapping[str, Any]]) -> str:
    rows = [[source[key] for key in ("name", "rows", "examples", "bad", "unused")] for source in sources]
    return _table(("source", "rows", "examples", "bad rows", "rows that make none"), rows)


def _thinned(curve: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """At most so many points of the curve, the last one among them."""
    stride = -(-len(curve) // _CURVE_ROWS)
    points = curve[(len(curve) - 1) % stride :: stride]
    return [
        [str(point["step"]), *("" if point[name] is None else f"{point[name]:.4f}" for name in _COLUMNS[1:])]
        for point in points
    ]


def _conditions(result: Mapping[str, Any]) -> str:
    values = {**result["conditions"], "seed": result["seed"], "seconds": round(result["seconds"])}
    return "Conditions: " + ", ".join(f"{name} {value}" for name, value in values.items()) + "."


def _recipe(recipe: Mapping[str, Any]) -> str:
    return "\n".join(["```", *_lines(recipe, ""), "```"])


def _lines(table: Mapping[str, Any], where: str) -> list[str]:
    lines = []
    for name, value in table.items():
        if isinstance(value, Mapping):
            lines += _lines(value, f"{where}{name}.")
        elif isinstance(value, list | tuple) and value and isinstance(value[0], Mapping):
            lines += [line for place, one in enumerate(value) for line in _lines(one, f"{where}{name}[{place}].")]
        elif value not in (None, [], ()):
            lines.append(f"{where}{name} = {value}")
    return lines


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in row) + " |" for row in lines)
