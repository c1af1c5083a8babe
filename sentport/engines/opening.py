"""From a folder on disk to what encodes with it: description, tokenizer definition, engine."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from sentport.bundle import Bundle, GraphRecord, ModelSpec, is_bundle, read_bundle
from sentport.engines import FLAVOURS, Engine
from sentport.errors import BundleError, EngineError
from sentport.hardware import cuda_devices


class Opened(NamedTuple):
    """A source that is ready to run.

    Attributes:
        spec: What the encoder is.
        tokenizer_definition: The content of its ``tokenizer.json``.
        engine: What runs it.
        graph: SHA-256 of the graph that it runs; "" where it is none of a bundle's.
    """

    spec: ModelSpec
    tokenizer_definition: str
    engine: Engine
    graph: str = ""


def open_source(
    source: str | Path,
    engine: str = "auto",
    layout: str = "auto",
    precision: str = "auto",
    threads: int | None = None,
    device: str = "auto",
) -> Opened:
    """Open a bundle, or a checkpoint folder (engine ``torch``); arguments as for ``sentport.Encoder``.

    Raises:
        SentportError: When the source, or what was asked for, cannot be had.
    """
    path = Path(source)
    if is_bundle(path) or not _is_checkpoint(path):
        return _open_bundle(path, engine, layout, precision, threads, device)
    return _open_checkpoint(path, engine, layout, precision, threads, device)


def _is_checkpoint(path: Path) -> bool:
    return (path / "modules.json").is_file() or (path / "config.json").is_file()


def _open_bundle(path: Path, engine: str, layout: str, precision: str, threads: int | None, device: str) -> Opened:
    if engine not in ("auto", "torch", *FLAVOURS):
        raise EngineError(f"engine {engine!r} is unknown; known: auto, {', '.join(FLAVOURS)}, torch (checkpoints)")
    bundle = read_bundle(path)
    if engine == "torch":
        raise EngineError(f"engine torch runs checkpoints, and {path} is a bundle; give the checkpoint folder")
    name = best_engine(bundle, layout, precision, device) if engine == "auto" else engine
    device = _resolve_device(name, device)
    # TensorRT parses plain operators alone, wherever it is reached from.
    flavours = ("portable",) if device == "tensorrt" else FLAVOURS[name]
    graph = runnable(bundle, name).select(layout, bundle.precision_of(precision), device, flavours)
    definition = bundle.tokenizer_file().read_text(encoding="utf-8")
    return Opened(bundle.spec, definition, open_graph(bundle, graph, name, threads, device), graph.sha256)


def best_engine(bundle: Bundle, layout: str, precision: str, device: str) -> str:
    """``native`` on a CPU, where it is installed, runs the precision and the bundle has its file; else ``onnxruntime``.

    Who names a layout asks for a graph. Device ``auto`` means CUDA where there is one.
    """
    wanted = "fp32" if precision == "auto" else precision
    held = any(graph.precision == wanted for graph in bundle.native)
    if not held or layout != "auto" or device not in ("auto", "cpu") or find_spec("sentport_native") is None:
        return "onnxruntime"
    from sentport.engines.native import runs

    return "native" if runs(wanted) and (device == "cpu" or not cuda_devices()) else "onnxruntime"


def open_graph(
    bundle: Bundle, graph: GraphRecord, engine: str = "onnxruntime", threads: int | None = None, device: str = "auto"
) -> Engine:
    """One graph of a bundle on an engine of ``FLAVOURS``.

    Raises:
        EngineError: When the engine cannot run it as asked.
    """
    if engine == "tensorrt":
        from sentport.engines.tensorrt import TensorRtEngine, plan_of, resolve_device

        resolve_device(device)
        return TensorRtEngine(bundle, plan_of(bundle, graph))
    if engine == "openvino":
        from sentport.engines.openvino import OpenVinoEngine

        return OpenVinoEngine(bundle, graph, threads, device)
    if engine == "native":
        from sentport.engines.native import NativeEngine

        return NativeEngine(bundle, graph, threads, device)
    from sentport.engines.onnxruntime import OnnxRuntimeEngine

    return OnnxRuntimeEngine(bundle, graph, threads, device)


def runnable(bundle: Bundle, engine: str) -> Bundle:
    """The bundle as an engine sees it: for ``tensorrt`` the graphs that have a plan, for ``native`` its files."""
    if engine == "native":
        if not bundle.native:
            raise BundleError(
                f"{bundle.path} has no file for engine native; export it again where sentport-native is installed "
                "(`sentport export` says where the engine does not have the architecture)"
            )
        return replace(bundle, graphs=bundle.native)
    if engine != "tensorrt":
        return bundle
    from sentport.engines.tensorrt import with_plans

    return with_plans(bundle)


def _resolve_device(engine: str, device: str) -> str:
    if engine == "openvino":
        from sentport.engines.openvino import resolve_device
    elif engine == "tensorrt":
        from sentport.engines.tensorrt import resolve_device
    else:
        from sentport.engines.onnxruntime import resolve_device
    return resolve_device(device)


def _open_checkpoint(path: Path, engine: str, layout: str, precision: str, threads: int | None, device: str) -> Opened:
    if engine not in ("auto", "torch"):
        raise EngineError(
            f"engine {engine} runs bundles, and {path} is a checkpoint; "
            f"export it first (`sentport export {path} --out BUNDLE`), or use engine torch"
        )
    if precision not in ("auto", "fp32"):
        raise EngineError(f"engine torch runs fp32 only, not {precision}")
    if layout not in ("auto", "padded"):
        raise EngineError(f"engine torch runs layout padded only, not {layout}; export {path} and open the bundle")
    from sentport.engines.torch import open_checkpoint

    return Opened(*open_checkpoint(path, threads, device))
