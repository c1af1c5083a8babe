"""Peer: optimum's ``ORTModelForFeatureExtraction``, sorted by length and pooled by hand, as its users write it."""

from __future__ import annotations

from bench.peers.common import PooledLoop, length_limit
from bench.peers.sentence_transformers_onnx import ENVIRONMENT as ENVIRONMENT
from bench.peers.sentence_transformers_onnx import REQUIREMENTS as REQUIREMENTS

VARIANTS = {"optimum": ("optimum", "onnxruntime", "fp32", "sorted by tokens, {rows} rows", (32, 64))}


def open_model(checkpoint: str, variant: str, threads: int, folder: str) -> PooledLoop:
    """Exported on the fly."""
    import onnxruntime
    import torch
    from optimum.onnxruntime import ORTModelForFeatureExtraction
    from transformers import AutoTokenizer

    torch.set_num_threads(threads)
    session = onnxruntime.SessionOptions()
    session.intra_op_num_threads = threads
    limit = length_limit(checkpoint)
    model = ORTModelForFeatureExtraction.from_pretrained(checkpoint, export=True, session_options=session)
    return PooledLoop(AutoTokenizer.from_pretrained(checkpoint), lambda batch: model(**batch).last_hidden_state, limit)
