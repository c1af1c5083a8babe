"""Peer: the server that everybody writes first, FastAPI in front of sentence-transformers.

``python fastapi_server.py CHECKPOINT PORT`` is that server.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ENVIRONMENT = "fastapi"
REQUIREMENTS: tuple[str, ...] = (
    "fastapi==0.165.0",
    "uvicorn==0.54.0",
    "sentence-transformers==6.2.0",
    "torch==2.13.0",
    "transformers==5.24.0",
)
URL = "http://127.0.0.1:{port}/embeddings"
VARIANTS = {"fastapi-server": ("FastAPI and sentence-transformers", "torch", "fp32", "each request by itself", (32,))}


def command(checkpoint: str, variant: str, threads: int, port: int) -> list[str]:
    """Arguments of its Python."""
    return [str(Path(__file__).resolve()), checkpoint, str(port)]


def serve(checkpoint: str, port: int) -> None:
    """Answer OpenAI's requests for embeddings."""
    import uvicorn
    from fastapi import Body, FastAPI
    from sentence_transformers import SentenceTransformer

    app, model = FastAPI(), SentenceTransformer(checkpoint, device="cpu")

    def embed(request: Any = Body()) -> dict[str, Any]:  # noqa: B008 - FastAPI's way to take a body
        vectors = model.encode(request["input"], show_progress_bar=False)
        return {"data": [{"index": row, "embedding": vector.tolist()} for row, vector in enumerate(vectors)]}

    app.post("/embeddings")(embed)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
