"""Runs in a peer's own Python, where nothing of ours is installed: texts in, vectors out, as a process of its own.

``python worker.py MODULE VARIANT CHECKPOINT THREADS``; MODULE is a peer's. Standard input has one JSON object a line:
``{"texts": [...]}`` to take N texts, ``{"rows": 32}`` to encode them in batches of so many. Standard output has one
JSON line when the model is open, and one after each request; float32 bytes of ``[N, dim]`` follow an encoding.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module, metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

_PACKAGES = (
    *("sentence-transformers", "transformers", "tokenizers", "optimum-onnx", "optimum-intel", "openvino", "nncf"),
    *("fastembed", "infinity-emb", "onnxruntime", "torch", "numpy"),
)


def serve(model: Any, requests: Any, answers: Any) -> None:
    """Answer until the requests end."""
    texts: list[str] = []
    for line in requests:
        request = json.loads(line)
        if "texts" in request:
            texts = request["texts"]
            _say(answers, {"texts": len(texts)})
            continue
        vectors = model.encode(texts, request["rows"])  # [N, dim] float32
        header = {"shape": vectors.shape, "computed_tokens": model.computed}
        _say(answers, header, vectors.astype("<f4").tobytes())


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
    module, variant, checkpoint, threads = sys.argv[1:]
    sys.path.append(str(Path(__file__).parents[2]))  # what is installed here goes first
    peer = import_module(module)
    with TemporaryDirectory(prefix="sentport-peer-") as folder:
        model = peer.open_model(checkpoint, variant, int(threads), folder)
        _say(answers, {"versions": _versions(), "threads": int(threads)})
        serve(model, sys.stdin, answers)


if __name__ == "__main__":
    main()
