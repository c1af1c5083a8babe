"""The parity records of a bundle's graphs as one table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentport.bundle import Bundle, GraphRecord

_HEADS = ("graph", "worst cosine", "mean cosine", "rank of texts", "in company", "worst on", "checked by")


def parity_table(bundle: Bundle) -> list[str]:
    """Lines: cosines to the source, agreement in ranking texts, and the cosine of a text alone to itself in company.

    Below, for int8, which layers stay in fp32 and what that gained. Bundles of older versions lack some figures.
    """
    graphs = (*bundle.graphs, *bundle.native)
    rows = [_HEADS, *(_row(graph) for graph in graphs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    for graph in graphs:
        one_plan = graph.flavour != "native" and graph.layout != bundle.graphs[0].layout  # made for both layouts
        if graph.int8 is not None and not one_plan:
            lines.append(_int8_words(graph, graph.int8))
    return lines


def _row(graph: GraphRecord) -> tuple[str, ...]:
    figures = [_figure(graph, name) for name in ("cosine", "mean_cosine", "rank", "company_cosine")]
    if "ranked" in graph.parity:
        figures[2] += f" of {graph.parity['ranked']}"
    name = graph.file.removeprefix("graphs/").removesuffix(".onnx").removesuffix(".safetensors")
    return (name, *figures, str(graph.parity.get("worst", "-")), str(graph.parity.get("by", "-")))


def _figure(graph: GraphRecord, name: str) -> str:
    value = graph.parity.get(name)
    return "-" if value is None else f"{value:.7f}"


def _int8_words(graph: GraphRecord, int8: Mapping[str, Any]) -> str:
    said = (
        f"int8 of {graph.flavour}: {int8['form']}, calibrated on {int8['calibration']}; "
        f"{len(int8['layers'])} linear layers in int8"
    )
    if not int8["kept"]:
        return f"{said}, none kept in fp32"
    first, last = int8["trade"][0], int8["trade"][-1]
    return (
        f"{said}, {len(int8['kept'])} kept in fp32 ({', '.join(int8['kept'])}): "
        f"worst cosine {first['cosine']:.4f} to {last['cosine']:.4f}, mean {first['mean_cosine']:.4f} to "
        f"{last['mean_cosine']:.4f}"
    )
