"""Contestants ``onnxruntime``, ``openvino`` and ``native``: a graph or file of a bundle on one of our engines."""

from __future__ import annotations

from pathlib import Path

from bench.contestants.engine import EngineContestant, Parts
from sentport.bundle import read_bundle
from sentport.engines import FLAVOURS
from sentport.engines.opening import open_graph, runnable
from sentport.tokenizer import Tokenizer

NAME = "sentport onnxruntime"
ENGINES = tuple(FLAVOURS)
_PACKED_NAMES = {None: "", "rewritten": " packed", "unpacked": " packed: unpacked"}


def open_contestant(
    path: Path, threads: int, device: str, layout: str, precision: str = "auto", engine: str = "onnxruntime"
) -> EngineContestant:
    """Open a bundle.

    Args:
        path: The bundle.
        threads: Compute threads in all.
        device: ``cpu`` or ``cuda``.
        layout: ``padded``, ``packed``, or ``auto`` for the faster one.
        precision: ``auto``, a precision, or a precision with a flavour, as ``int8-portable``.
        engine: Of ``ENGINES``.

    Raises:
        PrecisionError: When the engine does not run the precision here.
        SentportError: When the bundle, the layout, the precision or the device cannot be had.
    """
    bundle = read_bundle(path)
    asked, _, flavour = precision.partition("-")
    flavours = (flavour,) if flavour else FLAVOURS[engine]
    graph = runnable(bundle, engine).select(layout, bundle.precision_of(asked), device, flavours)
    tokenizer = Tokenizer.from_file(bundle.tokenizer_file(), bundle.spec.max_tokens, threads)
    shown = f" {flavour}" if flavour and flavour != engine else ""
    form = f" {graph.precision}{shown}" if shown or graph.precision != "fp32" else ""
    packed = "" if engine == "native" else _PACKED_NAMES[graph.packed]  # it has no other layout
    name = f"sentport {engine}{form}{packed}"
    return EngineContestant(name, Parts(open_graph(bundle, graph, engine, threads, device), tokenizer, bundle.spec))
