"""The modules after the transformer, with sentence-transformers' meaning: pooling, dense layers, normalisation."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn

from sentport.errors import CheckpointError

# Division by it instead of by zero; torch.nn.functional.normalize has the same one.
_NORM_EPSILON = 1e-12
_COUNT_EPSILON = 1e-9


class PoolingMode(str, Enum):
    """How a row's token vectors become one vector."""

    CLS = "cls"  # the first token's
    MAX = "max"  # the greatest of each dimension
    MEAN = "mean"  # the average


# Order of concatenation when a checkpoint switches several on (sentence-transformers' own).
_OLD_KEYS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


_POOLING_KEYS = {"embedding_dimension", "word_embedding_dimension", "pooling_mode", "include_prompt", *_OLD_KEYS}


class Pooling(nn.Module):
    """One vector a row, concatenated over the modes; a row with no token pools to zeros.

    Args:
        width: Hidden size of the token vectors.
        modes: One or more modes.
    """

    def __init__(self, width: int, modes: tuple[PoolingMode, ...]) -> None:
        super().__init__()
        self.modes = modes
        self.out_dim = width * len(modes)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Pool ``tokens [B, L, H]`` under ``mask [B, L]`` to ``[B, H * modes]``."""
        keep = mask.unsqueeze(-1).to(tokens.dtype)  # [B, L, 1]
        pooled = [self._pool(mode, tokens, keep) for mode in self.modes]
        return pooled[0] if len(pooled) == 1 else torch.cat(pooled, dim=-1)

    @staticmethod
    def _pool(mode: PoolingMode, tokens: Tensor, keep: Tensor) -> Tensor:
        if mode is PoolingMode.CLS:
            return tokens[:, 0] * keep[:, 0]
        if mode is PoolingMode.MEAN:
            return (tokens * keep).sum(dim=1) / keep.sum(dim=1).clamp(min=_COUNT_EPSILON)
        lowest = torch.finfo(tokens.dtype).min
        greatest = torch.where(keep > 0, tokens, lowest).amax(dim=1)
        return greatest * keep.amax(dim=1)

    def describe(self) -> dict[str, Any]:
        """The module as bundle.json records it."""
        return {"type": "Pooling", "modes": [mode.value for mode in self.modes], "dim": self.out_dim}


class Dense(nn.Module):
    """A linear layer and its activation on the sentence vector."""

    def __init__(self, in_dim: int, out_dim: int, bias: bool, activation: nn.Module) -> None:
        super().__init__()
        self.linear = nn.Linear(in_dim, out_dim, bias=bias)
        self.activation = activation
        self.out_dim = out_dim

    def forward(self, vectors: Tensor) -> Tensor:
        """``[B, in_dim]`` to ``[B, out_dim]``."""
        result: Tensor = self.activation(self.linear(vectors))
        return result

    def describe(self) -> dict[str, Any]:
        """The module as bundle.json records it."""
        return {
            "type": "Dense",
            "in": self.linear.in_features,
            "out": self.out_dim,
            "bias": self.linear.bias is not None,
            "activation": type(self.activation).__name__,
        }


class Normalize(nn.Module):
    """Each vector divided by its L2 norm; a zero vector stays zero."""

    def forward(self, vectors: Tensor) -> Tensor:
        """``[B, D]`` to ``[B, D]`` of norm one."""
        # Plain operators rather than functional.normalize: its expand is noise that every runtime would carry.
        norm = (vectors * vectors).sum(dim=-1, keepdim=True).sqrt()
        return vectors / norm.clamp(min=_NORM_EPSILON)

    def describe(self) -> dict[str, Any]:
        """The module as bundle.json records it."""
        return {"type": "Normalize"}


ChainModule = Pooling | Dense | Normalize


def pooling_from_config(config: Mapping[str, Any], hidden: int, where: str) -> Pooling:
    """Read a pooling configuration of either generation.

    Raises:
        CheckpointError: For a mode or an option that this version does not export.
    """
    width = config.get("embedding_dimension", config.get("word_embedding_dimension", hidden))
    if width != hidden:
        raise CheckpointError(f"{where} pools vectors of {width}, but the transformer makes vectors of {hidden}")
    unknown = sorted(set(config) - _POOLING_KEYS)
    if unknown:
        raise CheckpointError(f"{where} has {', '.join(unknown)}: not supported yet")
    if not config.get("include_prompt", True):
        raise CheckpointError(f"{where} leaves prompt tokens out of pooling (include_prompt: false): not supported yet")
    named = config.get("pooling_mode")
    if named is None:
        names = [mode for key, mode in _OLD_KEYS.items() if config.get(key)] or ["mean"]
    else:
        names = [named] if isinstance(named, str) else list(named)
    return Pooling(hidden, parse_modes(names, where))


def parse_modes(names: list[str], where: str) -> tuple[PoolingMode, ...]:
    """Pooling modes by name.

    Raises:
        CheckpointError: For an unknown or unsupported name.
    """
    known = [mode.value for mode in PoolingMode]
    unknown = [str(name) for name in names if name not in known] or ([] if names else ["(none)"])
    if unknown:
        raise CheckpointError(f"{where} asks for pooling {', '.join(unknown)}; supported: {', '.join(known)}")
    return tuple(PoolingMode(name) for name in names)


def dense_from_config(config: Mapping[str, Any], in_dim: int, where: str) -> Dense:
    """Read a dense configuration; its weights come separately.

    Raises:
        CheckpointError: For an option or activation that would have to be dropped.
    """
    for key, default in (("module_input_name", "sentence_embedding"), ("module_output_name", "sentence_embedding")):
        if config.get(key) not in (None, default):
            raise CheckpointError(f"{where} has {key}={config[key]!r}: only {default} is supported yet")
    if config.get("use_residual"):
        raise CheckpointError(f"{where} adds its input to its output (use_residual): not supported yet")
    if config["in_features"] != in_dim:
        raise CheckpointError(f"{where} takes vectors of {config['in_features']}, but the module before makes {in_dim}")
    # Without the key sentence-transformers falls back to its constructor's default, Tanh.
    activation = _activation(config.get("activation_function", "torch.nn.modules.activation.Tanh"), where)
    return Dense(in_dim, config["out_features"], config.get("bias", True), activation)


def _activation(path: str, where: str) -> nn.Module:
    """An activation by the name that sentence-transformers saves: a class of ``torch.nn``, without arguments."""
    package, _, name = path.rpartition(".")
    found = getattr(nn, name, None) if package.startswith("torch.nn") else None
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise CheckpointError(f"{where} has activation {path!r}; expected a class of torch.nn (remote code stays off)")
    made = found()
    if list(made.parameters()):
        raise CheckpointError(f"{where} has activation {path!r}, which has weights of its own: not supported yet")
    return made
