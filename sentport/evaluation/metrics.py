"""Similarity of vector pairs, and correlation, in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sentport.errors import SentportError

Floats = NDArray[np.float64]


def cosine_pairs(a: ArrayLike, b: ArrayLike) -> Floats:
    """Cosine similarity of row i of ``a`` with row i of ``b``: a_i . b_i / (|a_i| |b_i|); of equal rows exactly 1.

    Dimension letters: N rows, D the vectors' dimension.

    Args:
        a: ``[N, D]`` vectors of any float type; computed in float64.
        b: ``[N, D]`` likewise.

    Returns:
        ``[N]`` float64; 0 where either vector is all zeros, as its direction is undefined.

    Raises:
        SentportError: When the two are not tables of the same shape.
    """
    left, right = _tables(a, b)  # [N, D] each
    dots: Floats = np.einsum("nd,nd->n", left, right)  # [N]
    # The root of the product is exact where the rows are equal, so that pairs of equal texts are ties.
    norms = np.sqrt(dot_pairs(left, left) * dot_pairs(right, right))  # [N]
    cosines: Floats = np.divide(dots, norms, out=np.zeros_like(dots), where=norms != 0)  # [N]
    return cosines


def dot_pairs(a: ArrayLike, b: ArrayLike) -> Floats:
    """``[N]`` dot products a_i . b_i of ``[N, D]`` vectors.

    Raises:
        SentportError: When the two are not tables of the same shape.
    """
    dots: Floats = np.einsum("nd,nd->n", *_tables(a, b))
    return dots


def euclidean_pairs(a: ArrayLike, b: ArrayLike) -> Floats:
    """``[N]`` negative distances -|a_i - b_i| of ``[N, D]`` vectors, so that more is more similar.

    Raises:
        SentportError: When the two are not tables of the same shape.
    """
    left, right = _tables(a, b)
    distances: Floats = np.linalg.norm(left - right, axis=1)
    return -distances


def manhattan_pairs(a: ArrayLike, b: ArrayLike) -> Floats:
    """``[N]`` negative distances -sum_d |a_id - b_id| of ``[N, D]`` vectors, so that more is more similar.

    Raises:
        SentportError: When the two are not tables of the same shape.
    """
    left, right = _tables(a, b)
    distances: Floats = np.abs(left - right).sum(axis=1)
    return -distances


SIMILARITIES: Mapping[str, Callable[[ArrayLike, ArrayLike], Floats]] = MappingProxyType(
    {"cosine": cosine_pairs, "dot": dot_pairs, "euclidean": euclidean_pairs, "manhattan": manhattan_pairs}
)


def pair_similarity(a: ArrayLike, b: ArrayLike, similarity: str = "cosine") -> Floats:
    """``[N]`` similarities of row i of ``a`` with row i of ``b``, by the name of the similarity.

    Raises:
        SentportError: For another name, or tables of different shapes.
    """
    if similarity not in SIMILARITIES:
        raise SentportError(f"similarity is {similarity!r}; expected one of {', '.join(SIMILARITIES)}")
    return SIMILARITIES[similarity](a, b)


def unit_rows(vectors: ArrayLike) -> Floats:
    """``[N, D]`` float64 rows of length one; zeros stay zeros.

    Raises:
        SentportError: When it is not a table of finite numbers.
    """
    table = np.asarray(vectors, np.float64)
    if table.ndim != 2 or not np.isfinite(table).all():
        raise SentportError(f"vectors come as a table [rows, dim] of finite numbers; found {table.shape}")
    norms = np.linalg.norm(table, axis=1, keepdims=True)
    unit: Floats = np.divide(table, norms, out=np.zeros_like(table), where=norms != 0)
    return unit


def _tables(a: ArrayLike, b: ArrayLike) -> tuple[Floats, Floats]:
    """Two tables ``[N, D]`` in float64."""
    left, right = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if left.ndim != 2 or left.shape != right.shape:
        raise SentportError(
            f"similarity of pairs takes two tables of the same shape [rows, dim]; found {list(left.shape)} and "
            f"{list(right.shape)}"
        )
    return left, right


def pearson(x: ArrayLike, y: ArrayLike) -> float:
    """Pearson's correlation: sum (x_i - mean x)(y_i - mean y) / sqrt(sum (x_i - mean x)^2 * sum (y_i - mean y)^2).

    Args:
        x: ``[N]`` numbers, such as a model's cosines.
        y: ``[N]`` numbers, such as gold scores.

    Returns:
        The correlation, from -1 to 1.

    Raises:
        SentportError: As ``spearman`` does.
    """
    return _correlation(*_lists(x, y))


def spearman(x: ArrayLike, y: ArrayLike) -> float:
    """Spearman's rank correlation: Pearson's r of the ranks, tied values sharing the average of their ranks.

    With ranks R and S: sum (R_i - mean R)(S_i - mean S) / sqrt(sum (R_i - mean R)^2 * sum (S_i - mean S)^2).
    Source: Spearman 1904, "The proof and measurement of association between two things", American Journal of
    Psychology 15. The tests hold it against ``scipy.stats.spearmanr``.

    Args:
        x: ``[N]`` numbers, such as a model's cosines.
        y: ``[N]`` numbers, such as gold scores.

    Returns:
        The correlation, from -1 to 1.

    Raises:
        SentportError: When the two differ in length, hold fewer than two values or one that is not finite, or when
            either is constant, which leaves the correlation undefined.
    """
    first, second = _lists(x, y)
    return _correlation(_ranks(first), _ranks(second))


def _lists(x: ArrayLike, y: ArrayLike) -> tuple[Floats, Floats]:
    """Two lists ``[N]`` in float64 that have a correlation."""
    first, second = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if first.ndim != 1 or first.shape != second.shape:
        raise SentportError(
            f"correlation takes two lists of the same length; found shapes {list(first.shape)} and {list(second.shape)}"
        )
    if len(first) < 2:
        raise SentportError(f"correlation needs at least 2 pairs; found {len(first)}")
    for values, which in ((first, "first"), (second, "second")):
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad):
            raise SentportError(
                f"correlation takes finite numbers; the {which} list has {len(bad)} that are not, the first "
                f"at row {bad[0]} ({values[bad[0]]})"
            )
        if values.min() == values.max():
            raise SentportError(f"correlation is undefined: the {which} list is constant (every value is {values[0]})")
    return first, second


def _correlation(x: Floats, y: Floats) -> float:
    left, right = x - x.mean(), y - y.mean()  # [N] each
    correlation = float(left @ right / np.sqrt((left @ left) * (right @ right)))
    # Rounding can pass the bounds by an ulp.
    return min(1.0, max(-1.0, correlation))


def _ranks(values: Floats) -> Floats:
    """``[N]`` ranks from 1, tied values sharing the average of theirs."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)  # [G], [N], [G]
    # A group of ties takes ranks end - count + 1 to end; their average stands for each.
    average = np.cumsum(counts) - (counts - 1) / 2  # [G]
    ranks: Floats = average[group]  # [N]
    return ranks
