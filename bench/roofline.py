"""What a machine can multiply at most, and how much a model multiplies at least: the distance between is a row's.

Floating-point operations are counted as two for each multiply-add, of real tokens alone: padding is no work done.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentport.errors import EngineError

# [ROWS, SIZE] x [SIZE, SIZE]: large enough for a product to reach the top, small enough to stay in the last cache.
ROWS, SIZE = 1024, 1536
_GPU_SIZE = 8192
_SMALL = 256
_EMULATED = 8e9  # operations a second that every CPU with the instructions is far above
_SECONDS = 0.5
_NATIVE_REPEATS, _NATIVE_TRIES = 4, 3
_CONFIGS = (Path("config.json"), Path("0_Transformer", "config.json"))
_NAMES = {
    "hidden": ("hidden_size", "dim", "d_model"),
    "inner": ("intermediate_size", "hidden_dim", "d_ff"),
    "layers": ("num_hidden_layers", "n_layers", "num_layers"),
}
# Their feed-forward has a third matrix, which gates.
_GATED = frozenset({"modernbert", "nomic_bert", "new", "gemma3_text", "llama", "qwen2", "qwen3", "mistral"})


def model_flop(checkpoint: Path, lengths: NDArray[np.int64]) -> float | None:
    """Operations of a transformer over texts: projections, feed-forward and attention; the rest is a few per mille.

    Args:
        checkpoint: Its folder, whose ``config.json`` has the widths.
        lengths: ``[N]`` tokens of each text.

    Returns:
        None where the folder does not say.
    """
    config = next((_read(checkpoint / name) for name in _CONFIGS if (checkpoint / name).is_file()), {})
    hidden, inner, layers = (_first(config, names) for names in _NAMES.values())
    if not (hidden and inner and layers):
        return None
    feed_forward = (3 if config.get("model_type") in _GATED else 2) * hidden * inner
    a_token = layers * 2 * (4 * hidden**2 + feed_forward)
    a_pair_of_tokens = layers * 4 * hidden  # scores, and the values they weigh
    return float(a_token * lengths.sum() + a_pair_of_tokens * (lengths.astype(np.float64) ** 2).sum())


def measure_ceilings(threads: int, device: str = "cpu") -> dict[str, float]:
    """Operations a second of the fastest product of all that run here, ours among them, by precision.

    Args:
        threads: Compute threads, on a CPU.
        device: ``cpu`` or ``cuda``.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16} | ({"fp16": torch.float16} if device == "cuda" else {})
        found = {name: _torch_ceiling(torch, dtype, device) for name, dtype in dtypes.items()}
    finally:
        torch.set_num_threads(before)
    if device == "cpu":
        found["int8"] = _fastest(_int8_product(threads))
        for name, flops in _native_products(threads).items():
            found[name] = max(found[name], flops)
    return found


def _native_products(threads: int) -> dict[str, float]:
    """Those of engine ``native``, a thread each; none where it is not installed, or this CPU lacks AVX2."""
    try:
        from sentport.engines.native import best_level, runs

        level = best_level()
    except EngineError:
        return {}
    from sentport_native import speed

    found = {}
    with ThreadPoolExecutor(threads) as pool:
        for name, kind in (("fp32", "F32"), ("bf16", "BF16"), ("int8", "I8")):
            if runs(name):
                arguments = (level, kind, ROWS, SIZE, SIZE, _NATIVE_REPEATS)
                tries = [sum(pool.map(lambda _, a=arguments: speed(*a), range(threads))) for _ in range(_NATIVE_TRIES)]  # type: ignore[misc]
                found[name] = float(max(tries))
    return found


def _torch_ceiling(torch: Any, dtype: Any, device: str) -> float:
    if device != "cpu":
        return _fastest(_torch_product(torch, dtype, device, _GPU_SIZE, _GPU_SIZE))
    # A CPU without instructions for bf16 would take half a minute over a large product, and is no faster in it.
    small = _fastest(_torch_product(torch, dtype, device, _SMALL, _SMALL))
    return small if small < _EMULATED else _fastest(_torch_product(torch, dtype, device, ROWS, SIZE))


def _torch_product(torch: Any, dtype: Any, device: str, rows: int, size: int) -> tuple[Callable[[], object], int]:
    left, right = (torch.ones((height, size), dtype=dtype, device=device) for height in (rows, size))

    def product() -> None:
        torch.mm(left, right)
        if device == "cuda":
            torch.cuda.synchronize()

    return product, 2 * rows * size**2


def _int8_product(threads: int) -> tuple[Callable[[], object], int]:
    """ONNX Runtime's, whose int8 kernels are those of our engines."""
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    weights = numpy_helper.from_array(np.ones((SIZE, SIZE), np.int8), "right")
    left = helper.make_tensor_value_info("left", TensorProto.UINT8, [ROWS, SIZE])
    result = helper.make_tensor_value_info("product", TensorProto.INT32, [ROWS, SIZE])
    node = helper.make_node("MatMulInteger", ["left", "right"], ["product"])
    graph = helper.make_graph([node], "int8", [left], [result], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feed = {"left": np.ones((ROWS, SIZE), np.uint8)}
    return lambda: session.run(None, feed), 2 * ROWS * SIZE**2


def _fastest(product_and_flop: tuple[Callable[[], object], int]) -> float:
    """The best of as many calls as fit half a second: what the machine can do when nothing disturbs it."""
    product, flop = product_and_flop
    product()
    best, until = float("inf"), time.perf_counter() + _SECONDS
    while time.perf_counter() < until:
        start = time.perf_counter()
        product()
        best = min(best, time.perf_counter() - start)
    return flop / best


def _read(file: Path) -> Mapping[str, Any]:
    config: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return config


def _first(config: Mapping[str, Any], names: tuple[str, ...]) -> int:
    return int(next((config[name] for name in names if config.get(name)), 0))
