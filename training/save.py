"""The checkpoint folder that training writes: sentence-transformers' own, with keys that its versions 3 to 6 load."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor, nn
from transformers.utils import logging as transformers_logging

from sentport.bundle import ModelSpec
from sentport.errors import CheckpointError
from sentport.modeling.chain import ChainModule, Dense, LayerMean, LayerNorm, Normalize, Truncate
from sentport.modeling.checkpoint import Checkpoint
from sentport.modeling.pooling import Pooling, PoolingMode
from sentport.modeling.sentence_model import SentenceModel

_MODULES = "sentence_transformers.models"
_MODES = {
    PoolingMode.CLS: "pooling_mode_cls_token",
    PoolingMode.MAX: "pooling_mode_max_tokens",
    PoolingMode.MEAN: "pooling_mode_mean_tokens",
    PoolingMode.MEAN_SQRT_LEN: "pooling_mode_mean_sqrt_len_tokens",
    PoolingMode.WEIGHTED_MEAN: "pooling_mode_weightedmean_tokens",
    PoolingMode.LAST_TOKEN: "pooling_mode_lasttoken",
}


def save_checkpoint(
    folder: Path, model: SentenceModel, checkpoint: Checkpoint, unused: Mapping[str, Tensor], card: str
) -> None:
    """Write a model's files into a folder that exists and is empty.

    Args:
        folder: Where to.
        model: The model.
        checkpoint: What it was made from: tokenizer, length limit, prompts, similarity.
        unused: Weights of the base's transformer that no vector depends on (BERT's pooler); kept, so that nobody who
            loads the folder is told that they are missing.
        card: Content of README.md.

    Raises:
        CheckpointError: When the chain has a module that such a folder cannot say.
    """
    chain, cut = _without_cut(model)
    encoder = model.transformer.model
    with no_progress_bar():
        encoder.save_pretrained(folder, state_dict={**encoder.state_dict(), **unused})
    checkpoint.tokenizer.save_pretrained(folder)
    _write(folder / "sentence_bert_config.json", {"max_seq_length": checkpoint.spec.max_tokens, "do_lower_case": False})
    modules = [{"idx": 0, "name": "0", "path": "", "type": f"{_MODULES}.Transformer"}]
    for place, module in enumerate(chain, start=1):
        kind = type(module).__name__
        path = folder / f"{place}_{kind}"
        path.mkdir()
        _save_module(path, module)
        modules.append({"idx": place, "name": str(place), "path": path.name, "type": f"{_MODULES}.{kind}"})
    _write(folder / "modules.json", modules)
    _write(folder / "config_sentence_transformers.json", _settings(checkpoint.spec, cut))
    (folder / "README.md").write_text(card, encoding="utf-8")


@contextmanager
def no_progress_bar() -> Iterator[None]:
    """Without the bar that saving a transformer draws."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


def _without_cut(model: SentenceModel) -> tuple[list[ChainModule], int | None]:
    """The chain, and the width of a cut at its end, which such a folder has as a setting."""
    chain: list[Any] = list(model.chain)
    cut = chain.pop().out_dim if isinstance(chain[-1], Truncate) else None
    for module in chain:
        if isinstance(module, LayerMean | Truncate):
            raise CheckpointError(
                f"a sentence-transformers folder cannot say {type(module).__name__} at this place; train with pooling "
                "mean, cls or max, and with matryoshka for vectors that can be cut"
            )
    return chain, cut


def _settings(spec: ModelSpec, cut: int | None) -> dict[str, Any]:
    settings = {
        "__version__": {},
        "prompts": dict(spec.prompts),
        "default_prompt_name": spec.default_prompt,
        "similarity_fn_name": spec.similarity,
    }
    return settings if cut is None else {**settings, "truncate_dim": cut}


def _save_module(path: Path, module: ChainModule) -> None:
    """One module's configuration, and its weights where it has some."""
    _write(path / "config.json", _CONFIGS[type(module)](module))
    if weights := module.state_dict():
        save_file({name: weight.contiguous() for name, weight in weights.items()}, path / "model.safetensors")


def _pooling(module: Pooling) -> dict[str, Any]:
    if list(module.modes) != [mode for mode in _MODES if mode in module.modes]:
        raise CheckpointError(
            f"pooling {'+'.join(mode.value for mode in module.modes)} is in another order than its folder can say; "
            f"expected {'+'.join(mode.value for mode in _MODES if mode in module.modes)}"
        )
    width = module.out_dim // len(module.modes)
    flags = {key: mode in module.modes for mode, key in _MODES.items()}
    return {"word_embedding_dimension": width, **flags, "include_prompt": module.include_prompt}


def _dense(module: Dense) -> dict[str, Any]:
    activation = type(module.activation)
    config = {
        "in_features": module.linear.in_features,
        "out_features": module.out_dim,
        "bias": module.linear.bias is not None,
        "activation_function": f"{activation.__module__}.{activation.__qualname__}",
    }
    # Only what differs: older versions do not know these keys.
    tokens = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
    return {**config, **({"use_residual": True} if module.adds_input else {}), **(tokens if module.on_tokens else {})}


def _layer_norm(module: LayerNorm) -> dict[str, Any]:
    return {"dimension": module.out_dim}


def _normalize(module: Normalize) -> dict[str, Any]:
    names = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
    return names if module.on_tokens else {}


_CONFIGS: Mapping[type[nn.Module], Callable[[Any], dict[str, Any]]] = {
    Pooling: _pooling,
    Dense: _dense,
    LayerNorm: _layer_norm,
    Normalize: _normalize,
}


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
