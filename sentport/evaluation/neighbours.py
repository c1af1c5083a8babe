"""Nearest neighbours inside a corpus, and how many of them two spaces share. Blocked: no table of all pairs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sentport.errors import SentportError
from sentport.evaluation.metrics import unit_rows

# Rows of one block of the similarity matrix: 20 MB of float32 for a corpus of 10,000 texts.
_BLOCK_ROWS = 512
# Cosines nearer than this are a tie: rounding alone decides which of two such neighbours comes first.
_TIE = 1e-6

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class NeighbourChurn:
    """What becomes of each text's nearest neighbours when one space replaces another.

    Attributes:
        texts: Texts of the corpus.
        k: Neighbours looked at.
        kept: Mean share of the ``k`` that stay among them; 1 = all.
        nearest_changed: Share of texts that get another nearest neighbour.
    """

    texts: int
    k: int
    kept: float
    nearest_changed: float


def nearest_neighbours(vectors: ArrayLike, k: int) -> NDArray[np.int64]:
    """The ``k`` nearest other rows of each row by cosine, nearest first.

    Dimension letters: N rows, D the vectors' dimension, B rows of a block.

    Args:
        vectors: ``[N, D]``; a row of zeros is equally far from all.
        k: How many, from 1 to N - 1.

    Returns:
        ``[N, k]`` int64 row numbers.

    Raises:
        SentportError: When there are too few rows, or numbers that are not finite.
    """
    unit = _unit_rows(vectors)  # [N, D]
    rows = len(unit)
    if not 1 <= k < rows:
        raise SentportError(f"{k} neighbours were asked for among {rows} texts; expected 1 to {rows - 1}")
    found = np.empty((rows, k), np.int64)
    for start in range(0, rows, _BLOCK_ROWS):
        near = unit[start : start + _BLOCK_ROWS] @ unit.T  # [B, N]
        here = np.arange(len(near))
        near[here, start + here] = -np.inf  # a row is no neighbour of its own
        best = np.argpartition(near, rows - k, axis=1)[:, rows - k :]  # [B, k] in no order
        order = np.argsort(-np.take_along_axis(near, best, axis=1), axis=1, kind="stable")
        found[start : start + len(near)] = np.take_along_axis(best, order, axis=1)
    return found


def neighbour_churn(before: ArrayLike, after: ArrayLike, k: int = 10) -> NeighbourChurn:
    """How the neighbours that ``after`` gives differ from those of ``before``, over the same texts.

    A neighbour counts as kept when it is, in ``before``, as near as the k-th one there (within 1e-6, so that ties and
    rounding are no churn). The two may have different dimensions.

    Args:
        before: ``[N, D]`` vectors of N distinct texts.
        after: ``[N, E]`` vectors of the same texts.
        k: Neighbours of each text to look at; fewer when there are not as many other texts.

    Raises:
        SentportError: When the two have different or too few rows, or numbers that are not finite.
    """
    old, new = _unit_rows(before), _unit_rows(after)  # [N, D], [N, E]
    if len(old) != len(new):
        raise SentportError(f"neighbours are compared over the same texts; found {len(old)} and {len(new)} rows")
    k = min(k, len(old) - 1)
    was, now = nearest_neighbours(old, k), nearest_neighbours(new, k)  # [N, k] each
    bounds = _cosines(old, was)  # [N, k] falling
    found = _cosines(old, now)  # [N, k] what the new neighbours were to each text before
    return NeighbourChurn(
        texts=len(old),
        k=k,
        kept=float((found >= bounds[:, -1:] - _TIE).mean()),
        nearest_changed=float((found[:, 0] < bounds[:, 0] - _TIE).mean()),
    )


def _unit_rows(vectors: ArrayLike) -> Floats:
    """``[N, D]``, in half the room that float64 takes."""
    return unit_rows(vectors).astype(np.float32)


def _cosines(unit: Floats, others: NDArray[np.int64]) -> NDArray[np.float64]:
    """``[N, k]`` cosine of each row with its ``others [N, k]``."""
    columns = [np.einsum("nd,nd->n", unit, unit[column], dtype=np.float64) for column in others.T]
    return np.stack(columns, axis=1)
