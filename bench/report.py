"""Boards to what a person reads: Markdown for the terminal and a file, a page, and a CSV file a table."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.boards import PERCENT, Board, Cell, Table
from bench.findings import Finding
from bench.page import render_page

TITLE = "Sentences per second"

HOW_TO_READ = (
    "A figure is the median over the timed calls; min-max is their whole spread. One call answers the whole corpus. "
    "The baseline ran first, last and between in every round, so each call has it just before and just after. The "
    "ratio to the mean of these two is what compares rows; the range behind it holds its median in 95 % of cases, or "
    "is the whole spread where there were fewer than six rounds.",
    "Inside every timing: grouping texts into batches, padding, the model, and vectors back in the order of the texts. "
    "Tokenisation is inside or outside as the row says. Outside every timing: loading, warm-up, checking the answers.",
    "A row through Triton also holds the clients: they share the machine's cores with the server, "
    "which stands idle while the other rows are timed.",
    "Before its first timing, each row had to give the reference's vectors for the whole corpus, for texts in another "
    "order, for texts never seen before, and for texts beyond the length limit; one that answers seen texts faster "
    "than new ones is rejected, in calls of a few texts as well as of the whole corpus. "
    "Every timed answer was checked again; the worst cosine is over these. A peer promised no cosine: where it falls "
    "under the gate of its precision, it is timed and called wrong.",
    "Padding waste is the share of computed tokens that were padding; a dash where it cannot be seen from outside. A "
    "packed graph computes none, but attention, a small part, on its batch's rectangle.",
    "GFLOP/s counts what the model needs for real tokens, padding is no work; of the most is its share of the fastest "
    "square product in that precision, measured in the same run.",
)


@dataclass(frozen=True, slots=True)
class Report:
    """What was written: the page, the same as Markdown, and one CSV file for each table."""

    page: Path
    markdown: Path
    tables: tuple[Path, ...]


def write_report(boards: Sequence[Board], found: Sequence[Finding], out: Path, title: str = TITLE) -> Report:
    """Write ``report.html``, ``report.md`` and ``csv/``.

    Args:
        boards: What to show.
        found: Headline figures.
        out: Folder, made where it is missing.
        title: The report's heading.
    """
    markdown, page = out / "report.md", out / "report.html"
    if page.exists():  # an older report, whose tables would stand among the new ones
        for old in (out / "csv").glob("[0-9][0-9]-*.csv"):
            old.unlink()
    (out / "csv").mkdir(parents=True, exist_ok=True)
    markdown.write_text(render_markdown(boards, found, title), encoding="utf-8")
    page.write_text(render_page(title, boards, found, HOW_TO_READ), encoding="utf-8")
    tables = [(board.title, table) for board in boards for table in board.tables]
    files = [
        _write_csv(table, out / "csv" / f"{place:02d}-{_slug(f'{name} {table.caption}')}.csv")
        for place, (name, table) in enumerate(tables, 1)
    ]
    return Report(page, markdown, tuple(files))


def render_markdown(boards: Sequence[Board], found: Sequence[Finding], title: str = TITLE) -> str:
    """The whole report."""
    blocks = [f"# {title}", *(f"- {line}" for line in headlines(found))]
    for board in boards:
        blocks += ["", f"## {_one_line(board.title)}", "", render_board(board), ""]
        blocks += [f"- {name}: {_one_line(value)}" for name, value in board.conditions.items()]
    blocks += ["", "## How to read this", "", *(f"- {line}" for line in HOW_TO_READ)]
    return "\n".join(blocks) + "\n"


def headlines(found: Sequence[Finding]) -> list[str]:
    """The headline figures as lines."""
    return [_one_line(f"{finding.label}: {finding.value} ({finding.note})") for finding in found]


def render_board(board: Board) -> str:
    """A board's tables in Markdown, with what fell out under them."""
    blocks = [(f"{table.caption}\n\n" if table.caption else "") + render_table(table) for table in board.tables]
    if board.remarks:
        blocks.append("\n".join(f"- {_one_line(line)}" for line in board.remarks))
    return "\n\n".join(blocks)


def render_table(table: Table) -> str:
    """A Markdown table whose columns are aligned in plain text too."""
    lines = [[column.heading for column in table.columns], *([_cell(cell.text) for cell in row] for row in table.rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(table.columns))]
    rule = [
        "-" * (width - 1) + (":" if column.number else "-") for width, column in zip(widths, table.columns, strict=True)
    ]
    return "\n".join(_line(line, widths, table) for line in (lines[0], rule, *lines[1:]))


def _write_csv(table: Table, file: Path) -> Path:
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        wide = [any(row[place].spread for row in table.rows) for place in range(len(table.columns))]
        writer.writerow([part for place, spread in enumerate(wide) for part in _headings(table, place, spread)])
        for row in table.rows:
            writer.writerow([part for cell, spread in zip(row, wide, strict=True) for part in _values(cell, spread)])
    return file


def _headings(table: Table, place: int, spread: bool) -> list[str]:
    heading = table.columns[place].heading
    if any(row[place].text.endswith(PERCENT) for row in table.rows):
        heading = f"{heading}, {PERCENT}"
    name = heading.partition(" (")[0]
    return [name, f"{name}, from", f"{name}, to"] if spread else [heading]


def _values(cell: Cell, spread: bool) -> list[str | float]:
    value = cell.text if cell.value is None else cell.value
    return [value, *(cell.spread or ("", ""))] if spread else [value]


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60].strip("-")


def _line(texts: Sequence[str], widths: Sequence[int], table: Table) -> str:
    padded = [
        text.rjust(width) if column.number else text.ljust(width)
        for text, width, column in zip(texts, widths, table.columns, strict=True)
    ]
    return f"| {' | '.join(padded)} |"


def _cell(text: str) -> str:
    return _one_line(text).replace("|", "\\|")


def _one_line(text: str) -> str:
    return " ".join(text.split())
