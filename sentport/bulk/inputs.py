"""The texts to encode, row by row: lines, CSV, JSON lines and Parquet, of which a bad row is told, never raised."""

from __future__ import annotations

import csv
import glob
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

from sentport.errors import SentportError
from sentport.inputs import MOST_BYTES, TOO_LONG, bad_rows

DEFAULT_COLUMN = "text"
FORMATS = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
STDIN = "-"
_MOST_ID = 2**63 - 1
_INVALID = "invalid UTF-8"
# First bytes of files that are no text, whatever their names say.
_BINARY = {
    **{b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ\x00": "xz", b"\x04\x22\x4d\x18": "lz4"},
    **{b"BZh91AY&SY": "bzip2", b"PK\x03\x04": "zip", b"PAR1": "Parquet"},
}


class Row(NamedTuple):
    """One row of the input.

    Attributes:
        text: The text; None for a bad row.
        id: What the id column holds; None without one.
        file: Number of its file.
        line: Where it ends in the file, counted from 1: a line, or a row of a Parquet file.
        end: Where the next row starts: a byte, or a row of a Parquet file.
        reason: Why it cannot be encoded; None for a good row.
    """

    text: str | None
    id: int | str | None
    file: int
    line: int
    end: int
    reason: str | None


class Mark(NamedTuple):
    """A place between two rows from which reading can start: file, offset as ``Row.end``, lines before it."""

    file: int = 0
    offset: int = 0
    line: int = 0


START = Mark()


@dataclass(frozen=True, slots=True)
class Inputs:
    """Files of texts, in order.

    Attributes:
        files: Names; ``-`` = standard input.
        formats: Of each file: ``lines``, ``csv``, ``tsv``, ``jsonl`` or ``parquet``.
        column: Column that holds the text, where a format has columns.
        id_column: Column that holds the ids; None = rows are known by position.
        text_ids: Whether ids are text: all but positions and the integer columns of Parquet files.
    """

    files: tuple[str, ...]
    formats: tuple[str, ...]
    column: str
    id_column: str | None
    text_ids: bool

    def rows(self, start: Mark = START) -> Iterator[Row]:
        """All rows from a mark on, those that cannot be encoded with their reason.

        Raises:
            SentportError: When a file cannot be read, or has no such column.
        """
        offset, line = start.offset, start.line
        for number in range(start.file, len(self.files)):
            try:
                yield from self._read(number, offset, line)
            except OSError as error:
                raise _unreadable(self.files[number], error) from error
            offset = line = 0

    def weights(self) -> list[tuple[int, int]] | None:
        """Of each file its bytes and the ``Row.end`` of its last row, to tell progress; None when not known."""
        paths = [Path(name) for name in self.files]
        if any(name == STDIN for name in self.files) or not all(path.is_file() for path in paths):
            return None
        sizes = [path.stat().st_size for path in paths]
        return [
            (size, _parquet_rows(path) if kind == "parquet" else size)
            for path, size, kind in zip(paths, sizes, self.formats, strict=True)
        ]

    def _read(self, number: int, offset: int, line: int) -> Iterator[Row]:
        name, kind = self.files[number], self.formats[number]
        if kind == "parquet":
            from sentport.bulk.parquet_input import parquet_rows

            yield from parquet_rows(self, number, offset)
            return
        readers = {"lines": _read_lines, "csv": _read_csv, "tsv": _read_csv, "jsonl": _read_json_lines}
        with _open_text(name) as file:
            yield from readers[kind](_Lines(file, number, offset, line), self)


def find_inputs(
    names: Sequence[str], *, kind: str | None = None, column: str | None = None, id_column: str | None = None
) -> Inputs:
    """The files that names and patterns stand for, in the order given, those of a pattern sorted.

    Args:
        names: File names, glob patterns, or ``-``.
        kind: Format of all of them; None = by the ends of their names, plain lines where they say nothing.
        column: Column of the text; None = ``text``.
        id_column: Column of the ids; None = positions.

    Raises:
        SentportError: For a pattern that matches nothing, or a column where there are none.
    """
    files: list[str] = []
    for name in names:
        found = [name] if name == STDIN or Path(name).exists() else sorted(glob.glob(name, recursive=True))
        if not found and glob.has_magic(name):
            raise SentportError(f"no file matches {name}; expected a file name, a pattern, or -")
        files += found or [name]
    formats = tuple(kind or FORMATS.get(Path(name).suffix.lower(), "lines") for name in files)
    for name, one in zip(files, formats, strict=True):
        _check_file(name, one)
        if one == "lines" and (column or id_column):
            raise SentportError(f"{name} is plain lines and has no columns; leave the column out, or name its --format")
        if one == "parquet" and name == STDIN:
            raise SentportError("Parquet cannot be read from standard input; name the file")
    return Inputs(tuple(files), formats, column or DEFAULT_COLUMN, id_column, _text_ids(files, formats, id_column))


def _text_ids(files: Sequence[str], formats: Sequence[str], column: str | None) -> bool:
    if column is None or any(kind != "parquet" for kind in formats):
        return column is not None
    from sentport.bulk.parquet_input import is_integer_column

    return not all(is_integer_column(name, column) for name in files)


def _check_file(name: str, kind: str) -> None:
    """What can be told before anything is encoded; a pipe is not opened, since that would wait for its writer."""
    try:
        if name != STDIN and not Path(name).is_fifo():
            (_open if kind == "parquet" else _open_text)(name).close()
    except OSError as error:
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: OSError) -> SentportError:
    return SentportError(f"{name} cannot be read ({error.strerror or error}); expected a file of texts, or -")


