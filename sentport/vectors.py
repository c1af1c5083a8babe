"""Vectors in fewer bits, and how similar they are then.

A row's codes depend on that row alone: no batch and no calibration takes part, and no value lies outside of a range.
What each type costs on STS-B stands in docs/architecture.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentport.errors import InputError, SentportError, list_rows

Floats = NDArray[np.float32]
Rows = NDArray[np.int64]

VECTOR_TYPES = ("float32", "float16", "int8", "binary")
# Of an int8 code; -128 stays unused, so that a vector and its negative have the same codes but for signs.
_LARGEST = 127
# So many products of two codes add up to less than 2^24, up to which float32 holds every whole number.
_EXACT_VALUES = 1024
_BLOCK_ROWS, _BLOCK_QUERIES = 4096, 256
_ONES = np.array([byte.bit_count() for byte in range(256)], np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedVectors:
    """N vectors of D values as they are kept.

    Attributes:
        kind: One of ``VECTOR_TYPES``.
        dim: D.
        values: ``[N, D]`` float32, float16 or int8; for ``binary`` ``[N, ceil(D / 8)]`` uint8, a bit a value, the most
            significant first, 1 for values over zero.
        scales: ``[N]`` float32, what a row's int8 codes are multiplied with; None for the other types.
    """

    kind: str
    dim: int
    values: NDArray[np.float32] | NDArray[np.float16] | NDArray[np.int8] | NDArray[np.uint8]
    scales: Floats | None = None

    def __len__(self) -> int:
        return len(self.values)

    def rows(self, chosen: slice | Rows) -> QuantizedVectors:
        """Some of the rows."""
        scales = None if self.scales is None else self.scales[chosen]
        return QuantizedVectors(self.kind, self.dim, self.values[chosen], scales)

    def restore(self) -> Floats:
        """``[N, D]`` float32; bits become ±1/√D, so that such a row has length one."""
        codes = _codes(self)
        if self.kind == "binary":
            return codes * np.float32(self.dim**-0.5)
        return codes if self.scales is None else codes * self.scales[:, None]


def quantize(vectors: Floats, kind: str) -> QuantizedVectors:
    """Vectors ``[N, D]`` in one of ``VECTOR_TYPES``; float64 is taken as float32 first.

    ``int8``: the largest value of a row becomes 127 or -127, all others are rounded to whole steps of that scale.
    ``binary``: signs alone; zeros count as negative.

    Raises:
        InputError: For rows that are not finite.
        SentportError: For an unknown type, a value beyond float16, or what is no table of vectors.
    """
    if vectors.ndim != 2:
        raise SentportError(f"vectors are {list(vectors.shape)}; expected [rows, values], a single one as vector[None]")
    with np.errstate(over="ignore"):
        vectors = vectors.astype(np.float32, copy=False)
    dim = vectors.shape[1]
    if not np.isfinite(vectors).all():
        rows = np.flatnonzero(~np.isfinite(vectors).all(axis=1)).tolist()
        raise InputError(f"vectors in rows {list_rows(rows)} are not finite", tuple(rows))
    if kind == "float32":
        return QuantizedVectors(kind, dim, vectors)
    if kind == "float16":
        with np.errstate(over="ignore"):
            halves = vectors.astype(np.float16)
        if not np.isfinite(halves).all():
            raise SentportError(f"a value of {np.abs(vectors).max():.3g} does not fit float16; keep vectors as float32")
        return QuantizedVectors(kind, dim, halves)
    if kind == "int8":
        scales = (np.abs(vectors).max(axis=1, initial=0.0) / _LARGEST).astype(np.float32)  # [N]
        codes = np.rint(vectors / np.where(scales > 0, scales, 1)[:, None])
        return QuantizedVectors(kind, dim, np.clip(codes, -_LARGEST, _LARGEST).astype(np.int8), scales)
    if kind == "binary":
        return QuantizedVectors(kind, dim, np.packbits(vectors > 0, axis=1))
    raise SentportError(f"vectors of type {kind!r} are unknown; known: {', '.join(VECTOR_TYPES)}")


def bytes_a_vector(kind: str, dim: int) -> int:
    """What a vector takes, its scale included."""
    return {"float32": 4 * dim, "float16": 2 * dim, "int8": dim + 4, "binary": (dim + 7) // 8}[kind]


def similarities(queries: Floats | QuantizedVectors, documents: QuantizedVectors, similarity: str = "cosine") -> Floats:
    """``[Q, N]`` similarities of queries and documents, computed on the codes.

    Two of type int8 are multiplied as whole numbers, without any rounding, so that a pair has the same figure in every
    batch; cosine needs no scales. Of two of type binary the bits are compared: cosine is 1 - 2 h / D where h bits
    differ (the Hamming distance), which is that of vectors of ±1. Queries in float32 lose nothing on their own side.

    Args:
        queries: ``[Q, D]`` float32, or quantized as the documents are.
        documents: N vectors.
        similarity: ``cosine`` (0 for a row of zeros) or ``dot``.

    Raises:
        SentportError: For another similarity, type or width.
    """
    if similarity not in ("cosine", "dot"):
        raise SentportError(f"similarity of quantized vectors is cosine or dot, not {similarity!r}")
    asked = queries if isinstance(queries, QuantizedVectors) else quantize(queries, "float32")
    if asked.dim != documents.dim or asked.kind not in ("float32", documents.kind):
        raise SentportError(
            f"queries are {asked.kind} of {asked.dim} values, documents {documents.kind} of {documents.dim}; expected "
            "the same width, and float32 or the documents' type"
        )
    found = np.empty((len(asked), len(documents)), np.float32)
    for start in range(0, len(documents), _BLOCK_ROWS):
        block = documents.rows(slice(start, start + _BLOCK_ROWS))
        dots = _dots(asked, block)  # [Q, b]
        factors = _factors(asked, similarity)[:, None] * _factors(block, similarity)
        found[:, start : start + _BLOCK_ROWS] = dots * factors
    return found


def nearest(
    queries: Floats,
    documents: QuantizedVectors,
    count: int,
    *,
    finer: QuantizedVectors | None = None,
    oversample: int = 4,
) -> tuple[Rows, Floats]:
    """The documents nearest to each query by cosine, the nearest first.

    Queries quantized as the documents are find ``oversample`` candidates for each document wanted; the queries in
    float32 then put these in order (rescoring).

    Args:
        queries: ``[Q, D]`` float32.
        documents: N vectors, which all are looked at.
        count: Documents wanted for each query; at most N are found.
        finer: The same documents in a type that holds more, of which candidates alone are looked at; None = the same.
        oversample: Candidates for each document wanted, at least 1.

    Returns:
        Rows ``[Q, count]`` of the documents, and their cosines ``[Q, count]``.
    """
    scored = documents if finer is None else finer
    count = min(count, len(documents))
    rows, cosines = np.empty((len(queries), count), np.int64), np.empty((len(queries), count), np.float32)
    codes = quantize(queries, documents.kind)
    for start in range(0, len(queries), _BLOCK_QUERIES):
        coarse = similarities(codes.rows(slice(start, start + _BLOCK_QUERIES)), documents)  # [q, N]
        for row, found in enumerate(coarse, start):
            candidates = np.argsort(-found, kind="stable")[: count * max(1, oversample)]  # [C]
            fine = similarities(queries[row : row + 1], scored.rows(candidates))[0]  # [C]
            order = np.argsort(-fine, kind="stable")[:count]
            rows[row], cosines[row] = candidates[order], fine[order]
    return rows, cosines


def _dots(queries: QuantizedVectors, documents: QuantizedVectors) -> NDArray[np.float64]:
    """``[Q, N]`` products of the codes, scales left out; signs stand for bits."""
    if queries.kind == "binary":
        differ = [_ONES[documents.values ^ row].sum(axis=1, dtype=np.int64) for row in queries.values]  # Q of [N]
        same = queries.dim - 2 * np.array(differ, np.int64).reshape(len(queries), len(documents))
        return same.astype(np.float64)
    left, right = _codes(queries), _codes(documents)  # [Q, D], [N, D]
    dots = np.zeros((len(queries), len(documents)))
    for start in range(0, queries.dim, _EXACT_VALUES):
        part = slice(start, start + _EXACT_VALUES)
        dots += left[:, part] @ right[:, part].T
    return dots


def _factors(side: QuantizedVectors, similarity: str) -> NDArray[np.float64]:
    """``[N]`` what a product of codes is multiplied with on one side: the scale, or for cosine the inverse length."""
    if side.kind == "binary":
        return np.full(len(side), side.dim**-0.5)
    if similarity == "dot":
        return np.ones(len(side)) if side.scales is None else side.scales.astype(np.float64)
    lengths = np.linalg.norm(side.values.astype(np.float64), axis=1)  # [N]
    inverse: NDArray[np.float64] = np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    return inverse


def _codes(side: QuantizedVectors) -> Floats:
    """``[N, D]`` float32; bits as ±1."""
    if side.kind != "binary":
        return side.values.astype(np.float32, copy=False)
    bits = np.unpackbits(side.values.view(np.uint8), axis=1, count=side.dim)  # [N, D]
    return np.where(bits, np.float32(1), np.float32(-1))
