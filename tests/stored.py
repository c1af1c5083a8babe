"""Stored vectors for tests: synthetic ones, written in the library's own formats."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from sentport.bulk import columns
from sentport.bulk.manifest import Manifest, Part
from sentport.bulk.store import MANIFEST_KEY, sidecar
from sentport.bundle import sha256_of

KINDS = ("flat", "hnsw", "ivfpq")


def clouds(rows: int, dim: int, seed: int = 0, centres: int = 8, spread: float = 0.6) -> np.ndarray:
    """``[rows, dim]`` float32 around a few centres."""
    generator = np.random.default_rng(seed)
    middle = generator.normal(size=(centres, dim))[np.arange(rows) % centres]
    return (middle + spread * generator.normal(size=(rows, dim))).astype(np.float32)


def manifest(
    rows: int, dim: int, similarity: str = "cosine", *, ids: str | None = None, texts: bool = False
) -> Manifest:
    return Manifest(
        fingerprint="f" * 64,
        source="synthetic",
        similarity=similarity,
        dim=dim,
        precision="fp32",
        engine="onnxruntime",
        layout="padded",
        device="cpu",
        stored="float32",
        prompt="",
        ids=ids,
        texts=texts,
        rows=rows,
        bad_rows=0,
        truncated=0,
        input={},
    )


def write_npy(path: Path, vectors: np.ndarray, about: Manifest | None = None) -> Path:
    np.save(path, vectors)
    about = about or manifest(*vectors.shape)
    held = Part(path.name, about.rows, path.stat().st_size, sha256_of(path))
    sidecar(path).write_text(replace(about, parts=(held,)).to_json())
    return path


def write_parquet(
    path: Path,
    vectors: np.ndarray,
    *,
    ids: list[str] | None = None,
    texts: list[str] | None = None,
    about: Manifest | None = None,
) -> Path:
    base = manifest(*vectors.shape) if about is None else about
    described = replace(base, rows=len(vectors), ids="name" if ids else None, texts=texts is not None)
    held = columns.schema(described.stored, described.dim, text_ids=ids is not None, texts=texts is not None)
    held = held.with_metadata({MANIFEST_KEY: described.to_json(indent=None)})
    with path.open("wb") as file, columns.writing(file, held) as writer:
        writer.write_table(columns.pack(held, ids or range(len(vectors)), texts or [], vectors))
    return path
