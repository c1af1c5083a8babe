"""Vectors made ready to be compared with the similarity that their model was trained for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentport.bulk.store import Ids, StoredVectors
from sentport.errors import InputError, SentportError, list_rows
from sentport.hardware import available_cores
from sentport.inputs import counted

try:
    faiss: Any = import_module("faiss")  # its own annotations leave parts out
    from threadpoolctl import threadpool_limits
except ModuleNotFoundError as missing:
    raise SentportError(f"{missing.name} is not installed; pip install 'sentport[search]'") from missing

Vectors = NDArray[np.float32]
Scores = NDArray[np.float32] | NDArray[np.float64]

SIMILARITIES = ("cosine", "dot", "euclidean")
# Scores nearer than this are equal: a unit row's product with itself may be that much below 1.
TIE = 1e-6
# Values of one block of scores: 16 MB of float32.
_BLOCK_VALUES = 2**22
_LEAST_ROWS = 64


@dataclass(frozen=True, slots=True)
class Collection:
    """N vectors that may be compared with each other.

    Attributes:
        ids: ``[N]`` their names.
        vectors: ``[N, dim]`` float32; of length one where the similarity is cosine.
        texts: N texts, or None where they are unknown.
        similarity: ``cosine``, ``dot`` or ``euclidean`` (minus the distance, as sentence-transformers has it).
        zeros: Row numbers of vectors that are zero; their cosine with any vector is 0.
    """

    ids: Ids
    vectors: Vectors
    texts: list[str] | None
    similarity: str
    zeros: tuple[int, ...]


def collection(ids: Ids, vectors: Vectors, texts: list[str] | None, similarity: str) -> Collection:
    """Check vectors and make them ready.

    Args:
        ids: ``[N]``.
        vectors: ``[N, dim]``.
        texts: N texts, or None.
        similarity: The model's.

    Raises:
        InputError: Naming the rows that hold numbers that are not finite.
        SentportError: For a similarity that is not one of ``SIMILARITIES``, or no vectors.
    """
    if similarity not in SIMILARITIES:
        known = ", ".join(SIMILARITIES)
        raise SentportError(f"the model's similarity is {similarity}, which is not supported here; expected {known}")
    if not len(vectors):
        raise SentportError("there are no vectors; expected 1 or more")
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1)).tolist()
    if bad:
        names = list_rows([ids[row] for row in bad])
        count = f"{len(bad)} of {counted(len(vectors), 'vector')}"
        raise InputError(f"not finite: {count}, ids {names}; encode again", tuple(bad))
    zeros = tuple(np.flatnonzero(~vectors.any(axis=1)).tolist())
    return Collection(ids, _ready(vectors, similarity), texts, similarity, zeros)


def load(stored: StoredVectors, lines: Sequence[str] | None = None) -> Collection:
    """Stored vectors in memory.

    Args:
        stored: As ``open_vectors`` gives them.
        lines: The input's texts, where they were not stored or are to be replaced.

    Raises:
        SentportError: As ``collection``, or when the lines are not as many as the input's rows.
    """
    block = stored.load()
    texts = block.texts if lines is None else _texts_of(stored, block.ids, lines)
    return collection(block.ids, block.vectors, texts, stored.manifest.similarity)


def _texts_of(stored: StoredVectors, ids: Ids, lines: Sequence[str]) -> list[str]:
    """Texts by input position where ids are positions, since bad rows have no vector; else in order."""
    positions = stored.manifest.ids is None
    expected = stored.rows + (stored.manifest.bad_rows if positions else 0)
    if len(lines) != expected:
        raise SentportError(
            f"{counted(len(lines), 'text')} given for {stored.path}, which was made from {expected}; name its own input"
        )
    return [lines[row] for row in ids] if positions else list(lines)


def query_vectors(vectors: Vectors, similarity: str) -> Vectors:
    """``[Q, dim]`` vectors ready to be compared with a collection's."""
    return _ready(vectors, similarity)


def _ready(vectors: Vectors, similarity: str) -> Vectors:
    if similarity != "cosine":
        return np.ascontiguousarray(vectors, np.float32)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)  # [N, 1]
    unit: Vectors = np.divide(vectors, norms, out=np.zeros_like(vectors, np.float32), where=norms != 0)
    return unit


def score_blocks(
    vectors: Vectors, similarity: str, *, upper: bool = False, values: int = _BLOCK_VALUES
) -> Iterator[tuple[int, Scores]]:
    """Similarities of all rows with all rows, a block of B rows at a time: never ``[N, N]``.

    Args:
        vectors: ``[N, dim]`` of a ``Collection``.
        similarity: Its similarity.
        upper: Leave out the columns before the block, which earlier blocks had as rows.
        values: Scores of one block, about.

    Yields:
        The block's first row, and its scores ``[B, N]``, or ``[B, N - first]`` with ``upper``.
    """
    euclidean = similarity == "euclidean"
    # Distances of near vectors are small differences of large numbers.
    table = vectors.astype(np.float64) if euclidean else vectors
    squares = np.einsum("nd,nd->n", table, table) if euclidean else None
    size = max(_LEAST_ROWS, values // len(table))
    for start in range(0, len(table), size):
        stop, left = start + size, start if upper else 0
        scores = table[start:stop] @ table[left:].T  # [B, N - left]
        if squares is not None:
            scores = -np.sqrt(np.maximum(squares[start:stop, None] + squares[left:] - 2 * scores, 0))
        yield start, scores


def exact_scores(vectors: Vectors, others: Vectors, similarity: str) -> NDArray[np.float64]:
    """``[P]`` float64 similarity of each row of ``vectors [P, dim]``, or of one vector, with the rows of ``others``."""
    left, right = vectors.astype(np.float64), others.astype(np.float64)
    if similarity == "euclidean":
        distances: NDArray[np.float64] = np.linalg.norm(left - right, axis=-1)
        return -distances
    products: NDArray[np.float64] = np.einsum("...d,...d->...", left, right)
    return np.clip(products, -1, 1) if similarity == "cosine" else products


@contextmanager
def limited_threads(threads: int | None = None) -> Iterator[int]:
    """All libraries held to a number of threads; None = the cores that affinity and cgroup allow."""
    count = available_cores() if threads is None else threads
    if count < 1:
        raise SentportError(f"threads is {count}; expected 1 or more")
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(count)
    try:
        with threadpool_limits(count):
            yield count
    finally:
        faiss.omp_set_num_threads(before)
