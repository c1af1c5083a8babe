"""One stream's worth of an engine: buffers made once, contexts, and graphs of the shapes that come again."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentport.bundle import GraphRecord
from sentport.engines.cuda import Cuda
from sentport.errors import EngineError
from sentport.plans import Profile

logger = logging.getLogger(__name__)

# A graph needs a context of its own, whose state stays that of the capture. The memory that a context works in is
# shared, so the price of one is small; bounded all the same.
_MOST_GRAPHS = 32
_SEEN_BEFORE_CAPTURE = 2


class Buffer:
    """Host and device memory of one tensor, as large as any profile lets it become."""

    def __init__(self, cuda: Cuda, dtype: str, numbers: int) -> None:
        self._cuda, self._dtype = cuda, np.dtype(dtype)
        self.host = cuda.allocate_pinned(numbers * self._dtype.itemsize)
        self.address = cuda.allocate(numbers * self._dtype.itemsize)

    def view(self, shape: Sequence[int]) -> NDArray[Any]:
        """The front of the host memory as an array."""
        size = math.prod(shape)
        return self.host[: size * self._dtype.itemsize].view(self._dtype).reshape(shape)

    def close(self) -> None:
        """Give the memory back."""
        self._cuda.free(self.address)
        self._cuda.free_pinned(self.host)


@dataclass(frozen=True)
class Ready:
    """A context whose shapes are set, and its graph where it was captured."""

    context: Any
    graph: int


class Lane:
    """A stream with its buffers; one call at a time.

    Args:
        cuda: The device.
        engine: The deserialised plan.
        trt: The library.
        graph: The record of the graph, for its inputs and output.
        profiles: Of the plan.
        captures: Whether to capture CUDA graphs of shapes that come again.
    """

    def __init__(
        self, cuda: Cuda, engine: Any, trt: Any, graph: GraphRecord, profiles: Sequence[Profile], captures: bool
    ) -> None:
        self._cuda, self._engine, self._trt = cuda, engine, trt
        self._own_memory = self._captures = captures
        self._output = graph.outputs[0]
        self._profile: int | None = None
        self._seen: Counter[tuple[int, ...]] = Counter()
        self._ready: dict[tuple[int, ...], Ready] = {}
        with ExitStack() as held:
            self._allocate(held, graph, profiles)
            self._context = self._make_context()
            self._held = held.pop_all()

    def run(self, profile: int, feed: Mapping[str, NDArray[Any]], rows: int) -> NDArray[np.float32]:
        """Vectors ``[rows, dim]`` of one piece, whose tables have the shapes that they run in."""
        for name, table in feed.items():
            self._buffers[name].view(table.shape)[...] = table
        shapes = {name: table.shape for name, table in feed.items()}
        found = self._buffers[self._output.name].view((rows, int(self._output.axes[-1])))
        key = (profile, *(size for shape in shapes.values() for size in shape))
        ready = self._ready.get(key) or self._capture(key, profile, shapes, found)
        if ready is not None:
            self._cuda.launch(ready.graph, self._stream)
        else:
            changed, self._profile = profile != self._profile, None  # until the context has it
            self._set_shapes(self._context, profile if changed else None, shapes)
            self._profile = profile
            self._enqueue(self._context, shapes, found)
        self._cuda.wait(self._stream)
        return np.array(found)

    def close(self) -> None:
        """Give everything back."""
        for ready in self._ready.values():
            self._cuda.free_graph(ready.graph)
        self._ready, self._context = {}, None  # before the memory they work in
        self._held.close()

    def _allocate(self, held: ExitStack, graph: GraphRecord, profiles: Sequence[Profile]) -> None:
        """Stream, buffers and the contexts' memory, each as large as any profile lets it become."""
        cuda = self._cuda
        self._stream = cuda.open_stream()
        held.callback(cuda.close_stream, self._stream)
        self._buffers: dict[str, Buffer] = {}
        for tensor in (*graph.inputs, *graph.outputs):
            numbers = max(math.prod(_size(axis, profile) for axis in tensor.axes) for profile in profiles)
            self._buffers[tensor.name] = buffer = Buffer(cuda, tensor.dtype, numbers)
            held.callback(buffer.close)
        if self._own_memory:
            self._scratch = cuda.allocate(max(1, self._engine.device_memory_size_v2))
            held.callback(cuda.free, self._scratch)

    def _capture(
        self, key: tuple[int, ...], profile: int, shapes: Mapping[str, tuple[int, ...]], found: NDArray[np.float32]
    ) -> Ready | None:
        """A graph of a shape that was seen before; None for others, which run as they are."""
        self._seen[key] += 1
        if not self._captures or self._seen[key] < _SEEN_BEFORE_CAPTURE or len(self._ready) >= _MOST_GRAPHS:
            return None
        context = self._make_context()
        self._set_shapes(context, profile, shapes)
        self._enqueue(context, shapes, found)  # what a context does at its first run must not be captured
        self._cuda.wait(self._stream)
        try:
            graph = self._cuda.capture(self._stream, lambda: self._enqueue(context, shapes, found))
        except EngineError as error:  # a plan that waits inside its run gives the same vectors without
            logger.warning("this plan's runs cannot be captured as CUDA graphs, and are launched one by one: %s", error)
            self._captures = False
            return None
        self._ready[key] = Ready(context, graph)
        return self._ready[key]

    def _make_context(self) -> Any:
        """A context; of TensorRT for RTX it captures graphs by itself, as its kernels change after the first runs."""
        if self._own_memory:
            strategy = self._trt.ExecutionContextAllocationStrategy.USER_MANAGED
            context = self._engine.create_execution_context(strategy)
            context.set_device_memory(self._scratch, self._engine.device_memory_size_v2)
        elif hasattr(self._trt, "CudaGraphStrategy"):
            config = self._engine.create_runtime_config()
            config.cuda_graph_strategy = self._trt.CudaGraphStrategy.WHOLE_GRAPH_CAPTURE
            context = self._engine.create_execution_context(config)
        else:
            context = self._engine.create_execution_context()
        for name, buffer in self._buffers.items():
            context.set_tensor_address(name, buffer.address)
        return context

    def _set_shapes(self, context: Any, profile: int | None, shapes: Mapping[str, tuple[int, ...]]) -> None:
        if profile is not None and not context.set_optimization_profile_async(profile, self._stream):
            raise EngineError(f"the plan does not take its own profile {profile}; build it again")
        for name, shape in shapes.items():
            if not context.set_input_shape(name, shape):
                raise EngineError(f"the plan does not take {name} of shape {list(shape)} in profile {profile}")

    def _enqueue(self, context: Any, shapes: Mapping[str, tuple[int, ...]], found: NDArray[np.float32]) -> None:
        for name, shape in shapes.items():
            self._cuda.upload(self._buffers[name].address, self._buffers[name].view(shape), self._stream)
        if not context.execute_async_v3(self._stream):
            raise EngineError("the plan could not be run; the library's log says why (-v)")
        self._cuda.download(found, self._buffers[self._output.name].address, self._stream)


def _size(axis: str | int, profile: Profile) -> int:
    if isinstance(axis, int):
        return axis
    return profile.rows.most if axis == "batch" else profile.tokens.most
