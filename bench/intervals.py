"""Ratios to a reference that runs just before and just after, and how well their median is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from statistics import mean, median

# An interval holds the true median in at least this share of cases; of fewer than six values none does, not even
# their whole range, which is what stands there then.
COVERAGE = 0.95


@dataclass(frozen=True, slots=True)
class Call:
    """One timed call.

    Attributes:
        round: The run and the round that it is part of; calls of different rounds are never compared.
        turn: Its place in the round.
        seconds: What it took.
    """

    round: tuple[str, int]
    turn: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Spread:
    """A median and what it may be.

    Attributes:
        middle: The median.
        low: Lower end of its interval.
        high: Upper end.
        count: Values it was taken over.
    """

    middle: float
    low: float
    high: float
    count: int

    @property
    def width(self) -> float:
        """Half the interval's width as a share of the median."""
        return (self.high - self.low) / 2 / self.middle


def spread_of(values: Sequence[float]) -> Spread:
    """The median of values with its interval: that between two order statistics, which asks for no distribution.

    The k-th smallest and the k-th largest of n values hold the median between them unless fewer than k values fall on
    one side of it, which is a matter of n tosses of a coin.
    """
    ordered, count = sorted(values), len(values)
    rank = 1  # of the lower end
    while rank < count / 2 and _missed(count, rank + 1) <= 1 - COVERAGE:
        rank += 1
    return Spread(median(ordered), ordered[rank - 1], ordered[count - rank], count)


def _missed(count: int, rank: int) -> float:
    """How likely the median of ``count`` values is outside of the ``rank``-th smallest and largest."""
    return sum(comb(count, tosses) for tosses in range(rank)) / 2.0 ** (count - 1)


def speedups(calls: Sequence[Call], reference: Sequence[Call]) -> list[float]:
    """How many times faster each call was than the reference around it: the mean of the nearest before and after.

    Args:
        calls: Of one row.
        reference: Of the reference on the same work. A call in whose round it did not run is left out.
    """
    by_round: dict[tuple[str, int], list[Call]] = {}
    for call in reference:
        by_round.setdefault(call.round, []).append(call)
    found = []
    for call in calls:
        others = by_round.get(call.round, [])
        before = max((other for other in others if other.turn < call.turn), key=lambda other: other.turn, default=None)
        after = min((other for other in others if other.turn > call.turn), key=lambda other: other.turn, default=None)
        around = [other.seconds for other in (before, after) if other]
        if around:
            found.append(mean(around) / call.seconds)
    return found
