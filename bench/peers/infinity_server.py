"""Peer: infinity's own server over HTTP."""

from __future__ import annotations

from pathlib import Path

from bench.peers.infinity_engine import ENVIRONMENT as ENVIRONMENT
from bench.peers.infinity_engine import REQUIREMENTS as REQUIREMENTS

URL = "http://127.0.0.1:{port}/embeddings"
VARIANTS = {"infinity-server": ("infinity's server", "torch", "fp32", "the server's", (32,))}


def command(checkpoint: str, variant: str, threads: int, port: int) -> list[str]:
    """Arguments of its Python: without its cache, warm-up and telemetry."""
    return [
        *("-c", "from infinity_emb.cli import cli; cli()", "v2", "--model-id", checkpoint),
        *("--served-model-name", Path(checkpoint).name, "--engine", "torch", "--device", "cpu"),
        *("--dtype", "float32", "--no-bettertransformer", "--no-model-warmup", "--host", "127.0.0.1"),
        *("--port", str(port)),
    ]
