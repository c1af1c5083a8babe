"""Transformer and chain behind the one signature that is traced, trained and run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from sentport.modeling.chain import ChainModule, Pooling


class SentenceModel(nn.Module):
    """Token ids to sentence vectors, exactly as the graph ``padded`` declares it.

    Args:
        transformer: A BERT-shaped encoder.
        chain: The modules after it; the first one pools.
        uses_token_types: Whether the model has segment embeddings worth an input.
    """

    def __init__(self, transformer: PreTrainedModel, chain: Sequence[ChainModule], uses_token_types: bool) -> None:
        super().__init__()
        self.transformer = transformer
        self.pooling = cast(Pooling, chain[0])
        self.chain = nn.ModuleList(chain[1:])
        self.uses_token_types = uses_token_types

    @property
    def dim(self) -> int:
        """Width of a vector."""
        widths = [module.out_dim for module in (self.pooling, *self.chain) if hasattr(module, "out_dim")]
        return cast(int, widths[-1])

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """``[B, L]`` ids, mask and token types to ``[B, dim]``."""
        # The additive mask is made here, in its plainest form: the one that transformers builds inside drags in
        # range, gather and comparison nodes, and a row without tokens would meet infinities.
        lowest = torch.finfo(torch.float32).min
        bias = (1.0 - attention_mask[:, None, None, :].to(torch.float32)) * lowest  # [B, 1, 1, L]
        types = {"token_type_ids": token_type_ids} if self.uses_token_types else {}
        tokens = self.transformer(input_ids=input_ids, attention_mask=bias, **types).last_hidden_state  # [B, L, H]
        vectors: Tensor = self.pooling(tokens, attention_mask)  # [B, H * modes]
        for module in self.chain:
            vectors = module(vectors)
        return vectors

    def describe(self) -> list[dict[str, Any]]:
        """The module chain as bundle.json records it, the transformer first."""
        config = self.transformer.config
        first = {"type": "Transformer", "architecture": config.model_type, "dim": config.hidden_size}
        rest = [cast(ChainModule, module).describe() for module in (self.pooling, *self.chain)]
        return [first, *rest]
