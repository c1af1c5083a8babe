"""The smallest GPU there is: CUDA's driver functions on host memory, and TensorRT's runtime over a graph's own numbers.

The engine, its buffers, copies, streams and graphs are the real ones; only what is behind the libraries is not. Each
refuses what the real one would: shapes outside of a profile, memory that is not its own, work in a closed stream.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from sentport.bundle import Bundle, GraphRecord
from sentport.plans import Extent, Plan, Profile, write_plan

PROFILES = {
    "padded": (Profile(Extent(1, 4, 4), Extent(1, 8, 8)), Profile(Extent(1, 2, 2), Extent(9, 48, 48))),
    "packed": (Profile(Extent(1, 2, 4), Extent(1, 16, 16)), Profile(Extent(1, 4, 12), Extent(17, 64, 64))),
}


class FakeDriver:
    """libcuda: device memory is host memory that only copies and the engine touch."""

    def __init__(self, capability: tuple[int, int] = (9, 0), devices: int = 1) -> None:
        self.capability, self.devices = capability, devices
        self.memory: dict[int, Any] = {}
        self.streams: set[int] = set()
        self.graphs: dict[int, list[Callable[[], None]]] = {}
        self.captured: list[Callable[[], None]] | None = None
        self.calls: list[str] = []
        self._handles: Iterator[int] = count(100)
        self._functions: dict[str, Function] = {}

    def __getattr__(self, name: str) -> Function:
        return self._functions.setdefault(name, Function(name, self))

    def put(self, work: Callable[[], None]) -> None:
        """Work of a stream: done at once, as nothing here runs beside anything, or kept while a graph is captured."""
        if self.captured is None:
            work()
        else:
            self.captured.append(work)

    def at(self, address: int, size: int) -> Any:
        """Memory of the device, which has to be its own."""
        owner = next(start for start, block in self.memory.items() if start <= address < start + len(block))
        assert address + size <= owner + len(self.memory[owner]), "beyond what was allocated"
        return (ctypes.c_uint8 * size).from_address(address)

    def cuDriverGetVersion_(self, out: Any) -> None:
        out.value = 12080

    def cuInit_(self, _flags: int) -> None: ...

    def cuDeviceGetCount_(self, out: Any) -> None:
        out.value = self.devices

    def cuDeviceGet_(self, out: Any, index: int) -> None:
        out.value = index

    def cuDeviceGetName_(self, buffer: Any, _size: int, _device: Any) -> None:
        buffer.value = b"Fake GPU"

    def cuDeviceGetAttribute_(self, out: Any, attribute: int, _device: Any) -> None:
        out.value = self.capability[attribute - 75]

    def cuDevicePrimaryCtxRetain_(self, out: Any, _device: int) -> None:
        out.value = next(self._handles)

    def cuCtxSetCurrent_(self, _context: Any) -> None: ...

    def cuMemAlloc_v2_(self, out: Any, size: int) -> None:
        block = (ctypes.c_uint8 * size)()
        out.value = ctypes.addressof(block)
        self.memory[out.value] = block

    cuMemAllocHost_v2_ = cuMemAlloc_v2_

    def cuMemFree_v2_(self, address: int) -> None:
        del self.memory[address]

    cuMemFreeHost_ = cuMemFree_v2_

    def cuStreamCreate_(self, out: Any, _flags: int) -> None:
        out.value = next(self._handles)
        self.streams.add(out.value)

    def cuStreamDestroy_v2_(self, stream: int) -> None:
        self.streams.remove(stream)

    def cuStreamSynchronize_(self, stream: int) -> None:
        assert stream in self.streams
        assert self.captured is None, "a captured stream cannot be waited for"

    def cuMemcpyHtoDAsync_v2_(self, address: int, source: int, size: int, stream: int) -> None:
        assert stream in self.streams
        self.put(lambda: ctypes.memmove(self.at(address, size), self.at(source, size), size))

    def cuMemcpyDtoHAsync_v2_(self, target: int, address: int, size: int, stream: int) -> None:
        self.cuMemcpyHtoDAsync_v2_(target, address, size, stream)

    def cuStreamBeginCapture_v2_(self, stream: int, mode: int) -> None:
        assert (stream in self.streams, mode) == (True, 1)
        self.captured = []

    def cuStreamEndCapture_(self, _stream: int, out: Any) -> None:
        assert self.captured is not None
        out.value = next(self._handles)
        self.graphs[out.value], self.captured = self.captured, None

    def cuGraphInstantiateWithFlags_(self, out: Any, graph: int, _flags: int) -> None:
        out.value = next(self._handles)
        self.graphs[out.value] = self.graphs[graph]

    def cuGraphLaunch_(self, graph: int, stream: int) -> None:
        assert stream in self.streams
        for work in self.graphs[graph]:
            work()

    def cuGraphDestroy_(self, graph: int) -> None:
        del self.graphs[graph]

    cuGraphExecDestroy_ = cuGraphDestroy_


class Function:
    """One function of the library: notes the call, gives its error code."""

    argtypes: Any = None

    def __init__(self, name: str, driver: FakeDriver) -> None:
        self._name, self._driver = name, driver
        self.fails_with = 0

    def __call__(self, *arguments: Any) -> int:
        self._driver.calls.append(self._name)
        if not self.fails_with:
            method = getattr(type(self._driver), f"{self._name}_")
            method(self._driver, *(getattr(argument, "_obj", argument) for argument in arguments))
        return self.fails_with


class FakeTensorRt(ModuleType):
    """The Python interface of TensorRT's runtime, whose engine computes with ONNX Runtime what its graph says."""

    def __init__(self, driver: FakeDriver, bundle: Bundle, plan: Plan, version: str = "10.13.0.35") -> None:
        super().__init__("tensorrt")
        self.__version__ = version
        self.driver, self.bundle, self.plan = driver, bundle, plan
        self.types = ["Half" if plan.precision == "fp16" else "Float"]
        self.damage = 0.0
        self.loads = True
        self.contexts: list[FakeContext] = []
        self.ILogger = type("ILogger", (), {"WARNING": 1, "ERROR": 2, "INTERNAL_ERROR": 3})
        self.ExecutionContextAllocationStrategy = SimpleNamespace(USER_MANAGED="user")
        self.LayerInformationFormat = SimpleNamespace(JSON="json")
        self.Runtime = lambda _log: SimpleNamespace(deserialize_cuda_engine=self._load)

    def _load(self, content: bytes) -> FakeEngine | None:
        assert content == b"plan"
        return FakeEngine(self) if self.loads else None


