"""Peer: sentence-transformers' ONNX backend, as exported, optimised, and quantised for this CPU."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

from bench.peers.common import SORTED, Counted

ENVIRONMENT = "sentence-transformers-onnx"
# The newest set that can be installed: sentence-transformers 6 needs transformers 5, which optimum-onnx 0.1.0, the
# last one, does not take. torch and ONNX Runtime are those of our own rows.
REQUIREMENTS: tuple[str, ...] = (
    "sentence-transformers[onnx]==5.7.0",
    "transformers==4.57.6",
    "tokenizers==0.22.2",
    "optimum-onnx==0.1.0",
    "optimum==2.1.0",
    "onnx==1.23.2",
    "onnxruntime==1.31.1",
    "torch==2.13.0",
    "numpy==2.4.6",
)
# Its default, and the fastest of 4 to 128 rows on STS-B (two Zen 3 cores, fp32 and int8).
ROWS = (32, 64)
VARIANTS = {
    "sentence-transformers-onnx": ("sentence-transformers ONNX", "onnxruntime", "fp32", SORTED, ROWS),
    "sentence-transformers-o3": ("sentence-transformers ONNX O3", "onnxruntime", "fp32", SORTED, ROWS),
    "sentence-transformers-qint8": ("sentence-transformers ONNX int8", "onnxruntime", "int8", SORTED, ROWS),
}


def open_model(checkpoint: str, variant: str, threads: int, folder: str) -> Counted:
    """The model on its backend, as the documentation says; what it exports goes into ``folder``."""
    import onnxruntime
    import torch
    from sentence_transformers import (
        SentenceTransformer,
        export_dynamic_quantized_onnx_model,
        export_optimized_onnx_model,
    )

    torch.set_num_threads(threads)
    session = onnxruntime.SessionOptions()
    session.intra_op_num_threads = threads
    options: dict[str, Any] = {"provider": "CPUExecutionProvider", "session_options": session}
    model = SentenceTransformer(checkpoint, backend="onnx", device="cpu", model_kwargs=dict(options))
    form = variant.rpartition("-")[2]
    if form == "onnx":
        return Counted(model)
    model.save_pretrained(folder)
    if form == "o3":
        export_optimized_onnx_model(model, "O3", folder)
    else:
        form = quantisation(platform.machine(), Path("/proc/cpuinfo"))
        export_dynamic_quantized_onnx_model(model, form, folder)
    (file,) = Path(folder, "onnx").glob(f"*_{form.upper() if form == 'o3' else form}.onnx")
    options["file_name"] = f"onnx/{file.name}"
    return Counted(SentenceTransformer(folder, backend="onnx", device="cpu", model_kwargs=options))


def quantisation(machine: str, cpuinfo: Path) -> str:
    """The name of its dynamic quantisation for a CPU."""
    if machine.lower() in ("aarch64", "arm64"):
        return "arm64"
    flags = set(cpuinfo.read_text(encoding="utf-8").split()) if cpuinfo.is_file() else set()
    known = {"avx512_vnni": "avx512_vnni", "avx512f": "avx512"}
    return next((name for flag, name in known.items() if flag in flags), "avx2")
