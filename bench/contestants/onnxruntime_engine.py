"""Contestant ``onnxruntime``: our ONNX Runtime engine on a bundle."""

from __future__ import annotations

from pathlib import Path

from bench.contestants.engine import EngineContestant, Parts
from sentport.bundle import read_bundle
from sentport.tokenizer import Tokenizer

NAME = "sentport onnxruntime"


def open_contestant(path: Path, threads: int, device: str, precision: str = "auto") -> EngineContestant:
    """Open a bundle.

    Raises:
        SentportError: When the bundle, the precision or the device cannot be had.
    """
    from sentport.engines.onnxruntime import OnnxRuntimeEngine

    bundle = read_bundle(path)
    graph = bundle.select("auto", precision)
    tokenizer = Tokenizer.from_file(bundle.tokenizer_file(), bundle.spec.max_tokens, threads)
    name = NAME if graph.precision == "fp32" else f"{NAME} {graph.precision}"
    return EngineContestant(
        name, Parts(OnnxRuntimeEngine(bundle, graph, threads, device), tokenizer, bundle.spec, graph.layout)
    )
