"""The shape of an embedding space: alignment, uniformity, singular values, cosines by rating."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from sentport.errors import SentportError
from sentport.evaluation.metrics import Floats, cosine_pairs, unit_rows
from sentport.evaluation.scoring import Embed
from sentport.evaluation.sts import StsPairs

# Pairs that people rate above this are positives: Gao, Yao & Chen 2021, section 3.
_POSITIVE = 4.0
_RATING_GROUPS = ((0, 1), (1, 2), (2, 3), (3, 4), (4, 5))
_HISTOGRAM_EDGES = np.linspace(-1, 1, 41)
# Rows of one block of the distance table: 20 MB of float64 for 5,000 texts.
_BLOCK_ROWS = 512


@dataclass(frozen=True, slots=True, eq=False)
class Geometry:
    """What a model makes of pairs with ratings from 0 to 5, such as the STS Benchmark's.

    Attributes:
        alignment: Of the pairs rated above 4; lower is better, nan where there is none.
        uniformity: Of the distinct sentences; lower is better.
        singular_values: Of the matrix of the distinct sentences' unit vectors, the largest set to 1, falling.
        edges: ``[B + 1]`` bounds of the histograms' bins, from -1 to 1.
        histograms: ``(low, high]`` of the rating (the first group holds its low end too) to ``[B]`` numbers of pairs
            in each bin of cosine.
    """

    alignment: float
    uniformity: float
    singular_values: Floats
    edges: Floats
    histograms: dict[tuple[int, int], Floats]


def geometry(pairs: StsPairs, embed: Embed) -> Geometry:
    """Look at a space through rated pairs, as Gao, Yao & Chen 2021 ("SimCSE", figures 2 and 3, appendix) do."""
    texts = list(dict.fromkeys([*pairs.sentences1, *pairs.sentences2]))
    row = {text: number for number, text in enumerate(texts)}
    vectors = unit_rows(embed(texts))  # [T, D]
    first = vectors[[row[text] for text in pairs.sentences1]]  # [N, D]
    second = vectors[[row[text] for text in pairs.sentences2]]  # [N, D]
    positive = pairs.scores > _POSITIVE  # [N]
    values = np.linalg.svd(vectors, compute_uv=False)  # [min(T, D)]
    return Geometry(
        alignment=alignment(first[positive], second[positive]),
        uniformity=uniformity(vectors),
        singular_values=np.divide(values, values[0], out=np.zeros_like(values), where=values[0] > 0),
        edges=_HISTOGRAM_EDGES,
        histograms=cosine_histograms(cosine_pairs(first, second), pairs.scores),
    )


def alignment(a: ArrayLike, b: ArrayLike) -> float:
    """Mean of |a_i - b_i|^2 over positive pairs of unit vectors ``[N, D]``; nan for no pairs.

    Source: Wang & Isola 2020, "Understanding Contrastive Representation Learning through Alignment and Uniformity on
    the Hypersphere", with alpha = 2. Rows are normalised here.
    """
    left, right = unit_rows(a), unit_rows(b)  # [N, D] each
    if left.shape != right.shape:
        raise SentportError(f"alignment takes pairs; found shapes {list(left.shape)} and {list(right.shape)}")
    return float(np.square(left - right).sum(axis=1).mean()) if len(left) else float("nan")


def uniformity(vectors: ArrayLike) -> float:
    """Logarithm of the mean of exp(-2 |x_i - x_j|^2) over all pairs i < j of unit vectors ``[N, D]``.

    Source: Wang & Isola 2020, with t = 2. Rows are normalised here.

    Raises:
        SentportError: For fewer than two vectors.
    """
    unit = unit_rows(vectors)  # [N, D]
    rows = len(unit)
    if rows < 2:
        raise SentportError(f"uniformity takes two or more vectors; found {rows}")
    squares = np.square(unit).sum(axis=1)  # [N], 1 except for zero vectors
    total = 0.0
    for start in range(0, rows, _BLOCK_ROWS):
        block = unit[start : start + _BLOCK_ROWS]  # [B, D]
        distances = squares[start : start + len(block), None] + squares - 2 * block @ unit.T  # [B, N]
        total += float(np.exp(-2 * np.maximum(distances, 0)).sum())
    # Each vector met itself once, at distance 0, and each other one twice.
    return float(np.log((total - rows) / (rows * (rows - 1))))


def cosine_histograms(cosines: Floats, ratings: Floats) -> dict[tuple[int, int], Floats]:
    """Numbers of pairs ``[40]`` in each bin of cosine, for each group of ratings from 0 to 5; see ``Geometry``."""
    found = {}
    for low, high in _RATING_GROUPS:
        inside = (ratings > low if low else ratings >= low) & (ratings <= high)  # [N]
        found[low, high] = np.histogram(np.clip(cosines[inside], -1, 1), _HISTOGRAM_EDGES)[0].astype(np.float64)
    return found
