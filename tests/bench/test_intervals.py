"""Intervals and ratios against values known by hand and by many draws."""

from __future__ import annotations

import numpy as np
import pytest

from bench.intervals import Call, speedups, spread_of


@pytest.mark.parametrize(
    ("count", "rank"),
    # Tables of the sign test: 2 (1 + 8) / 2^8 is above 5 %, 2 (1 + 9) / 2^9 below it.
    [(1, 1), (5, 1), (6, 1), (8, 1), (9, 2), (12, 3), (20, 6)],
)
def test_the_interval_stands_between_order_statistics(count: int, rank: int) -> None:
    found = spread_of([float(value) for value in range(count, 0, -1)])
    assert (found.low, found.high, found.count) == (rank, count + 1 - rank, count)
    assert found.middle == (count + 1) / 2


def test_it_holds_the_median_as_often_as_it_says() -> None:
    draw = np.random.default_rng(1)
    spreads = [spread_of(draw.lognormal(sigma=0.3, size=12).tolist()) for _ in range(2000)]
    held = np.mean([spread.low <= 1 <= spread.high for spread in spreads])
    assert 0.95 <= held <= 0.975  # 96.1 % for twelve values


def test_a_drift_of_the_machine_cancels() -> None:
    """All calls get slower by a tenth of a second a turn; the row takes half as long as the baseline."""
    reference = [Call(("r", number), turn, 2 * (1 + 0.1 * turn)) for number in range(3) for turn in (0, 2, 4)]
    calls = [Call(("r", number), turn, 1 + 0.1 * turn) for number in range(3) for turn in (1, 3)]
    assert speedups(calls, reference) == pytest.approx([2.0] * 6)


def test_rounds_and_runs_are_never_mixed() -> None:
    reference = [Call(("r", 0), 0, 2.0), Call(("s", 0), 0, 8.0)]
    assert speedups([Call(("r", 0), 1, 1.0), Call(("s", 0), 1, 1.0), Call(("r", 1), 1, 1.0)], reference) == [2.0, 8.0]