class FakeEngine:
    device_memory_size_v2 = 64

    def __init__(self, trt: FakeTensorRt) -> None:
        self.trt = trt
        graph = graph_of(trt.bundle, trt.plan.layout)
        self.session = ort.InferenceSession(str(trt.bundle.path / graph.file), providers=["CPUExecutionProvider"])
        self.inputs = {tensor.name: tensor for tensor in graph.inputs}

    def create_execution_context(self, strategy: str | None = None) -> FakeContext:
        context = FakeContext(self, strategy)
        self.trt.contexts.append(context)
        return context

    def create_engine_inspector(self) -> Any:
        layers = [{"Name": "gemm", "Outputs": [{"Format/Datatype": kind}]} for kind in self.trt.types]
        layers.append({"Name": "shape", "Outputs": [{"Format/Datatype": "Int64"}]})
        return SimpleNamespace(get_engine_information=lambda _format: json.dumps({"Layers": layers}))


class FakeContext:
    def __init__(self, engine: FakeEngine, strategy: str | None) -> None:
        self._engine, self._memory = engine, strategy is None
        self._addresses: dict[str, int] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.profile = 0

    def set_device_memory(self, address: int, size: int) -> None:
        self._engine.trt.driver.at(address, size)
        self._memory = True

    def set_tensor_address(self, name: str, address: int) -> None:
        self._addresses[name] = address

    def set_optimization_profile_async(self, profile: int, _stream: int) -> bool:
        self.profile, self.shapes = profile, {}
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        profile = self._engine.trt.plan.profiles[self.profile]
        extents = {"batch": profile.rows, "tokens": profile.tokens, "total_tokens": profile.tokens}
        axes = self._engine.inputs[name].axes
        if len(shape) != len(axes):
            return False
        allowed = [
            extents[str(axis)].least <= size <= extents[str(axis)].most for axis, size in zip(axes, shape, strict=True)
        ]
        self.shapes[name] = shape
        return all(allowed)

    def execute_async_v3(self, stream: int) -> bool:
        assert self._memory, "no memory to work in"
        assert self.shapes.keys() == self._engine.inputs.keys()
        shapes = dict(self.shapes)
        self._engine.trt.driver.put(lambda: self._compute(shapes))
        return True

    def _compute(self, shapes: dict[str, tuple[int, ...]]) -> None:
        driver, found = self._engine.trt.driver, {}
        for name, shape in shapes.items():
            dtype = np.dtype(self._engine.inputs[name].dtype)
            size = int(np.prod(shape)) * dtype.itemsize
            found[name] = np.frombuffer(bytes(driver.at(self._addresses[name], size)), dtype).reshape(shape)
        vectors: NDArray[np.float32] = self._engine.session.run(None, found)[0]
        data = (vectors + np.float32(self._engine.trt.damage)).tobytes()
        ctypes.memmove(driver.at(self._addresses["sentence_embedding"], len(data)), data, len(data))


def graph_of(bundle: Bundle, layout: str) -> GraphRecord:
    return next(graph for graph in bundle.graphs if graph.layout == layout and graph.flavour == "portable")


def write_fake_plan(bundle: Bundle, layout: str, name: str = "", **values: Any) -> Plan:
    """A plan whose content no library would load, of the fp32 graph of a layout."""
    graph = graph_of(bundle, layout)
    fixed: dict[str, Any] = {
        "name": name or f"{layout}-{graph.precision}-trt-sm90",
        "graph": graph.file,
        "graph_sha256": graph.sha256,
        "layout": layout,
        "precision": graph.precision,
        "sha256": "",
        "builder": "trt",
        "version": "10.13.0.35",
        "runs_on": ("9.0",),
        "newer_versions": False,
        "profiles": PROFILES[layout],
        "types": {"fp32": 14},
        "seconds": 1.0,
    }
    return write_plan(bundle, Plan(**{**fixed, **values}), b"plan")


def real_cdll(driver: FakeDriver) -> Callable[..., Any]:
    """``ctypes.CDLL``, but for the driver's library."""
    original = ctypes.CDLL
    return lambda name, *rest: driver if Path(str(name)).name == "libcuda.so.1" else original(name, *rest)
