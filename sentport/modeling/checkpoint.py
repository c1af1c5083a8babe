"""Reading a checkpoint folder: sentence-transformers' of any age, or a plain Hugging Face one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from sentport.bundle import ModelSpec
from sentport.errors import CheckpointError
from sentport.inputs import bad_rows
from sentport.modeling.chain import ChainModule, Truncate
from sentport.modeling.hub import Source, locate
from sentport.modeling.length_limit import length_limit
from sentport.modeling.modules import ChainOptions, read_chain, width
from sentport.modeling.own_code import own_code
from sentport.modeling.sentence_model import SentenceModel
from sentport.modeling.source_files import (
    first_line,
    module_folders,
    read_json,
    read_modules,
    read_settings,
    transformer_folder,
)
from sentport.modeling.source_tokenizer import (
    check_ids,
    load_tokenizer,
    padding_remarks,
    plain_definition,
    single_text_types,
)
from sentport.modeling.transformer import load_transformer, transformer_config

_SAVED_CUT = "truncate_dim in config_sentence_transformers.json"
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
    dim: int | None = None,
    max_tokens: int | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    attention: str = "sdpa",
) -> Checkpoint:
    """Load a checkpoint folder, or a model of the hub that is in the local cache or can be fetched.

    Args:
        source: The folder, or a hub id.
        pooling: For plain Hugging Face checkpoints, which do not say: modes of pooling joined by ``+``, or one of
            SimCSE's (``cls_before_pooler``, ``cls_after_pooler``, ``avg_first_last``, ``avg_top2``).
        normalize: Append L2 normalisation. None = as saved; for a plain checkpoint, append it.
        dim: Cut vectors to their first values, normalised after it where the chain ends in Normalize.
        max_tokens: The length limit, special tokens included; None = as saved.
        revision: Branch, tag or full commit of the hub's repository; None = its default branch.
        trust_remote_code: Run code that the checkpoint brings along; one of the hub then needs a full commit.
        attention: ``sdpa`` to run, ``eager`` to trace (plain matrix products and softmax).

    Raises:
        CheckpointError: When the folder cannot be read, or something in it would have to be dropped or guessed.
    """
    found = locate(source, revision)
    asked = _Asked(ChainOptions(pooling, normalize, dim), max_tokens, trust_remote_code, attention)
    try:
        return _load(found, asked)
    except CheckpointError:
        raise
    except Exception as error:  # someone else's files: whatever shape they are in, it is one line
        raise CheckpointError(
            f"{found.folder} cannot be read as a checkpoint ({type(error).__name__}: {first_line(error)})"
        ) from error


@dataclass(frozen=True)
class _Asked:
    """What the caller wants beyond what the checkpoint saves."""

    chain: ChainOptions
    max_tokens: int | None
    trust_remote_code: bool
    attention: str


def _load(source: Source, asked: _Asked) -> Checkpoint:
    folder = source.folder
    modules = read_modules(folder)
    where = transformer_folder(folder, modules)
    code = own_code(source, where, asked.trust_remote_code)
    config = transformer_config(where, bool(code))
    settings = read_settings(where)
    saved = read_json(folder / "config_sentence_transformers.json", missing_ok=True) or {}
    _refuse_unknown_model(saved, folder)
    chain = read_chain(folder, modules, config.hidden_size, asked.chain)
    chain, cut = _with_saved_cut(chain, saved) if asked.chain.dim is None else (chain, [])
    tokenizer = load_tokenizer(where, settings.lower_case, bool(code))
    transformer, remarks = load_transformer(where, config, asked.attention, single_text_types(tokenizer), bool(code))
    check_ids(tokenizer, transformer.vocabulary, folder)
    limit = length_limit(settings, tokenizer, config, transformer.positions, asked.max_tokens)
    model = SentenceModel(transformer, chain).eval()
    definition = plain_definition(tokenizer)
    similarity, told = _similarity(saved)
    if model.uses_pooling_mask:
        _check_special(tokenizer, definition, folder)
    spec = ModelSpec(
        source=source.name,
        revision=source.commit,
        weights_sha256=_weights_hash(model, sorted(where.rglob("*.py")) if code else []),
        tokenizer_sha256=hashlib.sha256(definition.encode()).hexdigest(),
        architecture=config.model_type,
        modules=tuple(model.describe()),
        dim=model.dim,
        similarity=similarity,
        max_tokens=limit.tokens,
        max_tokens_source=limit.source,
        prompts={name: text for name, text in (saved.get("prompts") or {}).items() if text is not None},
        default_prompt=saved.get("default_prompt_name"),
    )
    remarks = [
        *_origin(source, code),
        *_pickled(folder, modules),
        *remarks,
        *padding_remarks(tokenizer),
        *limit.remarks,
        *cut,
        *told,
    ]
    return Checkpoint(model, spec, tokenizer, definition, tuple(remarks))


def _origin(source: Source, code: list[str]) -> list[str]:
    """Which commit was read, and what was run."""
    at = [] if source.commit is None else [f"{source.name} is at commit {source.commit}"]
    return [*at, f"ran code of the checkpoint's own: {', '.join(code)}"] if code else at


def _pickled(folder: Path, modules: list[dict[str, Any]] | None) -> list[str]:
    """Which parts have no safetensors."""
    names = dict.fromkeys(module_folders(modules) if modules else [""])
    old = [
        name
        for name in names
        if not list((folder / name).glob("*.safetensors")) and list((folder / name).glob("*.bin"))
    ]
    if not old:
        return []
    what = ", ".join(name or "the folder itself" for name in old)
    return [f"without safetensors: {what}; .bin is read with torch's weights-only loader"]


def _refuse_unknown_model(saved: Mapping[str, Any], folder: Path) -> None:
    """What config_sentence_transformers.json says beyond prompts and similarity must not be lost."""
    if saved.get("model_type") not in (None, "SentenceTransformer"):
        raise CheckpointError(f"{folder} is a {saved['model_type']}; expected a SentenceTransformer")
    prompts = saved.get("prompts") or {}
    texts = prompts.values() if isinstance(prompts, dict) else [0]
    if bad_rows([text for text in texts if text is not None], surrogates=True):
        raise CheckpointError(f"{folder} has prompts {prompts!r}; expected texts by name")
    default = saved.get("default_prompt_name")
    if default == "":  # which stands for no prompt when a caller names it
        raise CheckpointError(f"{folder} has a default prompt whose name is empty; give it a name")
    if default is not None and default not in prompts:
        raise CheckpointError(f"{folder} has the default prompt {default!r}, which is not among its prompts")


def _with_saved_cut(chain: list[ChainModule], saved: Mapping[str, Any]) -> tuple[list[ChainModule], list[str]]:
    """The chain with the checkpoint's own cut behind it, as in sentence-transformers: nothing is normalised again."""
    dim = saved.get("truncate_dim")
    whole = width(chain, 0)
    if dim is None or (type(dim) is int and dim >= whole):
        return chain, []
    if type(dim) is not int or dim < 1:
        raise CheckpointError(f"{_SAVED_CUT} is {dim!r}; expected a number of values")
    told = f"vectors are cut to {dim} of {whole} values ({_SAVED_CUT}); --dim {dim} also normalises them again"
    return [*chain, Truncate(dim)], [told]


