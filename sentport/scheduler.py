"""Which rows go through the engine together: tokenise once, plan by token count, restore the order.

The same plan serves the library, the benchmark and the Triton model.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from sentport.batch import TokenBatch
from sentport.engines import TOKEN_BUDGETS, Engine
from sentport.errors import SentportError
from sentport.tokenizer import Tokens

# Layout ``packed`` computes tokens, but attention on the rectangle of rows x longest row: its part of the time, and its
# memory, may exceed those of a padded batch of the same budget by this factor.
_RECTANGLE = 1.25
# Work is not cut finer than this to have something for every session.
_LEAST_TOKENS = 64

Rows = NDArray[np.int64]
Text = TypeVar("Text", bound=Hashable)


class BatchPolicy(str, Enum):
    """How rows are grouped into batches."""

    ONE_BY_ONE = "one-by-one"  # a batch for every row
    ARRIVAL = "arrival"  # a fixed number of rows, as they came
    SMART = "smart"  # a fixed number of rows, sorted by length (SBERT, section 6)
    TOKEN_BUDGET = "token-budget"  # sorted by length, as many rows as the token budget holds once they are laid out


def plan_batches(
    lengths: Rows,
    policy: BatchPolicy = BatchPolicy.TOKEN_BUDGET,
    *,
    token_budget: int = TOKEN_BUDGETS["cpu"],
    rows_per_batch: int = 32,
    layout: str = "padded",
) -> list[Rows]:
    """Group rows into batches, longest first, so that the last worker to finish has a small batch.

    Args:
        lengths: ``[N]`` tokens of each row.
        policy: How to group.
        token_budget: Computed tokens of a batch stay under it (a row longer than it goes alone): rows times longest
            row for layout ``padded``; for ``packed`` the rows' tokens, whose rectangle may be somewhat larger.
        rows_per_batch: Rows of a batch for ``arrival`` and ``smart``.
        layout: Of the engine.

    Returns:
        Batches of row numbers; every row stands in exactly one.

    Raises:
        SentportError: When a limit is not positive.
    """
    if token_budget < 1 or rows_per_batch < 1:
        raise SentportError(f"token_budget={token_budget}, rows_per_batch={rows_per_batch}: both must be 1 or more")
    rows = np.arange(len(lengths), dtype=np.int64)
    if policy is BatchPolicy.ONE_BY_ONE:
        return list(rows.reshape(-1, 1))
    if policy is BatchPolicy.ARRIVAL:
        return _chunks(rows, rows_per_batch)
    by_length = np.argsort(-lengths, kind="stable").astype(np.int64)
    if policy is BatchPolicy.SMART:
        return _chunks(by_length, rows_per_batch)
    return _fill_budget(by_length, lengths, token_budget, token_budget * (_RECTANGLE if layout == "packed" else 1))


def _chunks(rows: Rows, size: int) -> list[Rows]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def _fill_budget(by_length: Rows, lengths: Rows, tokens: int, rectangle: float) -> list[Rows]:
    """Cut sorted rows where the next one would take a batch's tokens, or its rows x longest row, over the limit."""
    ends = np.cumsum(lengths[by_length])  # [N]
    batches = []
    start = before = 0
    while start < len(by_length):
        longest = max(1, int(lengths[by_length[start]]))  # rows are sorted: the first is the longest
        within = int(np.searchsorted(ends, before + tokens, side="right")) - start
        size = max(1, min(within, int(rectangle // longest)))
        batches.append(by_length[start : start + size])
        start += size
        before = int(ends[start - 1])
    return batches


def shared_budget(lengths: Rows, engine: Engine) -> int:
    """The engine's token budget, lowered where little work would leave some of its sessions without a batch."""
    return min(engine.token_budget, max(_LEAST_TOKENS, int(lengths.sum()) // engine.sessions))


def computed_tokens(lengths: Rows, batches: Sequence[Rows], layout: str = "padded") -> int:
    """Tokens of all batches as an engine lays them out: packed as they are, or each padded to its longest row."""
    if layout == "packed":
        return sum(max(1, int(lengths[rows].sum())) for rows in batches)
    return sum(len(rows) * max(1, int(lengths[rows].max(initial=0))) for rows in batches)


def run_batches(
    engine: Engine, tokens: Tokens, batches: Sequence[Rows], dim: int, done: Callable[[int], None] | None = None
) -> NDArray[np.float32]:
    """Run planned batches, as many at once as the engine has sessions for, and put the rows back in order.

    Args:
        engine: Runs a batch.
        tokens: The rows, N of them.
        batches: The plan over them.
        dim: Width of a vector.
        done: Told how many rows each finished batch had.

    Returns:
        ``[N, dim]`` float32, in the rows' order.
    """
    vectors = np.empty((len(tokens.rows), dim), np.float32)
    # Fewer batches than sessions would leave cores idle: then one at a time, each with all threads.
    beside = 1 < engine.sessions <= len(batches)

    def compute(rows: Rows) -> int:
        unpooled = None if tokens.unpooled is None else tokens.unpooled[rows]
        vectors[rows] = engine.run(TokenBatch.from_rows([tokens.rows[row] for row in rows], unpooled), beside=beside)
        return len(rows)

    for count in _in_threads(compute, batches, engine.sessions) if beside else map(compute, batches):
        if done is not None:
            done(count)
    return vectors


def _in_threads(compute: Callable[[Rows], int], batches: Sequence[Rows], workers: int) -> Iterator[int]:
    with ThreadPoolExecutor(workers) as pool:
        yield from pool.map(compute, batches)


def unique_texts(texts: Sequence[Text]) -> tuple[list[Text], Rows]:
    """The distinct texts in order of first appearance, and for every text which of them it is.

    A text is a string, or a string with what else decides about its vector.
    """
    first: dict[Text, int] = {}
    inverse = np.fromiter((first.setdefault(text, len(first)) for text in texts), np.int64, count=len(texts))
    return list(first), inverse
