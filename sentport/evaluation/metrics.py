"""Similarity of vector pairs and rank correlation, in float64."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sentport.errors import SentportError

Floats = NDArray[np.float64]


def cosine_pairs(a: ArrayLike, b: ArrayLike) -> Floats:
    """Cosine similarity of row i of ``a`` with row i of ``b``: a_i . b_i / (|a_i| |b_i|).

    Dimension letters: N rows, D the vectors' dimension.

    Args:
        a: ``[N, D]`` vectors of any float type; computed in float64.
        b: ``[N, D]`` likewise.

    Returns:
        ``[N]`` float64; 0 where either vector is all zeros, as its direction is undefined.

    Raises:
        SentportError: When the two are not tables of the same shape.
    """
    left, right = np.asarray(a, np.float64), np.asarray(b, np.float64)  # [N, D] each
    if left.ndim != 2 or left.shape != right.shape:
        raise SentportError(
            f"cosine of pairs takes two tables of the same shape [rows, dim]; found {list(left.shape)} and "
            f"{list(right.shape)}"
        )
    dots: Floats = np.einsum("nd,nd->n", left, right)  # [N]
    norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)  # [N]
    cosines: Floats = np.divide(dots, norms, out=np.zeros_like(dots), where=norms != 0)  # [N]
    return cosines


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
    first, second = np.asarray(x, np.float64), np.asarray(y, np.float64)  # [N] each
    if first.ndim != 1 or first.shape != second.shape:
        raise SentportError(
            f"rank correlation takes two lists of the same length; found shapes {list(first.shape)} and "
            f"{list(second.shape)}"
        )
    if len(first) < 2:
        raise SentportError(f"rank correlation needs at least 2 pairs; found {len(first)}")
    left, right = _centred_ranks(first, "first"), _centred_ranks(second, "second")
    correlation = float(left @ right / np.sqrt((left @ left) * (right @ right)))
    # Rounding can pass the bounds by an ulp.
    return min(1.0, max(-1.0, correlation))


def _centred_ranks(values: Floats, which: str) -> Floats:
    """``[N]`` average ranks minus their mean; ``which`` names the list in an error."""
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise SentportError(
            f"rank correlation takes finite numbers; the {which} list has {len(bad)} that are not, the first "
            f"at row {bad[0]} ({values[bad[0]]})"
        )
    distinct, group, counts = np.unique(values, return_inverse=True, return_counts=True)  # [G], [N], [G]
    if len(distinct) == 1:
        raise SentportError(
            f"rank correlation is undefined: the {which} list is constant (every value is {distinct[0]})"
        )
    # A group of ties takes ranks end - count + 1 to end; their average stands for each.
    average = np.cumsum(counts) - (counts - 1) / 2  # [G]
    ranks: Floats = average[group] - (len(values) + 1) / 2  # [N]
    return ranks
