"""A BERT encoder with mean pooling and L2, on padded and on packed rows with the same weights.

Transformers' own ``BertModel`` stands beside it as a contestant and as the reference: the code here is what is
measured against it. Norms compute in fp32 inside their kernel, pooling and L2 on fp32 copies, whatever the precision.

Dimension letters: B rows, L columns of a padded batch, T tokens laid end to end, H heads, D features of a head,
E = H x D hidden features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from transformers import BertConfig, BertModel
from transformers.utils import logging as transformers_logging

from bench.gpu_check.attention import Attention, Packing

FLOP_FORMULA = (
    "per layer 2 x (4 x hidden^2 + 2 x hidden x intermediate) a token for the matrix products with weights, and "
    "4 x tokens^2 x hidden a row for attention; embeddings, norms, softmax, pooling count nothing"
)


@dataclass(frozen=True, slots=True)
class Shape:
    """What the FLOP count needs to know of a model."""

    layers: int
    hidden: int
    heads: int
    intermediate: int

    def flop(self, tokens: int, squared_tokens: int) -> int:
        """Returns floating-point operations; ``squared_tokens`` is the sum of the rows' squared lengths."""
        dense = 2 * (4 * self.hidden**2 + 2 * self.hidden * self.intermediate)
        return self.layers * (dense * tokens + 4 * squared_tokens * self.hidden)


def shape_of(config: BertConfig) -> Shape:
    """Reads the shape from a configuration."""
    return Shape(
        int(config.num_hidden_layers),
        int(config.hidden_size),
        int(config.num_attention_heads),
        int(config.intermediate_size),
    )


@dataclass(frozen=True, slots=True)
class Dense:
    """Weight ``[out, in]`` and bias ``[out]``."""

    weight: Tensor
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """From ``[..., in]`` to ``[..., out]``."""
        return functional.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class Norm:
    """Layer norm over the last axis."""

    weight: Tensor
    bias: Tensor
    epsilon: float

    def __call__(self, x: Tensor) -> Tensor:
        """Keeps the shape."""
        return functional.layer_norm(x, (x.shape[-1],), self.weight, self.bias, self.epsilon)


@dataclass(frozen=True, slots=True)
class Layer:
    """One transformer layer; the three input projections are one product."""

    qkv: Dense
    out: Dense
    attention_norm: Norm
    up: Dense
    down: Dense
    output_norm: Norm


@dataclass(frozen=True, slots=True)
class Weights:
    """A BERT's parameters on one device in one precision."""

    shape: Shape
    words: Tensor
    positions: Tensor
    first_type: Tensor
    embedding_norm: Norm
    layers: list[Layer]


def read_weights(model: BertModel, device: torch.device, dtype: torch.dtype) -> Weights:
    """Copies ``model``'s parameters to ``device`` in ``dtype``.

    Raises:
        ValueError: the activation is not the exact GELU that the forward pass computes.
    """
    if model.config.hidden_act != "gelu":
        raise ValueError(f"hidden_act is {model.config.hidden_act!r}; the forward pass here computes only 'gelu'")
    state = {name: value.detach().to(device, dtype) for name, value in model.state_dict().items()}
    epsilon = float(model.config.layer_norm_eps)

    def dense(*names: str) -> Dense:
        return Dense(
            torch.cat([state[f"{name}.weight"] for name in names]), torch.cat([state[f"{name}.bias"] for name in names])
        )

    def norm(name: str) -> Norm:
        return Norm(state[f"{name}.weight"], state[f"{name}.bias"], epsilon)

    def layer(at: str) -> Layer:
        return Layer(
            qkv=dense(*(f"{at}.attention.self.{part}" for part in ("query", "key", "value"))),
            out=dense(f"{at}.attention.output.dense"),
            attention_norm=norm(f"{at}.attention.output.LayerNorm"),
            up=dense(f"{at}.intermediate.dense"),
            down=dense(f"{at}.output.dense"),
            output_norm=norm(f"{at}.output.LayerNorm"),
        )

    shape = shape_of(model.config)
    return Weights(
        shape=shape,
        words=state["embeddings.word_embeddings.weight"],
        positions=state["embeddings.position_embeddings.weight"],
        first_type=state["embeddings.token_type_embeddings.weight"][0],
        embedding_norm=norm("embeddings.LayerNorm"),
        layers=[layer(f"encoder.layer.{index}") for index in range(shape.layers)],
    )


