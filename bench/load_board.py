"""Levels of load as a table and as latency over throughput."""

from __future__ import annotations

from collections.abc import Sequence

from bench.boards import Board, Cell, Column, Table, number, percent
from bench.charts import Plot, Series
from bench.fields import LOAD
from bench.records import Record, versions_and_date

_HEADS = (
    *(("loop", False), ("level", True), ("requests/s", True), ("texts/s", True), ("p50 ms", True), ("p95 ms", True)),
    *(("p99 ms", True), ("sent", True), ("errors", True), ("queue ms", True), ("compute ms", True)),
    *(("rows / execution", True), ("tokens / execution", True), ("padding waste", True)),
)
_LEVEL = {"closed": "clients", "open": "requests/s due"}


def board(records: Sequence[Record]) -> Board | None:
    """All levels of all runs, those of one model and request size in one chart."""
    found = [record for record in records if record["benchmark"] == LOAD]
    if not found:
        return None
    rows = tuple(_row(record) for record in found)
    errors = {kind: 0 for record in found for kind in record["errors"]}
    for record in found:
        for kind, count in record["errors"].items():
            errors[kind] += count
    remarks = tuple(f"{count} requests: {kind}" for kind, count in errors.items())
    last = found[-1]
    conditions = {
        "server": f"{last['model']} at {last['address']}, {last['engine']} {last['precision']}; "
        f"clients and server share {last['cpu']}, {last['cpu_cores']} cores",
        "requests": f"{last['texts_per_request']} texts each; {last['corpus_source']}",
        "latency": "closed: from sending; open: from when the request was due, so waiting for a free client counts",
        "queue and compute": "means of the server's own counters over the level, for each request",
        **versions_and_date(last),
    }
    table = Table(tuple(Column(*head) for head in _HEADS), rows)
    return Board(f"Latency against load, {last['model']}", (table,), _charts(found), conditions, remarks)


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least this share of all values does not exceed; None of no values."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * round(1000 * share) // 1000) - 1)] if ordered else None


def _row(record: Record) -> tuple[Cell, ...]:
    latency, server = record["latency_ms"], record["server"]
    answered = len(latency) / record["seconds"]
    done, runs = server.get("requests"), server.get("executions")
    computed, tokens = server.get("computed_tokens"), server.get("tokens")

    def per(name: str, by: float | None, scale: float = 1.0) -> Cell:
        return number(scale * server[name] / by if by and name in server else None, missing="—")

    return (
        Cell(record["loop"]),
        Cell(f"{record['level']:g} {_LEVEL[record['loop']]}", record["level"]),
        number(answered),
        number(answered * record["texts_per_request"]),
        *(number(percentile(latency, share), ",.1f", missing="—") for share in (0.5, 0.95, 0.99)),
        number(record["sent"], ","),
        number(sum(record["errors"].values()), ","),
        per("queue_us", done, 1e-3),
        per("compute_us", done, 1e-3),
        per("rows", runs),
        per("tokens", runs),
        _waste(tokens, computed),
    )


def _waste(tokens: float | None, computed: float | None) -> Cell:
    if not computed or tokens is None:
        return percent(None)
    return percent(100 * (1 - tokens / computed))


def _charts(found: Sequence[Record]) -> tuple[Plot, ...]:
    series = []
    for loop in dict.fromkeys(record["loop"] for record in found):
        for share, name in ((0.5, "p50"), (0.99, "p99")):
            points = [
                (len(record["latency_ms"]) / record["seconds"] * record["texts_per_request"], taken)
                for record in found
                if record["loop"] == loop and (taken := percentile(record["latency_ms"], share))
            ]
            series.append(Series(f"{loop} loop, {name}", tuple(points)))
    return (Plot("latency against load", "texts/s answered", "latency ms", tuple(series), log_y=True),)
