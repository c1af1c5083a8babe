"""What a report consists of, whatever was measured: boards of charts and tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.charts import Chart

PERCENT = "%"


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a table.

    Attributes:
        text: As shown.
        value: As sorted and exported, where it is a number.
        spread: From where to where its interval goes; a CSV file has both in columns of their own.
    """

    text: str
    value: float | None = None
    spread: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Attributes:
        heading: With the unit.
        number: Whether numbers stand in it, which are right-aligned.
    """

    heading: str
    number: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings.

    Attributes:
        columns: C columns.
        rows: C cells each.
        marked: Rows that the others refer to.
        caption: What the table shows, where a board has several.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    marked: frozenset[int] = frozenset()
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Board:
    """One section of a report.

    Attributes:
        title: Its heading.
        tables: Its figures.
        charts: Its pictures.
        conditions: Name to value, what all figures share.
        remarks: What fell out or is missing.
    """

    title: str
    tables: tuple[Table, ...]
    charts: tuple[Chart, ...] = ()
    conditions: dict[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


def number(value: float | None, form: str = "", *, missing: str = "") -> Cell:
    """A number as a cell.

    Args:
        value: The number; None = there is none.
        form: How to show it, as ``format`` takes it; empty = with three digits, all those before the point.
        missing: What stands there where there is none.
    """
    if value is None:
        return Cell(missing)
    return Cell(format(value, form) if form else brief(value), value)


def percent(value: float | None, form: str = ".1f", *, missing: str = "—") -> Cell:
    """A number of hundredths as a cell, to which a CSV file's heading gives the unit.

    Args:
        value: In percent; None = there is none.
        form: How to show it, as ``format`` takes it.
        missing: What stands there where there is none.
    """
    return Cell(missing) if value is None else Cell(f"{format(value, form)} {PERCENT}", value)


def brief(value: float) -> str:
    """Three digits, or all before the point: more than the spread of a time ever supports."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def columns(names: str, numbers: Sequence[str] = ()) -> tuple[Column, ...]:
    """Columns by their headings.

    Args:
        names: Headings, separated by ``|``.
        numbers: Those under which numbers stand.
    """
    headings = [name.strip() for name in names.split("|")]
    return tuple(Column(heading, heading in numbers) for heading in headings)