def check_text(text: object, identifier: object, inputs: Inputs) -> tuple[str | None, int | str | None, str | None]:
    """A row's text, id and reason for being bad: what is no text, or has no id where ids are asked for."""
    known = None if inputs.id_column is None else str(identifier) if inputs.text_ids else identifier
    reason = _id_reason(identifier, inputs)
    if reason is not None:
        return None, None, f"id is {reason}"
    reason = "null" if text is None else _INVALID if isinstance(text, bytes) else None
    reason = reason or bad_rows([text], surrogates=True).get(0)
    return None if reason else text, known, reason  # type: ignore[return-value]  # of the types that were checked


def _id_reason(identifier: object, inputs: Inputs) -> str | None:
    """Why an id cannot be stored, where ids are asked for."""
    if inputs.id_column is None:
        return None
    if isinstance(identifier, str):
        return bad_rows([identifier], surrogates=True).get(0)
    if isinstance(identifier, bytes):
        return _INVALID
    if type(identifier) is not int:
        return f"{'null' if identifier is None else type(identifier).__name__}, not text or integer"
    return None if inputs.text_ids or identifier <= _MOST_ID else f"over {_MOST_ID:,}"


class _Lines:
    """The lines of a file as bytes, with the number of the last one and the byte after it.

    Of a line over ``most`` bytes the rest is passed over; -1 = lines are whole, however long.
    """

    def __init__(self, file: BufferedReader, number: int, offset: int, line: int, most: int = -1) -> None:
        self.file, self.number, self.end, self.line, self.most = file, number, offset, line, most
        if offset:
            file.seek(offset)

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> bytes:
        first = self.end == 0
        raw = self.file.readline(self.most)
        if not raw:
            raise StopIteration
        self.end += len(raw)
        self.line += 1
        rest = raw
        while self.most > 0 and len(rest) == self.most and not rest.endswith(b"\n"):
            rest = self.file.readline(self.most)
            self.end += len(rest)
        return raw.removeprefix(b"\xef\xbb\xbf") if first else raw

    def row(self, text: str | None, identifier: int | str | None, reason: str | None) -> Row:
        return Row(text, identifier, self.number, self.line, self.end, reason)


def _open(name: str) -> BufferedReader:
    if name != STDIN:
        return open(name, "rb")
    if sys.stdin is None:
        raise SentportError("standard input is closed; expected text there, or a file name")
    return open(sys.stdin.fileno(), "rb", closefd=False)


def _open_text(name: str) -> BufferedReader:
    """A file of text, open at its start; one that is compressed, or Parquet, would be read as lines of rubbish."""
    file = _open(name)
    start = file.peek(16)
    kind = next((kind for magic, kind in _BINARY.items() if start.startswith(magic)), None)
    if kind is not None:
        file.close()
        way_out = "name it with --format parquet" if kind == "Parquet" else "unpack it first"
        raise SentportError(f"{name} is {kind}, not text; {way_out}")
    return file


