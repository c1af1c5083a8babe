"""Engines: tokens to vectors. An engine never sees text; adding one is one short file and one row below."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sentport.batch import TokenBatch


class Engine(Protocol):
    """Runs token batches on one device. Safe to call from several threads at once.

    Attributes:
        name: As given to ``Encoder(engine=...)``.
        precision: ``fp32``, ``bf16``, ``fp16`` or ``int8``.
        device: The device of the nodes that really ran, found by running; never merely the one asked for.
        sessions: How many ``run`` calls may usefully be in flight at the same time.
        threads: Compute threads of each of them.
    """

    name: str
    precision: str
    device: str
    sessions: int
    threads: int

    def run(self, batch: TokenBatch) -> NDArray[np.float32]:
        """Vectors ``[rows, dim]`` float32 of the batch's rows, in order."""
        ...

    def close(self) -> None:
        """Free what the engine holds; a second call does nothing."""
        ...
