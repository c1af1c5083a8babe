"""Runs in a peer's own environment, which has no sentport: texts in, vectors out, as a process of its own.

``python peer_worker.py CHECKPOINT BACKEND THREADS``; BACKEND is ``torch``, ``onnx``, or ``onnx-`` and one of
sentence-transformers' quantisations, such as ``onnx-avx2``. Standard input has one JSON object a line: ``{"texts":
[...]}`` to take N texts, ``{"rows": 32}`` to encode them in batches of so many. Standard output has one JSON line when
the model is open, and one after each request; after an encoding the float32 bytes of ``[N, dim]`` follow.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

_PACKAGES = ("sentence-transformers", "transformers", "tokenizers", "optimum-onnx", "onnxruntime", "torch", "numpy")


def open_model(checkpoint: str, backend: str, threads: int, folder: str) -> Any:
    """The model on a backend, as its documentation says; what it exports goes into ``folder``."""
    from sentence_transformers import SentenceTransformer

    name, _, quantisation = backend.partition("-")
    if name == "torch":
        return SentenceTransformer(checkpoint, device="cpu")
    import onnxruntime
    from sentence_transformers import export_dynamic_quantized_onnx_model

    session = onnxruntime.SessionOptions()
    session.intra_op_num_threads = threads
    options: dict[str, Any] = {"provider": "CPUExecutionProvider", "session_options": session}
    model = SentenceTransformer(checkpoint, backend="onnx", device="cpu", model_kwargs=dict(options))
    if not quantisation:
        return model
    model.save_pretrained(folder)
    export_dynamic_quantized_onnx_model(model, quantisation, folder)
    (file,) = Path(folder, "onnx").glob(f"*_{quantisation}.onnx")
    options["file_name"] = f"onnx/{file.name}"
    return SentenceTransformer(folder, backend="onnx", device="cpu", model_kwargs=options)


def serve(model: Any, requests: Any, answers: Any) -> None:
    """Answer until the requests end."""
    texts: list[str] = []
    computed = 0

    def count(module: object, inputs: tuple[Any, ...]) -> None:
        nonlocal computed
        computed += int(inputs[0]["input_ids"].numel())

    model[0].register_forward_pre_hook(count)
    for line in requests:
        request = json.loads(line)
        if "texts" in request:
            texts = request["texts"]
            _say(answers, {"texts": len(texts)})
            continue
        computed = 0
        vectors = model.encode(texts, batch_size=request["rows"], show_progress_bar=False)  # [N, dim] float32
        _say(answers, {"shape": vectors.shape, "computed_tokens": computed}, vectors.astype("<f4").tobytes())


def _say(answers: Any, header: dict[str, Any], content: bytes = b"") -> None:
    answers.write(json.dumps(header).encode() + b"\n" + content)
    answers.flush()


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def main() -> None:
    """Open the model, say so, and serve."""
    # What libraries print must not get in between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    checkpoint, backend, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
    import torch

    torch.set_num_threads(threads)
    with TemporaryDirectory(prefix="sentport-peer-") as folder:
        model = open_model(checkpoint, backend, threads, folder)
        _say(answers, {"versions": _versions(), "threads": torch.get_num_threads()})
        serve(model, sys.stdin, answers)


if __name__ == "__main__":
    main()
