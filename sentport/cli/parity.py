"""The parity records of a bundle's graphs as one table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentport.bundle import PRECISIONS, Bundle, GraphRecord
from sentport.gate import limits_of

_HEADS = (
    *("graph", "relative L2", "worst cosine", "mean cosine", "rank agreement", "in company", "worst on"),
    "checked by",
)


def parity_table(bundle: Bundle) -> list[str]:
    """Lines: errors and cosines to the source, agreement in ranking texts, a text's cosine to itself in company.

    Below, what the gate asks for; and of int8 which layers stay in fp32 and what that gained. Bundles of older versions
    lack some figures.
    """
    graphs = (*bundle.graphs, *bundle.native)
    rows = [_HEADS, *(_row(graph) for graph in graphs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    held = {graph.precision for graph in graphs}
    lines += [_limit_words(name, bundle.spec.architecture) for name in PRECISIONS if name in held]
    for graph in graphs:
        one_plan = graph.flavour != "native" and graph.layout != bundle.graphs[0].layout  # made for both layouts
        if graph.int8 is not None and not one_plan:
            lines.append(_int8_words(graph, graph.int8))
    return lines


def _row(graph: GraphRecord) -> tuple[str, ...]:
    parity = graph.parity
    error = f"{parity['relative_l2']:.1e}" if "relative_l2" in parity else "-"
    figures = [_figure(graph, name) for name in ("cosine", "mean_cosine", "rank", "company_cosine")]
    if "ranked" in parity:
        figures[2] += f" ({parity['ranked']} texts)"
    name = graph.file.removeprefix("graphs/").removesuffix(".onnx").removesuffix(".safetensors")
    return (name, error, *figures, str(parity.get("worst", "-")), str(parity.get("by", "-")))


def _figure(graph: GraphRecord, name: str) -> str:
    value = graph.parity.get(name)
    return "-" if value is None else f"{value:.7f}"


def _limit_words(precision: str, architecture: str) -> str:
    limits = limits_of(precision, architecture)
    if precision == "fp32":
        return f"gate of fp32: relative L2 <= {limits.relative_l2:.0e}"
    asked = (("worst cosine", limits.cosine), ("mean", limits.mean_cosine), ("rank agreement", limits.rank))
    words = [f"{what} >= {limit}" for what, limit in asked if limit > -1]
    words.append(f"in company >= {limits.worst_company_cosine}")
    if limits.company_cosine > -1:
        words[-1] += f", and {limits.company_cosine} in 99 % of comparisons"
    return f"gate of {precision}: {', '.join(words)}"


def _int8_words(graph: GraphRecord, int8: Mapping[str, Any]) -> str:
    said = (
        f"int8 of {graph.flavour}: {int8['form']}, calibrated on {int8['calibration']}; "
        f"{len(int8['layers'])} linear layers in int8"
    )
    if not int8["kept"]:
        return f"{said}, none kept in fp32"
    first, last = int8["trade"][0], int8["trade"][-1]
    names = [name.removeprefix("transformer.model.").removesuffix(".weight") for name in int8["kept"]]
    return (
        f"{said}, {len(names)} kept in fp32 ({', '.join(names)}): "
        f"worst cosine {first['cosine']:.7f} to {last['cosine']:.7f}, mean {first['mean_cosine']:.7f} to "
        f"{last['mean_cosine']:.7f}"
    )
