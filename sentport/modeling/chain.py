"""The modules around pooling, with sentence-transformers' meaning; each works on the last axis of what it is given.

``on_tokens`` says that a module stands before pooling and works on token vectors ``[B, L, H]``; after it they are
sentence vectors ``[B, D]``.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from sentport.modeling.pooling import Pooling

_NORM_EPSILON = 1e-12  # divides a zero vector; torch.nn.functional.normalize has the same one


class LayerMean(nn.Module):
    """The average of some hidden states, token by token: SimCSE's ``avg_first_last`` and ``avg_top2``.

    Args:
        layers: Which hidden states of the transformer: 0 = the embedding output, -1 = the last.
    """

    on_tokens = True

    def __init__(self, layers: tuple[int, ...]) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, hidden: tuple[Tensor, ...]) -> Tensor:
        """One ``[B, L, H]`` for each layer to their average ``[B, L, H]``."""
        total = hidden[0]
        for states in hidden[1:]:
            total = total + states
        return total / len(hidden)

    def describe(self) -> dict[str, Any]:
        """The module as bundle.json records it."""
        return {"type": "LayerMean", "layers": list(self.layers)}


class Dense(nn.Module):
    """A linear layer, its activation, and where the checkpoint has it the input added to the result."""

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        bias: bool,
        activation: nn.Module,
        *,
        residual: bool = False,
        on_tokens: bool = False,
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(in_dim, out_dim, bias=bias)
        self.activation = activation
        self.adds_input = residual
        self.residual = nn.Linear(in_dim, out_dim, bias=False) if residual and in_dim != out_dim else nn.Identity()
        self.out_dim = out_dim
        self.on_tokens = on_tokens

    def forward(self, vectors: Tensor) -> Tensor:
        """``[…, in_dim]`` to ``[…, out_dim]``."""
        result: Tensor = self.activation(self.linear(vectors))
        return result + self.residual(vectors) if self.adds_input else result

    def describe(self) -> dict[str, Any]:
        """The module as bundle.json records it."""
        record = {
            "type": "Dense",
            "in": self.linear.in_features,
            "out": self.out_dim,
            "bias": self.linear.bias is not None,
            "activation": type(self.activation).__name__,
        }
        return {**record, **({"residual": True} if self.adds_input else {}), **_input(self.on_tokens)}


class LayerNorm(nn.Module):
    """Each vector with mean zero and variance one, scaled and shifted by weights."""

    on_tokens = False

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.out_dim = dim

    def forward(self, vectors: Tensor) -> Tensor:
        """``[B, D]`` to ``[B, D]``."""
        result: Tensor = self.norm(vectors)
        return result

    def describe(self) -> dict[str, Any]:
        """The module as bundle.json records it."""
        return {"type": "LayerNorm", "dim": self.out_dim}


class Normalize(nn.Module):
    """Each vector divided by its L2 norm; a zero vector stays zero."""

    def __init__(self, *, on_tokens: bool = False) -> None:
        super().__init__()
        self.on_tokens = on_tokens

    def forward(self, vectors: Tensor) -> Tensor:
        """``[…, D]`` to ``[…, D]`` of norm one."""
        # Plain operators rather than functional.normalize: its expand is noise that every runtime would carry.
        norm = (vectors * vectors).sum(dim=-1, keepdim=True).sqrt()
        return vectors / norm.clamp(min=_NORM_EPSILON)

    def describe(self) -> dict[str, Any]:
        """The module as bundle.json records it."""
        return {"type": "Normalize", **_input(self.on_tokens)}


class Truncate(nn.Module):
    """The first values of each vector (Matryoshka)."""

    on_tokens = False

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.out_dim = dim

    def forward(self, vectors: Tensor) -> Tensor:
        """``[B, D]`` to ``[B, dim]``."""
        return vectors[:, : self.out_dim]

    def describe(self) -> dict[str, Any]:
        """The module as bundle.json records it."""
        return {"type": "Truncate", "dim": self.out_dim}


ChainModule = LayerMean | Pooling | Dense | LayerNorm | Normalize | Truncate


def _input(on_tokens: bool) -> dict[str, Any]:
    return {"input": "token_embeddings"} if on_tokens else {}
