"""One module of the chain from its folder: configuration of either generation, and weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sentport.errors import CheckpointError
from sentport.modeling.chain import ChainModule, Dense, LayerNorm, Normalize
from sentport.modeling.pooling import Pooling, parse_modes
from sentport.modeling.source_files import read_json
from sentport.modeling.weights import read_weights

# Order of concatenation when an older checkpoint switches several on (sentence-transformers' own).
_OLD_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_WIDTHS = ("embedding_dimension", "word_embedding_dimension")
_ENDS = ("module_input_name", "module_output_name")
_TOKENS, _SENTENCE = "token_embeddings", "sentence_embedding"


def read_module(path: Path, kind: str, in_dim: int) -> ChainModule | None:
    """The module in a folder; None for one that changes nothing (Dropout).

    Args:
        path: Its folder.
        kind: Its type as modules.json names it.
        in_dim: Width of the vectors that it gets.

    Raises:
        CheckpointError: For a module, or an option of one, that would have to be dropped.
    """
    if kind not in _READERS:
        known = ", ".join(_READERS)
        raise CheckpointError(f"{path} is module {kind}, which is not supported; supported: {known}")
    return _READERS[kind](path, in_dim)


def _pooling(path: Path, in_dim: int) -> Pooling:
    config, where = _config(path, (*_WIDTHS, "pooling_mode", "include_prompt", *_OLD_MODES))
    width = next((config[key] for key in _WIDTHS if key in config), in_dim)
    if width != in_dim:
        raise CheckpointError(f"{where} pools vectors of {width}, but the module before makes vectors of {in_dim}")
    named = config.get("pooling_mode")
    if named is None:
        named = [mode for key, mode in _OLD_MODES.items() if config.get(key)] or ["mean"]
    names = [named] if isinstance(named, str) else list(named)
    return Pooling(in_dim, parse_modes(names, where), bool(config.get("include_prompt", True)))


def _dense(path: Path, in_dim: int) -> Dense:
    options = ("in_features", "out_features", "bias", "activation_function", "use_residual")
    config, where = _config(path, (*options, *_ENDS))
    if config["in_features"] != in_dim:
        raise CheckpointError(f"{where} takes vectors of {config['in_features']}, but the module before makes {in_dim}")
    dense = Dense(
        in_dim,
        config["out_features"],
        config.get("bias", True),
        # Without the key sentence-transformers falls back to its constructor's default, Tanh.
        _activation(config.get("activation_function", "torch.nn.modules.activation.Tanh"), where),
        residual=bool(config.get("use_residual")),
        on_tokens=_on_tokens(config, where),
    )
    dense.load_state_dict(read_weights(path))
    return dense


def _activation(path: str, where: str) -> nn.Module:
    """An activation by the name that sentence-transformers saves: a class of ``torch.nn``, without arguments."""
    package, _, name = str(path).rpartition(".")
    found = getattr(nn, name, None) if package.startswith("torch.nn") else None
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise CheckpointError(f"{where} has activation {path!r}; expected a class of torch.nn (remote code stays off)")
    try:
        made = found()
        keeps_width = made(torch.ones(1, 4)).shape == (1, 4)  # GLU halves it
    except (TypeError, RuntimeError, ValueError, NotImplementedError):  # it needs arguments, or other inputs
        keeps_width = False
    if not keeps_width:
        raise CheckpointError(f"{where} has activation {path!r}; expected one without arguments that keeps the width")
    if list(made.parameters()):
        raise CheckpointError(f"{where} has activation {path!r}, which has weights of its own: not supported yet")
    return made


def _layer_norm(path: Path, in_dim: int) -> LayerNorm:
    config, where = _config(path, ("dimension",))
    if config["dimension"] != in_dim:
        raise CheckpointError(f"{where} takes vectors of {config['dimension']}, but the module before makes {in_dim}")
    norm = LayerNorm(in_dim)
    norm.load_state_dict(read_weights(path))
    return norm


def _normalize(path: Path, in_dim: int) -> Normalize:
    config, where = _config(path, _ENDS, missing_ok=True)
    return Normalize(on_tokens=_on_tokens(config, where))


def _dropout(path: Path, in_dim: int) -> None:
    _config(path, ("dropout",), missing_ok=True)


_READERS: Mapping[str, Callable[[Path, int], ChainModule | None]] = {
    "Pooling": _pooling,
    "Dense": _dense,
    "LayerNorm": _layer_norm,
    "Normalize": _normalize,
    "Dropout": _dropout,
}


def _config(path: Path, known: tuple[str, ...], *, missing_ok: bool = False) -> tuple[dict[str, Any], str]:
    """A module's configuration and the name of its file; raises for an option that nothing here carries out."""
    file = path / "config.json"
    config = read_json(file, missing_ok=missing_ok) or {}
    unknown = sorted(set(config) - set(known))
    if unknown:
        raise CheckpointError(f"{file} has {', '.join(unknown)}: not supported yet")
    return config, str(file)


def _on_tokens(config: Mapping[str, Any], where: str) -> bool:
    """Whether a module works on token vectors; it must write back what it reads, since the chain is one line."""
    source = config.get("module_input_name") or _SENTENCE
    target = config.get("module_output_name") or source
    for key, value, allowed in (
        ("module_input_name", source, (_SENTENCE, _TOKENS)),
        ("module_output_name", target, (source,)),
    ):
        if value not in allowed:
            raise CheckpointError(f"{where} has {key}={value!r}; expected {' or '.join(allowed)}")
    return bool(source == _TOKENS)
