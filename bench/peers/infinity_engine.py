"""Peer: infinity's engine in process, on torch and on ONNX Runtime through optimum, as its documentation says."""

from __future__ import annotations

import asyncio
from typing import Any

ENVIRONMENT = "infinity"
# Its last release before the packages below moved on; newer ones of them break its imports.
REQUIREMENTS: tuple[str, ...] = (
    "infinity-emb[torch,server]==0.0.77",
    "optimum==1.24.0",
    "transformers==4.49.0",
    "sentence-transformers==3.4.1",
    "torch==2.13.0",
    "click<8.2",
)
VARIANTS = {"infinity": ("infinity", "torch", "fp32", "its own, by length, {rows} rows", (32, 64))}


class Encoder:
    """An ``AsyncEmbeddingEngine`` that is asked for all texts at once; what it pads cannot be seen."""

    computed = None

    def __init__(self, checkpoint: str, rows: int) -> None:
        from infinity_emb import AsyncEmbeddingEngine, EngineArgs

        options: dict[str, Any] = {"bettertransformer": False, "dtype": "float32"}
        self.rows = rows
        self.loop = asyncio.new_event_loop()
        self.engine = AsyncEmbeddingEngine.from_args(
            EngineArgs(
                model_name_or_path=checkpoint,
                batch_size=rows,
                engine="torch",
                device="cpu",
                model_warmup=False,
                **options,
            )
        )
        self.loop.run_until_complete(self.engine.astart())

    def close(self) -> None:
        """Stop its threads."""
        self.loop.run_until_complete(self.engine.astop())

    def embed(self, texts: list[str]) -> Any:
        """``[N, dim]``."""
        import numpy as np

        vectors, _ = self.loop.run_until_complete(self.engine.embed(sentences=texts))
        return np.stack(vectors).astype(np.float32)


class Engines:
    """One engine at a time: the rows of a batch are fixed when it starts."""

    computed = None

    def __init__(self, checkpoint: str) -> None:
        self.checkpoint = checkpoint
        self.engine = Encoder(checkpoint, 32)

    def encode(self, texts: list[str], rows: int) -> Any:
        """``[N, dim]``."""
        if rows != self.engine.rows:
            self.engine.close()
            self.engine = Encoder(self.checkpoint, rows)
        return self.engine.embed(texts)


def open_model(checkpoint: str, variant: str, threads: int, folder: str) -> Engines:
    """Its engine on torch, without a cache."""
    import torch

    torch.set_num_threads(threads)
    return Engines(checkpoint)
