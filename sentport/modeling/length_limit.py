"""How many tokens of a text a checkpoint's model sees, and which of its files says so."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PretrainedConfig, PreTrainedTokenizerFast

from sentport.errors import CheckpointError
from sentport.modeling.source_files import Settings, read_json

_NO_LIMIT = 10**9  # transformers writes 1e30 for "no limit"
ASKED = "--max-tokens"  # as bundle.json records a limit that the user gave
_TABLE = "max_position_embeddings in config.json"


@dataclass(frozen=True)
class LengthLimit:
    """The limit in force.

    Attributes:
        tokens: How many tokens, special ones included.
        source: The setting that decided it, as bundle.json records it.
        remarks: What a user should be told about the other settings.
    """

    tokens: int
    source: str
    remarks: tuple[str, ...] = ()


def length_limit(
    settings: Settings,
    tokenizer: PreTrainedTokenizerFast,
    config: PretrainedConfig,
    positions: int | None,
    asked: int | None = None,
) -> LengthLimit:
    """sentence-transformers' rule, then capped at the positions that the table really offers.

    ``max_seq_length`` if saved; else the smaller of the tokenizer's limit and ``max_position_embeddings``.

    Args:
        settings: The transformer module's settings.
        tokenizer: The source tokenizer.
        config: The transformer's configuration.
        positions: Tokens that its position table has room for; None without one.
        asked: A limit that the user gives instead.

    Raises:
        CheckpointError: When nothing states a limit, or what states it is not a number of tokens.
    """
    tokens, source = _stated(settings, tokenizer, config) if asked is None else (asked, ASKED)
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1:
        raise CheckpointError(f"{source} is {tokens!r}; expected a number of tokens")
    remarks = []
    if positions is not None and tokens > positions:
        if asked is not None:
            raise CheckpointError(f"--max-tokens is {asked}, but the position table has room for {positions} tokens")
        remarks.append(f"{source} is {tokens}, but the position table has room for {positions}: texts are cut there")
        tokens, source = positions, _TABLE
    ignored = _truncation_of(tokenizer)
    if ignored not in (None, tokens):
        remarks.append(
            f"tokenizer.json itself cuts at {ignored} tokens, which sentence-transformers ignores, and so do we"
        )
    return LengthLimit(tokens, source, tuple(remarks))


def _stated(settings: Settings, tokenizer: PreTrainedTokenizerFast, config: PretrainedConfig) -> tuple[Any, str]:
    """The limit that sentence-transformers would apply, and where it is from."""
    if settings.max_seq_length is not None:
        return settings.max_seq_length, f"max_seq_length in {settings.file}"
    own = int(tokenizer.model_max_length)
    table = getattr(config, "max_position_embeddings", None)
    if table in (None, -1):  # XLNet has the property, and says -1
        table = _NO_LIMIT
    if own <= table and own < _NO_LIMIT:
        return own, "model_max_length in tokenizer_config.json"
    if table < _NO_LIMIT:
        return table, _TABLE
    raise CheckpointError(
        "nothing in the checkpoint limits the length of a text (max_seq_length, model_max_length, "
        "max_position_embeddings); give the limit with --max-tokens, as the model was trained"
    )


def _truncation_of(tokenizer: PreTrainedTokenizerFast) -> int | None:
    """What the tokenizer's own file says about cutting; read from it, since any call may have changed the object."""
    definition = read_json(Path(tokenizer.name_or_path) / "tokenizer.json", missing_ok=True) or {}
    truncation = definition.get("truncation")
    return None if truncation is None else int(truncation["max_length"])
