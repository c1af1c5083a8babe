"""Text to token ids with the ``tokenizers`` package alone: the same ids as the source model's own tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as FastTokenizer

from sentport.errors import BundleError

# Texts a worker tokenises before it looks for more: long enough to hide the hand-over, short enough to balance.
_BLOCK_ROWS = 64


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokenised texts, N of them.

    Attributes:
        rows: N arrays of int64 ids, special tokens included, cut to the limit.
        full_lengths: ``[N]`` int64, tokens each text has without the limit, special tokens included.
        unpooled: ``[N]`` int64, how many tokens at the start of each row pooling leaves out; None = none.
    """

    rows: list[NDArray[np.int64]]
    full_lengths: NDArray[np.int64]
    unpooled: NDArray[np.int64] | None = None

    @property
    def lengths(self) -> NDArray[np.int64]:
        """``[N]`` int64, tokens of each row after the limit."""
        return np.fromiter((len(row) for row in self.rows), np.int64, count=len(self.rows))

    def take(self, rows: NDArray[np.int64]) -> Tokens:
        """Some of the rows, in the order given."""
        unpooled = None if self.unpooled is None else self.unpooled[rows]
        return Tokens([self.rows[row] for row in rows], self.full_lengths[rows], unpooled)


def join_tokens(parts: Sequence[Tokens]) -> Tokens:
    """The rows of all parts, one part after the other."""
    unpooled = [np.zeros(len(part.rows), np.int64) if part.unpooled is None else part.unpooled for part in parts]
    return Tokens(
        [row for part in parts for row in part.rows],
        np.concatenate([part.full_lengths for part in parts]),
        None if all(part.unpooled is None for part in parts) else np.concatenate(unpooled),
    )


class Tokenizer:
    """A fast tokenizer with our own truncation limit and no padding. Safe to call from several threads.

    Args:
        definition: The content of a ``tokenizer.json``; its own truncation and padding policies are switched off.
        max_tokens: The length limit, special tokens included.
        threads: Texts are tokenised by this many threads at once.

    Raises:
        BundleError: When the definition cannot be read, or the limit leaves no room for a text.
    """

    def __init__(self, definition: str, max_tokens: int, threads: int = 1) -> None:
        try:
            self._fast = FastTokenizer.from_str(definition)
        except Exception as error:  # the package raises bare Exception
            raise BundleError(f"tokenizer.json cannot be read ({error}); export the checkpoint again") from error
        self._fast.no_padding()
        special = self._fast.num_special_tokens_to_add(is_pair=False)
        if max_tokens <= special:
            raise BundleError(
                f"max_tokens is {max_tokens}, but the tokenizer adds {special} special tokens to every text"
            )
        self.max_tokens = max_tokens
        self._threads = threads
        # Cutting ourselves costs nothing; the package's own truncation builds an object for every piece it cuts off.
        self._fast.no_truncation()
        mask = self._fast.encode("a").special_tokens_mask
        self._special_after = len(mask) if all(mask) else mask[::-1].index(0)
        added = self._fast.get_added_tokens_decoder()
        self._special = frozenset(token for token, what in added.items() if what.special)

    @classmethod
    def from_file(cls, path: Path, max_tokens: int, threads: int = 1) -> Tokenizer:
        """Read ``tokenizer.json``.

        Raises:
            BundleError: When the file is missing or unreadable.
        """
        if not path.is_file():
            raise BundleError(f"{path} is missing; export the checkpoint again")
        return cls(path.read_text(encoding="utf-8"), max_tokens, threads)

    def encode(self, texts: Sequence[str]) -> Tokens:
        """Tokenise valid texts (no lone surrogates), keeping their order.

        The limit cuts the text, never the special tokens around it.
        """
        whole = self.encode_whole(texts)
        full = np.fromiter((len(row) for row in whole), np.int64, count=len(whole))
        return Tokens([np.asarray(self.cut(row, self.max_tokens), np.int64) for row in whole], full)

    def encode_whole(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text without any limit, special tokens included."""
        # Row by row rather than encode_batch: its thread pool ignores our thread count.
        if self._threads == 1 or len(texts) <= _BLOCK_ROWS:
            return self._block(texts)
        blocks = [texts[start : start + _BLOCK_ROWS] for start in range(0, len(texts), _BLOCK_ROWS)]
        with ThreadPoolExecutor(self._threads) as pool:
            return [row for block in pool.map(self._block, blocks) for row in block]

    def cut(self, row: list[int], limit: int) -> list[int]:
        """A row cut to a limit as the ``tokenizers`` package does it: the text loses its end, special tokens stay."""
        if len(row) <= limit:
            return row
        tail = self._special_after
        return [*row[: limit - tail], *row[len(row) - tail :]]

    def prompt_tokens(self, prompt: str) -> int:
        """How many tokens at the start of a row are the prompt's, the special ones in front included.

        As sentence-transformers counts them: the tokens of the prompt alone, cut to the limit, without a special
        token at their end. A piece that spans prompt and text is thereby taken for either, as it is there.
        """
        if not prompt:
            return 0
        row = self.cut(self._fast.encode(prompt).ids, self.max_tokens)
        return len(row) - (bool(row) and row[-1] in self._special)

    def _block(self, texts: Sequence[str]) -> list[list[int]]:
        return [self._fast.encode(text).ids for text in texts]
