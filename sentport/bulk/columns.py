"""Vectors as Parquet columns: id, text on request, embedding in the stored type, and back to float32."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentport.bulk.arrow import pa, pq
from sentport.bulk.manifest import narrowed

Vectors = NDArray[np.float32]

_ELEMENTS = {"float32": np.float32, "float16": np.float16, "int8": np.int8}


def schema(stored: str, dim: int, *, text_ids: bool, texts: bool) -> pa.Schema:
    """The columns of stored vectors."""
    columns = [pa.field("id", pa.string() if text_ids else pa.int64(), nullable=False)]
    if texts:
        columns.append(pa.field("text", pa.string(), nullable=False))
    kind = (
        pa.binary((dim + 7) // 8)
        if stored == "binary"
        else pa.list_(pa.field("element", pa.from_numpy_dtype(_ELEMENTS[stored]), nullable=False), dim)
    )
    columns.append(pa.field("embedding", kind, nullable=False))
    if stored == "int8":
        columns.append(pa.field("scale", pa.float32(), nullable=False))
    return pa.schema(columns)


@contextmanager
def writing(file: Any, columns: pa.Schema) -> Iterator[pq.ParquetWriter]:
    """A Parquet writer: texts compressed, vectors as they are, a checksum for every page."""
    kind = columns.field("embedding").type
    small = pa.types.is_fixed_size_list(kind) and kind.value_type == pa.int8()
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
        StoreError: For values that the stored type cannot hold.
    """
    held = {"id": pa.array(ids, columns.field("id").type)}
    if "text" in columns.names:
        held["text"] = pa.array(texts, pa.string())
    kind = columns.field("embedding").type
    if "scale" in columns.names:
        # The largest value of a row becomes 127; a row of zeros keeps its zeros.
        scale = (np.abs(vectors).max(axis=1, initial=0.0) / 127).astype(np.float32)  # [k]
        vectors = np.rint(vectors / np.where(scale > 0, scale, 1)[:, None])
        held["scale"] = pa.array(scale)
    if pa.types.is_fixed_size_binary(kind):
        bits = np.ascontiguousarray(np.packbits(vectors > 0, axis=1))  # [k, ceil(dim / 8)]
        held["embedding"] = pa.FixedSizeBinaryArray.from_buffers(kind, len(bits), [None, pa.py_buffer(bits)])
        return pa.table(held, schema=columns)
    values = narrowed(vectors, kind.value_type.to_pandas_dtype())
    held["embedding"] = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), type=kind)
    return pa.table(held, schema=columns)


def unpack(batch: pa.RecordBatch, dim: int) -> Vectors:
    """Vectors ``[k, dim]`` float32 of stored rows; sign bits become ±1/√dim, which has length one."""
    column = batch.column("embedding")
    if pa.types.is_fixed_size_binary(column.type):
        width = column.type.byte_width
        raw = np.frombuffer(column.buffers()[1], np.uint8)[column.offset * width :]
        bits = np.unpackbits(raw[: len(column) * width].reshape(-1, width), axis=1, count=dim)  # [k, dim]
        return np.where(bits, np.float32(dim**-0.5), np.float32(-(dim**-0.5)))
    vectors: Vectors = column.flatten().to_numpy().reshape(-1, dim).astype(np.float32)  # [k, dim]
    if "scale" in batch.schema.names:
        vectors *= batch.column("scale").to_numpy()[:, None]
    return vectors
