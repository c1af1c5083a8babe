"""The most similar pairs of a collection (paraphrase mining): exact, in blocks, with flat memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentport.errors import SentportError
from sentport.search.collection import TIE, Collection, Scores, exact_scores, score_blocks

# Pairs scored again at a time, so that their vectors take little room.
_RESCORED = 4096


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of rows, most similar first; among equals the earlier rows first.

    Attributes:
        rows: ``[P, 2]`` int64 row numbers, the smaller one first.
        scores: ``[P]`` float64 similarities.
    """

    rows: NDArray[np.int64]
    scores: NDArray[np.float64]


def similar_pairs(held: Collection, top: int, min_score: float | None = None) -> Pairs:
    """The ``top`` most similar pairs of different rows.

    All pairs are compared in float32 (euclidean: float64); the scores of those that are kept are float64.

    Args:
        held: N vectors.
        top: Pairs to keep, at most.
        min_score: Leave out pairs below it.

    Raises:
        SentportError: For a ``top`` below 1.
    """
    if top < 1:
        raise SentportError(f"top is {top}; expected 1 or more")
    lowest = -np.inf if min_score is None else min_score - TIE
    rows, scores = np.empty((0, 2), np.int64), np.empty(0, np.float32)
    for start, block in score_blocks(held.vectors, held.similarity, upper=True):
        # Rows come in order, so a later pair that only equals the last one kept ranks after it.
        bound = scores[-1] if len(scores) == top else lowest
        new_rows, new_scores = _above(block, bound, top)
        rows = np.concatenate([rows, new_rows + start])
        scores = np.concatenate([scores, new_scores])
        order = np.argsort(-scores, kind="stable")[:top]
        rows, scores = rows[order], scores[order]
    exact = np.empty(len(rows))
    for start in range(0, len(rows), _RESCORED):
        part = rows[start : start + _RESCORED]
        left, right = held.vectors[part[:, 0]], held.vectors[part[:, 1]]  # [p, dim]
        exact[start : start + len(part)] = exact_scores(left, right, held.similarity)
    order = np.lexsort((rows[:, 1], rows[:, 0], -exact))
    if min_score is not None:
        order = order[exact[order] >= min_score]
    return Pairs(rows[order], exact[order])


def _above(block: Scores, bound: float, top: int) -> tuple[NDArray[np.int64], Scores]:
    """Of the pairs above the diagonal, the ``top`` best that pass ``bound``: ``[p, 2]`` and ``[p]``, rows in order."""
    height, width = block.shape
    block[:, :height][np.tril_indices(height)] = -np.inf
    flat = block.ravel()
    places = np.flatnonzero(flat > bound)
    found = flat[places]
    if len(places) > top:
        last = np.partition(found, len(found) - top)[len(found) - top]
        above = found > last
        ties = np.flatnonzero(found == last)[: top - np.count_nonzero(above)]
        above[ties] = True
        places, found = places[above], found[above]
    return np.stack(np.divmod(places, width), axis=1), found
