"""Texts of a Parquet file, row by row, from any row on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sentport.bulk.arrow import open_parquet, pa
from sentport.bulk.inputs import Inputs, Row, check_columns, check_text
from sentport.errors import SentportError

_BATCH_ROWS = 4096


def is_integer_column(name: str, column: str) -> bool:
    """Whether a Parquet file's column holds integers."""
    with open_parquet(Path(name)) as file:
        names = file.schema_arrow.names
        return names.count(column) == 1 and bool(pa.types.is_integer(file.schema_arrow.field(column).type))


def parquet_rows(inputs: Inputs, number: int, start: int) -> Iterator[Row]:
    """Rows of one file from row ``start`` on.

    Raises:
        SentportError: When a column is missing, or holds no text.
    """
    name = inputs.files[number]
    with open_parquet(Path(name)) as file:
        check_columns(file.schema_arrow.names, inputs, number)
        columns = [one for one in (inputs.column, inputs.id_column) if one is not None]
        for column in columns:
            _check_type(name, column, file.schema_arrow.field(column).type, ids=column != inputs.column)
        place, groups = _groups_from(file.metadata, start)
        for batch in file.iter_batches(_BATCH_ROWS, row_groups=groups, columns=columns):
            texts = _values(batch.column(inputs.column))
            ids = [None] * len(texts) if inputs.id_column is None else _values(batch.column(inputs.id_column))
            for text, identifier in zip(texts, ids, strict=True):
                place += 1
                if place <= start:
                    continue
                value, known, reason = check_text(text, identifier, inputs)
                yield Row(value, known, number, place, place, reason)


def _groups_from(metadata: Any, start: int) -> tuple[int, list[int]]:
    """The first row of the row group that holds row ``start``, and that group with all after it."""
    place, group = 0, 0
    while group < metadata.num_row_groups and place + metadata.row_group(group).num_rows <= start:
        place += metadata.row_group(group).num_rows
        group += 1
    return place, list(range(group, metadata.num_row_groups))


def _check_type(name: str, column: str, kind: Any, *, ids: bool) -> None:
    text = _is_text(kind) or (pa.types.is_dictionary(kind) and _is_text(kind.value_type))
    if not text and not (ids and pa.types.is_integer(kind)):
        wanted = "text or integers" if ids else "text"
        raise SentportError(f"column {column!r} of {name} is {kind}; expected {wanted}, name another column")


def _is_text(kind: Any) -> bool:
    return any((pa.types.is_string(kind), pa.types.is_large_string(kind), pa.types.is_string_view(kind)))


def _values(column: Any) -> list[Any]:
    """Python values; text that is no UTF-8 stays bytes."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_integer(column.type):
        values: list[Any] = column.to_pylist()
        return values
    return [_decoded(value) for value in column.cast(pa.large_binary()).to_pylist()]


def _decoded(value: bytes | None) -> str | bytes | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return value
