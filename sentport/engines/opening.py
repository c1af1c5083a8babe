"""From a folder on disk to what encodes with it: description, tokenizer definition, engine."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from sentport.bundle import ModelSpec, is_bundle, read_bundle
from sentport.engines import Engine
from sentport.errors import EngineError


class Opened(NamedTuple):
    """A source that is ready to run.

    Attributes:
        spec: What the encoder is.
        tokenizer_definition: The content of its ``tokenizer.json``.
        engine: What runs it.
    """

    spec: ModelSpec
    tokenizer_definition: str
    engine: Engine


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
    if engine not in ("auto", "onnxruntime", "torch"):
        raise EngineError(f"engine {engine!r} is unknown; known: auto, onnxruntime (bundles), torch (checkpoints)")
    bundle = read_bundle(path)
    if engine == "torch":
        raise EngineError(f"engine torch runs checkpoints, and {path} is a bundle; give the checkpoint folder")
    from sentport.engines.onnxruntime import OnnxRuntimeEngine, resolve_device

    device = resolve_device(device)
    graph = bundle.select(layout, precision, device)
    definition = bundle.tokenizer_file().read_text(encoding="utf-8")
    return Opened(bundle.spec, definition, OnnxRuntimeEngine(bundle, graph, threads, device))


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
