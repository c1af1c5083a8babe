"""Which shape ranges a TensorRT engine is built for: the k that waste least on a corpus, found exactly.

Tactics are chosen for a profile's edge, so a profile costs, for each thing that falls into it, its edge. Of layout
``padded`` the things are texts, padded to the edge, and their size is tokens; of ``packed`` they are batches, which are
not padded, and their size is total tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sentport.bundle import ModelSpec
from sentport.errors import SentportError
from sentport.inputs import prompt_text, text_lines
from sentport.plans import Extent, Profile
from sentport.scheduler import plan_batches
from sentport.tokenizer import Tokenizer

Ints = NDArray[np.int64]

# Texts in one call, of which batches of layout packed are planned: a text alone, a few, and many.
_CALLS = (1, 8, 64)
_LINES = 1000  # of a corpus that are held at once


@dataclass(frozen=True)
class Histogram:
    """How often each size occurs.

    Attributes:
        sizes: ``[S]`` distinct sizes of 1 and more, ascending.
        counts: ``[S]`` how often.
    """

    sizes: Ints
    counts: Ints

    @classmethod
    def of(cls, sizes: Sequence[int] | Ints) -> Histogram:
        """Count sizes; an empty text computes one pad, so it counts as 1.

        Raises:
            SentportError: When there is none.
        """
        if not len(sizes):
            raise SentportError("no text to plan profiles from; give a corpus with at least one line")
        return cls(*(part.astype(np.int64) for part in np.unique(np.maximum(sizes, 1), return_counts=True)))

    def by_size(self) -> dict[str, int]:
        """Counts by size, as bundle.json holds them."""
        return {str(size): int(count) for size, count in zip(self.sizes, self.counts, strict=True)}

    @property
    def total(self) -> int:
        """Sum of all sizes."""
        return int(self.sizes @ self.counts)


@dataclass(frozen=True)
class Expectation:
    """What edges cost on a histogram.

    Attributes:
        edges: Ascending; each size is padded to the first edge that is not below it.
        waste: Share of the edges' tokens that no text has; of layout ``padded``, of computed tokens that are pads.
    """

    edges: tuple[int, ...]
    waste: float


def check_corpus(file: Path) -> None:
    """Read a corpus to its end, so that what is wrong with it is told before anything is computed.

    Raises:
        SentportError: When it cannot be read, holds no line, or one that is no text.
    """
    if not sum(1 for _ in text_lines(file)):
        raise SentportError(f"{file} holds no line; expected texts like those that will come, one a line")


def corpus_lengths(spec: ModelSpec, tokenizer: Tokenizer, file: Path) -> Ints:
    """Tokens ``[N]`` of the lines of a corpus, the default prompt in front, cut to the model's limit.

    Raises:
        SentportError: When it cannot be read, or holds a line that is no text.
    """
    prompt = prompt_text(spec.prompts, spec.default_prompt, None)
    lines, found = text_lines(file), [np.zeros(0, np.int64)]
    while block := list(islice(lines, _LINES)):
        found.append(tokenizer.encode([prompt + text for text in block]).lengths)
    return np.concatenate(found)


def best_edges(histogram: Histogram, profiles: int) -> tuple[int, ...]:
    """The edges, at most ``profiles`` of them, with the least padded cost, exactly.

    Dynamic programming over sizes: the cheapest k + 1 buckets that end at a size are the cheapest k that end at a
    smaller one, and a bucket from there. Time is profiles x sizes squared.

    Raises:
        SentportError: When ``profiles`` is not positive.
    """
    if profiles < 1:
        raise SentportError(f"profiles is {profiles}; expected a whole number from 1")
    sizes = histogram.sizes
    before = np.concatenate([[0], np.cumsum(histogram.counts)])  # [S+1] things smaller than each size
    cost = sizes * before[1:]  # [S] of one bucket that ends at each size
    cuts: list[Ints] = []
    for _ in range(min(profiles, len(sizes)) - 1):
        cut, extended = np.zeros(len(sizes), np.int64), cost.copy()
        for last in range(1, len(sizes)):
            split = cost[:last] + sizes[last] * (before[last + 1] - before[1 : last + 1])  # [last] a cut behind each
            cut[last] = split.argmin()
            extended[last] = split[cut[last]]
        extended[0] = cost[0]
        cuts.append(cut)
        cost = extended
    ends = [len(sizes) - 1]
    for cut in reversed(cuts):
        if ends[0] == 0:
            break
        ends.insert(0, int(cut[ends[0]]))
    return tuple(int(sizes[end]) for end in ends)


def equal_edges(histogram: Histogram, profiles: int) -> tuple[int, ...]:
    """Edges at equal distances up to the largest size: what one sets by hand."""
    most = int(histogram.sizes[-1])
    return tuple(sorted({-(-most * (number + 1) // profiles) for number in range(profiles)}))


def expected(histogram: Histogram, edges: Sequence[int]) -> Expectation:
    """What edges cost.

    Raises:
        SentportError: When a size of the histogram is above all of them.
    """
    if histogram.sizes[-1] > edges[-1]:
        raise SentportError(f"edge {edges[-1]} is the last, but the corpus has {histogram.sizes[-1]} tokens")
    padded = np.asarray(edges, np.int64)[np.searchsorted(edges, histogram.sizes)]  # [S]
    return Expectation(tuple(edges), 1.0 - histogram.total / int(padded @ histogram.counts))


def with_rest(edges: Sequence[int], longest: int) -> tuple[int, ...]:
    """Edges with one more for lengths that the corpus has none of, but the model takes."""
    return tuple(edges) if edges[-1] >= longest else (*edges, longest)


def check_coverage(edges: Sequence[int], longest: int) -> None:
    """Raises SentportError unless edges ascend from 1 or more and reach the longest size that can come."""
    if not edges or edges[0] < 1 or any(a >= b for a, b in pairwise(edges)):
        raise SentportError(f"edges {', '.join(map(str, edges)) or '(none)'} must be whole numbers that ascend from 1")
    if edges[-1] < longest:
        raise SentportError(
            f"no profile covers {edges[-1] + 1} to {longest} tokens, which can come; add {longest} to the edges"
        )


def padded_profiles(edges: Sequence[int], token_budget: int, max_rows: int) -> tuple[Profile, ...]:
    """Profiles of layout ``padded``: rows of up to an edge's tokens, as many as the budget holds, at least one."""
    found = []
    for least, edge in zip([1, *(edge + 1 for edge in edges)], edges, strict=False):
        rows = max(1, min(max_rows, token_budget // edge))
        found.append(Profile(Extent(1, rows, rows), Extent(least, edge, edge)))
    return tuple(found)


def packed_profiles(edges: Sequence[int], lengths: Histogram, max_rows: int) -> tuple[Profile, ...]:
    """Profiles of layout ``packed``: totals of up to an edge, in as many rows as the corpus's shortest texts make."""
    mean = lengths.total / int(lengths.counts.sum())
    found = []
    for least, edge in zip([1, *(edge + 1 for edge in edges)], edges, strict=False):
        most = max(1, min(max_rows, edge // int(lengths.sizes[0])))
        found.append(Profile(Extent(1, max(1, min(most, round(edge / mean))), most), Extent(least, edge, edge)))
    return tuple(found)


def packed_totals(lengths: Ints, token_budget: int) -> Ints:
    """Total tokens of the batches that the scheduler makes of calls of 1, 8 and 64 texts, in the corpus's order."""
    totals = []
    for texts in _CALLS:
        for start in range(0, len(lengths), texts):
            call = lengths[start : start + texts]
            plan = plan_batches(call, token_budget=token_budget, layout="packed")
            totals += [int(call[rows].sum()) for rows in plan]
    return np.array(totals, np.int64)
