"""Which of a plan's profiles a batch runs in, cut where it is too large for any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sentport.batch import TokenBatch
from sentport.errors import EngineError
from sentport.plans import Profile


class Piece(NamedTuple):
    """Rows that run at once.

    Attributes:
        profile: Number of the tightest profile that takes them.
        start: First row.
        stop: The row behind the last.
    """

    profile: int
    start: int
    stop: int


def fit(profiles: Sequence[Profile], layout: str, lengths: NDArray[np.int32]) -> list[Piece]:
    """Cut a batch into pieces, each in the tightest profile that takes it.

    Args:
        profiles: Ascending by tokens.
        layout: ``padded``, where a profile's tokens are those of the longest row, or ``packed``, of all rows.
        lengths: ``[B]`` tokens of each row, B at least 1.

    Raises:
        EngineError: When a row is longer than any profile takes.
    """
    widest = profiles[-1]
    longest = int(lengths.max())
    if longest > widest.tokens.most:
        raise EngineError(
            f"a row has {longest} tokens, and no profile of the plan takes more than {widest.tokens.most}; "
            f"build one that does: sentport build BUNDLE --edges {longest}"
        )
    if layout == "padded":
        number = next(n for n, profile in enumerate(profiles) if profile.tokens.most >= longest)
        step = profiles[number].rows.most
        return [Piece(number, start, min(start + step, len(lengths))) for start in range(0, len(lengths), step)]
    return _fit_packed(profiles, lengths)


def _fit_packed(profiles: Sequence[Profile], lengths: NDArray[np.int32]) -> list[Piece]:
    ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])  # [B+1]
    widest = max(profiles, key=lambda profile: profile.rows.most)
    pieces, start = [], 0
    while start < len(lengths):
        within = int(np.searchsorted(ends, ends[start] + profiles[-1].tokens.most, side="right")) - 1
        stop = min(within, start + widest.rows.most, len(lengths))
        while (number := _tightest(profiles, stop - start, int(ends[stop] - ends[start]))) is None:
            stop -= 1  # one row always fits, as its length was checked
        pieces.append(Piece(number, start, stop))
        start = stop
    return pieces


def _tightest(profiles: Sequence[Profile], rows: int, tokens: int) -> int | None:
    fitting = (n for n, profile in enumerate(profiles) if profile.tokens.most >= tokens and profile.rows.most >= rows)
    return next(fitting, None)


def rows_of(batch: TokenBatch, start: int, stop: int) -> TokenBatch:
    """Some rows of a batch."""
    if (start, stop) == (0, len(batch.lengths)):
        return batch
    first, last = int(batch.lengths[:start].sum()), int(batch.lengths[:stop].sum())
    tables = (batch.ids, batch.attention_mask, batch.token_type_ids, batch.pooling_mask)
    ids, *masks = (None if table is None else table[first:last] for table in tables)
    assert ids is not None
    return TokenBatch(ids, batch.lengths[start:stop], *masks)
