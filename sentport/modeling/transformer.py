"""The transformer of a checkpoint, loaded whole or not at all."""

from __future__ import annotations

from pathlib import Path
from pickle import UnpicklingError

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import CONFIG_MAPPING, MODEL_MAPPING, AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel
from transformers import __version__ as transformers_version
from transformers.utils import logging as transformers_logging

from sentport.errors import CheckpointError
from sentport.modeling.backbone import Backbone, SingleTextTypes
from sentport.modeling.source_files import first_line, read_json
from sentport.modeling.weights import UNPICKLING, weight_files

# Architectures that carry out another position_embedding_type than absolute; transformers 5 dropped BERT's.
_POSITION_TYPES = frozenset({"esm"})


def transformer_config(where: Path, own_code: bool = False) -> PretrainedConfig:
    """The transformer's configuration; raises where another model than the saved one would come of it.

    Args:
        where: The transformer's folder.
        own_code: Run the configuration and modeling code that the folder brings along.
    """
    if not (where / "config.json").is_file():
        raise CheckpointError(f"{where} has no config.json; expected the transformer there")
    if (where / "adapter_config.json").is_file():
        raise CheckpointError(f"{where} holds an adapter (adapter_config.json); merge it into the model and save that")
    values = read_json(where / "config.json")
    kind = values.get("model_type")
    if kind not in CONFIG_MAPPING and not own_code:
        raise CheckpointError(f"{where} is a {kind!r} model, which transformers {transformers_version} does not know")
    config = AutoConfig.from_pretrained(where, local_files_only=True, trust_remote_code=own_code)
    _refuse_other_kinds(config, where, own_code)
    if getattr(config, "attention_type", None) == "block_sparse":
        raise CheckpointError(
            f"{where} has attention_type 'block_sparse', which a short text switches to full attention for good: "
            "its vectors depend on what came before; 'original_full' in config.json exports full attention"
        )
    if values.get("position_embedding_type", "absolute") != "absolute" and kind not in _POSITION_TYPES:
        raise CheckpointError(
            f"{where} has position_embedding_type {values['position_embedding_type']!r}, which transformers "
            f"{transformers_version} leaves out"
        )
    return config


def _refuse_other_kinds(config: PretrainedConfig, where: Path, own_code: bool) -> None:
    """What is no text encoder, as far as the configuration tells."""
    if getattr(config, "is_encoder_decoder", False):
        raise CheckpointError(f"{where} is an encoder-decoder ({config.model_type}); expected an encoder")
    if getattr(config, "is_decoder", False):
        raise CheckpointError(f"{where} is a decoder (is_decoder in config.json); expected an encoder")
    model_class = _model_class(config)
    if own_code and model_class is None:
        return  # only the code itself knows its class
    if model_class is None or model_class.main_input_name != "input_ids" or config.sub_configs:
        raise CheckpointError(f"{where} is a {config.model_type!r} model, which does not read text alone")


def _model_class(config: PretrainedConfig) -> type[PreTrainedModel] | None:
    found = MODEL_MAPPING.get(type(config), None)
    first: type[PreTrainedModel] | None = found[0] if isinstance(found, tuple) else found
    return first


def load_transformer(
    folder: Path,
    config: PretrainedConfig,
    attention: str,
    single_text_types: SingleTextTypes | None,
    own_code: bool = False,
) -> tuple[Backbone, list[str]]:
    """The transformer in fp32 with every weight, and what a user should be told about it."""
    remarks = []
    saved_as = _saved_dtype(folder)
    if saved_as not in (None, "float32"):
        remarks.append(f"weights are saved as {saved_as}; they are computed in fp32")
    first = weight_files(folder)[0]
    bar = transformers_logging.is_progress_bar_enabled()
    level = transformers_logging.get_verbosity()
    model_class = None if own_code else _model_class(config)  # eager is what every class of its own can do
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()  # what it would warn about is checked below, and raised
    try:
        transformer, report = AutoModel.from_pretrained(
            folder,
            attn_implementation=attention if model_class is not None and model_class._supports_sdpa else "eager",
            dtype=torch.float32,
            local_files_only=True,
            trust_remote_code=own_code,
            output_loading_info=True,
        )
    except UnpicklingError as error:
        raise CheckpointError(UNPICKLING.format(file=first)) from error
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        what = f"{type(error).__name__}: {first_line(error)}"
        raise CheckpointError(f"the transformer in {folder} cannot be loaded ({what})") from error
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
    # Ways of answering that a config may carry; the model is always asked for hidden states.
    transformer.config.return_dict = True
    transformer.config.output_attentions = transformer.config.output_hidden_states = False
    if getattr(transformer, "pooler", None) is not None:
        # BERT's own pooler takes no part in any of our poolings; some of its relatives call it all the same.
        transformer.pooler = nn.Identity()
    backbone = Backbone(transformer, single_text_types).eval()
    if not _looks_ahead(backbone):
        raise CheckpointError(
            f"{folder} is a decoder ({config.model_type}: its tokens see only what stands before them); "
            "expected an encoder"
        )
    return backbone, remarks


@torch.inference_mode()
def _looks_ahead(backbone: Backbone) -> bool:
    """Whether the last token changes the first one's hidden state, which no configuration tells for certain."""
    ids = torch.tensor([[1, 2, 3, 4], [1, 2, 3, 5]]) % backbone.vocabulary
    (tokens,) = backbone(ids, torch.ones_like(ids))  # [2, 4, H]
    return not torch.equal(tokens[0, 0], tokens[1, 0])


def _saved_dtype(folder: Path) -> str | None:
    values = read_json(folder / "config.json")
    named = values.get("dtype", values.get("torch_dtype"))
    return None if named is None else str(named)
