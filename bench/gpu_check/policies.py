"""Batch policies: which rows travel together, and to which shape they are padded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from bench.gpu_check.workload import Ints

# A CUDA graph replays one shape, so lengths are rounded up to these edges: fine where most texts are short.
EDGES = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
SHUFFLE_SEED = 7


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows that are computed together.

    Attributes:
        rows: ``[n]`` their places in the corpus.
        padded_rows: rows computed; more than n where the shape is fixed.
        padded_tokens: columns computed, or 0 for rows laid end to end without padding.
    """

    rows: Ints
    padded_rows: int
    padded_tokens: int


@dataclass(frozen=True, slots=True)
class Policy:
    """A named way to cut a corpus into batches.

    Attributes:
        name: as recorded.
        size: what bounds a batch, with its unit, as recorded.
        plan: from row lengths ``[B]`` to batches that hold every row once.
    """

    name: str
    size: str
    plan: Callable[[Ints], list[Batch]]


def arrival(rows: int) -> Policy:
    """``rows`` at a time as they come, padded to the longest of the batch."""
    return Policy("arrival", f"{rows} rows", lambda lengths: _by_rows(np.arange(len(lengths)), lengths, rows))


def shuffled(rows: int) -> Policy:
    """Like arrival order after a seeded shuffle: files keep alike texts together, mixed traffic does not."""

    def plan(lengths: Ints) -> list[Batch]:
        return _by_rows(np.random.default_rng(SHUFFLE_SEED).permutation(len(lengths)), lengths, rows)

    return Policy("arrival, shuffled", f"{rows} rows", plan)


def smart(rows: int) -> Policy:
    """``rows`` at a time from the longest down, padded to the longest of the batch."""
    return Policy("smart", f"{rows} rows", lambda lengths: _by_rows(longest_first(lengths), lengths, rows))


def token_budget(tokens: int) -> Policy:
    """Length-sorted; a batch takes rows while rows times its longest stays within ``tokens``."""

    def plan(lengths: Ints) -> list[Batch]:
        groups = _fill(lengths, tokens, padded=True)
        return [_padded(rows, lengths) for rows in groups]

    return Policy("token budget", f"{tokens} tokens", plan)


def packed_budget(tokens: int) -> Policy:
    """Length-sorted and laid end to end without padding, up to ``tokens`` a batch."""

    def plan(lengths: Ints) -> list[Batch]:
        return [Batch(rows, len(rows), 0) for rows in _fill(lengths, tokens, padded=False)]

    return Policy("token budget", f"{tokens} tokens", plan)


def bucketed(tokens: int) -> Policy:
    """Few fixed shapes: lengths rounded up to an edge, rows to a power of two, at most ``tokens`` a batch."""

    def plan(lengths: Ints) -> list[Batch]:
        order = longest_first(lengths)
        edges = np.array(EDGES)[np.searchsorted(EDGES, lengths[order])]  # [B]
        batches = []
        for edge in np.unique(edges)[::-1]:
            rows = order[edges == edge]
            most = _power_of_two_at_most(max(1, tokens // int(edge)))
            for start in range(0, len(rows), most):
                part = rows[start : start + most]
                batches.append(Batch(part, 1 << (len(part) - 1).bit_length(), int(edge)))
        return batches

    return Policy("bucketed shapes", f"{tokens} tokens", plan)


def longest_first(lengths: Ints) -> Ints:
    """Returns row numbers from the longest row to the shortest: memory peaks at once rather than late."""
    return np.argsort(-lengths, kind="stable")


def _by_rows(order: Ints, lengths: Ints, rows: int) -> list[Batch]:
    return [_padded(order[start : start + rows], lengths) for start in range(0, len(order), rows)]


def _padded(rows: Ints, lengths: Ints) -> Batch:
    return Batch(rows, len(rows), int(lengths[rows].max()))


def _fill(lengths: Ints, tokens: int, padded: bool) -> Iterator[Ints]:
    """Yields length-sorted groups of rows whose cost (padded or not) stays within ``tokens``; one row at least."""
    group: list[int] = []
    cost = longest = 0
    for row in longest_first(lengths).tolist():
        length = int(lengths[row])
        longest = longest or length
        cost += longest if padded else length
        if group and cost > tokens:
            yield np.array(group)
            group, longest = [], length
            cost = length
        group.append(row)
    yield np.array(group)


def _power_of_two_at_most(number: int) -> int:
    return 1 << (number.bit_length() - 1)
