"""The files that vectors go to: parts while a job runs, and what they become at its end."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from sentport.bulk.blocks import Prepared
from sentport.bulk.journal import Job
from sentport.bulk.manifest import Manifest
from sentport.bulk.store import MANIFEST_KEY
from sentport.vectors import quantize

# Takes a block and the vectors ``[k, dim]`` of its good rows.
WriteBlock = Callable[[Prepared, NDArray[np.float32]], None]


@contextmanager
def parquet_part(file: IO[bytes], job: Job) -> Iterator[WriteBlock]:
    """A part as a Parquet file: good rows alone, known by id."""
    from sentport.bulk import columns

    held = columns.schema(job.stored, job.dim, text_ids=job.text_ids, texts=job.texts)
    with columns.writing(file, held) as writer:
        yield lambda block, vectors: writer.write_table(columns.pack(held, block.ids, block.texts, vectors))


@contextmanager
def raw_part(file: IO[bytes], job: Job) -> Iterator[WriteBlock]:
    """A part of a ``.npy`` file, without its header: a row for every input row, NaN where there is no vector."""

    def write(block: Prepared, vectors: NDArray[np.float32]) -> None:
        table = np.full((len(block.block.rows), job.dim), np.nan, job.stored)  # [rows, dim]
        table[block.good] = quantize(vectors, job.stored).values
        file.write(table.tobytes())

    yield write


def join_parquet(parts: Iterable[Path], out: Path, manifest: Manifest, *, text_ids: bool) -> None:
    """One Parquet file of all parts, a row group after the other, with the manifest among its metadata."""
    from sentport.bulk import columns
    from sentport.bulk.arrow import open_parquet

    held = columns.schema(manifest.stored, manifest.dim, text_ids=text_ids, texts=manifest.texts)
    described = held.with_metadata({MANIFEST_KEY: manifest.to_json(indent=None)})
    with out.open("wb") as file, columns.writing(file, described) as writer:
        for part in parts:
            with open_parquet(part) as source:
                for group in range(source.num_row_groups):
                    writer.write_table(source.read_row_group(group).replace_schema_metadata(described.metadata))


def join_npy(parts: Iterable[Path], out: IO[bytes], manifest: Manifest) -> None:
    """One ``.npy`` of all parts: numpy's header, then their bytes."""
    header: dict[str, Any] = {
        "descr": np.lib.format.dtype_to_descr(np.dtype(manifest.stored)),
        "fortran_order": False,
        "shape": (manifest.rows + manifest.bad_rows, manifest.dim),
    }
    np.lib.format.write_array_header_1_0(out, header)
    for part in parts:
        with part.open("rb") as source:
            shutil.copyfileobj(source, out, 1 << 20)
