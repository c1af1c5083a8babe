"""Reading a checkpoint folder: sentence-transformers' of any age, or a plain Hugging Face one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PreTrainedTokenizerFast

from sentport.bundle import ModelSpec
from sentport.errors import CheckpointError
from sentport.modeling.hub import locate
from sentport.modeling.modules import read_chain
from sentport.modeling.sentence_model import SentenceModel
from sentport.modeling.source_files import read_json, read_settings, refuse_unknown_settings, transformer_folder
from sentport.modeling.source_tokenizer import (
    check_ids,
    length_limit,
    load_tokenizer,
    plain_definition,
)
from sentport.modeling.transformer import load_transformer, transformer_config

_SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")


@dataclass(frozen=True)
class Checkpoint:
    """A source model, ready to run, trace or train.

    Attributes:
        model: The model in fp32 and evaluation mode.
        spec: What it is.
        tokenizer: The source tokenizer, for proving that ours agrees with it.
        tokenizer_definition: ``tokenizer.json`` as the bundle gets it.
        remarks: What a user should be told about how the folder was read.
    """

    model: SentenceModel
    spec: ModelSpec
    tokenizer: PreTrainedTokenizerFast
    tokenizer_definition: str
    remarks: tuple[str, ...]


def load_checkpoint(
    source: str | Path,
    *,
    pooling: str | None = None,
    normalize: bool | None = None,
    attention: str = "sdpa",
) -> Checkpoint:
    """Load a checkpoint folder, or a model of the hub that is in the local cache or can be fetched.

    Args:
        source: The folder, or a hub id.
        pooling: ``cls``, ``max`` or ``mean``; for plain Hugging Face checkpoints, which do not say.
        normalize: Append L2 normalisation. None = as saved; for a plain checkpoint, append it.
        attention: ``sdpa`` to run, ``eager`` to trace (plain matrix products and softmax).

    Raises:
        CheckpointError: When the folder cannot be read, or something in it would have to be dropped or guessed.
    """
    folder = locate(source)
    try:
        return _load(source, folder, pooling, normalize, attention)
    except CheckpointError:
        raise
    except Exception as error:  # someone else's files: whatever shape they are in, it is one line
        reason = (str(error).splitlines() or [""])[0]
        raise CheckpointError(f"{folder} cannot be read as a checkpoint ({type(error).__name__}: {reason})") from error


def _load(source: str | Path, folder: Path, pooling: str | None, normalize: bool | None, attention: str) -> Checkpoint:
    config = transformer_config(folder)
    modules = read_json(folder / "modules.json", missing_ok=True)
    settings = read_settings(transformer_folder(folder, modules))
    refuse_unknown_settings(settings, folder)
    saved = read_json(folder / "config_sentence_transformers.json", missing_ok=True) or {}
    _refuse_unknown_model(saved, folder)
    chain = read_chain(folder, modules, config.hidden_size, pooling, normalize)
    transformer, remarks = load_transformer(transformer_folder(folder, modules), attention)
    model = SentenceModel(transformer, chain, uses_token_types=config.type_vocab_size > 1).eval()
    tokenizer = load_tokenizer(transformer_folder(folder, modules), bool(settings.get("do_lower_case")))
    definition = plain_definition(tokenizer)
    check_ids(tokenizer, config, model.uses_token_types, folder)
    max_tokens, decided_by, capped = length_limit(settings, tokenizer, config)
    prompts = {name: text for name, text in (saved.get("prompts") or {}).items() if text is not None}
    similarity, told = _similarity(saved)
    spec = ModelSpec(
        source=str(source) if not Path(source).exists() else folder.resolve().name,
        weights_sha256=_weights_hash(model),
        tokenizer_sha256=hashlib.sha256(definition.encode()).hexdigest(),
        architecture=config.model_type,
        modules=tuple(model.describe()),
        dim=model.dim,
        similarity=similarity,
        max_tokens=max_tokens,
        max_tokens_source=decided_by,
        prompts=prompts,
        default_prompt=saved.get("default_prompt_name"),
    )
    return Checkpoint(model, spec, tokenizer, definition, tuple(remarks + capped + told))


def _refuse_unknown_model(saved: Mapping[str, Any], folder: Path) -> None:
    """What config_sentence_transformers.json says beyond prompts and similarity must not be lost."""
    if saved.get("model_type") not in (None, "SentenceTransformer"):
        raise CheckpointError(f"{folder} is a {saved['model_type']}; expected a SentenceTransformer")
    if saved.get("truncate_dim") is not None:
        raise CheckpointError(
            f"{folder} cuts its vectors to {saved['truncate_dim']} values (truncate_dim in "
            "config_sentence_transformers.json): not supported yet; remove the key and cut with dim=..."
        )
    prompts = saved.get("prompts") or {}
    texts = prompts.values() if isinstance(prompts, dict) else [0]
    if not all(text is None or isinstance(text, str) for text in texts):
        raise CheckpointError(f"{folder} has prompts {prompts!r}; expected texts by name")
    default = saved.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise CheckpointError(f"{folder} has the default prompt {default!r}, which is not among its prompts")


def _similarity(saved: Mapping[str, Any]) -> tuple[str, list[str]]:
    named = saved.get("similarity_fn_name")
    if named in _SIMILARITIES:
        return str(named), []
    if named is None:
        return "cosine", []
    return "cosine", [f"similarity {named!r} is unknown; cosine is used, as sentence-transformers does"]


def _weights_hash(model: nn.Module) -> str:
    """SHA-256 over name, type, shape and bytes of every tensor, by name: the same for any file format."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()
