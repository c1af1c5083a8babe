"""Contestant ``sentence-transformers``: the library that everybody starts from, and the table's baseline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.contestants import ROWS_PER_BATCH, Conditions, Vectors, Work
from sentport.errors import SentportError
from sentport.scheduler import BatchPolicy

NAME = "sentence-transformers"


class SentenceTransformersContestant:
    """``SentenceTransformer.encode`` as it is, in its own order and, called a batch at a time, in arrival order.

    Args:
        path: Checkpoint folder.
        threads: torch's threads, which are the whole process's.
        device: ``cpu`` or ``cuda``.

    Raises:
        SentportError: When the package is not installed.
    """

    name = NAME
    policies: tuple[BatchPolicy | None, ...] = (None, BatchPolicy.ARRIVAL)
    own_rows: tuple[int, ...] = (ROWS_PER_BATCH,)
    # Its tokenisation pads, so taking it out would take the padding out as well: no other contestant gets that.
    tokenises_apart = False

    def __init__(self, path: Path, threads: int, device: str) -> None:
        try:
            import torch
            from sentence_transformers import SentenceTransformer
            from transformers.utils import logging as transformers_logging
        except ImportError as error:
            raise SentportError(
                f"the baseline needs {error.name}, which is not installed: pip install 'sentport[bench]'"
            ) from error
        transformers_logging.disable_progress_bar()
        torch.set_num_threads(threads)
        self._torch_threads = torch.get_num_threads
        self._model: Any = SentenceTransformer(str(path), device=device)
        self._source = path.resolve().name
        self._texts: list[str] = []
        self._computed = 0
        self._model.register_forward_pre_hook(self._count)

    def conditions(self) -> Conditions:
        """What its figures depend on; precision and device are those of its weights."""
        weights = next(self._model.parameters())
        precision = {"torch.float32": "fp32", "torch.float16": "fp16", "torch.bfloat16": "bf16"}[str(weights.dtype)]
        return Conditions(
            engine="torch",
            model=self._source,
            precision=precision,
            layout="padded",
            device=weights.device.type,
            sessions=1,
            threads=self._torch_threads(),
            own_policy="sorted by characters, {rows} rows",
        )

    def prepare(self, texts: Sequence[str], work: Work) -> None:
        """Take the texts."""
        self._texts = list(texts)

    def run(self, work: Work) -> Vectors:
        """Vectors ``[N, dim]``; ``encode`` sorts what it is given, so arrival order is one call a batch."""
        self._computed = 0
        if work.policy is None:
            return self._encode(self._texts, work.rows_per_batch)
        size = work.rows_per_batch
        starts = range(0, len(self._texts), size)
        return np.concatenate([self._encode(self._texts[start : start + size], size) for start in starts])

    def computed_tokens(self) -> int | None:
        """Tokens that reached the model in the last run."""
        return self._computed

    def close(self) -> None:
        """Let go of the model."""
        self._model = None

    def _encode(self, texts: list[str], rows: int) -> Vectors:
        vectors: Vectors = self._model.encode(texts, batch_size=rows, show_progress_bar=False)
        return vectors

    def _count(self, module: object, inputs: tuple[Any, ...]) -> None:
        self._computed += int(inputs[0]["input_ids"].numel())
