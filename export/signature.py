"""The fixed graph signatures (docs/architecture.md): what every exported graph takes and gives."""

from __future__ import annotations

from sentport.bundle import TensorRecord

OUTPUT = "sentence_embedding"


def padded_inputs(token_types: bool, pooling_mask: bool) -> tuple[TensorRecord, ...]:
    """Inputs of layout ``padded``, all ``[batch, tokens] int64``; two of them only where the model uses them."""
    names = ["input_ids", "attention_mask"]
    names += ["token_type_ids"] if token_types else []
    names += ["pooling_mask"] if pooling_mask else []
    return tuple(TensorRecord(name, "int64", ("batch", "tokens")) for name in names)


def packed_inputs(pooling_mask: bool) -> tuple[TensorRecord, ...]:
    """Inputs of layout ``packed``: the tokens of all rows end to end, and how many each row has, pads included."""
    tokens = [TensorRecord(name, "int64", ("total_tokens",)) for name in ("input_ids", "attention_mask")]
    pooling = [TensorRecord("pooling_mask", "int64", ("total_tokens",))] if pooling_mask else []
    return (*tokens, TensorRecord("lengths", "int32", ("batch",)), *pooling)


def outputs(dim: int) -> tuple[TensorRecord, ...]:
    """The one output; ``dim`` is the only number among all axes."""
    return (TensorRecord(OUTPUT, "float32", ("batch", dim)),)
