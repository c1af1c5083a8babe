"""Engine ``torch``: a checkpoint folder as it is, fp32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from sentport.batch import TokenBatch
from sentport.bundle import ModelSpec
from sentport.engines import TOKEN_BUDGETS, Engine
from sentport.errors import EngineError
from sentport.hardware import available_cores
from sentport.modeling.checkpoint import load_checkpoint
from sentport.modeling.sentence_model import SentenceModel


def open_checkpoint(path: Path, threads: int | None, device: str) -> tuple[ModelSpec, str, Engine]:
    """A checkpoint's description, its ``tokenizer.json`` and an engine that runs it."""
    checkpoint = load_checkpoint(path)
    return checkpoint.spec, checkpoint.tokenizer_definition, TorchEngine(checkpoint.model, threads, device)


class TorchEngine:
    """Runs a source model; see ``Engine`` for the contract.

    Args:
        model: The model.
        threads: Compute threads. torch has one pool for the whole process, so this sets it for all.
        device: ``cpu``, ``cuda`` or ``auto``.

    Raises:
        EngineError: When the device is not there.
    """

    name = "torch"
    precision = "fp32"
    sessions = 1
    layout = "padded"

    def __init__(self, model: SentenceModel, threads: int | None = None, device: str = "auto") -> None:
        if device not in ("auto", "cpu", "cuda"):
            raise EngineError(f"device {device!r} is unknown to engine torch; it knows auto, cpu, cuda")
        if device == "cuda" and not torch.cuda.is_available():
            raise EngineError(
                "device cuda was asked for, but torch finds no CUDA; `sentport doctor` says what is missing"
            )
        self.device = "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"
        self.token_budget = TOKEN_BUDGETS[self.device]
        self.threads = threads or available_cores()
        torch.set_num_threads(self.threads)
        self._model: SentenceModel | None = model.to(self.device)

    def run(self, batch: TokenBatch, *, beside: bool = False) -> NDArray[np.float32]:
        """Vectors ``[rows, dim]`` float32; the rows are padded to the longest of the batch."""
        model = self._model  # another thread may close the engine meanwhile
        if model is None:
            raise EngineError("this engine is closed; open a new Encoder")
        if batch.pooling_mask is not None and not model.uses_pooling_mask:
            raise EngineError("a pooling mask was handed in, but this model pools every token")
        ids, mask, types, pooled = (torch.from_numpy(table).to(self.device) for table in batch.padded())
        used = types if model.uses_token_types else None, pooled if model.uses_pooling_mask else None
        with torch.inference_mode():
            vectors = model(ids, mask, *used)  # [B, dim]
        result: NDArray[np.float32] = vectors.cpu().numpy()
        return result

    def close(self) -> None:
        """Let go of the model."""
        self._model = None
