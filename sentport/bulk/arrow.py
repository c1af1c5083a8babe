"""pyarrow, or one line that says how to get it."""

from __future__ import annotations

from pathlib import Path

from sentport.bulk.manifest import StoreError
from sentport.errors import SentportError

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ModuleNotFoundError as missing:
    raise SentportError("Parquet needs pyarrow, which is not installed; pip install 'sentport[bulk]'") from missing

__all__ = ["open_parquet", "pa", "pq"]


def open_parquet(path: Path) -> pq.ParquetFile:
    """Open a Parquet file whose pages are checked as they are read.

    Raises:
        StoreError: When it is missing, or no Parquet.
    """
    try:
        return pq.ParquetFile(path, page_checksum_verification=True)
    except (OSError, pa.ArrowInvalid) as error:
        raise StoreError(f"{path} cannot be read as Parquet ({error}); make it again") from error
