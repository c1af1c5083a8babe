"""The little of CUDA that running a plan takes, by the driver's own library, which is there wherever a GPU works."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentport.errors import EngineError
from sentport.hardware import cuda_driver

_LIBRARY = "libcuda.so.1"
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: no waiting for the default stream
_THIS_THREAD = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: other threads may allocate while this one captures

_OPAQUE, _ADDRESS, _SIZE = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuDevicePrimaryCtxRetain": (_OPAQUE, ctypes.c_int),
    "cuCtxSetCurrent": (_OPAQUE,),
    "cuMemAlloc_v2": (_OPAQUE, _SIZE),
    "cuMemFree_v2": (_ADDRESS,),
    "cuMemAllocHost_v2": (_OPAQUE, _SIZE),
    "cuMemFreeHost": (_OPAQUE,),
    "cuStreamCreate": (_OPAQUE, ctypes.c_uint),
    "cuStreamDestroy_v2": (_OPAQUE,),
    "cuStreamSynchronize": (_OPAQUE,),
    "cuMemcpyHtoDAsync_v2": (_ADDRESS, _OPAQUE, _SIZE, _OPAQUE),
    "cuMemcpyDtoHAsync_v2": (_OPAQUE, _ADDRESS, _SIZE, _OPAQUE),
    "cuStreamBeginCapture_v2": (_OPAQUE, ctypes.c_int),
    "cuStreamEndCapture": (_OPAQUE, _OPAQUE),
    "cuGraphInstantiateWithFlags": (_OPAQUE, _OPAQUE, ctypes.c_ulonglong),
    "cuGraphLaunch": (_OPAQUE, _OPAQUE),
    "cuGraphExecDestroy": (_OPAQUE,),
    "cuGraphDestroy": (_OPAQUE,),
}


class Cuda:
    """The first CUDA device: memory, streams, copies, graphs. Handles are plain numbers. Safe from several threads.

    Attributes:
        name: Of the device, with its compute capability.
        capability: Compute capability, major and minor.

    Raises:
        EngineError: When there is no device, or the driver refuses.
    """

    def __init__(self) -> None:
        driver = cuda_driver()
        if not driver.devices:
            raise EngineError(f"a TensorRT plan runs on a GPU, and there is none: {driver.reason}")
        self.name, self.capability = driver.devices[0], driver.capabilities[0]
        self._driver = ctypes.CDLL(_LIBRARY)
        for name, types in _SIGNATURES.items():
            getattr(self._driver, name).argtypes = types
        context = _OPAQUE()
        self._check("cuDevicePrimaryCtxRetain", self._driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
        self._context = context  # the one that TensorRT's own calls use

    def allocate(self, size: int) -> int:
        """Device memory of some bytes; gives its address."""
        return self._made("cuMemAlloc_v2", _ADDRESS(), size)

    def free(self, address: int) -> None:
        """Give device memory back."""
        self._call("cuMemFree_v2", address)

    def allocate_pinned(self, size: int) -> NDArray[np.uint8]:
        """Host memory ``[size]`` that is never swapped out, so that copies run beside the host."""
        address = self._made("cuMemAllocHost_v2", _OPAQUE(), size)
        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))

    def free_pinned(self, memory: NDArray[np.uint8]) -> None:
        """Give such host memory back; nothing may use it any more."""
        self._call("cuMemFreeHost", memory.ctypes.data)

    def open_stream(self) -> int:
        """A queue of work in which things happen one after the other."""
        return self._made("cuStreamCreate", _OPAQUE(), _NON_BLOCKING)

    def close_stream(self, stream: int) -> None:
        """Close a stream."""
        self._call("cuStreamDestroy_v2", stream)

    def wait(self, stream: int) -> None:
        """Until all that was put into a stream is done."""
        self._call("cuStreamSynchronize", stream)

    def upload(self, address: int, memory: NDArray[Any], stream: int) -> None:
        """Copy host memory to the device, when its turn in the stream comes."""
        self._call("cuMemcpyHtoDAsync_v2", address, memory.ctypes.data, memory.nbytes, stream)

    def download(self, memory: NDArray[Any], address: int, stream: int) -> None:
        """Copy device memory to the host, when its turn in the stream comes."""
        self._call("cuMemcpyDtoHAsync_v2", memory.ctypes.data, address, memory.nbytes, stream)

    def capture(self, stream: int, work: Callable[[], object]) -> int:
        """What ``work`` puts into a stream, not done but kept as a graph that one call launches."""
        self._call("cuStreamBeginCapture_v2", stream, _THIS_THREAD)
        try:
            work()
        finally:
            graph = self._made("cuStreamEndCapture", _OPAQUE(), stream, last=True)
        executable = self._made("cuGraphInstantiateWithFlags", _OPAQUE(), graph, 0)
        self._call("cuGraphDestroy", graph)
        return executable

    def launch(self, graph: int, stream: int) -> None:
        """Put a captured graph into a stream."""
        self._call("cuGraphLaunch", graph, stream)

    def free_graph(self, graph: int) -> None:
        """Give a captured graph back."""
        self._call("cuGraphExecDestroy", graph)

    def _made(self, name: str, out: Any, *arguments: int, last: bool = False) -> int:
        """Call a function that gives a handle through its first argument, or its ``last``."""
        place = ctypes.byref(out)
        self._call(name, *((*arguments, place) if last else (place, *arguments)))
        return int(out.value or 0)

    def _call(self, name: str, *arguments: Any) -> None:
        # Contexts belong to threads, and any thread may call.
        self._check("cuCtxSetCurrent", self._driver.cuCtxSetCurrent(self._context))
        self._check(name, getattr(self._driver, name)(*arguments))

    def _check(self, name: str, code: int) -> None:
        if code:
            memory = ": the device has no memory left for it; build with a smaller --token-budget" if code == 2 else ""
            raise EngineError(f"CUDA's {name} gives error {code} on {self.name}{memory}")
