"""Rows in blocks whose bounds depend on input position alone, tokenised one block ahead of the engine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from sentport.bulk.inputs import START, Inputs, Mark, Row
from sentport.encoder import STREAM_ROWS, Encoder
from sentport.errors import InputError
from sentport.scheduler import unique_texts
from sentport.tokenizer import Tokens

# A block of few but huge texts ends early, so that its tokens stay few too.
_BLOCK_CHARACTERS = 8_000_000

One = TypeVar("One")
Other = TypeVar("Other")


class Block(NamedTuple):
    """Rows that are sorted and batched together.

    Attributes:
        part: Number of the part that they belong to.
        start: Input position of the first.
        mark: Where in the input the first starts.
        rows: The rows.
        sha256: Over all rows of the part up to the end of this block.
    """

    part: int
    start: int
    mark: Mark
    rows: list[Row]
    sha256: str


def cut_blocks(rows: Iterable[Row], part_rows: int, mark: Mark = START, part: int = 0) -> Iterator[Block]:
    """Blocks of a stream that starts at the beginning of a part.

    Args:
        rows: The input from there on.
        part_rows: Input rows of a part.
        mark: Where ``rows`` starts.
        part: Number of the first part.
    """
    held: list[Row] = []
    taken = characters = 0
    digest = hashlib.sha256()

    def close() -> Block:
        values = [[row.text, row.id, row.reason] for row in held]
        digest.update(json.dumps(values).encode())
        return Block(part, part * part_rows + taken, mark, held, digest.hexdigest())

    for row in rows:
        held.append(row)
        characters += len(row.text or "")
        full = taken + len(held) == part_rows
        if full or len(held) == STREAM_ROWS or characters >= _BLOCK_CHARACTERS:
            yield close()
            mark = Mark(row.file, row.end, row.line)
            taken, held, characters = taken + len(held), [], 0
            if full:
                part, taken, digest = part + 1, 0, hashlib.sha256()
    if held:
        yield close()


class BadRow(NamedTuple):
    """An input row without a vector, as it is told in the side file."""

    position: int
    id: int | str | None
    file: str
    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """A block that is ready for the engine.

    Attributes:
        block: Where it comes from.
        good: ``[k]`` places, within the block, of the rows that can be encoded.
        ids: k ids.
        texts: k texts.
        tokens: The distinct texts, tokenised.
        inverse: ``[k]`` which of the distinct texts each is.
        bad: The other rows.
        truncated: Input positions of those that lose their end.
    """

    block: Block
    good: NDArray[np.int64]
    ids: list[int | str]
    texts: list[str]
    tokens: Tokens
    inverse: NDArray[np.int64]
    bad: list[BadRow]
    truncated: list[int]

    @property
    def token_count(self) -> int:
        """Tokens of the k texts."""
        return int(self.tokens.lengths[self.inverse].sum())


def prepare(
    block: Block, encoder: Encoder, inputs: Inputs, prompt: str, *, refuse_long: bool, stop_on_bad: bool
) -> Prepared:
    """Tokenise a block's good rows and set its bad ones aside.

    Args:
        block: The rows.
        encoder: Tokenises.
        inputs: What the rows are from.
        prompt: Name of a saved prompt, "" = none.
        refuse_long: Whether texts over the length limit are bad.
        stop_on_bad: Whether the first bad row is an error.

    Raises:
        InputError: For a bad row, when asked to stop there.
    """
    rows = block.rows
    reasons = [row.reason for row in rows]
    fine = [place for place, reason in enumerate(reasons) if reason is None]
    distinct, inverse = unique_texts([rows[place].text or "" for place in fine])
    tokens = encoder.tokens(distinct, prompt=prompt)
    long = tokens.full_lengths > encoder.info.max_tokens  # [distinct]
    if refuse_long and long.any():
        for place, which in zip(fine, inverse.tolist(), strict=True):
            if long[which]:
                count, limit = tokens.full_lengths[which], encoder.info.max_tokens
                reasons[place] = f"{count} tokens, the limit is {limit}"
        kept = np.flatnonzero(~long)
        inverse = (np.cumsum(~long) - 1)[inverse[~long[inverse]]]
        tokens, long = tokens.take(kept), long[kept]
        fine = [place for place in fine if reasons[place] is None]
    bad = [
        BadRow(block.start + place, rows[place].id, inputs.files[rows[place].file], rows[place].line, reason)
        for place, reason in enumerate(reasons)
        if reason is not None
    ]
    if bad and stop_on_bad:
        first = bad[0]
        raise InputError(
            f"{first.file} line {first.line} cannot be encoded ({first.reason}); mend it, or leave out --on-bad stop",
            (first.position,),
        )
    ids = [block.start + place if inputs.id_column is None else rows[place].id for place in fine]
    return Prepared(
        block,
        np.array(fine, np.int64),
        ids,  # type: ignore[arg-type]  # a good row has an id
        [rows[place].text or "" for place in fine],
        tokens,
        inverse,
        bad,
        [block.start + fine[place] for place in np.flatnonzero(long[inverse])],
    )


def one_ahead(items: Iterable[One], work: Callable[[One], Other]) -> Iterator[Other]:
    """``map`` in a thread that is one item ahead of its reader; items are taken in the reader's own thread."""
    with ThreadPoolExecutor(1) as pool:
        waiting = None
        for item in items:
            ahead = pool.submit(work, item)
            if waiting is not None:
                yield waiting.result()
            waiting = ahead
        if waiting is not None:
            yield waiting.result()
