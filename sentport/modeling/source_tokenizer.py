"""The tokenizer of a checkpoint, as the ``tokenizer.json`` that a bundle gets, and its length limit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers.normalizers import Lowercase, Normalizer, Sequence
from transformers import AutoTokenizer, PretrainedConfig, PreTrainedTokenizerFast

from sentport.errors import CheckpointError

_NO_LIMIT = 1_000_000  # transformers writes 1e30 for "no limit"
_TOKENIZER_FILES = ("tokenizer.json", "vocab.txt")


def load_tokenizer(folder: Path, lower_case: bool) -> PreTrainedTokenizerFast:
    """The fast tokenizer of a checkpoint."""
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        # transformers would make one up
        raise CheckpointError(f"{folder} has no tokenizer; expected {' or '.join(_TOKENIZER_FILES)}")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # missing files surface as several kinds
        raise CheckpointError(f"the tokenizer in {folder} cannot be loaded: {error}") from error
    if not getattr(tokenizer, "is_fast", False):
        raise CheckpointError(f"the tokenizer in {folder} is {type(tokenizer).__name__}; expected a fast tokenizer")
    if getattr(tokenizer, "padding_side", "right") != "right" or tokenizer.truncation_side != "right":
        raise CheckpointError(f"the tokenizer in {folder} pads or truncates on the left; only the right is supported")
    if lower_case:
        _add_lower_case(tokenizer)
    return tokenizer


def _add_lower_case(tokenizer: PreTrainedTokenizerFast) -> None:
    """What ``do_lower_case`` in sentence_bert_config.json means: lower-case first, unless the tokenizer does."""
    backend = tokenizer.backend_tokenizer
    normalizer: Normalizer | None = backend.normalizer
    state = json.loads(backend.to_str())["normalizer"]
    parts = (state or {}).get("normalizers", [state] if state else [])
    if any(part["type"] == "Lowercase" or part.get("lowercase") for part in parts):
        return
    backend.normalizer = Lowercase() if normalizer is None else Sequence([Lowercase(), normalizer])


def plain_definition(tokenizer: PreTrainedTokenizerFast) -> str:
    """``tokenizer.json`` without truncation and padding: those policies live in bundle.json."""
    definition = json.loads(tokenizer.backend_tokenizer.to_str())
    definition["truncation"] = definition["padding"] = None
    return json.dumps(definition, ensure_ascii=False, sort_keys=False)


def check_ids(
    tokenizer: PreTrainedTokenizerFast, config: PretrainedConfig, uses_token_types: bool, folder: Path
) -> None:
    """Refuse ids and token types that the graph would not get as the source model does."""
    if len(tokenizer) > config.vocab_size:
        raise CheckpointError(
            f"the tokenizer in {folder} has {len(tokenizer)} ids, but the embedding table {config.vocab_size} rows"
        )
    types = tokenizer("a").get("token_type_ids", []) if uses_token_types else []
    if any(types):
        raise CheckpointError(f"the tokenizer in {folder} gives a single text token types {types}: not supported yet")


def length_limit(
    settings: Mapping[str, Any], tokenizer: PreTrainedTokenizerFast, config: PretrainedConfig
) -> tuple[int, str, list[str]]:
    """sentence-transformers' rule, then capped at the positions that the table offers.

    ``max_seq_length`` if saved; else the smaller of the tokenizer's limit and the position table.
    """
    positions = int(config.max_position_embeddings)
    saved = settings.get("max_seq_length")
    own = int(tokenizer.model_max_length) if tokenizer.model_max_length < _NO_LIMIT else None
    if saved is not None:
        limit, decided_by = int(saved), "max_seq_length in sentence_bert_config.json"
    elif own is not None and own <= positions:
        limit, decided_by = own, "model_max_length in tokenizer_config.json"
    else:
        limit, decided_by = positions, "max_position_embeddings in config.json"
    if limit > positions:
        told = f"{decided_by} is {limit}, but the position table has {positions}: texts are cut at {positions} tokens"
        return positions, "max_position_embeddings in config.json", [told]
    return limit, decided_by, []
