"""Reading a checkpoint folder: sentence-transformers' of any age, or a plain Hugging Face one."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers.normalizers import Lowercase, Normalizer, Sequence
from torch import nn
from transformers import AutoConfig, AutoModel, AutoTokenizer, PretrainedConfig, PreTrainedModel
from transformers import PreTrainedTokenizerFast as SourceTokenizer
from transformers.utils import logging as transformers_logging

from sentport.bundle import ModelSpec
from sentport.errors import CheckpointError
from sentport.modeling.chain import (
    ChainModule,
    Normalize,
    Pooling,
    dense_from_config,
    parse_modes,
    pooling_from_config,
)
from sentport.modeling.sentence_model import SentenceModel

logger = logging.getLogger(__name__)

_ARCHITECTURES = ("bert",)
# Settings of sentence_bert_config.json that change nothing here at these values.
_HARMLESS: Mapping[str, tuple[Any, ...] | None] = {
    "transformer_task": ("feature-extraction",),
    "modality_config": ({"text": {"method": "forward", "method_output_name": "last_hidden_state"}},),
    "module_output_name": ("token_embeddings",),
    "message_format": None,
    "processing_kwargs": ({}, None),
    "query_length": (None,),
    "document_length": (None,),
    "unpad_inputs": None,  # a matter of speed, not of vectors
    "backend": None,
}
_NO_LIMIT = 1_000_000  # transformers writes 1e30 for "no limit"
# sentence-transformers reads the first of these that exists.
_SETTINGS_FILES = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
_TOKENIZER_FILES = ("tokenizer.json", "vocab.txt")
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
    tokenizer: SourceTokenizer
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
    folder = _locate(source)
    try:
        return _load(source, folder, pooling, normalize, attention)
    except CheckpointError:
        raise
    except Exception as error:  # someone else's files: whatever shape they are in, it is one line
        reason = (str(error).splitlines() or [""])[0]
        raise CheckpointError(f"{folder} cannot be read as a checkpoint ({type(error).__name__}: {reason})") from error


def _load(source: str | Path, folder: Path, pooling: str | None, normalize: bool | None, attention: str) -> Checkpoint:
    config = _transformer_config(folder)
    modules = _read_json(folder / "modules.json", missing_ok=True)
    settings = _read_settings(_transformer_folder(folder, modules))
    _refuse_unknown_settings(settings, folder)
    saved = _read_json(folder / "config_sentence_transformers.json", missing_ok=True) or {}
    _refuse_unknown_model(saved, folder)
    chain = _read_chain(folder, modules, config.hidden_size, pooling, normalize)
    transformer, remarks = _load_transformer(_transformer_folder(folder, modules), attention)
    model = SentenceModel(transformer, chain, uses_token_types=config.type_vocab_size > 1).eval()
    tokenizer = _load_tokenizer(_transformer_folder(folder, modules), bool(settings.get("do_lower_case")))
    definition = _plain_definition(tokenizer)
    _check_ids(tokenizer, config, model.uses_token_types, folder)
    max_tokens, decided_by, capped = _length_limit(settings, tokenizer, config)
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


def _locate(source: str | Path) -> Path:
    folder = Path(source)
    if folder.is_dir():
        if (folder / "bundle.json").is_file():
            raise CheckpointError(f"{folder} is a bundle; give the checkpoint that it was exported from")
        if not (folder / "config.json").is_file() and not (folder / "modules.json").is_file():
            raise CheckpointError(f"{folder} holds neither modules.json nor config.json; expected a checkpoint folder")
        return folder
    if folder.is_absolute() or str(source).startswith(".") or str(source).count("/") > 1:
        what = "is not a folder" if folder.exists() else "does not exist"
        raise CheckpointError(f"{source} {what}; give a checkpoint folder or a hub id")
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(str(source), ignore_patterns=["*.onnx", "*.msgpack", "*.h5", "*.ot", "openvino/*"])
        )
    except Exception as error:  # the hub client raises a dozen kinds
        raise CheckpointError(
            f"{source} is no folder here and cannot be fetched from the hub ({type(error).__name__}: no network, "
            "no such model, or HF_HUB_OFFLINE is set)"
        ) from error


def _read_json(path: Path, *, missing_ok: bool = False) -> Any:
    if missing_ok and not path.is_file():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error})") from error


def _module_type(entry: Mapping[str, Any]) -> str:
    """``Pooling`` for any of the module paths that sentence-transformers has used."""
    package, _, name = str(entry["type"]).rpartition(".")
    return name if package.startswith("sentence_transformers.") else str(entry["type"])


def _transformer_folder(folder: Path, modules: list[dict[str, Any]] | None) -> Path:
    if modules is None:
        return folder
    if not modules or _module_type(modules[0]) != "Transformer":
        found = modules[0]["type"] if modules else "nothing"
        raise CheckpointError(f"{folder / 'modules.json'} starts with {found}; expected a Transformer module")
    return _inside(folder, modules[0])


def _inside(folder: Path, entry: Mapping[str, Any]) -> Path:
    path = folder / str(entry.get("path", ""))
    if ".." in path.relative_to(folder).parts:
        raise CheckpointError(f"modules.json of {folder} names {entry['path']!r}, which lies outside of it")
    return path


def _transformer_config(folder: Path) -> PretrainedConfig:
    modules = _read_json(folder / "modules.json", missing_ok=True)
    where = _transformer_folder(folder, modules)
    if not (where / "config.json").is_file():
        raise CheckpointError(f"{where} has no config.json; expected the transformer there")
    if (where / "adapter_config.json").is_file():
        raise CheckpointError(f"{where} holds an adapter (adapter_config.json); merge it into the model and save that")
    values = _read_json(where / "config.json")
    kind = values.get("model_type")
    if "auto_map" in values:
        raise CheckpointError(f"{where} needs code of its own (auto_map in config.json); remote code stays off")
    if kind not in _ARCHITECTURES:
        raise CheckpointError(f"{where} is a {kind!r} model; supported: {', '.join(_ARCHITECTURES)}")
    config = AutoConfig.from_pretrained(where, local_files_only=True, trust_remote_code=False)
    if getattr(config, "is_decoder", False):
        raise CheckpointError(f"{where} is a decoder (is_decoder in config.json); expected an encoder")
    if values.get("position_embedding_type", "absolute") != "absolute":
        raise CheckpointError(
            f"{where} has position_embedding_type {values['position_embedding_type']!r}: not supported"
        )
    return config


def _read_settings(where: Path) -> dict[str, Any]:
    found = next((where / name for name in _SETTINGS_FILES if (where / name).is_file()), None)
    return {} if found is None else dict(_read_json(found))


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


def _check_ids(tokenizer: SourceTokenizer, config: PretrainedConfig, uses_token_types: bool, folder: Path) -> None:
    """Refuse ids and token types that the graph would not get as the source model does."""
    if len(tokenizer) > config.vocab_size:
        raise CheckpointError(
            f"the tokenizer in {folder} has {len(tokenizer)} ids, but the embedding table {config.vocab_size} rows"
        )
    types = tokenizer("a").get("token_type_ids", []) if uses_token_types else []
    if any(types):
        raise CheckpointError(f"the tokenizer in {folder} gives a single text token types {types}: not supported yet")


def _refuse_unknown_settings(settings: Mapping[str, Any], folder: Path) -> None:
    for key, value in settings.items():
        if key in ("max_seq_length", "do_lower_case"):
            continue
        harmless = _HARMLESS.get(key, ())
        if harmless is not None and value not in harmless and value not in (None, {}):
            raise CheckpointError(f"sentence_bert_config.json of {folder} has {key}={value!r}: not supported yet")


def _read_chain(
    folder: Path, modules: list[dict[str, Any]] | None, hidden: int, pooling: str | None, normalize: bool | None
) -> list[ChainModule]:
    if modules is None:
        if pooling is None:
            raise CheckpointError(
                f"{folder} is a plain Hugging Face checkpoint, which does not say how to pool; "
                "add --pooling mean (or cls, max), as its model card says"
            )
        chain: list[ChainModule] = [Pooling(hidden, parse_modes(pooling.split("+"), "--pooling"))]
        return [*chain, Normalize()] if normalize is not False else chain
    if pooling is not None:
        raise CheckpointError(f"{folder} says itself how to pool (modules.json); leave --pooling out")
    chain = []
    dim = hidden
    for entry in modules[1:]:
        module = _read_module(_inside(folder, entry), _module_type(entry), dim, first=not chain)
        dim = getattr(module, "out_dim", dim)
        chain.append(module)
    if not chain:
        raise CheckpointError(f"{folder / 'modules.json'} has no Pooling module; expected one after the transformer")
    if normalize and not isinstance(chain[-1], Normalize):
        chain.append(Normalize())
    if normalize is False and isinstance(chain[-1], Normalize):
        raise CheckpointError(f"{folder} ends in Normalize itself; --no-normalize would change the model")
    return chain


def _read_module(path: Path, kind: str, in_dim: int, *, first: bool) -> ChainModule:
    if first != (kind == "Pooling"):
        raise CheckpointError(f"{path} is module {kind}; expected one Pooling, right after the transformer")
    if kind == "Pooling":
        return pooling_from_config(_read_json(path / "config.json"), in_dim, str(path / "config.json"))
    if kind == "Normalize":
        config = _read_json(path / "config.json", missing_ok=True) or {}
        if set(config.values()) - {"sentence_embedding", None}:
            raise CheckpointError(f"{path} normalises something other than the sentence vector: not supported yet")
        return Normalize()
    if kind == "Dense":
        dense = dense_from_config(_read_json(path / "config.json"), in_dim, str(path / "config.json"))
        dense.load_state_dict(_module_weights(path))
        return dense
    raise CheckpointError(f"{path} is module {kind}, which is not supported; supported: Pooling, Dense, Normalize")


def _module_weights(path: Path) -> dict[str, torch.Tensor]:
    if (path / "model.safetensors").is_file():
        loaded: dict[str, torch.Tensor] = load_file(path / "model.safetensors")
        return loaded
    old = path / "pytorch_model.bin"
    if not old.is_file():
        raise CheckpointError(f"{path} has no model.safetensors and no pytorch_model.bin")
    try:
        weights: dict[str, torch.Tensor] = torch.load(old, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises UnpicklingError and others
        raise CheckpointError(f"{old} holds more than weights; unpickling stays off, save it as safetensors") from error
    return weights


def _load_transformer(folder: Path, attention: str) -> tuple[PreTrainedModel, list[str]]:
    remarks = []
    saved_as = _saved_dtype(folder)
    if saved_as not in (None, "float32"):
        remarks.append(f"weights are saved as {saved_as}; they are computed in fp32")
    if not list(folder.glob("*.safetensors")):
        remarks.append(f"{folder.name} has no safetensors; its .bin is read with torch's weights-only loader")
    bar = transformers_logging.is_progress_bar_enabled()
    level = transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()  # what it would warn about is checked below, and raised
    try:
        transformer, report = AutoModel.from_pretrained(
            folder,
            attn_implementation=attention,
            dtype=torch.float32,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"the transformer in {folder} cannot be loaded: {error}") from error
    finally:
        transformers_logging.set_verbosity(level)
        if bar:
            transformers_logging.enable_progress_bar()
    missing = sorted(name for name in report["missing_keys"] if not name.startswith("pooler."))
    wrong = sorted(str(name) for name in report.get("mismatched_keys", ()))
    if missing or wrong:
        names = ", ".join((missing + wrong)[:3])
        raise CheckpointError(f"{folder} lacks {len(missing + wrong)} of the model's weights ({names}, …)")
    if not all(bool(torch.isfinite(weight).all()) for weight in transformer.parameters()):
        raise CheckpointError(f"the transformer in {folder} has weights that are not finite")
    # Ways of answering that a config may carry; the model is always asked for its last hidden state.
    transformer.config.return_dict = True
    transformer.config.output_attentions = transformer.config.output_hidden_states = False
    transformer.pooler = None  # BERT's own pooler takes no part in any of our poolings
    return transformer, remarks


def _saved_dtype(folder: Path) -> str | None:
    values = _read_json(folder / "config.json")
    named = values.get("dtype", values.get("torch_dtype"))
    return None if named is None else str(named)


def _load_tokenizer(folder: Path, lower_case: bool) -> SourceTokenizer:
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


def _add_lower_case(tokenizer: SourceTokenizer) -> None:
    """What ``do_lower_case`` in sentence_bert_config.json means: lower-case first, unless the tokenizer does."""
    backend = tokenizer.backend_tokenizer
    normalizer: Normalizer | None = backend.normalizer
    state = json.loads(backend.to_str())["normalizer"]
    parts = (state or {}).get("normalizers", [state] if state else [])
    if any(part["type"] == "Lowercase" or part.get("lowercase") for part in parts):
        return
    backend.normalizer = Lowercase() if normalizer is None else Sequence([Lowercase(), normalizer])


def _plain_definition(tokenizer: SourceTokenizer) -> str:
    """``tokenizer.json`` without truncation and padding: those policies live in bundle.json."""
    definition = json.loads(tokenizer.backend_tokenizer.to_str())
    definition["truncation"] = definition["padding"] = None
    return json.dumps(definition, ensure_ascii=False, sort_keys=False)


def _length_limit(
    settings: Mapping[str, Any], tokenizer: SourceTokenizer, config: PretrainedConfig
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


def _weights_hash(model: nn.Module) -> str:
    """SHA-256 over name, type, shape and bytes of every tensor, by name: the same for any file format."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()
