"""Peer: sentence-transformers' OpenVINO backend, as exported, and quantised on CPython's documentation."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from bench.peers.common import SORTED, Counted

ENVIRONMENT = "sentence-transformers-openvino"
REQUIREMENTS: tuple[str, ...] = (
    "sentence-transformers[openvino]==5.7.0",
    "transformers==4.57.6",
    "optimum-intel[openvino]==1.27.0",
    "openvino==2026.4.1",
    "nncf==3.4.0",
    "torch==2.13.0",
    "datasets==5.0.1",
)
ROWS = (32, 64)
VARIANTS = {
    "sentence-transformers-openvino": ("sentence-transformers OpenVINO", "openvino", "fp32", SORTED, (32, 64)),
    "sentence-transformers-openvino-int8": (
        "sentence-transformers OpenVINO int8",
        "openvino",
        "int8",
        SORTED,
        (32, 64),
    ),
}
_CALIBRATION = 300


def open_model(checkpoint: str, variant: str, threads: int, folder: str) -> Counted:
    """The model on its backend, as the documentation says, in fp32 where fp32 was asked for."""
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    # Without the hint OpenVINO computes in bf16 where the CPU has it, and the row would not be what it says.
    config = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    options: dict[str, Any] = {"ov_config": config}
    model = SentenceTransformer(checkpoint, backend="openvino", device="cpu", model_kwargs=dict(options))
    if not variant.endswith("int8"):
        return Counted(model)
    from sentence_transformers import export_static_quantized_openvino_model

    model.save_pretrained(folder)
    export_static_quantized_openvino_model(
        model,
        None,
        folder,
        dataset_name=_sentences(folder),
        dataset_config_name="default",
        dataset_split="train",
        column_name="sentence",
    )
    (file,) = Path(folder, "openvino").glob("*qint8*.xml")
    options["file_name"] = f"openvino/{file.name}"
    return Counted(SentenceTransformer(folder, backend="openvino", device="cpu", model_kwargs=options))


def _sentences(folder: str) -> str:
    """A dataset of its own in place of the hub's that it calibrates with by default."""
    from pydoc_data.topics import topics

    lines = [" ".join(part.split()) for text in topics.values() for part in text.split("\n\n")]
    data = Path(folder, "calibration")
    data.mkdir()
    with (data / "train.csv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["sentence"])
        writer.writerows([line[:300]] for line in [line for line in lines if len(line.split()) > 5][:_CALIBRATION])
    return str(data)
