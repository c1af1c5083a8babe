"""The transformer of a checkpoint, loaded whole or not at all."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from sentport.errors import CheckpointError
from sentport.modeling.source_files import read_json, transformer_folder

_ARCHITECTURES = ("bert",)


def transformer_config(folder: Path) -> PretrainedConfig:
    """The transformer's configuration; raises where another model than the saved one would come of it."""
    modules = read_json(folder / "modules.json", missing_ok=True)
    where = transformer_folder(folder, modules)
    if not (where / "config.json").is_file():
        raise CheckpointError(f"{where} has no config.json; expected the transformer there")
    if (where / "adapter_config.json").is_file():
        raise CheckpointError(f"{where} holds an adapter (adapter_config.json); merge it into the model and save that")
    values = read_json(where / "config.json")
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


def load_transformer(folder: Path, attention: str) -> tuple[PreTrainedModel, list[str]]:
    """The transformer in fp32 with every weight, and what a user should be told about it."""
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
    values = read_json(folder / "config.json")
    named = values.get("dtype", values.get("torch_dtype"))
    return None if named is None else str(named)
