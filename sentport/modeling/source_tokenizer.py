"""The tokenizer of a checkpoint, as the ``tokenizer.json`` that a bundle gets: complete, or refused by name."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from tokenizers.normalizers import Lowercase, Sequence
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from sentport.errors import CheckpointError
from sentport.modeling.backbone import SingleTextTypes
from sentport.modeling.source_files import first_line

_WAY_OUT = "save it with a fast tokenizer's save_pretrained, which writes tokenizer.json"


def load_tokenizer(folder: Path, lower_case: bool, own_code: bool = False) -> PreTrainedTokenizerFast:
    """The fast tokenizer of a checkpoint; vocabulary files of slow ones are converted by transformers.

    Args:
        folder: Where its files lie.
        lower_case: ``do_lower_case`` of the checkpoint's settings.
        own_code: Run the tokenizer code that the folder brings along.

    Raises:
        CheckpointError: When there is none, or it would split texts otherwise than a ``tokenizer.json`` can say.
    """
    whole = (folder / "tokenizer.json").is_file()
    pieces = [file.name for file in sorted(folder.glob("*.model"))]
    if not whole and pieces and find_spec("sentencepiece") is None:
        raise CheckpointError(
            f"{folder} has no tokenizer.json, only {pieces[0]}; reading it needs pip install sentencepiece, "
            f"or {_WAY_OUT}"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=own_code)
    except Exception as error:  # missing files surface as several kinds
        raise CheckpointError(
            f"the tokenizer in {folder} cannot be loaded ({type(error).__name__}: {first_line(error)}); {_WAY_OUT}"
        ) from error
    name = type(tokenizer).__name__
    if not getattr(tokenizer, "is_fast", False):
        raise CheckpointError(f"the tokenizer in {folder} is {name}, which has no fast form; expected a fast tokenizer")
    if not whole:
        # Of a missing file transformers makes nothing up less than a whole vocabulary.
        parts = [file for kind, file in type(tokenizer).vocab_files_names.items() if kind != "tokenizer_file"]
        missing = [file for file in parts if not (folder / file).is_file()]
        if missing or not parts:
            raise CheckpointError(
                f"{folder} has no tokenizer: {name} needs tokenizer.json or {' and '.join(missing)}; {_WAY_OUT}"
            )
    _refuse_what_the_file_cannot_say(tokenizer, folder)
    if lower_case:
        _add_lower_case(tokenizer)
    return tokenizer


def _refuse_what_the_file_cannot_say(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    if tokenizer.truncation_side != "right":
        raise CheckpointError(
            f"the tokenizer in {folder} cuts long texts on the left (truncation_side); only the right is supported"
        )
    if tokenizer.split_special_tokens:
        raise CheckpointError(
            f"the tokenizer in {folder} splits special tokens that stand in a text (split_special_tokens), which "
            "tokenizer.json cannot say; remove the option from tokenizer_config.json"
        )


def padding_remarks(tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """What to tell about a tokenizer that pads on the left, which nothing here does."""
    if tokenizer.padding_side == "right":
        return []
    return ["the tokenizer pads on the left, sentport on the right: each text gets the vector that it has alone"]


def _add_lower_case(tokenizer: PreTrainedTokenizerFast) -> None:
    """What ``do_lower_case`` in sentence_bert_config.json means: lower case before all else."""
    backend = tokenizer.backend_tokenizer
    present = backend.normalizer
    several = isinstance(present, Sequence)
    steps = list(cast(Any, present)) if several else [] if present is None else [present]
    if not any(isinstance(step, Lowercase) for step in steps):
        backend.normalizer = Sequence([Lowercase(), *steps])


def plain_definition(tokenizer: PreTrainedTokenizerFast) -> str:
    """``tokenizer.json`` without truncation and padding: those policies live in bundle.json."""
    definition = json.loads(tokenizer.backend_tokenizer.to_str())
    definition["truncation"] = definition["padding"] = None
    return json.dumps(definition, ensure_ascii=False, sort_keys=False)


def check_ids(tokenizer: PreTrainedTokenizerFast, vocabulary: int, folder: Path) -> None:
    """Refuse a tokenizer that gives ids beyond the embedding table's ``vocabulary`` rows."""
    greatest = max(tokenizer.get_vocab().values(), default=0)
    if greatest >= vocabulary:
        raise CheckpointError(
            f"the tokenizer in {folder} has ids up to {greatest}, but the embedding table {vocabulary} rows; "
            "they belong to different models"
        )


def single_text_types(tokenizer: PreTrainedTokenizerFast) -> SingleTextTypes | None:
    """The token types that the tokenizer gives a text on its own; None where it gives none or zeros alone."""
    row = tokenizer("a", return_special_tokens_mask=True)
    types, special = row.get("token_type_ids", []), row["special_tokens_mask"]
    if not any(types):
        return None
    first, behind = special.index(0), special[::-1].index(0)
    last = len(special) - behind
    return SingleTextTypes(tuple(types[:first]), types[first], tuple(types[last:]))
