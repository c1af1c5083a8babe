"""The report as one HTML page that needs nothing but itself: its style and its script are inside."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from bench.boards import Board, Cell, Table
from bench.charts import render_chart
from bench.findings import Finding

_STYLE, _SCRIPT = Path(__file__).with_name("page.css"), Path(__file__).with_name("page.js")


def render_page(title: str, boards: Sequence[Board], found: Sequence[Finding], how_to_read: Sequence[str]) -> str:
    """The whole page.

    Args:
        title: Its heading.
        boards: What to show.
        found: Headline figures.
        how_to_read: Paragraphs that say what the figures hold.
    """
    blocks = "\n".join(_board(board) for board in boards)
    reading = "".join(f"<li>{escape(line)}</li>" for line in how_to_read)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{_STYLE.read_text(encoding='utf-8')}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{escape(title)}</h1>\n{_tiles(found)}\n{blocks}\n<section>\n<h2>How to read this</h2>\n"
        f'<ul class="reading">{reading}</ul>\n</section>\n</main>\n'
        f"<script>\n{_SCRIPT.read_text(encoding='utf-8')}</script>\n</body>\n</html>\n"
    )


def _tiles(found: Sequence[Finding]) -> str:
    tiles = [
        f'<li><span class="what">{escape(finding.label)}</span><strong>{escape(finding.value)}</strong>'
        f'<span class="note">{escape(finding.note)}</span></li>'
        for finding in found
    ]
    return f'<ul class="tiles">{"".join(tiles)}</ul>' if tiles else ""


def _board(board: Board) -> str:
    charts = "\n".join(render_chart(chart) for chart in board.charts)
    tables = "\n".join(_table(table, board.title) for table in board.tables)
    below = f"{_remarks(board)}{_conditions(board)}"
    return f"<section>\n<h2>{escape(board.title)}</h2>\n{charts}\n{tables}\n{below}\n</section>"


def _table(table: Table, title: str) -> str:
    def kind(number: bool) -> str:
        return ' class="number"' if number else ""

    head = "".join(
        f'<th scope="col"{kind(column.number)}><button type="button">{escape(column.heading)}</button></th>'
        for column in table.columns
    )
    body = "\n".join(
        f"<tr{' class=baseline' if place in table.marked else ''}>"
        + "".join(
            f"<td{kind(column.number)}{_value(cell)}>{escape(cell.text)}</td>"
            for cell, column in zip(cells, table.columns, strict=True)
        )
        + "</tr>"
        for place, cells in enumerate(table.rows)
    )
    label = escape(f"{table.caption or 'figures'}: {title}")
    caption = f"<h3>{escape(table.caption)}</h3>\n" if table.caption else ""
    return (
        f'{caption}<div class="scroll" tabindex="0" role="region" aria-label="{label}">\n<table>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>\n</div>"
    )


def _value(cell: Cell) -> str:
    return "" if cell.value is None else f' data-value="{cell.value:.9g}"'


def _remarks(board: Board) -> str:
    lines = "".join(f"<li>{escape(remark)}</li>" for remark in board.remarks)
    return f'<ul class="fallen">{lines}</ul>\n' if lines else ""


def _conditions(board: Board) -> str:
    lines = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in board.conditions.items())
    return f"<details open><summary>Conditions</summary><dl>{lines}</dl></details>" if lines else ""
