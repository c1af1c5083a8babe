"""The gate on a finished bundle: from its own golden suite without torch, or against the checkpoint again."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import numpy as np

from sentport.bundle import Bundle, GraphRecord, sha256_of
from sentport.engines import FLAVOURS, Engine
from sentport.engines.native_file import read_native
from sentport.engines.opening import open_graph, runnable
from sentport.errors import BundleError, GateError, GraphError, PrecisionError, SentportError
from sentport.gate import Parity, check, limits_of
from sentport.suite import Suite, load_suite
from sentport.tokenizer import Tokenizer

# Of int8's loss: what last digits of the fp32 parts, rounded to other levels on another CPU, make of it.
_LOSS_DIFFERS = 0.1
_LAST_DIGITS = 1e-7


@dataclass(frozen=True)
class Verdict:
    """What the gate said about one graph: its parity, or the reason why there is none.

    Attributes:
        graph: The graph.
        parity: Its figures; None when it was refused or not run.
        reason: Of the refusal, or why it was not run.
        skipped: The engine does not run its precision on this machine, so nothing is said against it.
    """

    graph: GraphRecord
    parity: Parity | None
    reason: str = ""
    skipped: bool = False


def verify_bundle(
    bundle: Bundle,
    source: str | Path | None = None,
    engine: str = "onnxruntime",
    device: str = "cpu",
    trust_remote_code: bool = False,
) -> list[Verdict]:
    """Run the gate on every graph of a bundle that an engine takes.

    Args:
        bundle: The bundle; hashes of all its files are checked.
        source: A checkpoint to compute the suite from again; without it the stored one is used, and no torch.
        engine: What runs the graphs, of those that take a bundle's.
        device: Where the graphs run.
        trust_remote_code: Run code that the checkpoint brings along.

    Raises:
        SentportError: When tokenizer or suite are missing or changed, the source is another model, or no graph is for
            this engine.
    """
    if engine not in FLAVOURS:
        raise SentportError(f"engine {engine!r} does not run bundles; expected one of {', '.join(FLAVOURS)}")
    graphs = [graph for graph in runnable(bundle, engine).graphs if graph.flavour in FLAVOURS[engine]]
    if not graphs:
        flavours = ",".join(FLAVOURS[engine])
        raise SentportError(f"{bundle.path} has no graph of flavour {flavours}, which engine {engine} needs")
    tokenizer = Tokenizer.from_file(bundle.tokenizer_file(), bundle.spec.max_tokens)
    if source is None:
        suite = load_suite(bundle.golden_file())
    else:
        from export.exporter import suite_from_source  # torch, only where the source is to be run

        suite = suite_from_source(bundle, source, tokenizer, trust_remote_code)
    return [_verdict(bundle, graph, suite, tokenizer, engine, device) for graph in graphs]


def _verdict(
    bundle: Bundle, graph: GraphRecord, suite: Suite, tokenizer: Tokenizer, engine: str, device: str
) -> Verdict:
    try:
        return Verdict(graph, check_graph(bundle, graph, suite, tokenizer, engine, device))
    except GateError as error:
        return Verdict(graph, None, str(error))
    except PrecisionError as error:
        return Verdict(graph, None, str(error), skipped=True)


def check_graph(
    bundle: Bundle,
    graph: GraphRecord,
    suite: Suite,
    tokenizer: Tokenizer,
    engine_name: str = "onnxruntime",
    device: str = "cpu",
    min_cosine: float | None = None,
) -> Parity:
    """Run the gate on one graph of a bundle, and compare it with the figures that its record has, if any.

    Args:
        bundle: The bundle.
        graph: Which of its graphs.
        suite: What to compare with.
        tokenizer: The bundle's.
        engine_name: What runs it.
        device: Where it runs.
        min_cosine: A stricter limit than the precision's own for the cosine of every row.

    Raises:
        GateError: Naming the graph.
    """
    suite = suite.without_types() if graph.layout == "packed" and graph.flavour != "native" else suite
    limits = limits_of(graph.precision, bundle.spec.architecture, min_cosine if graph.precision != "fp32" else None)
    try:
        _check_structure(bundle, graph)
        with _opened(bundle, graph, engine_name, device) as engine:
            parity = check(engine.run, suite, tokenizer, limits)
        if graph.precision == "int8":
            _check_figures(graph, parity)
        return parity
    except (BundleError, GateError, GraphError) as error:
        raise GateError(f"{graph.file} is refused: {error}") from error


def judged_by(graph: GraphRecord, engine: str = "onnxruntime", device: str = "cpu") -> str:
    """What runs a graph in the gate, in words."""
    return f"its rounding twin on {engine}, {device}" if _needs_twin(graph, engine, device) else f"{engine}, {device}"


def _needs_twin(graph: GraphRecord, engine: str, device: str) -> bool:
    """Whether no product of the graph's types runs there: ONNX Runtime's are fp32 on a CPU, casts taken out."""
    if engine == "native":
        from sentport.engines.native import runs

        return not runs(graph.precision)
    return graph.precision in ("fp16", "bf16") and (engine, device) == ("onnxruntime", "cpu")


@contextmanager
def _opened(bundle: Bundle, graph: GraphRecord, engine_name: str, device: str) -> Iterator[Engine]:
    """The engine that runs a graph, or its twin."""
    if engine_name == "native":  # which has its twin inside
        from sentport.engines.native import NativeEngine

        yield NativeEngine(bundle, graph, device=device, twin=True)
        return
    with tempfile.TemporaryDirectory(prefix="sentport-twin-") as folder:
        if _needs_twin(graph, engine_name, device):
            bundle, graph = _twin(bundle, graph, Path(folder))
        engine = open_graph(bundle, graph, engine_name, device=device)
        try:
            yield engine
        finally:
            engine.close()


def _twin(bundle: Bundle, graph: GraphRecord, folder: Path) -> tuple[Bundle, GraphRecord]:
    ir = _import_ir(graph)
    from export.sixteen_bits import rounding_twin

    file = folder / "twin.onnx"
    ir.save(rounding_twin(ir.load(bundle.graph_file(graph)), graph.precision), file, external_data="twin.onnx.data")
    data = file.with_name("twin.onnx.data")
    data_sha256 = sha256_of(data) if data.is_file() else None
    record = replace(graph, file=file.name, precision="fp32", sha256=sha256_of(file), data_sha256=data_sha256)
    return replace(bundle, path=folder), record


def _check_structure(bundle: Bundle, graph: GraphRecord) -> None:
    """Whether a lower precision is what the record says it is; vectors alone would pass that are better."""
    if graph.precision == "int8" and graph.int8 is None:
        raise GateError("its record does not say which layers are in int8")
    if graph.flavour == "native":
        _check_native(bundle, graph)
    elif graph.precision != "fp32":
        model = _import_ir(graph).load(bundle.graph_file(graph))
        from export import int8, sixteen_bits

        if graph.int8 is None:
            sixteen_bits.check_structure(model, graph.precision)
        else:
            int8.check_structure(model, graph.int8["layers"], graph.int8["sha256"])


def _check_native(bundle: Bundle, graph: GraphRecord) -> None:
    content = read_native(bundle.graph_file(graph))
    if graph.precision == "bf16" and {*content.linear_types.values()} != {np.dtype(np.uint16)}:
        raise GateError("not all of its linear layers are stored in bf16")
    found = content.int8_layers, content.numbers_sha256
    if graph.int8 is not None and found != (graph.int8["layers"], graph.int8["sha256"]):
        raise GateError("its int8 layers, or their numbers, are not those that export made")


def _check_figures(graph: GraphRecord, found: Parity) -> None:
    """Whole numbers are the same on every machine, so the loss that was recorded has to come again."""
    recorded = graph.parity.get("mean_cosine")
    if recorded is not None and abs(recorded - found.mean_cosine) > _LOSS_DIFFERS * (1.0 - recorded) + _LAST_DIGITS:
        raise GateError(f"its mean cosine is {found.mean_cosine:.7f}, recorded was {recorded:.7f}")


def _import_ir(graph: GraphRecord) -> ModuleType:
    try:
        import onnx_ir
    except ImportError as error:
        raise SentportError(
            f"checking {graph.file} needs onnx_ir, since its precision is {graph.precision}: "
            "pip install 'sentport[export]'"
        ) from error
    return onnx_ir
