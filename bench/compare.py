"""Two runs of one grid, row by row: what got slower, what faster, and what the runs cannot tell.

What is compared is each row's ratio to its own baseline, so that another machine, or a busier one, changes nothing. The
change between two ratios lies between the quotients of their intervals' far ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.boards import Board, Cell, Column, Table, percent
from bench.rows import MEASURED, Row, Section
from sentport.errors import SentportError

# A change below this is none: rebuilding the same binary moves some rows by as much.
LEAST = 0.05
SLOWER, FASTER, SAME, UNCLEAR, LOST = "slower", "faster", "no change", "unclear", "lost"
REGRESSIONS = (SLOWER, LOST)

_HEADS = (
    Column("corpus"),
    Column("contestant"),
    Column("batch policy"),
    Column("× baseline before", True),
    Column("× baseline after", True),
    Column("change", True),
    Column("at least", True),
    Column("at most", True),
    Column("verdict"),
)


@dataclass(frozen=True, slots=True)
class Change:
    """What became of a row.

    Attributes:
        corpus: Its corpus.
        before: The row then.
        after: The row now; None where it is no longer there.
        middle: After over before, of the ratios; None where either was not measured.
        low: The least that it can be.
        high: The most.
        verdict: One of the words above.
    """

    corpus: str
    before: Row
    after: Row | None
    middle: float | None
    low: float | None
    high: float | None
    verdict: str


def compare(before: Sequence[Section], after: Sequence[Section], least: float = LEAST) -> list[Change]:
    """The changes of all rows that were measured before and have a ratio.

    Args:
        before: Sections of the run that is compared with.
        after: Sections of the other.
        least: A smaller change is none.

    Raises:
        SentportError: When the two have no row in common.
    """
    now = {_identity(part, row): row for part in after for row in part.rows if not row.baseline}
    rows = [(part, row) for part in before for row in part.rows if row.ratio is not None and not row.baseline]
    if not any(_identity(part, row) in now for part, row in rows):
        raise SentportError("the two runs have no row with a baseline in common; compare two runs of one grid")
    return [_change(part.corpus, row, now.get(_identity(part, row)), least) for part, row in rows]


def _identity(part: Section, row: Row) -> tuple[object, ...]:
    return (
        *(part.corpus, part.model, row.contestant, row.policy, row.batch, row.tokenisation_inside),
        *(row.precision, row.layout, row.device, row.sessions, row.threads),
    )


def _change(corpus: str, before: Row, after: Row | None, least: float) -> Change:
    if after is None or after.status != MEASURED or after.ratio is None:
        return Change(corpus, before, after, None, None, None, LOST)
    assert before.ratio
    assert before.ratio_low
    assert before.ratio_high
    assert after.ratio_low
    assert after.ratio_high
    middle = after.ratio / before.ratio
    low, high = after.ratio_low / before.ratio_high, after.ratio_high / before.ratio_low
    return Change(corpus, before, after, middle, low, high, _verdict(middle, low, high, least))


def _verdict(middle: float, low: float, high: float, least: float) -> str:
    if abs(middle - 1) < least:
        return SAME
    if low <= 1 <= high:
        return UNCLEAR
    return SLOWER if middle < 1 else FASTER


def board(changes: Sequence[Change], least: float) -> Board:
    """The changes, the worst first."""
    ordered = sorted(changes, key=lambda change: (change.verdict not in REGRESSIONS, change.middle or 0.0))
    rows = tuple(
        (
            Cell(change.corpus),
            Cell(change.before.contestant),
            Cell(f"{change.before.policy}, {change.before.batch}"),
            _ratio(change.before),
            _ratio(change.after),
            *(_percent(value) for value in (change.middle, change.low, change.high)),
            Cell(change.verdict),
        )
        for change in ordered
    )
    conditions = {
        "ratios": "to the baseline of the same run, so that the machines' speed is out of it",
        "verdict": f"below {100 * least:.0f} % is no change; more is one where the whole interval is on one side of 0",
    }
    return Board("Two runs compared", (Table(_HEADS, rows),), conditions=conditions)


def _ratio(row: Row | None) -> Cell:
    if row is None or row.ratio is None:
        return Cell(row.status if row else "not there")
    return Cell(f"{row.ratio:.2f} ({row.ratio_low:.2f}-{row.ratio_high:.2f})", row.ratio)


def _percent(value: float | None) -> Cell:
    return percent(None if value is None else 100 * (value - 1), "+.1f", missing="")
