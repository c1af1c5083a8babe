"""Engine ``openvino``: a bundle's portable graph on the CPU, in the precision that its record names and no other."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sentport.batch import TokenBatch
from sentport.bundle import Bundle, GraphRecord, TensorRecord
from sentport.engines import TOKEN_BUDGETS
from sentport.engines.feeds import make_feed
from sentport.errors import EngineError, GraphError, PrecisionError
from sentport.hardware import available_cores

try:
    import openvino
except ImportError as error:
    raise EngineError("engine openvino is not installed: pip install 'sentport[openvino]'") from error


class _Precision(NamedTuple):
    """How OpenVINO is told to compute, what the CPU must report for it, and the types in which products then run."""

    hint: str
    capability: str
    products: frozenset[str]


# Without a hint OpenVINO computes fp32 graphs in bf16 on every CPU that has it.
_PRECISIONS = {
    "fp32": _Precision("f32", "FP32", frozenset({"f32"})),
    "bf16": _Precision("bf16", "BF16", frozenset({"bf16"})),
    "fp16": _Precision("f16", "FP16", frozenset({"f16"})),
    "int8": _Precision("f32", "INT8", frozenset({"i8", "u8"})),
}
_PRODUCTS = frozenset({"FullyConnected", "MatMul"})
_TYPES = {"int64": "i64", "int32": "i32", "float32": "f32"}

Requests = SimpleQueue[Any]
"""Inference requests that nobody uses at the moment; a request serves one call at a time."""


class OpenVinoEngine:
    """Runs one portable graph of a bundle; see ``Engine`` for the contract.

    Args:
        bundle: Where the graph comes from.
        graph: Which graph.
        threads: Compute threads in all, or None for the cores that this process may use, which OpenVINO never exceeds.
        device: ``cpu`` or ``auto``.

    Raises:
        PrecisionError: When this CPU does not run the precision.
        EngineError: When the device or the precision is not delivered, or the signature is not the recorded one.
    """

    name = "openvino"

    def __init__(self, bundle: Bundle, graph: GraphRecord, threads: int | None = None, device: str = "auto") -> None:
        self.device = resolve_device(device)
        core = openvino.Core()
        _check_capability(core, graph)
        self.precision, self.layout, self._graph = graph.precision, graph.layout, graph
        self.token_budget = TOKEN_BUDGETS["cpu"]
        file = bundle.graph_file(graph)
        model = _read(core, file)
        _check_signature(model, graph, file)
        total = threads or available_cores()
        wide = _compile(core, model, graph, file, 1, total)
        self._wide: Requests | None = _requests(wide)
        try:
            self.run(TokenBatch.from_rows([[0, 0, 0], [0]]))
        except RuntimeError as error:
            raise GraphError(f"{file} fails at its first run: {_first_line(error)}") from error
        self.products = _check_products(wide, graph)
        # As for ONNX Runtime: calls of one thread each side by side, and every thread for a call that is alone.
        narrow = _compile(core, model, graph, file, total, total) if total > 1 else wide
        self._narrow: Requests | None = _requests(narrow)
        self.sessions = int(narrow.get_property("NUM_STREAMS"))
        self.threads = int(narrow.get_property("INFERENCE_NUM_THREADS")) // self.sessions

    def run(self, batch: TokenBatch, *, beside: bool = False) -> NDArray[np.float32]:
        """Vectors ``[rows, dim]`` float32; the rows are padded to the longest of the batch, or packed as they are."""
        requests = self._narrow if beside else self._wide  # another thread may close the engine meanwhile
        if requests is None:
            raise EngineError("this engine is closed; open a new Encoder")
        if not len(batch.lengths):  # a graph takes no empty batch
            return np.zeros((0, int(self._graph.outputs[0].axes[-1])), np.float32)
        feed = make_feed(self.layout, [tensor.name for tensor in self._graph.inputs], batch)
        request = requests.get()
        try:
            vectors: NDArray[np.float32] = request.infer(feed)[0]  # [B, dim]
        finally:
            requests.put(request)
        return vectors

    def close(self) -> None:
        """Free the requests, and the compiled graphs with them."""
        self._wide = self._narrow = None


def resolve_device(device: str) -> str:
    """The device that is meant.

    Raises:
        EngineError: For a device that the engine does not know.
    """
    if device not in ("auto", "cpu"):
        raise EngineError(f"device {device!r} is unknown to engine openvino; it knows auto, cpu")
    return "cpu"


def _check_capability(core: Any, graph: GraphRecord) -> None:
    held = core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    wanted = _PRECISIONS[graph.precision]
    if wanted.capability not in held:
        known = [name for name, precision in _PRECISIONS.items() if precision.capability in held]
        raise PrecisionError(
            f"{graph.file} is {graph.precision}, which openvino does not run on this CPU; it runs {', '.join(known)}"
        )


def _read(core: Any, file: Path) -> Any:
    try:
        return core.read_model(file)
    except RuntimeError as error:
        raise EngineError(f"openvino cannot read {file}: {_first_line(error)}") from error


def _check_signature(model: Any, graph: GraphRecord, file: Path) -> None:
    """Names, types and axes as recorded. OpenVINO keeps no names of axes, and may know less of them than the graph."""
    for side, found, recorded in (("input", model.inputs, graph.inputs), ("output", model.outputs, graph.outputs)):
        have = [(value.any_name, value.element_type.to_string(), value.partial_shape) for value in found]
        want = [(tensor.name, _TYPES[tensor.dtype], _shape(tensor)) for tensor in recorded]
        same = [a[:2] == b[:2] and a[2].relaxes(b[2]) for a, b in zip(have, want, strict=False)]
        if len(have) != len(want) or not all(same):
            shown = [", ".join(f"{name} {kind}{axes}" for name, kind, axes in tensors) for tensors in (have, want)]
            raise EngineError(
                f"{file} has the {side}s {shown[0]}, bundle.json records {shown[1]}; export the checkpoint again"
            )


def _shape(tensor: TensorRecord) -> Any:
    return openvino.PartialShape([axis if isinstance(axis, int) else -1 for axis in tensor.axes])


def _compile(core: Any, model: Any, graph: GraphRecord, file: Path, streams: int, threads: int) -> Any:
    hint = _PRECISIONS[graph.precision].hint
    settings = {
        "INFERENCE_PRECISION_HINT": hint,
        "NUM_STREAMS": streams,
        "INFERENCE_NUM_THREADS": threads,
        # Two engines, or a neighbour, on the same pinned core would wait for each other.
        "ENABLE_CPU_PINNING": False,
        # Scales taken from the batch at hand would make a text's vector depend on its neighbours.
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
    }
    try:
        compiled = core.compile_model(model, "CPU", settings)
    except RuntimeError as error:
        raise EngineError(f"openvino cannot compile {file}: {_first_line(error)}") from error
    found = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
    if found != hint:
        raise EngineError(f"{file} was to run in {hint}, but openvino took {found}")
    return compiled


def _requests(compiled: Any) -> Requests:
    requests: Requests = SimpleQueue()
    for _ in range(compiled.get_property("NUM_STREAMS")):
        requests.put(compiled.create_infer_request())
    return requests


def _check_products(compiled: Any, graph: GraphRecord) -> Counter[str]:
    """The types in which matrix products ran, counted, as the compiled graph tells them."""
    nodes = (node.get_rt_info() for node in compiled.get_runtime_model().get_ops())
    found = Counter(
        node["runtimePrecision"].astype(str) for node in nodes if node["layerType"].astype(str) in _PRODUCTS
    )
    wanted = _PRECISIONS[graph.precision].products
    # Of an int8 graph some layers, and all of attention, are meant to stay in fp32.
    allowed, least = (wanted | {"f32"}, len(graph.int8["layers"])) if graph.int8 else (wanted, 1)
    if found.keys() - allowed or sum(found[name] for name in wanted) < least:
        raise GraphError(
            f"{graph.file} is {graph.precision}, but openvino ran its products in "
            f"{', '.join(f'{name} ({count})' for name, count in sorted(found.items())) or 'nothing known'}"
        )
    return found


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
