"""How well a model's similarities follow human scores, by SentEval's protocols over the subsets of an STS task."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sentport.errors import SentportError
from sentport.evaluation.metrics import Floats, pair_similarity, pearson, spearman
from sentport.evaluation.sts import StsPairs

if TYPE_CHECKING:
    from sentport.encoder import TextEncoder

logger = logging.getLogger(__name__)

Embed = Callable[[Sequence[str]], NDArray[np.float32]]
"""Texts to vectors ``[n, dim]``, one row a text, in order."""

AGGREGATIONS = ("all", "mean", "wmean")
CORRELATIONS: Mapping[str, Callable[[Floats, Floats], float]] = MappingProxyType(
    {"spearman": spearman, "pearson": pearson}
)

# Vectors this near to each other, relative to their largest value, differ by float32 rounding alone.
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class RatedPairs:
    """A model's similarities beside the gold scores, N pairs in all.

    Attributes:
        similarities: ``[N]``; all equal where the model tells no text from another.
        gold: ``[N]``.
        subsets: How many pairs each subset has, in the order of the pairs.
    """

    similarities: Floats
    gold: Floats
    subsets: Mapping[str, int]


def sts_score(encoder: TextEncoder, pairs: StsPairs, *, similarity: str = "cosine") -> float:
    """Spearman's correlation x 100 of an encoder's similarities with the gold scores; nan when it is constant.

    Raises:
        SentportError: For an unknown similarity, fewer than two pairs, or vectors that are not finite.
    """
    return correlate(rate({"all pairs": pairs}, encoder.encode, similarity))


def rate(subsets: Mapping[str, StsPairs], embed: Embed, similarity: str = "cosine") -> RatedPairs:
    """Compute the similarity of every pair of a task's subsets; what has no correlation is told in the log."""
    first = [text for pairs in subsets.values() for text in pairs.sentences1]
    second = [text for pairs in subsets.values() for text in pairs.sentences2]
    rated = RatedPairs(
        similarities=embed_pairs(first, second, embed, similarity),
        gold=np.concatenate([pairs.scores for pairs in subsets.values()]),
        subsets={name: len(pairs) for name, pairs in subsets.items()},
    )
    constant = [name for name, (values, _) in _each(rated, rated.gold) if _is_constant(values)]
    if constant:
        logger.warning(
            "the encoder gives all pairs the same similarity in %s, so their correlation is undefined (nan)",
            ", ".join(constant),
        )
    return rated


def embed_pairs(first: Sequence[str], second: Sequence[str], embed: Embed, similarity: str = "cosine") -> Floats:
    """``[N]`` similarities of N pairs of texts; all equal where the vectors differ by rounding alone.

    Raises:
        SentportError: For an unknown similarity.
    """
    vectors = embed([*first, *second])  # [2N, D]
    similarities = pair_similarity(vectors[: len(first)], vectors[len(first) :], similarity)  # [N]
    if len(vectors) and np.ptp(vectors, axis=0).max() <= _ROUNDING * np.abs(vectors).max():
        return np.full_like(similarities, similarities[0])
    return similarities


def correlate(rated: RatedPairs, correlation: str = "spearman", aggregation: str = "all") -> float:
    """A task's score x 100: the correlation of similarities and gold scores, put together over its subsets.

    Args:
        rated: The pairs.
        correlation: ``spearman`` or ``pearson``.
        aggregation: ``all`` pools the pairs of all subsets into one correlation, ``mean`` averages the subsets'
            correlations, ``wmean`` weights them by their pairs. Source: SentEval (Conneau & Kiela 2018); ``all`` as
            in Gao, Yao & Chen 2021 ("SimCSE"), appendix B.

    Returns:
        The score; nan where all similarities of a subset, or with ``all`` of the task, are equal.

    Raises:
        SentportError: For an unknown name, fewer than two pairs, values that are not finite, or constant gold scores.
    """
    return 100 * _aggregate(rated, rated.gold, correlation, aggregation)


def correlate_subsets(rated: RatedPairs, correlation: str = "spearman") -> dict[str, float]:
    """Score x 100 of each subset alone; see ``correlate``."""
    compute = _known_correlation(correlation)
    return {name: 100 * _defined(compute, *values) for name, values in _each(rated, rated.gold)}


def correlate_shuffled(
    rated: RatedPairs, correlation: str = "spearman", aggregation: str = "all", *, shuffles: int = 20, seed: int = 0
) -> float:
    """The control: mean score x 100 over ``shuffles`` random orders of the gold scores, which a sound test has near 0.

    Scores are exchanged across subsets: kept inside, they would still tell which subset a pair is from.
    """
    generator = np.random.default_rng(seed)
    scores = [_aggregate(rated, generator.permutation(rated.gold), correlation, aggregation) for _ in range(shuffles)]
    return 100 * float(np.mean(scores))


def _aggregate(rated: RatedPairs, gold: Floats, correlation: str, aggregation: str) -> float:
    compute = _known_correlation(correlation)
    if aggregation == "all":
        return _defined(compute, rated.similarities, gold)
    if aggregation not in AGGREGATIONS:
        raise SentportError(f"aggregation is {aggregation!r}; expected one of {', '.join(AGGREGATIONS)}")
    scores = [_defined(compute, *values) for _, values in _each(rated, gold)]
    weights = None if aggregation == "mean" else list(rated.subsets.values())
    return float(np.average(scores, weights=weights))


def _known_correlation(name: str) -> Callable[[Floats, Floats], float]:
    if name not in CORRELATIONS:
        raise SentportError(f"correlation is {name!r}; expected one of {', '.join(CORRELATIONS)}")
    return CORRELATIONS[name]


def _each(rated: RatedPairs, gold: Floats) -> Iterator[tuple[str, tuple[Floats, Floats]]]:
    """Name, similarities and gold scores of each subset."""
    ends = np.cumsum(list(rated.subsets.values()))
    for name, end in zip(rated.subsets, ends, strict=True):
        rows = slice(end - rated.subsets[name], end)
        yield name, (rated.similarities[rows], gold[rows])


def _defined(compute: Callable[[Floats, Floats], float], similarities: Floats, gold: Floats) -> float:
    return math.nan if _is_constant(similarities) else compute(similarities, gold)


def _is_constant(values: Floats) -> bool:
    return len(values) > 1 and bool(values.min() == values.max())
