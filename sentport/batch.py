"""What travels between encoder and engine: rows of token ids laid end to end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentport.errors import InputError, list_rows

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Rows of tokens without padding between them.

    Dimension letters: T tokens in all rows together, B rows, L the longest row.

    Attributes:
        ids: ``[T]`` int64, the rows one after the other.
        lengths: ``[B]`` int32, tokens of each row; they add up to T.
        attention_mask: ``[T]`` int64, ones and zeros, or None for all ones. A zero must not stand before a one of its
            row.
        token_type_ids: ``[T]`` int64 or None for all zeros.
        pooling_mask: ``[T]`` int64, ones among those of the attention mask, or None for that mask.
    """

    ids: Ids
    lengths: NDArray[np.int32]
    attention_mask: Ids | None = None
    token_type_ids: Ids | None = None
    pooling_mask: Ids | None = None

    def __post_init__(self) -> None:
        total = int(self.lengths.sum())
        if self.ids.dtype != np.int64 or self.ids.shape != (total,):
            raise InputError(
                f"ids are {self.ids.dtype}{list(self.ids.shape)}; lengths ask for int64[{total}] (rows laid end to end)"
            )
        for name in ("attention_mask", "token_type_ids", "pooling_mask"):
            value = getattr(self, name)
            if value is not None and (value.dtype != np.int64 or value.shape != (total,)):
                raise InputError(f"{name} is {value.dtype}{list(value.shape)}; expected int64[{total}] like the ids")
            if value is not None and name != "token_type_ids" and ((value != 0) & (value != 1)).any():
                raise InputError(f"{name} holds values other than 0 and 1")
        self._refuse_leading_pads()
        pooled, mask = self.pooling_mask, self.attention_mask
        if pooled is not None and mask is not None and (pooled > mask).any():
            raise InputError("the pooling mask takes tokens that the attention mask leaves out")

    def _refuse_leading_pads(self) -> None:
        """Right padding only: positions count from the row's first token, so a pad in front would shift them."""
        if self.attention_mask is None or len(self.ids) < 2:
            return
        mask = self.attention_mask
        row_of = np.repeat(np.arange(len(self.lengths)), self.lengths)  # [T]
        rises = (mask[1:] > mask[:-1]) & (row_of[1:] == row_of[:-1])  # [T-1] a token right after a pad
        if rises.any():
            rows = np.unique(row_of[1:][rises]).tolist()
            raise InputError(
                f"rows {list_rows(rows)} have a pad before a token; only right padding is supported", tuple(rows)
            )

    @classmethod
    def from_rows(cls, rows: list[list[int]] | list[Ids], unpooled: Ids | None = None) -> TokenBatch:
        """A batch of plain rows: every token attended to, token types zero.

        Args:
            rows: B rows of token ids.
            unpooled: ``[B]`` tokens at the start of each row that pooling leaves out; None = none.
        """
        lengths = np.fromiter((len(row) for row in rows), np.int32, count=len(rows))  # [B]
        ids = np.concatenate([np.asarray(row, np.int64) for row in rows]) if rows else np.zeros(0, np.int64)  # [T]
        if unpooled is None:
            return cls(ids, lengths)
        position = np.arange(len(ids)) - np.repeat(np.cumsum(lengths) - lengths, lengths)  # [T] within its row
        return cls(ids, lengths, pooling_mask=(position >= np.repeat(unpooled, lengths)).astype(np.int64))

    def padded(self, pad_id: int = 0) -> tuple[Ids, Ids, Ids, Ids]:
        """The batch as rectangles ``[B, L]``: ids, attention mask, token types, pooling mask.

        L is at least one, since no graph takes an empty axis.
        """
        shape = (len(self.lengths), max(1, int(self.lengths.max(initial=0))))  # [B, L]
        inside = np.arange(shape[1]) < self.lengths[:, None]  # [B, L]

        def spread(values: Ids | None, fill: int, otherwise: Ids | int) -> Ids:
            table = np.full(shape, fill, np.int64)  # [B, L]
            table[inside] = otherwise if values is None else values
            return table

        mask = spread(self.attention_mask, 0, 1)
        pooling = mask if self.pooling_mask is None else spread(self.pooling_mask, 0, 0)
        return spread(self.ids, pad_id, 0), mask, spread(self.token_type_ids, 0, 0), pooling

    def packed(self, pad_id: int = 0) -> tuple[Ids, Ids, NDArray[np.int32], Ids]:
        """The batch end to end: ids, attention mask, lengths, pooling mask; all ``[T]``, lengths ``[B]``.

        T is at least one, since no graph takes an empty axis: where no row has a token, the first one gets a pad.
        """
        lengths, ids = self.lengths, self.ids
        mask = np.ones(len(ids), np.int64) if self.attention_mask is None else self.attention_mask
        pooling = mask if self.pooling_mask is None else self.pooling_mask
        if len(ids) or not len(lengths):
            return ids, mask, lengths, pooling
        no_token = np.zeros(1, np.int64)
        return np.full(1, pad_id, np.int64), no_token, np.eye(1, len(lengths), dtype=np.int32)[0], no_token