def encode_padded(weights: Weights, ids: Tensor, lengths: Tensor) -> Tensor:
    """Encodes right-padded rows.

    Args:
        weights: the model.
        ids: ``[B, L]``.
        lengths: ``[B]`` on the same device, each at least 1.

    Returns:
        ``[B, E]`` fp32 unit vectors.
    """
    heads = weights.shape.heads
    columns = torch.arange(ids.shape[1], device=ids.device)
    keep = columns < lengths[:, None]  # [B, L]
    # Made once rather than in every layer, which is what a boolean mask would cost.
    bias = torch.zeros(keep.shape, dtype=weights.words.dtype, device=ids.device)
    bias = bias.masked_fill(~keep, float("-inf"))[:, None, None, :]  # [B, 1, 1, L]

    def attend(qkv: Tensor) -> Tensor:
        q, k, v = qkv.view(*qkv.shape[:2], 3, heads, -1).permute(2, 0, 3, 1, 4)  # each [B, H, L, D]
        context = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return context.transpose(1, 2).flatten(2)  # [B, L, E]

    return mean_of_kept(_hidden(weights, ids, columns, attend), keep)


def encode_packed(weights: Weights, ids: Tensor, packing: Packing, attention: Attention) -> Tensor:
    """Encodes rows laid end to end: no padding is computed anywhere.

    Args:
        weights: the model.
        ids: ``[T]``.
        packing: where the rows begin and end.
        attention: attention over packed rows.

    Returns:
        ``[B, E]`` fp32 unit vectors.
    """
    heads = weights.shape.heads
    starts, lengths = packing.offsets[:-1].long(), packing.offsets.diff().long()  # [B]
    tokens = ids.shape[0]
    rows = torch.arange(len(packing.lengths), device=ids.device)
    # output_size spares the read-back of the sum of lengths.
    row_of = torch.repeat_interleave(rows, lengths, output_size=tokens)  # [T]
    positions = torch.arange(tokens, device=ids.device) - starts[row_of]

    def attend(qkv: Tensor) -> Tensor:
        q, k, v = qkv.view(len(qkv), 3, heads, -1).unbind(1)  # each [T, H, D]
        return attention(q, k, v, packing).flatten(1)  # [T, E]

    hidden = _hidden(weights, ids, positions, attend)  # [T, E]
    sums = torch.zeros(len(packing.lengths), hidden.shape[1], device=ids.device)
    sums.index_add_(0, row_of, hidden.float())
    return functional.normalize(sums / lengths[:, None], dim=-1)


def _hidden(weights: Weights, ids: Tensor, positions: Tensor, attend: Callable[[Tensor], Tensor]) -> Tensor:
    """Runs the layers; ``attend`` alone knows how the rows are laid out. Returns ``[..., E]`` like ``ids``."""
    x = functional.embedding(ids, weights.words) + functional.embedding(positions, weights.positions)
    x = weights.embedding_norm(x + weights.first_type)
    for layer in weights.layers:
        x = layer.attention_norm(x + layer.out(attend(layer.qkv(x))))
        x = layer.output_norm(x + layer.down(functional.gelu(layer.up(x))))
    return x


def mean_of_kept(hidden: Tensor, keep: Tensor) -> Tensor:
    """Averages ``hidden [B, L, E]`` over the tokens that ``keep [B, L]`` marks, as fp32 unit vectors ``[B, E]``."""
    kept = keep[..., None].to(hidden.dtype)
    # Pads are zeroed, then summed in fp32: one pass instead of a full fp32 copy of the hidden states.
    sums = (hidden * kept).sum(1, dtype=torch.float32)
    return functional.normalize(sums / keep.sum(1, keepdim=True), dim=-1)


def encode_with_transformers(model: BertModel, ids: Tensor, lengths: Tensor) -> Tensor:
    """Encodes right-padded rows ``[B, L]`` with transformers' own forward pass; ``[B, E]`` fp32 unit vectors."""
    keep = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
    hidden = model(input_ids=ids, attention_mask=keep.long()).last_hidden_state
    return mean_of_kept(hidden, keep)


def load_checkpoint(folder: str) -> BertModel:
    """Loads a BERT checkpoint folder as fp32 on the CPU, whatever precision its weights are stored in.

    Raises:
        ValueError: weights are missing, which transformers would fill with random numbers.
    """
    # Its bar and its report of the unused pooler would stand between the lines of the table.
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    model, info = BertModel.from_pretrained(
        folder, dtype=torch.float32, add_pooling_layer=False, local_files_only=True, output_loading_info=True
    )
    if info["missing_keys"]:
        raise ValueError(
            f"{folder} lacks weights: {sorted(info['missing_keys'])[:5]}; expected a complete BERT checkpoint"
        )
    return model.eval()


def seeded_model(config: BertConfig, seed: int) -> BertModel:
    """Builds a BERT with seeded random weights, fp32 on the CPU.

    Word embeddings are widened: at BERT's own scale the mean over many random tokens drowns in what all texts share
    (position and type embeddings), every pair of texts looks alike, and a wrong vector would pass for a right one.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = BertModel(config, add_pooling_layer=False)
    with torch.no_grad():
        model.embeddings.word_embeddings.weight.mul_(10)
    return model.eval()
