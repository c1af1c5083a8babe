"""Stored vectors, opened: a ``.npy`` with its sidecar, one ``.parquet``, or a folder of shards; read in blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentport.bulk.manifest import Manifest, Part, StoreError, read_manifest
from sentport.bundle import sha256_of

# Readers of a folder of Parquet files pass over names that begin with an underscore.
MANIFEST_FILE = "_manifest.json"
# Key of the manifest among a Parquet file's own metadata.
MANIFEST_KEY = b"sentport.manifest"

Ids = NDArray[np.int64] | NDArray[np.object_]


@dataclass(frozen=True, slots=True)
class Block:
    """Some rows of stored vectors, in order.

    Attributes:
        ids: ``[k]`` int64, or an object array of strings where an id column of the input held text.
        vectors: ``[k, dim]`` float32.
        texts: k texts, or None where they were not stored.
    """

    ids: Ids
    vectors: NDArray[np.float32]
    texts: list[str] | None


@dataclass(frozen=True, slots=True)
class StoredVectors:
    """Vectors on disk and what they are.

    Attributes:
        path: Where they lie.
        manifest: What they are.
    """

    path: Path
    manifest: Manifest

    @property
    def rows(self) -> int:
        """How many vectors there are."""
        return self.manifest.rows

    @property
    def dim(self) -> int:
        """Width of a vector."""
        return self.manifest.dim

    def blocks(self, rows: int = 16_384) -> Iterator[Block]:
        """The rows in order, at most ``rows`` at a time, with flat memory.

        A file is compared with its hash just before its first rows are read, which has them in the page cache too; a
        ``.parquet`` that is alone has checksums in its pages instead.

        Raises:
            StoreError: When a file is damaged.
        """
        for file, part in _files(self.path, self.manifest):
            if part is not None and sha256_of(file) != part.sha256:
                raise StoreError(f"{file} has changed since it was written (another SHA-256); encode the texts again")
            yield from _npy_blocks(file, rows) if file.suffix == ".npy" else _parquet_blocks(file, self.manifest, rows)

    def load(self) -> Block:
        """All rows at once."""
        blocks = list(self.blocks())
        texts = [text for block in blocks for text in block.texts or ()] if self.manifest.texts else None
        if not blocks:
            return Block(np.zeros(0, np.int64), np.zeros((0, self.dim), np.float32), texts)
        return Block(
            np.concatenate([block.ids for block in blocks]),  # [rows]
            np.concatenate([block.vectors for block in blocks]),  # [rows, dim]
            texts,
        )


def sidecar(npy: Path) -> Path:
    """Where the manifest of a ``.npy`` file lies."""
    return npy.with_name(f"{npy.name}.json")


def open_vectors(path: str | Path) -> StoredVectors:
    """Open what ``sentport encode`` wrote.

    Args:
        path: A ``.npy`` or ``.parquet`` file, or a folder of shards.

    Raises:
        StoreError: When it is missing, half-written, changed, or without a manifest.
    """
    where = Path(path)
    if not where.exists():
        raise StoreError(f"{where} does not exist; make it with `sentport encode BUNDLE --input FILE --output {where}`")
    if where.is_dir():
        return _open_folder(where)
    if where.suffix == ".npy":
        return _open_npy(where)
    if where.suffix != ".parquet":
        raise StoreError(f"{where} is no .npy, no .parquet and no folder; expected what `sentport encode` writes")
    from sentport.bulk.arrow import open_parquet

    with open_parquet(where) as file:
        text = (file.metadata.metadata or {}).get(MANIFEST_KEY)
        if text is None:
            raise StoreError(f"{where} holds no manifest, so which model made it is unknown; encode the texts again")
        manifest = read_manifest(text, f"the manifest in {where}")
        _check_rows(where, file.metadata.num_rows, manifest.rows)
    return StoredVectors(where, manifest)


def _open_folder(folder: Path) -> StoredVectors:
    file = folder / MANIFEST_FILE
    if not file.is_file():
        raise StoreError(
            f"{folder} has no {MANIFEST_FILE}, so it holds no finished vectors; run `sentport encode` to its end"
        )
    manifest = read_manifest(file.read_bytes(), str(file))
    _check_sizes(folder, manifest)
    _check_rows(folder, sum(part.rows for part in manifest.parts), manifest.rows)
    return StoredVectors(folder, manifest)


def _open_npy(path: Path) -> StoredVectors:
    beside = sidecar(path)
    if not beside.is_file():
        raise StoreError(f"{beside} is missing, so which model made {path} is unknown; encode the texts again")
    manifest = read_manifest(beside.read_bytes(), str(beside))
    shape, dtype, _ = _npy_header(path)
    if len(shape) != 2 or shape[1] != manifest.dim or dtype != manifest.stored:
        raise StoreError(f"{path} is {dtype}{list(shape)}, which {beside} does not describe; encode again")
    _check_rows(path, shape[0], manifest.rows + manifest.bad_rows)
    _check_sizes(path, manifest)
    return StoredVectors(path, manifest)


def _npy_header(path: Path) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Shape, element type and the place of the first element."""
    try:
        with path.open("rb") as file:
            np.lib.format.read_magic(file)
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
            return shape, dtype, file.tell()
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} cannot be read as .npy ({error}); encode the texts again") from error


def _files(path: Path, manifest: Manifest) -> list[tuple[Path, Part | None]]:
    """The files of vectors, each with what the manifest says of it; a single ``.parquet`` holds that itself."""
    if path.is_dir():
        return [(path / Path(part.file).name, part) for part in manifest.parts]
    return [(path, part) for part in manifest.parts] or [(path, None)]


def _check_sizes(path: Path, manifest: Manifest) -> None:
    for file, part in _files(path, manifest):
        if part is not None and (not file.is_file() or file.stat().st_size != part.bytes):
            raise StoreError(f"{file} is missing or has changed since it was written; encode the texts again")


def _check_rows(path: Path, found: int, expected: int) -> None:
    if found != expected:
        raise StoreError(f"{path} holds {found} rows, its manifest says {expected}; encode the texts again")


def _npy_blocks(path: Path, rows: int) -> Iterator[Block]:
    (total, dim), dtype, offset = _npy_header(path)
    with path.open("rb") as file:
        file.seek(offset)
        for start in range(0, total, rows):
            count = min(rows, total - start)
            table = np.fromfile(file, dtype, count * dim).reshape(count, dim).astype(np.float32)  # [k, dim]
            good = ~np.isnan(table[:, 0])  # a bad row is NaN throughout
            yield Block(np.flatnonzero(good) + start, table[good], None)


def _parquet_blocks(path: Path, manifest: Manifest, rows: int) -> Iterator[Block]:
    from sentport.bulk.arrow import open_parquet
    from sentport.bulk.columns import unpack

    with open_parquet(path) as file:
        try:
            for batch in file.iter_batches(batch_size=rows):
                texts = batch.column("text").to_pylist() if manifest.texts else None
                ids = batch.column("id").to_numpy(zero_copy_only=False)
                yield Block(ids, unpack(batch, manifest.dim), texts)
        except OSError as error:
            raise StoreError(f"{path} is damaged ({error}); encode the texts again") from error
