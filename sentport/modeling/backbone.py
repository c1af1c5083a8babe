"""The transformer behind one signature, whatever its architecture: ids and mask in, hidden states out."""

from __future__ import annotations

import inspect
from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

# These take an additive mask [B, 1, 1, L] as it is, and token types that broadcast. We make both in their plainest
# form, which ONNX Runtime's fusion knows; what transformers builds inside drags in range, gather and comparison nodes.
# All others get the mask of zeros and ones that every model takes.
_PLAIN = frozenset(
    {"albert", "bert", "camembert", "distilbert", "electra", "mpnet", "nomic_bert", "roberta", "xlm-roberta"}
)

# 1.0 - mask, which XLNet computes, is beyond torch's exporter where the mask is whole numbers.
_FLOAT_MASK = frozenset({"xlnet"})


class SingleTextTypes(NamedTuple):
    """Token types of a text on its own, where they are not all zero (XLNet gives its last token type 2).

    Attributes:
        head: Types of the special tokens in front.
        text: Type of the text's own tokens.
        tail: Types of the special tokens behind.
    """

    head: tuple[int, ...]
    text: int
    tail: tuple[int, ...]

    def of(self, attention_mask: Tensor) -> Tensor:
        """``[B, L]`` int64 for right-padded rows; what pads get means nothing."""
        at = torch.arange(attention_mask.shape[1], device=attention_mask.device)  # [L]
        left = attention_mask.sum(dim=1, keepdim=True) - at  # [B, L] tokens from here to the row's end
        types = torch.full_like(attention_mask, self.text)
        for place, kind in enumerate(self.head):
            types = torch.where(at == place, kind, types)
        for place, kind in enumerate(reversed(self.tail), start=1):
            types = torch.where(left == place, kind, types)
        return types


class Backbone(nn.Module):
    """A pretrained encoder and what the rest needs to know about it.

    Attributes:
        model: The encoder.
        config: Its configuration.
        hidden_size: Width of a hidden state.
        vocabulary: Rows of the embedding table.
        positions: How many tokens its position table has room for; None without a table (relative, rotary).
        token_types: Size of the type vocabulary; 0 without one.
        uses_token_types: Whether token types are worth an input of the graph.

    Args:
        model: The encoder.
        single_text_types: What a text on its own gets where that is not zeros; token types are no input then.
    """

    def __init__(self, model: PreTrainedModel, single_text_types: SingleTextTypes | None = None) -> None:
        super().__init__()
        self.model = model
        self.config = model.config
        self.hidden_size = int(self.config.hidden_size)
        self.vocabulary = int(self.config.vocab_size)
        self.positions = _positions(model)
        self.token_types = int(getattr(self.config, "type_vocab_size", 0) or 0)
        self.single_text_types = single_text_types
        # A checkpoint's own code under a known name may read its inputs otherwise.
        self._is_plain = self.config.model_type in _PLAIN and type(model).__module__.startswith("transformers.")
        # [1, 1], which broadcasts; where types are not given, transformers gathers [B, L] of zeros.
        self._type_zero = nn.Buffer(torch.zeros(1, 1, dtype=torch.int64), persistent=False)
        self._takes_types = "token_type_ids" in inspect.signature(model.forward).parameters
        self.uses_token_types = self._takes_types and self.token_types > 1 and single_text_types is None

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        *,
        layers: tuple[int, ...] = (-1,),
    ) -> tuple[Tensor, ...]:
        """Hidden states of right-padded rows.

        Args:
            input_ids: ``[B, L]`` int64.
            attention_mask: ``[B, L]`` int64.
            token_type_ids: ``[B, L]`` int64; None = zeros.
            layers: Which hidden states: 0 = the embedding output, -1 = the last.

        Returns:
            One ``[B, L, H]`` for each of ``layers``.
        """
        inputs = {"input_ids": input_ids, "attention_mask": self._mask(attention_mask)}
        if self._takes_types and self.single_text_types is not None:
            inputs["token_type_ids"] = self.single_text_types.of(attention_mask)
        elif self.uses_token_types and token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        elif self._takes_types and self._is_plain:
            inputs["token_type_ids"] = self._type_zero
        if layers == (-1,):
            return (self.model(**inputs).last_hidden_state,)
        found = self.model(**inputs, output_hidden_states=True)
        return tuple(found.last_hidden_state if layer == -1 else found.hidden_states[layer] for layer in layers)

    def _mask(self, attention_mask: Tensor) -> Tensor:
        if self.config.model_type in _FLOAT_MASK:
            return attention_mask.to(torch.float32)
        if not self._is_plain:
            return attention_mask
        lowest = torch.finfo(torch.float32).min  # finite, so that a row without tokens meets no infinity
        return (1.0 - attention_mask[:, None, None, :].to(torch.float32)) * lowest  # [B, 1, 1, L]


def _positions(model: PreTrainedModel) -> int | None:
    """Rows of the position table; with a padding row (RoBERTa, MPNet) positions are counted from the one after it."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            skipped = 0 if module.padding_idx is None else module.padding_idx + 1
            return module.num_embeddings - skipped
    return None
