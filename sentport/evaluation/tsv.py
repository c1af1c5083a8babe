r"""Data files: UTF-8, one record a line, columns separated by one tab, no header, no quoting.

Only ``\n`` ends a line; other separators, such as U+2028, belong to the text they stand in.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from sentport.errors import SentportError


def read_columns(path: Path, columns: Sequence[str]) -> list[tuple[str, ...]]:
    """Read a data file, texts exactly as they stand.

    Args:
        path: The file.
        columns: Names of its columns, in order.

    Returns:
        The columns, each with a value a line.

    Raises:
        SentportError: When the file is missing, empty or not UTF-8, or a line ends in CR LF or has other columns.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise SentportError(
            f"{path} cannot be read ({error.strerror}); expected a file of {', '.join(columns)} lines"
        ) from error
    if not lines[-1]:
        lines.pop()
    if not lines:
        raise SentportError(f"{path} is empty; expected lines of {', '.join(columns)} separated by tabs")
    return list(zip(*_rows(lines, path, columns), strict=True))


def read_number(text: str, path: Path, number: int, name: str) -> float:
    """The finite number of a column; ``path``, line ``number`` and column ``name`` say where in an error.

    Raises:
        SentportError: When it is none.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise SentportError(f"{path}, line {number}: {name} is {text[:40]!a}; expected a finite number")
    return value


def _rows(lines: list[bytes], path: Path, columns: Sequence[str]) -> Iterator[list[str]]:
    for number, line in enumerate(lines, 1):
        if line.endswith(b"\r"):
            # Kept, it would become part of the last text and of a byte-level tokenizer's ids.
            raise SentportError(f"{path}, line {number}: ends in CR LF; expected LF alone, convert the line endings")
        try:
            values = line.decode("utf-8").split("\t")
        except UnicodeDecodeError as error:
            raise SentportError(
                f"{path}, line {number}: byte 0x{line[error.start]:02x} at offset {error.start} is not UTF-8; "
                "expected UTF-8 text"
            ) from error
        if len(values) != len(columns):
            raise SentportError(
                f"{path}, line {number}: {len(values)} tab-separated columns; "
                f"expected {len(columns)} ({', '.join(columns)})"
            )
        yield values
