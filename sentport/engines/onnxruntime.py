"""Engine ``onnxruntime``: a bundle's graph on the CPU, on CUDA, or on a GPU through its TensorRT provider."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentport.batch import TokenBatch
from sentport.bundle import Bundle, GraphRecord
from sentport.engines import TOKEN_BUDGETS
from sentport.engines.feeds import make_feed
from sentport.errors import EngineError, GraphError, PrecisionError
from sentport.hardware import available_cores, cuda_devices, missing_libraries
from sentport.machine import Machine, read_machine

try:
    import onnxruntime as ort
except ImportError as error:
    raise EngineError(
        "engine onnxruntime is not installed: pip install 'sentport[cpu]', or 'sentport[gpu]' for CUDA"
    ) from error

logger = logging.getLogger(__name__)

_CPU, _CUDA, _TENSORRT = "CPUExecutionProvider", "CUDAExecutionProvider", "TensorrtExecutionProvider"
_PROVIDERS = {"cpu": _CPU, "cuda": _CUDA, "tensorrt": _TENSORRT}
# TF32 is ONNX Runtime's default for fp32 on CUDA and would break the fp32 gate.
_OPTIONS = {"cuda": {"use_tf32": "0"}}
# On CUDA, ONNX Runtime computes shapes on the CPU by design; any of these there means the work fell back.
_HEAVY_OPERATORS = frozenset(
    {
        *("MatMul", "FusedMatMul", "Gemm", "Attention", "MultiHeadAttention", "Softmax", "Erf", "Gelu", "BiasGelu"),
        *("FastGelu", "LayerNormalization", "SkipLayerNormalization", "EmbedLayerNormalization"),
        *("MatMulInteger", "MatMulIntegerToFloat", "QLinearMatMul", "QuantizeLinear"),
    }
)
_DTYPES = {"tensor(int64)": "int64", "tensor(int32)": "int32", "tensor(float)": "float32"}
# A session holds its own copy of the weights. A bound on that price, set by hand; nothing larger was measured.
_TWICE_BYTES = 1 << 29
_SILENT = 4  # log severity: fatal only; what matters is read from the session and raised


class OnnxRuntimeEngine:
    """Runs one graph of a bundle; see ``Engine`` for the contract.

    Args:
        bundle: Where the graph comes from.
        graph: Which graph.
        threads: Compute threads in all, or None for the cores that this process may use.
        device: ``cpu``, ``cuda``, ``tensorrt``, or ``auto`` (CUDA where a device and a working provider are there).
            What a GPU's provider is set up with is in the machine's file (``sentport.machine``).

    Raises:
        PrecisionError: When ONNX Runtime does not run the precision on this device.
        EngineError: When the device is not delivered, or the graph's signature is not the recorded one.
    """

    name = "onnxruntime"

    def __init__(self, bundle: Bundle, graph: GraphRecord, threads: int | None = None, device: str = "auto") -> None:
        asked = resolve_device(device)
        _check_precision(graph, asked)
        total = threads or available_cores()
        self.precision, self.layout = graph.precision, graph.layout
        self.token_budget = TOKEN_BUDGETS["cpu" if asked == "cpu" else "cuda"]
        self._on_gpu = asked != "cpu"
        self._machine = read_machine() if self._on_gpu else Machine()
        self._graph, self._inputs = graph, [tensor.name for tensor in graph.inputs]
        model = bundle.graph_file(graph)
        data = bundle.path / graph.data_file
        size = model.stat().st_size + (data.stat().st_size if data.is_file() else 0)
        self._wide = self._open(model, asked, total)
        # Calls of one thread each need no agreement inside a layer: measured a fifth faster than one call with all
        # threads. They share a session of their own; a batch that is alone still gets every thread.
        apart = asked == "cpu" and total > 1 and size <= _TWICE_BYTES
        self._narrow = (
            _open_session(model, asked, 1, self._machine) if apart else self._wide
        )  # the wide one has proved graph and device
        self.sessions, self.threads = (total, 1) if apart else (1, total)
        self.device = asked

    def run(self, batch: TokenBatch, *, beside: bool = False) -> NDArray[np.float32]:
        """Vectors ``[rows, dim]`` float32; the rows are padded to the longest of the batch, or packed as they are."""
        session = self._narrow if beside else self._wide  # another thread may close the engine meanwhile
        if session is None:
            raise EngineError("this engine is closed; open a new Encoder")
        return self._vectors(session, batch)

    def _vectors(self, session: Any, batch: TokenBatch) -> NDArray[np.float32]:
        if not len(batch.lengths):  # a graph takes no empty batch
            return np.zeros((0, int(self._graph.outputs[0].axes[-1])), np.float32)
        feed = make_feed(self._graph.layout, self._inputs, batch)
        if self._on_gpu:
            return run_bound(session, feed, self._graph.outputs[0].name)
        vectors: NDArray[np.float32] = session.run(None, feed)[0]  # [B, dim]
        return vectors

    def close(self) -> None:
        """Free the sessions."""
        self._wide = self._narrow = None

    def _open(self, model: Path, device: str, threads: int) -> Any:
        """A session whose signature and device have been checked, the latter by running it."""
        with tempfile.TemporaryDirectory(prefix="sentport-profile-") as folder:
            session = _open_session(model, device, threads, self._machine, profile=Path(folder))
            self._check_signature(session, model)
            try:
                self._vectors(session, TokenBatch.from_rows([[0, 0, 0], [0]]))
            except Exception as error:  # onnxruntime raises bare exceptions of its own
                reason = str(error).partition("\n")[0]
                raise GraphError(f"{model} fails at its first run: {reason}") from error
            self.nodes = _nodes_by_provider(Path(session.end_profiling()))
        _check_device(device, self.nodes, self._machine)
        return session

    def _check_signature(self, session: Any, model: Path) -> None:
        for side, found, recorded in (
            ("input", session.get_inputs(), self._graph.inputs),
            ("output", session.get_outputs(), self._graph.outputs),
        ):
            have = [(value.name, _DTYPES.get(value.type, value.type), tuple(value.shape)) for value in found]
            want = [(tensor.name, tensor.dtype, tensor.axes) for tensor in recorded]
            if have != want:
                raise GraphError(f"{model} has {side}s {have}, bundle.json records {want}; export the checkpoint again")


def run_bound(session: Any, feed: dict[str, NDArray[Any]], output: str) -> NDArray[np.float32]:
    """Vectors with inputs and output bound: one copy in, one out, and no value that Python holds in between."""
    binding = session.io_binding()
    for name, table in feed.items():
        binding.bind_cpu_input(name, np.ascontiguousarray(table))
    binding.bind_output(output)
    session.run_with_iobinding(binding)
    vectors: NDArray[np.float32] = binding.copy_outputs_to_cpu()[0]
    return vectors


def _check_precision(graph: GraphRecord, device: str) -> None:
    if device != "cpu":
        return
    if graph.precision == "bf16":
        raise PrecisionError(
            f"{graph.file} is bf16, which ONNX Runtime does not multiply on a CPU; use device cuda, "
            "engine openvino on a CPU that has bf16, or precision fp32"
        )
    if graph.precision == "fp16":
        logger.warning(
            "%s: ONNX Runtime computes fp16 in fp32 on a CPU: half the file, and no faster than fp32", graph.file
        )


def resolve_device(device: str) -> str:
    """The device that is meant: ``auto`` is CUDA where a device and a working provider are there.

    Raises:
        EngineError: For a device that the engine does not know.
    """
    if device not in ("auto", *_PROVIDERS):
        raise EngineError(f"device {device!r} is unknown to engine onnxruntime; it knows auto, {', '.join(_PROVIDERS)}")
    if device != "auto":
        return device
    if not cuda_devices():
        return "cpu"
    problem = _gpu_problem("cuda")
    if problem is None:
        return "cuda"
    logger.warning("a CUDA device is present but stays unused: %s", problem)
    return "cpu"


def _gpu_problem(device: str) -> str | None:
    """Why ONNX Runtime cannot use a GPU here, or None when nothing is known to be missing."""
    if _PROVIDERS[device] not in ort.get_available_providers():
        return f"this onnxruntime has no {_PROVIDERS[device]}; pip uninstall onnxruntime, pip install 'sentport[gpu]'"
    if not cuda_devices():
        return "no CUDA device or driver was found"
    with contextlib.redirect_stdout(sys.stderr):  # it prints; stdout is for data
        ort.preload_dlls()  # CUDA libraries that pip installed lie where no loader looks
    provider = Path(ort.__file__).parent / "capi" / f"libonnxruntime_providers_{device}.so"
    missing = missing_libraries(provider) if sys.platform == "linux" else []
    return f"onnxruntime's provider for {device} lacks {', '.join(missing)}" if missing else None


def _open_session(model: Path, device: str, threads: int, machine: Machine, profile: Path | None = None) -> Any:
    if device != "cpu" and (problem := _gpu_problem(device)):
        raise EngineError(f"device {device} was asked for, but {problem}; `sentport doctor` says what is missing")
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _SILENT
    if profile is not None:
        options.enable_profiling = True  # of the warm-up only: it tells where nodes really run
        options.profile_file_prefix = str(profile / "warmup")
    provider = _PROVIDERS[device]
    try:
        # Without fallback: it would print to stdout and swap the CPU in.
        session = ort.InferenceSession(str(model), options, providers=_providers(device, machine), enable_fallback=0)
    except Exception as error:  # onnxruntime raises bare exceptions of its own
        kind = GraphError if device == "cpu" else EngineError  # elsewhere it may be the device's own trouble
        raise kind(f"onnxruntime cannot load {model}: {error}") from error
    if provider not in session.get_providers():
        raise EngineError(
            f"device {device} was asked for, but onnxruntime fell back to {session.get_providers()}; "
            "`sentport doctor` says what is missing"
        )
    return session


def _providers(device: str, machine: Machine) -> list[tuple[str, dict[str, str]]]:
    """The provider of a device, and for ``tensorrt`` CUDA behind it, which takes what no plan is made of."""
    names = ("tensorrt", "cuda") if device == "tensorrt" else (device,)
    return [(_PROVIDERS[name], {**_OPTIONS.get(name, {}), **machine.providers.get(name, {})}) for name in names]


def _nodes_by_provider(profile: Path) -> dict[str, Counter[str]]:
    """Operators that ran, counted by provider, from ONNX Runtime's profile of the warm-up."""
    nodes: dict[str, Counter[str]] = {}
    for event in json.loads(profile.read_text(encoding="utf-8")):
        arguments = event.get("args", {})
        if event.get("cat") == "Node" and "provider" in arguments:
            nodes.setdefault(arguments["provider"], Counter())[arguments.get("op_name", "?")] += 1
    return nodes


def _check_device(asked: str, nodes: dict[str, Counter[str]], machine: Machine) -> None:
    """Raises EngineError when work ran elsewhere; what is light and stays on the CPU beside a GPU is told."""
    provider = _PROVIDERS[asked]
    stray = sorted(
        operator for name, counts in nodes.items() if name != provider for operator in counts.keys() & _HEAVY_OPERATORS
    )
    if stray or provider not in nodes:
        raise EngineError(
            f"device {asked} was asked for, but {', '.join(stray) or 'every node'} ran elsewhere "
            f"({', '.join(nodes) or 'nothing was profiled'})"
        )
    left = nodes.get(_CPU, Counter()) if asked != "cpu" else Counter()
    if left:
        words = f"{left.total()} nodes ran on the CPU ({', '.join(f'{count} {name}' for name, count in left.items())})"
        if machine.refuse_cpu_nodes:
            raise EngineError(f"device {asked} was asked for, but {words}, which this machine's cpu_nodes refuses")
        logger.info("device %s: %s", asked, words)
