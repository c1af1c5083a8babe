"""The bundle's tokenizer against the source's, id for id, at several length limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Protocol

from sentport.errors import CheckpointError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Short limits cut inside words and next to the special tokens, where truncation rules differ; longer ones cut rarely.
_LIMITS = (4, 8, 16, 64, 128)
# Large, because setting a limit may cost either side a pass over its vocabulary; small enough to stop early.
_CHUNK_LINES = 500
_SHOWN_CHARACTERS = 40


class TokenizerUnderTest(Protocol):
    """What is compared with the source: text to ids, then the cut to a limit that counts special tokens."""

    def encode_whole(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text without any limit, special tokens included."""
        ...

    def cut(self, row: list[int], limit: int) -> list[int]:
        """A row's ids under a limit."""
        ...


@dataclass(frozen=True, slots=True)
class ConformanceRecord:
    """What was compared and found equal.

    Attributes:
        lines: How many texts.
        limits: The length limits each text was cut to, ascending.
    """

    lines: int
    limits: tuple[int, ...]


def check_tokenizer(
    ours: TokenizerUnderTest, source: PreTrainedTokenizerFast, max_tokens: int, lines: Sequence[str]
) -> ConformanceRecord:
    """Compare all ids of both tokenizers at limits 4, 8, 16, 64, 128 and ``max_tokens``.

    The source's own special tokens are looked for inside of texts too, where tokenizers have options of their own.
    Limits above ``max_tokens`` are left out, and so are those that leave no room beside the special tokens. As after
    any call of a fast tokenizer, the source keeps the truncation of the last call.

    Args:
        ours: The bundle's tokenizer.
        source: The checkpoint's own tokenizer.
        max_tokens: The model's length limit, special tokens included.
        lines: Texts to compare on, such as ``export.texts.adversarial_lines()``.

    Returns:
        How many lines were compared and at which limits.

    Raises:
        CheckpointError: At the first difference, naming limit, line (counted from 1), position (from 0) and both ids;
            or when ``max_tokens`` leaves no room for a text.
    """
    special = source.num_special_tokens_to_add()
    if max_tokens <= special:
        raise CheckpointError(
            f"max_tokens is {max_tokens}, but the source tokenizer adds {special} special tokens to every text; "
            "set max_seq_length in the checkpoint's sentence_bert_config.json higher"
        )
    limits = tuple(sorted({limit for limit in (*_LIMITS, max_tokens) if special < limit <= max_tokens}))
    lines = [*lines, *(f"a{token}b {token} c" for token in source.all_special_tokens)]
    whole = ours.encode_whole(lines)
    for limit in limits:
        for start in range(0, len(lines), _CHUNK_LINES):
            chunk = list(lines[start : start + _CHUNK_LINES])
            # A limit is always given: without one transformers warns about every text beyond the model's maximum.
            expected = source(chunk, truncation=True, max_length=limit)["input_ids"]
            found = [ours.cut(row, limit) for row in whole[start : start + _CHUNK_LINES]]
            if found != expected:
                raise CheckpointError(_first_difference(found, expected, chunk, start, limit))
    return ConformanceRecord(len(lines), limits)


def _first_difference(
    found: list[list[int]], expected: list[list[int]], chunk: list[str], start: int, limit: int
) -> str:
    """The message for a chunk that differs; ``start`` is the chunk's place among all lines."""
    for number, (text, mine, theirs) in enumerate(zip(chunk, found, expected, strict=True), start + 1):
        for position, (here, there) in enumerate(zip_longest(mine, theirs)):
            if here != there:
                # ASCII only, and so one line: the text may hold line separators and terminal controls.
                shown = ascii(text[:_SHOWN_CHARACTERS]) + ("..." if len(text) > _SHOWN_CHARACTERS else "")
                return (
                    f"tokenizer differs from the source at limit {limit}, line {number} ({shown}), position "
                    f"{position}: id {_shown_id(here)}, expected {_shown_id(there)} from the source; "
                    "save the source tokenizer again with save_pretrained so that its tokenizer.json is complete"
                )
    raise AssertionError("chunks differ but no id does. This is a bug.")


def _shown_id(token: int | None) -> str:
    return "none (row ended)" if token is None else str(token)
