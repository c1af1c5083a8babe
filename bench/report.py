"""Rows to what a person reads: one Markdown table a section, for the terminal as well as for a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.findings import Finding, findings
from bench.metrics import MEASURED, Row, Section
from bench.page import Columns, render_page

TITLE = "Sentences per second"

# Heading, whether numbers stand in it (right-aligned), for the table on the page as well.
COLUMNS: tuple[tuple[str, bool], ...] = (
    ("contestant", False),
    ("batch policy", False),
    ("tokenisation", False),
    ("sentences/s", True),
    ("min-max", True),
    ("× baseline", True),
    ("padding waste", True),
    ("worst cosine", True),
    ("timed calls", True),
    ("runs on", False),
)
# Behind them where quality was asked for.
QUALITY_COLUMNS = (("Spearman", True), ("alone / in company", True))

HOW_TO_READ = (
    "A figure is the median over the timed calls; min-max is their whole spread. One call answers the whole corpus, "
    "and all rows of a section ran interleaved, in a random order in every round, so compare within a section only.",
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
)


def write_report(parts: Sequence[Section], out: Path) -> tuple[Path, Path]:
    """Write ``report.md`` and ``report.html``.

    Args:
        parts: What to show.
        out: Folder, made where it is missing.

    Returns:
        Both files.
    """
    out.mkdir(parents=True, exist_ok=True)
    markdown, page = out / "report.md", out / "report.html"
    markdown.write_text(render_markdown(parts), encoding="utf-8")
    page.write_text(render_page(TITLE, parts, findings(parts), table, HOW_TO_READ), encoding="utf-8")
    return markdown, page


def render_markdown(parts: Sequence[Section]) -> str:
    """The whole report."""
    blocks = [f"# {TITLE}", *(f"- {line}" for line in headlines(findings(parts)))]
    for part in parts:
        blocks += ["", f"## {_one_line(part.title)}", "", render_table(part), ""]
        blocks += [f"- {name}: {_one_line(value)}" for name, value in part.conditions.items()]
    blocks += ["", "## How to read this", "", *(f"- {line}" for line in HOW_TO_READ)]
    return "\n".join(blocks) + "\n"


def headlines(found: Sequence[Finding]) -> list[str]:
    """The headline figures as lines."""
    return [_one_line(f"{finding.label}: {finding.value} ({finding.note})") for finding in found]


def render_table(part: Section) -> str:
    """A Markdown table whose columns are aligned in plain text too."""
    shown, rows = table(part)
    lines = [[heading for heading, _ in shown], *([_cell(text) for text in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(shown))]
    rule = ["-" * (width - 1) + (":" if number else "-") for width, (_, number) in zip(widths, shown, strict=True)]
    return "\n".join(_line(line, widths, shown) for line in (lines[0], rule, *lines[1:])) + _below(part)


def table(part: Section) -> tuple[Columns, list[list[str]]]:
    """A section's table: its columns, and the cells of each row."""
    rows = [cells(row) for row in part.rows]
    if all(row.spearman is None for row in part.rows):
        return COLUMNS, rows
    return COLUMNS + QUALITY_COLUMNS, [[*of_row, *_quality(row)] for of_row, row in zip(rows, part.rows, strict=True)]


def cells(row: Row) -> list[str]:
    """A row as text, one cell for each of ``COLUMNS``."""
    policy = ", ".join(part for part in (row.policy, row.batch) if part)
    who = f"{row.contestant} (baseline)" if row.baseline else row.contestant
    tokenisation = "inside" if row.tokenisation_inside else "outside"
    if row.status != MEASURED:
        return [who, policy, tokenisation, row.status, "", "", "", "", "", row.device]
    return [
        who,
        policy,
        tokenisation,
        _rate(row.rate),
        f"{_rate(row.slowest)}-{_rate(row.fastest)}",
        "" if row.ratio is None else f"{row.ratio:.2f}",
        "—" if row.waste is None else f"{row.waste:.1f} %",
        "" if row.worst_cosine is None else f"{row.worst_cosine:.7f}{', wrong' if row.wrong else ''}",
        f"{row.repeats}" if row.repeats >= row.repeats_planned else f"{row.repeats} of {row.repeats_planned}",
        f"{row.device} {row.precision}, {row.sessions} × {row.threads} threads",
    ]


def _quality(row: Row) -> list[str]:
    if row.spearman is None or row.alone_cosine is None:
        return ["", ""]
    return [f"{row.spearman:.2f}", f"{row.alone_cosine:.7f}"]


def _rate(rate: float | None) -> str:
    # Three digits are more than the spread ever supports.
    return "" if rate is None else f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _line(texts: Sequence[str], widths: Sequence[int], columns: Columns) -> str:
    padded = [
        text.rjust(width) if number else text.ljust(width)
        for text, width, (_, number) in zip(texts, widths, columns, strict=True)
    ]
    return f"| {' | '.join(padded)} |"


def _below(part: Section) -> str:
    lines = [
        f"{row.contestant}, {row.policy}: {row.status}: {row.reason}" for row in part.rows if row.status != MEASURED
    ]
    lines += part.remarks
    return "\n\n" + "\n".join(f"- {_one_line(line)}" for line in lines) if lines else ""


def _cell(text: str) -> str:
    return _one_line(text).replace("|", "\\|")


def _one_line(text: str) -> str:
    return " ".join(text.split())