def _read_lines(lines: _Lines, _inputs: Inputs) -> Iterator[Row]:
    lines.most = MOST_BYTES + 5  # with a byte order mark and the line's end
    for raw in lines:
        data = raw.removesuffix(b"\n").removesuffix(b"\r")
        try:
            if len(data) > MOST_BYTES:
                yield lines.row(None, None, TOO_LONG)
            else:
                yield lines.row(data.decode(), None, None)
        except UnicodeDecodeError:
            yield lines.row(None, None, _INVALID)


def _read_json_lines(lines: _Lines, inputs: Inputs) -> Iterator[Row]:
    checked = False
    for raw in lines:
        if not raw.strip():  # as the format allows between records
            continue
        try:
            values = json.loads(raw.decode())
        except UnicodeDecodeError:
            yield lines.row(None, None, _INVALID)
            continue
        except (ValueError, RecursionError):
            yield lines.row(None, None, "not JSON")
            continue
        if not isinstance(values, dict):
            yield lines.row(None, None, f"{type(values).__name__}, not an object")
            continue
        if not checked:
            check_columns(list(values), inputs, lines.number)
            checked = True
        identifier = None if inputs.id_column is None else values.get(inputs.id_column)
        yield lines.row(*check_text(values.get(inputs.column), identifier, inputs))


def _read_csv(lines: _Lines, inputs: Inputs) -> Iterator[Row]:
    csv.field_size_limit(2**31 - 1)  # the module's limit of 128 kB would end the file at a long text
    tabs = inputs.formats[lines.number] == "tsv"
    # Strictly: at a quotation mark that is never closed the module would take the rest of the file for one text.
    options: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if tabs else {"strict": True}
    header = _csv_header(inputs, lines, options)
    check_columns(header, inputs, lines.number)
    place = header.index(inputs.column)
    id_place = None if inputs.id_column is None else header.index(inputs.id_column)
    reader = csv.reader((raw.decode(errors="surrogateescape") for raw in lines), **options)
    while True:
        first = lines.line + 1
        try:
            values = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield lines.row(None, None, f"not CSV from line {first} on: {error}")
            continue
        if not values:  # an empty line between records
            continue
        if len(values) > len(header):  # a comma in a text that is not quoted would cut it
            yield lines.row(None, None, f"{len(values)} fields, the header has {len(header)}")
            continue
        text = values[place] if place < len(values) else None
        identifier = values[id_place] if id_place is not None and id_place < len(values) else None
        text, known, reason = check_text(text, identifier, inputs)
        # A lone surrogate is what ``surrogateescape`` makes of a byte that is no UTF-8.
        yield lines.row(text, known, reason and reason.replace("lone surrogate", _INVALID))


def _csv_header(inputs: Inputs, lines: _Lines, options: dict[str, Any]) -> list[str]:
    """The first record; read from the start of the file where reading goes on further down."""
    name = inputs.files[lines.number]
    try:
        if lines.end == 0:
            return _first_record(lines, options)
        with _open(name) as file:
            return _first_record(_Lines(file, lines.number, 0, 0), options)
    except csv.Error as error:
        raise SentportError(f"{name} does not begin as CSV does ({error}); expected a header") from error


def _first_record(lines: _Lines, options: dict[str, Any]) -> list[str]:
    return next(csv.reader((raw.decode(errors="replace") for raw in lines), **options), [])


def check_columns(found: Sequence[str], inputs: Inputs, number: int) -> None:
    """Refuse a file that lacks a column that is asked for, or has it more than once.

    Raises:
        SentportError: Listing the columns found.
    """
    for wanted in (inputs.column, inputs.id_column):
        if wanted is not None and wanted not in found:
            held = f"it has {', '.join(found)}" if found else "it has none"
            raise SentportError(f"{inputs.files[number]} has no column {wanted!r}; {held}")
        if wanted is not None and found.count(wanted) > 1:
            raise SentportError(
                f"{inputs.files[number]} has {found.count(wanted)} columns named {wanted!r}; rename all but one"
            )


def _parquet_rows(path: Path) -> int:
    from sentport.bulk.arrow import open_parquet

    with open_parquet(path) as file:
        return int(file.metadata.num_rows)
