"""Transformer and chain behind the one signature that is traced, trained and run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from torch import Tensor, nn

from sentport.modeling.backbone import Backbone
from sentport.modeling.chain import ChainModule, LayerMean
from sentport.modeling.modules import width
from sentport.modeling.pooling import Pooling


class SentenceModel(nn.Module):
    """Token ids to sentence vectors, exactly as the graph ``padded`` declares it.

    Args:
        transformer: The encoder.
        chain: The modules after it, in order; one of them pools.

    Attributes:
        dim: Width of a vector.
        uses_pooling_mask: Whether the pooling mask is an input: the chain leaves prompt tokens out of pooling.
    """

    def __init__(self, transformer: Backbone, chain: Sequence[ChainModule]) -> None:
        super().__init__()
        self.transformer = transformer
        self.chain = nn.ModuleList(chain)
        self.layers = chain[0].layers if isinstance(chain[0], LayerMean) else (-1,)
        self.dim = width(chain, transformer.hidden_size)
        self.uses_pooling_mask = not all(getattr(module, "include_prompt", True) for module in chain)

    @property
    def uses_token_types(self) -> bool:
        """Whether token types are an input."""
        return self.transformer.uses_token_types

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        pooling_mask: Tensor | None = None,
    ) -> Tensor:
        """Right-padded rows to vectors.

        Args:
            input_ids: ``[B, L]`` int64.
            attention_mask: ``[B, L]`` int64.
            token_type_ids: ``[B, L]`` int64; None = zeros.
            pooling_mask: ``[B, L]`` int64, the tokens that pooling takes; None = the attention mask.

        Returns:
            ``[B, dim]`` float32.
        """
        hidden = self.transformer(input_ids, attention_mask, token_type_ids, layers=self.layers)  # [B, L, H] each
        pooled = attention_mask if pooling_mask is None else pooling_mask
        values: Tensor = hidden[0]  # [B, L, H], and [B, D] once pooled
        for module in self.chain:
            if isinstance(module, LayerMean):
                values = module(hidden)
            else:
                values = module(values, pooled) if isinstance(module, Pooling) else module(values)
        return values

    def describe(self) -> list[dict[str, Any]]:
        """The module chain as bundle.json records it, the transformer first."""
        encoder = self.transformer
        first = {"type": "Transformer", "architecture": encoder.config.model_type, "dim": encoder.hidden_size}
        return [first, *(cast(ChainModule, module).describe() for module in self.chain)]
