"""The steps of ``sentport bench pair-search`` as a table, beside what the paper says."""

from __future__ import annotations

from collections.abc import Sequence

from bench.boards import Board, Cell, Column, Table, number
from bench.fields import PAIR_SEARCH
from bench.records import Record, versions_and_date

PAPER = {
    "cross-encoder": "65 hours, BERT on a V100",
    "SBERT-base": "about 5 seconds on a V100",
    "similar pair": "about 0.01 seconds, with cosines on a GPU",
}
_HOUR = 3600.0


def board(records: Sequence[Record]) -> Board | None:
    """The steps of all runs, each with what was measured and what was extrapolated."""
    found = [record for record in records if record["benchmark"] == PAIR_SEARCH]
    if not found:
        return None
    heads = (
        *(Column(name) for name in ("step", "what", "runs on")),
        Column("seconds measured", True),
        Column("for", True),
        Column("of", True),
        Column("all of it", True),
        Column("how", False),
        Column("in the paper, of 10,000 sentences"),
    )
    rows = tuple(_row(record) for record in found)
    last = found[-1]
    conditions = {"corpus": last["corpus_source"], **versions_and_date(last)}
    return Board("The most similar pair, by reading pairs and by vectors", (Table(heads, rows),), conditions=conditions)


def _row(record: Record) -> tuple[Cell, ...]:
    whole, extrapolated = record["whole_seconds"], record["measured"] < record["whole"]
    return (
        Cell(record["step"]),
        Cell(record["what"]),
        Cell(f"{record['device_name']}, {record['threads']} threads"),
        number(record["seconds"], ".2f"),
        number(record["measured"], ","),
        number(record["whole"], ","),
        Cell(f"{whole / _HOUR:,.0f} hours" if whole > 2 * _HOUR else f"{whole:,.2f} s", whole),
        Cell("extrapolated" if extrapolated else "timed whole"),
        Cell(PAPER.get(record["step"], "")),
    )
