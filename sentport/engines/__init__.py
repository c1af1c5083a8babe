"""Engines: tokens to vectors. An engine never sees text; adding one is one short file and one row below."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sentport.batch import TokenBatch

# Computed tokens with which one call is at its most efficient: on a CPU they fill the matrix products and still fit a
# core's cache (measured with ONNX Runtime, docs/architecture.md); the GPU's is a guess until one could be measured on.
TOKEN_BUDGETS = {"cpu": 256, "cuda": 16_384}
# The engines of bundles, and the flavours of graphs that each runs, the best first.
FLAVOURS = {
    "onnxruntime": ("ort", "portable"),
    "openvino": ("portable",),
    "native": ("native",),
    "tensorrt": ("portable",),
}


class Engine(Protocol):
    """Runs token batches on one device. Safe to call from several threads at once.

    Attributes:
        name: As given to ``Encoder(engine=...)``.
        precision: ``fp32``, ``bf16``, ``fp16`` or ``int8``.
        device: The device of the nodes that really ran, found by running; never merely the one asked for.
        sessions: How many ``run`` calls may usefully be in flight at the same time.
        threads: Compute threads of each of them; a call that is alone gets ``sessions`` times as many.
        layout: How it lays a batch out: ``padded`` to its longest row, or ``packed`` without padding between rows.
        token_budget: Computed tokens of a batch with which one call is at its most efficient.
    """

    name: str
    precision: str
    device: str
    sessions: int
    threads: int
    layout: str
    token_budget: int

    def run(self, batch: TokenBatch, *, beside: bool = False) -> NDArray[np.float32]:
        """Vectors ``[rows, dim]`` float32 of the batch's rows, in order.

        Args:
            batch: The rows.
            beside: Other calls keep the other sessions busy meanwhile, so this one takes no more than its threads.
        """
        ...

    def close(self) -> None:
        """Free what the engine holds; a second call does nothing."""
        ...
