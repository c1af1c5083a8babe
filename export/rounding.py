"""Weights of engine ``native`` as whole numbers: rounded so that a layer's outputs change least, not each weight.

GPTQ (Frantar et al. 2023, section 3): one input after the other is rounded, and what that changes in the outputs is
made up for by inputs that are not rounded yet, as far as they go together in calibration. Measured: all-MiniLM-L6-v2 on
STS-B test, mean cosine 0.9984 by rounding to the nearest and 0.9989 so, worst 0.9909 and 0.9942.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from export.int8 import WEIGHT_LIMIT

# Most that weights of one sign may sum up to whose products are added in 16 bits: kSameSign in native/src/kernels.h.
SAME_SIGN = 128
# Added to each input's square, as a share of their mean: how little a few hundred texts are trusted. Measured likewise,
# mean and worst cosine, before ``_most``: 0.01 gives 0.9986 and 0.9918, 0.1 0.9987 and 0.9918, 0.3 0.9988 and 0.9937,
# 1 0.9987 and 0.9930.
_DAMPING = 0.3
_BLOCK = 128  # inputs between two matrix products that bring all later ones up to date
_SMALLEST = 1e-10

Floats = NDArray[np.float64]


def fitted_levels(
    weight: NDArray[np.float32], products: NDArray[np.float32]
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """A weight as whole numbers.

    Args:
        weight: ``[out, in]``.
        products: ``[in, in]``, sums of products of two inputs over calibration.

    Returns:
        ``[out, in]``, -63 … 63, and the scale of each output ``[out]``. Of each eight inputs the numbers of one
        sign at 0, 1, 4 and 5 sum up to 128 at most, and those at 2, 3, 6 and 7.
    """
    outputs, inputs = weight.shape
    scale = np.maximum(np.abs(weight).max(axis=1), _SMALLEST) / WEIGHT_LIMIT
    order = np.argsort(-products.diagonal(), kind="stable")  # the largest first: more are left to make up for them
    share = _shares(products[np.ix_(order, order)].astype(np.float64))
    left = np.ascontiguousarray((weight.astype(np.float64) / scale[:, None]).T[order])  # [in, out], in steps
    groups = _groups(inputs)[order]
    most, least = _most(left, groups), -_most(-left, groups)  # [in, out]
    above = np.full((groups.max() + 1, outputs), float(SAME_SIGN))  # [groups, out] that is left of either sign
    below = -above
    levels = np.empty((inputs, outputs), np.int8)
    for start in range(0, inputs, _BLOCK):
        stop = min(start + _BLOCK, inputs)
        errors = np.empty((stop - start, outputs))
        for n in range(start, stop):
            up, down = above[groups[n]], below[groups[n]]
            level = np.clip(np.rint(left[n]), np.maximum(down, least[n]), np.minimum(up, most[n]))
            up -= np.maximum(level, 0)
            down -= np.minimum(level, 0)
            errors[n - start] = (left[n] - level) / share[n, n]
            left[n + 1 : stop] -= np.outer(share[n, n + 1 : stop], errors[n - start])
            levels[order[n]] = level
        left[stop:] -= share[start:stop, stop:].T @ errors
    return np.ascontiguousarray(levels.T), scale.astype(np.float32)


def _groups(inputs: int) -> NDArray[np.int64]:
    """Inputs ``[in]`` of one number have their products added in 16 bits; see ``dot_i8`` in native/src/simd_avx2.h."""
    at = np.arange(inputs)
    return at // 8 * 2 + at // 2 % 2


def _most(steps: Floats, groups: NDArray[np.int64]) -> Floats:
    """How large each number ``[in, out]`` may be at most.

    Where those of a group are too large together, all lose as much: the nearest point of a simplex (Duchi et al. 2008,
    figure 1). Taking from the last ones alone, until the sum fits, costs 20 % of the mean cosine's distance from 1.
    """
    most = np.full(steps.shape, float(WEIGHT_LIMIT))
    for group in range(groups.max() + 1):
        rows = np.flatnonzero(groups == group)
        found = np.maximum(steps[rows], 0)  # [up to 4, out]
        sums = np.cumsum(np.sort(found, axis=0)[::-1], axis=0)
        excess = ((sums - SAME_SIGN) / np.arange(1, len(rows) + 1)[:, None]).max(axis=0)
        most[rows] = np.where(excess > 0, np.rint(np.maximum(found - excess, 0)), most[rows])
    return most


def _shares(products: Floats) -> Floats:
    """What an input's error changes in each later one ``[in, in]``: the upper Cholesky factor of the inverse."""
    mean = max(float(products.diagonal().mean()), _SMALLEST)
    inverse = np.linalg.inv(products + _DAMPING * mean * np.eye(len(products)))
    return np.asarray(np.linalg.cholesky((inverse + inverse.T) / 2).T)
