"""The report as one HTML page that needs nothing but itself: no script, no font, no picture from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

from bench.findings import Finding
from bench.metrics import MEASURED, Row, Section

Columns = Sequence[tuple[str, bool]]
Table = Callable[[Section], tuple[Columns, list[list[str]]]]

_STYLE = Path(__file__).with_name("page.css")
_HUES = 6  # colours that page.css has for contestants
# The drawing's own units; it is stretched to the width that the page has.
_WIDTH, _HEIGHT = 1000.0, 20.0


def render_page(
    title: str,
    parts: Sequence[Section],
    found: Sequence[Finding],
    table: Table,
    how_to_read: Sequence[str],
) -> str:
    """The whole page.

    Args:
        title: Its heading.
        parts: What to show, a chart and a table each.
        found: Headline figures.
        table: A section's headings, whether numbers stand under them, and each row as text.
        how_to_read: Paragraphs that say what the figures hold.
    """
    names = list(dict.fromkeys(row.contestant for part in parts for row in part.rows))
    hues = {name: place % _HUES for place, name in enumerate(names)}
    blocks = [_section(part, hues, table) for part in parts]
    reading = "".join(f"<li>{escape(line)}</li>" for line in how_to_read)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{_STYLE.read_text(encoding='utf-8')}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{escape(title)}</h1>\n{_tiles(found)}\n" + "\n".join(blocks) + "\n<section>\n<h2>How to read this</h2>\n"
        f'<ul class="reading">{reading}</ul>\n</section>\n</main>\n</body>\n</html>\n'
    )


def _tiles(found: Sequence[Finding]) -> str:
    tiles = [
        f'<li><span class="what">{escape(finding.label)}</span><strong>{escape(finding.value)}</strong>'
        f'<span class="note">{escape(finding.note)}</span></li>'
        for finding in found
    ]
    return f'<ul class="tiles">{"".join(tiles)}</ul>'


def _section(part: Section, hues: dict[str, int], table: Table) -> str:
    return (
        f"<section>\n<h2>{escape(part.title)}</h2>\n{_chart(part.rows, hues)}\n"
        f"{_table(part, table)}\n{_fallen(part)}{_conditions(part)}\n</section>"
    )


def _chart(rows: Sequence[Row], hues: dict[str, int]) -> str:
    measured = [row for row in rows if row.status == MEASURED]
    if not measured:
        return "<p>No row was measured.</p>"
    full = max(row.fastest or 0.0 for row in measured)
    base = next((row.rate for row in measured if row.baseline), None)
    bars = "\n".join(_bar(row, full, base, hues[row.contestant]) for row in measured)
    dashes = ", dashes = the baseline" if base else ""
    return (
        f'<figure>\n<ol class="chart">\n{bars}\n</ol>\n'
        f"<figcaption>sentences/s: bar = median, whisker = slowest to fastest call{dashes}</figcaption>\n</figure>"
    )


def _bar(row: Row, full: float, base: float | None, hue: int) -> str:
    def place(rate: float | None) -> float:
        return round(_WIDTH * 0.995 * (rate or 0.0) / full, 1)  # a whisker at the very edge would be cut in half

    middle, low, high = _HEIGHT / 2, place(row.slowest), place(row.fastest)
    rate = f"{row.rate:,.0f}" if row.rate else ""
    detail = ", ".join(text for text in (row.policy, row.batch) if text)
    tokens = "" if row.tokenisation_inside else "tokenised before"
    small = " · ".join(text for text in (detail, tokens, row.precision) if text)
    marks = f"M{low} {middle}H{high}M{low} 5V15M{high} 5V15"
    baseline = f'<path class="base" d="M{place(base)} 0V{_HEIGHT}"/>' if base else ""
    return (
        f'<li class="hue{hue}"><span class="label"><b>{escape(row.contestant)}</b> {escape(small)}</span>'
        f'<svg viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(row.contestant)}, {escape(small)}: {rate} sentences per second">'
        f'<rect width="{place(row.rate)}" height="{_HEIGHT:.0f}"/>{baseline}<path class="whisker" d="{marks}"/>'
        f'</svg><span class="value">{rate}</span></li>'
    )


def _table(part: Section, table: Table) -> str:
    def kind(number: bool) -> str:
        return ' class="number"' if number else ""

    columns, rows = table(part)
    head = "".join(f'<th scope="col"{kind(number)}>{escape(name)}</th>' for name, number in columns)
    body = "\n".join(
        f"<tr{' class=baseline' if row.baseline else ''}>"
        + "".join(f"<td{kind(number)}>{escape(text)}</td>" for text, (_, number) in zip(cells, columns, strict=True))
        + "</tr>"
        for row, cells in zip(part.rows, rows, strict=True)
    )
    label = escape(f"figures of {part.title}")
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">\n<table>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>\n</div>"
    )


def _fallen(part: Section) -> str:
    lines = [
        f"<li><b>{escape(row.contestant)}</b>, {escape(row.policy)}: {escape(row.status)}: {escape(row.reason)}</li>"
        for row in part.rows
        if row.status != MEASURED
    ]
    lines += [f"<li>{escape(remark)}</li>" for remark in part.remarks]
    return f'<ul class="fallen">{"".join(lines)}</ul>\n' if lines else ""


def _conditions(part: Section) -> str:
    lines = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in part.conditions.items())
    return f"<details open><summary>Conditions</summary><dl>{lines}</dl></details>"
