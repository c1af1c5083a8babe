"""The short table of a grid, as the README shows it: each contestant once, by its fastest row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import fill

from bench.boards import Cell, Table, columns, number
from bench.encoder_board import RATE, cosine_cell, rate_cell, ratio_cell, title_of, waste_cell
from bench.report import render_table
from bench.rows import MEASURED, Row, Section, ahead_of_ours, pace
from sentport.errors import SentportError
from sentport.files import file_written_aside

_NUMBERS = (RATE, "× baseline", "padding waste", "worst cosine", "STS-B Spearman")
_WIDTH = 120
_HEADS = columns(f"contestant | batch policy | {' | '.join(_NUMBERS)}", _NUMBERS)


def summary(parts: Sequence[Section]) -> str:
    """Sections as Markdown: a table, what did not run and why, and the conditions, for each."""
    titles = [f"**{part.title}**" if len(parts) > 1 else "" for part in parts]
    blocks = [
        block
        for title, part in zip(titles, parts, strict=True)
        for block in (title, _table(part), _fallen(part), _conditions(part))
    ]
    return "\n\n".join(block for block in blocks if block)


def write_between_marks(file: Path, name: str, block: str) -> None:
    """Replace what stands between the two marks of a grid.

    Args:
        file: Markdown.
        name: The grid's.
        block: What shall stand there.

    Raises:
        SentportError: When the file cannot be read, or lacks the marks.
    """
    before, _, after = _parts_of(file, name)
    with file_written_aside(file) as aside:
        aside.write_text(f"{before}\n{block}\n{after}", encoding="utf-8")


def between_marks(file: Path, name: str) -> str:
    """What stands between them.

    Raises:
        SentportError: When the file cannot be read, or lacks the marks.
    """
    return _parts_of(file, name)[1].strip("\n")


def _parts_of(file: Path, name: str) -> tuple[str, str, str]:
    """Up to the first mark, what stands between them, and from the second mark on."""
    start, end = f"<!-- table of {name} -->", f"<!-- end of the table of {name} -->"
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SentportError(f"{file} cannot be read ({error}); expected Markdown to put the table in") from None
    before, first, rest = text.partition(start)
    inside, second, after = rest.partition(end)
    if not first or not second:
        raise SentportError(f"{file} has no place for the table; put the lines {start} and {end} there")
    return before + first, inside, second + after


def _table(part: Section) -> str:
    rows = sorted(_best(part.rows), key=_order)
    return render_table(Table(_HEADS, tuple(_cells(row, ahead=ahead_of_ours(row, rows)) for row in rows)))


def _best(rows: Sequence[Row]) -> list[Row]:
    """Each contestant's fastest row, with the worst vectors and the quality of them all."""
    held: dict[str, list[Row]] = {}
    for row in rows:
        if row.status == MEASURED and row.tokenisation_inside:
            held.setdefault(row.contestant, []).append(row)
    return [_combined(group) for group in held.values()]


def _combined(rows: Sequence[Row]) -> Row:
    return replace(
        max(rows, key=lambda row: (row.baseline, pace(row))),
        worst_cosine=min(row.worst_cosine or 0.0 for row in rows),
        wrong=any(row.wrong for row in rows),
        spearman=next((row.spearman for row in rows if row.spearman is not None), None),
    )


def _order(row: Row) -> tuple[object, ...]:
    """In a process: the baseline, peers, ours; then servers, those that are asked alike side by side."""
    return row.request > 0, -row.request, not row.baseline, not row.peer


def _cells(row: Row, *, ahead: bool) -> tuple[Cell, ...]:
    lower = "" if row.precision == "fp32" or row.precision in row.contestant else f", {row.precision}"
    return (
        Cell(f"{title_of(row, ahead=ahead)}{lower}"),
        Cell(", ".join(text for text in (row.policy, row.batch) if text)),
        rate_cell(row),
        ratio_cell(row),
        waste_cell(row),
        cosine_cell(row),
        number(row.spearman, ".2f", missing="—"),
    )


def _fallen(part: Section) -> str:
    """Each once, since a peer's rows fall together."""
    lines = {f"- {row.contestant}: {row.status}: {row.reason}": None for row in part.rows if row.status != MEASURED}
    return "\n".join([*lines, *(f"- {remark}" for remark in part.remarks)])


def _conditions(part: Section) -> str:
    said = part.conditions
    threads = max((row.sessions * row.threads for row in part.rows), default=0)
    lines = (
        f"{part.model}, fp32 unless the name says otherwise, each at the fastest of its batch sizes, tokenisation",
        f"inside, {threads} thread{'s'[: threads > 1]} in all. Corpus: {said['corpus']}. Machine: {said['machine']}.",
        f"Medians; {said.get('method', 'nothing measured')}; × baseline is the median ratio to its calls just before",
        f"and after, with its interval. {said['versions']}; {said['date'][:10]}.",
    )
    return fill(" ".join(lines), _WIDTH, break_long_words=False, break_on_hyphens=False)
