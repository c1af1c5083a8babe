"""Contestant ``onnxruntime``: our ONNX Runtime engine on a bundle."""

from __future__ import annotations

from pathlib import Path

from bench.contestants.engine import EngineContestant, Parts
from sentport.bundle import read_bundle
from sentport.tokenizer import Tokenizer

NAME = "sentport onnxruntime"
_PACKED_NAMES = {None: "", "rewritten": " packed", "unpacked": " packed: unpacked"}


def open_contestant(path: Path, threads: int, device: str, layout: str, precision: str = "auto") -> EngineContestant:
    """Open a bundle.

    Raises:
        SentportError: When the bundle, the layout, the precision or the device cannot be had.
    """
    from sentport.engines.onnxruntime import OnnxRuntimeEngine

    bundle = read_bundle(path)
    graph = bundle.select(layout, precision)
    tokenizer = Tokenizer.from_file(bundle.tokenizer_file(), bundle.spec.max_tokens, threads)
    precision = "" if graph.precision == "fp32" else f" {graph.precision}"
    name = NAME + precision + _PACKED_NAMES[graph.packed]
    return EngineContestant(name, Parts(OnnxRuntimeEngine(bundle, graph, threads, device), tokenizer, bundle.spec))
