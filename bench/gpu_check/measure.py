"""Clocks, the matrix-product ceiling, the cosine gate and the time budget."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, TypeVar

import numpy as np
import torch

from bench.gpu_check.runners import DTYPES
from bench.gpu_check.workload import Floats

T = TypeVar("T")

# A contestant under its gate is wrong, not imprecise: it is never timed.
COSINE_GATE = {"fp32": 0.999999, "bf16": 0.999, "fp16": 0.999}
NORM_TOLERANCE = 1e-4
_CEILING_SECONDS = 1.5
_CEILING_REPEATS = 10
_SLOW_PRODUCT_S = 0.02


def set_precision() -> str:
    """Switches TF32 off for fp32 products and returns the sentence that the record carries."""
    torch.set_float32_matmul_precision("highest")
    setting = torch.get_float32_matmul_precision()
    if setting != "highest":
        raise RuntimeError(f"float32 matmul precision is {setting!r} after asking for 'highest': TF32 may be on")
    return "TF32 off: float32 matmul precision 'highest'"


def device_seconds(device: torch.device, work: Callable[[], T]) -> tuple[float, T]:
    """Times ``work`` by CUDA events, or by the wall clock on a CPU; returns seconds and its result."""
    if device.type != "cuda":
        return wall_seconds(device, work)
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize(device)
    start.record()
    result = work()
    stop.record()
    torch.cuda.synchronize(device)
    return float(start.elapsed_time(stop)) / 1e3, result


def wall_seconds(device: torch.device, work: Callable[[], T]) -> tuple[float, T]:
    """Times ``work`` by the wall clock with the device idle at both ends; returns seconds and its result."""
    synchronize(device)
    start = time.perf_counter()
    result = work()
    synchronize(device)
    return time.perf_counter() - start, result


def synchronize(device: torch.device) -> None:
    """Waits until the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass(frozen=True, slots=True)
class Budget:
    """Seconds that may still be spent."""

    until: float

    @classmethod
    def of_minutes(cls, minutes: float) -> Budget:
        """Starts the clock now."""
        return cls(time.monotonic() + 60 * minutes)

    @property
    def left_s(self) -> float:
        """Seconds left, negative once spent."""
        return self.until - time.monotonic()


def ceiling_sizes(device: torch.device, precision: str, smoke: bool) -> list[int]:
    """Lists square matrix products: small ones do not fill a device, the largest may hit its power limit."""
    if smoke:
        return [128]
    if device.type != "cuda":
        return [256, 512, 1024]
    return [2048, 4096, 8192] if precision == "fp32" else [2048, 4096, 8192, 16384]


def measure_ceiling(device: torch.device, precision: str, smoke: bool) -> dict[str, Any]:
    """Times square products on random data (zeros can run faster) and returns the record of the best rate."""
    dtype = DTYPES[precision]
    found: dict[str, float] = {}
    for size in ceiling_sizes(device, precision, smoke):
        generator = torch.Generator(device).manual_seed(size)
        left, right = (torch.randn(size, size, generator=generator, device=device).to(dtype) for _ in range(2))
        out = torch.empty_like(left)
        torch.mm(left, right, out=out)
        once_s, _ = device_seconds(device, partial(_products, left, right, out, 1))
        # One small product is shorter than the events' own resolution; one slow product is reading enough.
        count = 5 if once_s < _SLOW_PRODUCT_S else 1
        seconds: list[float] = []
        while len(seconds) < _CEILING_REPEATS and count * sum(seconds) < _CEILING_SECONDS:
            seconds.append(device_seconds(device, partial(_products, left, right, out, count))[0] / count)
        found[str(size)] = 2 * size**3 / median(seconds) / 1e12
        # The next size is at least eight times the work.
        if 8 * median(seconds) > _CEILING_SECONDS:
            break
    return {
        "precision": precision,
        "ceiling_tflops": max(found.values()),
        "by_size_tflops": found,
        "statement": "square matrix products of random normal data, median rate of each size, best size is the ceiling",
    }


def _products(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor, count: int) -> None:
    for _ in range(count):
        torch.mm(left, right, out=out)


def worst_cosine(found: Floats, expected: Floats) -> float:
    """Returns the smallest cosine between rows of ``[B, dim]``, in float64; -1 for other shapes or a NaN.

    A cosine does not see a vector's length: ``judge`` looks at that too.
    """
    if found.shape != expected.shape or not np.isfinite(found).all():
        return -1.0
    a, b = found.astype(np.float64), expected.astype(np.float64)
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    dots = np.einsum("bd,bd->b", a, b)
    # A zero vector has no direction: it counts as wrong, never as a division by zero.
    return float(np.where(norms > 0, dots / np.where(norms > 0, norms, 1), -1.0).min())


def judge(found: Floats, expected: Floats, precision: str) -> tuple[float, str | None]:
    """Returns the worst cosine and, where the vectors do not pass, the reason."""
    cosine = worst_cosine(found, expected)
    if cosine < COSINE_GATE[precision]:
        return cosine, f"worst cosine {cosine:.7f} is under the {precision} gate of {COSINE_GATE[precision]}"
    error = float(np.abs(np.linalg.norm(found.astype(np.float64), axis=1) - 1).max())
    if error > NORM_TOLERANCE:
        return cosine, f"a vector's length is off 1 by {error:.1e}, allowed {NORM_TOLERANCE}"
    return cosine, None


def spread(seconds: list[float]) -> dict[str, float]:
    """Returns median, min and max."""
    return {"median": median(seconds), "min": min(seconds), "max": max(seconds)}
