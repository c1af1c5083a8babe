"""Vectors as Parquet columns: id, text on request, embedding in the stored type, and back to float32."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentport.bulk.arrow import pa, pq
from sentport.vectors import QuantizedVectors, quantize

Vectors = NDArray[np.float32]


def schema(stored: str, dim: int, *, text_ids: bool, texts: bool) -> pa.Schema:
    """The columns of stored vectors."""
    columns = [pa.field("id", pa.string() if text_ids else pa.int64(), nullable=False)]
    if texts:
        columns.append(pa.field("text", pa.string(), nullable=False))
    kind = (
        pa.binary((dim + 7) // 8)
        if stored == "binary"
        else pa.list_(pa.field("element", pa.from_numpy_dtype(np.dtype(stored)), nullable=False), dim)
    )
    columns.append(pa.field("embedding", kind, nullable=False))
    if stored == "int8":
        columns.append(pa.field("scale", pa.float32(), nullable=False))
    return pa.schema(columns)


@contextmanager
def writing(file: Any, columns: pa.Schema) -> Iterator[pq.ParquetWriter]:
    """A Parquet writer: texts compressed, vectors as they are, a checksum for every page."""
    small = _stored(columns) == "int8"
    writer = pq.ParquetWriter(
        file,
        columns,
        compression={"text": "zstd"},
        # Parquet has no numbers of eight bits: a dictionary of the 256 values keeps them from taking four bytes each.
        use_dictionary=["embedding.list.element"] if small else False,
        write_statistics=["id"],
        write_page_checksum=True,
    )
    try:
        yield writer
        writer.close()
    finally:
        writer.is_open = False  # after a failure its destructor would write on, and complain that it cannot


def pack(columns: pa.Schema, ids: Sequence[int | str], texts: Sequence[str], vectors: Vectors) -> pa.Table:
    """Rows as a table of ``columns``.

    Args:
        columns: As ``schema`` made them.
        ids: k ids.
        texts: k texts; used where the columns have them.
        vectors: ``[k, dim]`` float32, all finite.

    Raises:
        SentportError: For values that the stored type cannot hold.
    """
    held = {"id": pa.array(ids, columns.field("id").type)}
    if "text" in columns.names:
        held["text"] = pa.array(texts, pa.string())
    kind = columns.field("embedding").type
    kept = quantize(vectors, _stored(columns))
    if pa.types.is_fixed_size_binary(kind):
        bits = pa.py_buffer(np.ascontiguousarray(kept.values))
        held["embedding"] = pa.FixedSizeBinaryArray.from_buffers(kind, len(kept), [None, bits])
    else:
        held["embedding"] = pa.FixedSizeListArray.from_arrays(pa.array(kept.values.ravel()), type=kind)
    if kept.scales is not None:
        held["scale"] = pa.array(kept.scales)
    return pa.table(held, schema=columns)


def unpack(batch: pa.RecordBatch, dim: int) -> Vectors:
    """Vectors ``[k, dim]`` float32 of stored rows."""
    column, stored = batch.column("embedding"), _stored(batch.schema)
    if stored == "binary":
        width = column.type.byte_width
        raw = np.frombuffer(column.buffers()[1], np.uint8)[column.offset * width :]
        values = raw[: len(column) * width].reshape(-1, width)
    else:
        values = column.flatten().to_numpy().reshape(-1, dim)
    scales = batch.column("scale").to_numpy() if stored == "int8" else None
    return QuantizedVectors(stored, dim, values, scales).restore()


def _stored(columns: pa.Schema) -> str:
    """The stored type, one of ``VECTOR_TYPES``."""
    kind = columns.field("embedding").type
    return "binary" if pa.types.is_fixed_size_binary(kind) else str(np.dtype(kind.value_type.to_pandas_dtype()))
