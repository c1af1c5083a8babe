"""What a graph is fed: a batch's tables under the names of the graph's inputs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from numpy.typing import NDArray

from sentport.batch import TokenBatch
from sentport.errors import EngineError

# What ``TokenBatch.padded`` and ``TokenBatch.packed`` give, by the name of the graph's input.
_NAMES = {
    "padded": ("input_ids", "attention_mask", "token_type_ids", "pooling_mask"),
    "packed": ("input_ids", "attention_mask", "lengths", "pooling_mask"),
}


def make_feed(layout: str, inputs: Collection[str], batch: TokenBatch) -> dict[str, NDArray[Any]]:
    """The graph's inputs by name, the batch laid out as the graph has it.

    Args:
        layout: Of the graph, ``padded`` or ``packed``.
        inputs: Names of the graph's inputs.
        batch: What to feed.

    Raises:
        EngineError: When the batch holds something that the graph has no input for.
    """
    refuse_unknown(layout, inputs, batch)
    tables: tuple[NDArray[Any], ...] = batch.packed() if layout == "packed" else batch.padded()
    return {name: table for name, table in zip(_NAMES[layout], tables, strict=True) if name in inputs}


def refuse_unknown(layout: str, inputs: Collection[str], batch: TokenBatch) -> None:
    """Raises EngineError when the batch holds something that the graph has no input for."""
    if "token_type_ids" not in inputs and batch.token_type_ids is not None and batch.token_type_ids.any():
        why = "layout packed takes none; use layout padded" if layout == "packed" else "this model has none"
        raise EngineError(f"token types other than 0 were handed in, but {why}")
    if "pooling_mask" not in inputs and batch.pooling_mask is not None:
        raise EngineError("a pooling mask was handed in, but this model pools every token")
