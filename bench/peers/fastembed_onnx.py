"""Peer: fastembed, with a model of one's own, as its documentation says; the graph is sentence-transformers' export."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.peers.common import length_limit

ENVIRONMENT = "fastembed"
REQUIREMENTS: tuple[str, ...] = ("fastembed==0.9.1", "onnxruntime==1.31.1")
VARIANTS = {"fastembed": ("fastembed", "onnxruntime", "fp32", "as they come, {rows} rows", (32, 256))}
_EXPORTER = "sentence-transformers-onnx"
_EXPORT = """
import sys
from sentence_transformers import SentenceTransformer
SentenceTransformer(sys.argv[1], backend="onnx", device="cpu").save_pretrained(sys.argv[2])
"""


class Encoder:
    """A ``TextEmbedding``; what it pads cannot be seen."""

    computed = None

    def __init__(self, model: Any) -> None:
        self.model = model

    def encode(self, texts: list[str], rows: int) -> Any:
        """``[N, dim]``."""
        import numpy as np

        return np.stack(list(self.model.embed(texts, batch_size=rows))).astype(np.float32)


def open_model(checkpoint: str, variant: str, threads: int, folder: str) -> Encoder:
    """The checkpoint under a name of its own; the environment beside this one exports it, which fastembed cannot."""
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    length_limit(checkpoint)  # normalised means are asked for below
    python = Path(sys.executable).parents[2] / _EXPORTER / "bin" / "python"
    if not python.exists():
        raise FileNotFoundError(f"fastembed's graph is exported by {_EXPORTER}: make it with `sentport bench peer`")
    subprocess.run([python, "-I", "-c", _EXPORT, checkpoint, folder], check=True, capture_output=True)
    shutil.copy(Path(folder, "onnx", "model.onnx"), Path(folder, "model.onnx"))
    TextEmbedding.add_custom_model(
        model="measured",
        pooling=PoolingType.MEAN,
        normalization=True,
        sources=ModelSource(hf="measured"),
        dim=json.loads(Path(folder, "config.json").read_text(encoding="utf-8"))["hidden_size"],
        model_file="model.onnx",
    )
    return Encoder(TextEmbedding(model_name="measured", specific_model_path=folder, threads=threads))
