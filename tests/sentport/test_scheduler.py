"""Batch plans: every row once, the budget kept, the waste right."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sentport import scheduler
from sentport.batch import TokenBatch
from sentport.bundle import LAYOUTS
from sentport.errors import SentportError
from sentport.scheduler import (
    BatchPolicy,
    computed_tokens,
    plan_batches,
    run_batches,
    shared_budget,
    unique_texts,
)
from sentport.tokenizer import Tokens

LENGTHS = st.lists(st.integers(0, 600), max_size=80).map(lambda values: np.array(values, np.int64))


@given(LENGTHS, st.sampled_from(BatchPolicy), st.integers(1, 700), st.integers(1, 9), st.sampled_from(LAYOUTS))
def test_every_row_stands_in_exactly_one_batch(
    lengths: np.ndarray, policy: BatchPolicy, budget: int, rows: int, layout: str
) -> None:
    batches = plan_batches(lengths, policy, token_budget=budget, rows_per_batch=rows, layout=layout)
    assert all(len(batch) for batch in batches)
    assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))


@given(LENGTHS, st.integers(1, 700))
def test_token_budget_is_kept_by_every_batch_of_several_rows(lengths: np.ndarray, budget: int) -> None:
    for batch in plan_batches(lengths, token_budget=budget):
        assert len(batch) == 1 or len(batch) * lengths[batch].max() <= budget


@given(LENGTHS, st.integers(1, 700))
def test_a_packed_batch_keeps_the_budget_by_its_tokens_and_nearly_by_its_rectangle(
    lengths: np.ndarray, budget: int
) -> None:
    batches = plan_batches(lengths, token_budget=budget, layout="packed")
    for batch in batches:
        longest = max(1, lengths[batch].max())
        assert len(batch) == 1 or lengths[batch].sum() <= budget
        assert len(batch) == 1 or len(batch) * longest <= scheduler._RECTANGLE * budget
    for full, after in pairwise(batches):  # one row more would have been too much
        longest, row = max(1, lengths[full].max()), lengths[after[0]]
        rectangle = (len(full) + 1) * longest
        assert lengths[full].sum() + row > budget or rectangle > scheduler._RECTANGLE * budget


@given(LENGTHS, st.integers(1, 700))
def test_packed_plans_have_no_more_batches_than_padded_ones(lengths: np.ndarray, budget: int) -> None:
    padded, packed = (plan_batches(lengths, token_budget=budget, layout=layout) for layout in LAYOUTS)
    assert len(packed) <= len(padded)
    assert computed_tokens(lengths, packed, "packed") <= computed_tokens(lengths, padded, "padded")


def test_policies_by_hand() -> None:
    lengths = np.array([3, 9, 1, 9])
    plans = {policy: [b.tolist() for b in plan_batches(lengths, policy, rows_per_batch=2)] for policy in BatchPolicy}
    assert plans[BatchPolicy.ONE_BY_ONE] == [[0], [1], [2], [3]]
    assert plans[BatchPolicy.ARRIVAL] == [[0, 1], [2, 3]]
    assert plans[BatchPolicy.SMART] == [[1, 3], [0, 2]]
    assert [b.tolist() for b in plan_batches(lengths, token_budget=10)] == [[1], [3], [0, 2]]
    mixed = np.array([8, 1, 6, 5, 1])
    assert [b.tolist() for b in plan_batches(mixed, token_budget=13)] == [[0], [2, 3], [1, 4]]
    # 8 + 6 tokens are over 13; 6 + 5 + 1 are not, but 3 x 6 is over 1.25 x 13.
    assert [b.tolist() for b in plan_batches(mixed, token_budget=13, layout="packed")] == [[0], [2, 3], [1, 4]]
    assert [b.tolist() for b in plan_batches(mixed, token_budget=15, layout="packed")] == [[0, 2], [3, 1, 4]]


def test_computed_tokens_by_hand() -> None:
    lengths = np.array([3, 9, 1, 9])
    # 22 real tokens; arrival: 2 x 9 + 2 x 9, smart: 2 x 9 + 2 x 3
    assert computed_tokens(lengths, plan_batches(lengths, BatchPolicy.ARRIVAL, rows_per_batch=2)) == 36
    assert computed_tokens(lengths, plan_batches(lengths, BatchPolicy.SMART, rows_per_batch=2)) == 24
    assert computed_tokens(np.zeros(0, np.int64), []) == 0
    assert computed_tokens(np.zeros(2, np.int64), [np.arange(2)]) == 2, "an empty row still has a column"
    assert computed_tokens(lengths, plan_batches(lengths, BatchPolicy.ARRIVAL, rows_per_batch=2), "packed") == 22
    assert computed_tokens(np.zeros(2, np.int64), [np.arange(2)], "packed") == 1, "one pad stands for all empty rows"


def test_limits_must_be_positive() -> None:
    with pytest.raises(SentportError, match="must be 1 or more"):
        plan_batches(np.array([1]), token_budget=0)


def test_unique_texts_keeps_first_appearance() -> None:
    distinct, inverse = unique_texts(["b", "a", "b", "c", "a"])
    assert distinct == ["b", "a", "c"]
    assert inverse.tolist() == [0, 1, 0, 2, 1]


class _Engine:
    """Notes which calls were made, and whether others ran beside."""

    name, precision, device, threads, layout, token_budget = "noting", "fp32", "cpu", 1, "padded", 256

    def __init__(self, sessions: int) -> None:
        self.sessions = sessions
        self.calls: list[tuple[int, bool]] = []

    def run(self, batch: TokenBatch, *, beside: bool = False) -> NDArray[np.float32]:
        self.calls.append((len(batch.lengths), beside))
        return np.add.reduceat(batch.ids, np.cumsum(batch.lengths) - batch.lengths)[:, None].astype(np.float32)

    def close(self) -> None:
        self.calls = []


def test_sessions_are_used_only_when_there_is_a_batch_for_each() -> None:
    rows = [np.full(length, length, np.int64) for length in (5, 2, 4, 3)]
    tokens = Tokens(rows, np.array([5, 2, 4, 3]))
    for sessions, plan, beside in (
        (1, [[0, 2], [1, 3]], False),
        (2, [[0, 2], [3, 1]], True),
        (2, [[0, 1, 2, 3]], False),
    ):
        engine = _Engine(sessions)
        vectors = run_batches(engine, tokens, [np.array(batch) for batch in plan], 1)
        assert vectors[:, 0].tolist() == [25, 4, 16, 9]
        assert sorted(engine.calls) == [(len(batch), beside) for batch in plan]


def test_little_work_is_cut_so_that_every_session_has_some() -> None:
    for lengths, sessions, budget in (([20] * 100, 2, 256), ([20] * 20, 2, 200), ([20] * 20, 8, 64), ([4], 8, 64)):
        assert shared_budget(np.array(lengths), _Engine(sessions)) == budget