def _check_special(tokenizer: PreTrainedTokenizerFast, definition: str, folder: Path) -> None:
    """Prompt tokens are counted up to a special token at their end, so both sides must call the same ones special."""
    ours = {token["id"] for token in json.loads(definition)["added_tokens"] if token["special"]}
    if odd := sorted(ours ^ set(tokenizer.all_special_ids)):
        raise CheckpointError(
            f"{folder} leaves prompts out of pooling, but its tokenizer.json and tokenizer_config.json differ in which "
            f"tokens are special (ids {', '.join(map(str, odd))}); save the tokenizer again with save_pretrained"
        )


def _similarity(saved: Mapping[str, Any]) -> tuple[str, list[str]]:
    named = saved.get("similarity_fn_name")
    if named in _SIMILARITIES:
        return str(named), []
    if named is None:
        return "cosine", []
    return "cosine", [f"similarity {named!r} is unknown; cosine is used, as sentence-transformers does"]


def _weights_hash(model: SentenceModel, code: list[Path]) -> str:
    """SHA-256 over name, type, shape and bytes of every tensor, by name: the same for any file format.

    Names are those of the source's own parts, never of our wrappers: a change there must not change fingerprints.
    Code that the checkpoint brings along makes the vectors as much as its weights do, and is hashed with them.
    """
    tensors = {f"transformer.{name}": tensor for name, tensor in model.transformer.model.state_dict().items()}
    for place, module in enumerate(model.chain, start=-1):  # the module after the pooling has always been number 0
        tensors |= {f"chain.{place}.{name}": tensor for name, tensor in module.state_dict().items()}
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    for file in code:
        digest.update(file.read_bytes())
    return digest.hexdigest()
