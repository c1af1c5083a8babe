"""Neighbours inside a corpus and their churn, against a full table of all pairs."""

from __future__ import annotations

import numpy as np
import pytest

from sentport.errors import SentportError
from sentport.evaluation import nearest_neighbours, neighbour_churn
from sentport.evaluation import neighbours as module


def table(rows: int, dim: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, dim)).astype(np.float32)


def by_all_pairs(vectors: np.ndarray, k: int) -> np.ndarray:
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    near = unit @ unit.T
    np.fill_diagonal(near, -2)
    return np.argsort(-near, axis=1)[:, :k]


@pytest.mark.parametrize("block", [1, 7, 64])
def test_blocks_give_what_the_full_table_gives(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BLOCK_ROWS", block)
    vectors = table(50, 8)
    assert (nearest_neighbours(vectors, 10) == by_all_pairs(vectors, 10)).all()
    assert nearest_neighbours(vectors, 49).shape == (50, 49)


def test_the_same_space_has_no_churn_whatever_its_dim_and_scale() -> None:
    vectors = table(60, 8)
    turned = vectors @ np.linalg.qr(table(8, 8, seed=1))[0]
    wider = np.concatenate([3 * turned, np.zeros((60, 5), np.float32)], axis=1)
    churn = neighbour_churn(vectors, wider)
    assert (churn.texts, churn.k, churn.kept, churn.nearest_changed) == (60, 10, 1.0, 0.0)


def test_churn_is_the_share_of_neighbours_that_are_lost() -> None:
    before, after = table(40, 6), table(40, 9, seed=2)
    churn = neighbour_churn(before, after, k=5)
    was, now = by_all_pairs(before, 5), by_all_pairs(after, 5)
    kept = [len(set(a) & set(b)) / 5 for a, b in zip(was.tolist(), now.tolist(), strict=True)]
    assert churn.kept == pytest.approx(np.mean(kept))
    assert churn.nearest_changed == pytest.approx((was[:, 0] != now[:, 0]).mean())
    assert 0 < churn.kept < 0.5


def test_ties_and_rounding_are_no_churn() -> None:
    vectors = np.repeat(table(5, 6), 4, axis=0)  # four equal rows each: which of three comes first means nothing
    noise = 1e-7 * table(20, 6, seed=3)
    churn = neighbour_churn(vectors, vectors + noise, k=2)
    assert (churn.kept, churn.nearest_changed) == (1.0, 0.0)


def test_fewer_texts_than_neighbours() -> None:
    assert neighbour_churn(table(4, 3), table(4, 3)).k == 3
    zeros = np.zeros((4, 3), np.float32)
    assert neighbour_churn(zeros, zeros).kept == 1.0


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (table(3, 2), table(4, 2), "found 3 and 4 rows"),
        (table(1, 2), table(1, 2), "0 neighbours were asked for among 1 texts"),
        (table(3, 2), np.full((3, 2), np.nan), "finite"),
    ],
)
def test_what_cannot_be_compared(before: np.ndarray, after: np.ndarray, said: str) -> None:
    with pytest.raises(SentportError, match=said):
        neighbour_churn(before, after)
