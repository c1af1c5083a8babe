"""How token vectors become one vector a row, with sentence-transformers' meaning of every mode."""

from __future__ import annotations

from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn

from sentport.errors import CheckpointError

_COUNT_EPSILON = 1e-9  # divides rows without tokens, whose sum is zero


class PoolingMode(str, Enum):
    """How a row's token vectors become one vector."""

    CLS = "cls"  # the first token's
    MAX = "max"  # the greatest of each dimension
    MEAN = "mean"  # the average
    MEAN_SQRT_LEN = "mean_sqrt_len_tokens"  # the sum divided by the square root of their number
    WEIGHTED_MEAN = "weightedmean"  # the average weighted by position, counted from one
    LAST_TOKEN = "lasttoken"  # the last token's


class Pooling(nn.Module):
    """One vector a row, concatenated over the modes; a row with no token pools to zeros.

    Args:
        width: Hidden size of the token vectors.
        modes: One or more modes.
        include_prompt: Whether a prompt's tokens take part; without them the mask says which tokens do.
    """

    on_tokens = True

    def __init__(self, width: int, modes: tuple[PoolingMode, ...], include_prompt: bool = True) -> None:
        super().__init__()
        self.modes = modes
        self.include_prompt = include_prompt
        self.out_dim = width * len(modes)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Pool ``tokens [B, L, H]`` under ``mask [B, L]`` to ``[B, H * modes]``."""
        keep = mask.unsqueeze(-1).to(tokens.dtype)  # [B, L, 1]
        pooled = [self._pool(mode, tokens, keep) for mode in self.modes]
        return pooled[0] if len(pooled) == 1 else torch.cat(pooled, dim=-1)

    def _pool(self, mode: PoolingMode, tokens: Tensor, keep: Tensor) -> Tensor:
        if mode is PoolingMode.MAX:
            lowest = torch.finfo(tokens.dtype).min
            return torch.where(keep > 0, tokens, lowest).amax(dim=1) * keep.amax(dim=1)
        if mode is PoolingMode.CLS and self.include_prompt:  # padding is on the right, so it stands in front
            return tokens[:, 0] * keep[:, 0]
        if mode in (PoolingMode.CLS, PoolingMode.LAST_TOKEN):
            return (tokens * _outermost(keep, last=mode is PoolingMode.LAST_TOKEN)).sum(dim=1)
        weights = keep * _positions(keep) if mode is PoolingMode.WEIGHTED_MEAN else keep
        summed = (tokens * weights).sum(dim=1)  # [B, H]
        total = weights.sum(dim=1).clamp(min=_COUNT_EPSILON)  # [B, 1]
        return summed / (total.sqrt() if mode is PoolingMode.MEAN_SQRT_LEN else total)

    def describe(self) -> dict[str, Any]:
        """The module as bundle.json records it."""
        record = {"type": "Pooling", "modes": [mode.value for mode in self.modes], "dim": self.out_dim}
        return record if self.include_prompt else {**record, "include_prompt": False}


def _positions(keep: Tensor) -> Tensor:
    """``[1, L, 1]``: 1, 2, … as floats, made from integers: TensorRT makes no range of floats."""
    return torch.arange(1, keep.shape[1] + 1, device=keep.device).to(keep.dtype).reshape(1, -1, 1)


def _outermost(keep: Tensor, *, last: bool) -> Tensor:
    """``[B, L, 1]``: one at each row's first or last kept token, else zero.

    Plain comparisons of floats, since no runtime of ours takes ArgMax on int64, nor a gather as widely.
    """
    rank = _positions(keep) if last else -_positions(keep)
    rank = torch.where(keep > 0, rank, torch.finfo(keep.dtype).min)  # [B, L, 1]
    return (rank == rank.amax(dim=1, keepdim=True)).to(keep.dtype) * keep


def parse_modes(names: list[str], where: str, also: tuple[str, ...] = ()) -> tuple[PoolingMode, ...]:
    """Pooling modes by name.

    Args:
        names: The names.
        where: What asks for them.
        also: Other names that could have been given there.

    Raises:
        CheckpointError: For an unknown name.
    """
    known = [mode.value for mode in PoolingMode]
    unknown = [str(name) for name in names if name not in known] or ([] if names else ["(none)"])
    if unknown:
        raise CheckpointError(f"{where} asks for pooling {', '.join(unknown)}; supported: {', '.join([*known, *also])}")
    return tuple(PoolingMode(name) for name in names)
