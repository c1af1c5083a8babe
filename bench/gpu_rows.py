"""Rows of ``bench.gpu_check``, whose records sum up their calls already."""

from __future__ import annotations

from dataclasses import replace

from bench.records import GPU_BENCHMARK, Record, versions_and_date
from bench.rows import MEASURED, Row, Section


def _with_ratios(rows: list[Row]) -> list[Row]:
    """Over the median of the baseline: these records sum up their calls already."""
    base = next((row.rate for row in rows if row.baseline and row.rate), None)
    if base is None:
        return rows
    return [replace(row, ratio=row.rate / base) if row.rate else row for row in rows]


def gpu_section(records: list[Record]) -> Section:
    """The rows of one run on one corpus, made of their summaries."""
    measured = next((record for record in records if record["status"] == MEASURED), None)
    first = measured or records[0]
    title = f"{first['corpus']}, {first['model']}, {first['device_name']}"
    conditions = {
        "machine": f"{first['device_name']} ({first.get('gpu_limits') or first['cpu']}), host {first['cpu']}",
        "corpus": f"{first['corpus_source']}; {first['texts']} texts, {first['tokens']} tokens, ids ready on the host",
        "cosine to": str(first.get("cosine_reference") or "not compared"),
        **versions_and_date(first),
    }
    if measured:
        conditions["method"] = (
            f"{measured['warmup']} warm-up, {measured['repeats']} timed passes a row, {measured['order']}"
        )
    rows = _with_ratios([_gpu_row(record) for record in records])
    return Section(title, first["corpus"], tuple(rows), conditions, GPU_BENCHMARK)


def _gpu_row(record: Record) -> Row:
    row = Row(
        contestant=record["implementation"],
        policy=record["batch_policy"],
        batch=record["batch"],
        tokenisation_inside=record["tokenisation_inside"],
        baseline=record["implementation"] == "transformers" and record["precision"] == "fp32",
        status=record["status"],
        reason=record["reason"] or "",
        precision=record["precision"],
        layout=record["layout"],
        device=record["device"],
        sessions=record["sessions"],
        threads=record["threads"],
        transport="in process",
    )
    if row.status != MEASURED:
        return row
    seconds, texts = record["end_to_end_s"], record["texts"]
    return replace(
        row,
        rate=texts / seconds["median"],
        slowest=texts / seconds["max"],
        fastest=texts / seconds["min"],
        waste=record["padding_waste_percent"],
        worst_cosine=record["worst_cosine"],
        repeats=record["repeats"],
        repeats_planned=record["repeats"],
    )
