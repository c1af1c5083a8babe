"""Each text's vector computed once, however many tasks ask for it; kept on disk between runs where that is wanted."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sentport.errors import SentportError
from sentport.evaluation.scoring import Embed
from sentport.files import file_written_aside
from sentport.inputs import check_dim
from sentport.vectors import quantize

if TYPE_CHECKING:
    from sentport.encoder import TextEncoder, Vectors

_DIGEST_BYTES = 32


class Embeddings:
    """An encoder's vectors under one prompt. Callable: texts to vectors ``[n, dim]``, in order.

    Args:
        encoder: What computes them.
        prompt: Name of a saved prompt; None = the default prompt, "" = none.
        dim: Cut vectors to their first ``dim`` values, as ``TextEncoder.encode`` does.
        store: Where they are kept between runs; None = nowhere.
        progress: Show a bar on stderr for work over two seconds.

    Attributes:
        computed: Distinct texts that the encoder was asked for.

    Raises:
        SentportError: When the store is damaged, or of another dimension, or the model has no vectors of ``dim``.
    """

    def __init__(
        self,
        encoder: TextEncoder,
        *,
        prompt: str | None = None,
        dim: int | None = None,
        store: VectorStore | None = None,
        progress: bool = False,
    ) -> None:
        self._encoder, self._prompt, self._dim, self._progress = encoder, prompt, dim, progress
        self._store = store
        self._rows: dict[bytes, int] = {}
        width = check_dim(dim, encoder.info.dim)
        self._vectors: Vectors = np.empty((0, width), np.float32)  # [T, D] of the texts seen so far
        self._stored = frozenset(self._load(store)) if store else frozenset()
        self._used: set[bytes] = set()
        self.computed = 0

    @property
    def reused(self) -> int:
        """Distinct texts asked for whose vectors the store held."""
        return len(self._used)

    def __call__(self, texts: Sequence[str]) -> Vectors:
        """Vectors ``[n, dim]`` of texts.

        Raises:
            SentportError: When the encoder returns anything but a vector a text, or the store cannot be written.
        """
        digests = [_digest(text) for text in texts]
        missing = {digest: text for digest, text in zip(digests, texts, strict=True) if digest not in self._rows}
        self._used.update(digest for digest in digests if digest in self._stored)
        if missing:
            wanted = list(missing.values())
            vectors = self._encoder.encode(wanted, prompt=self._prompt, dim=self._dim, progress=self._progress)
            self._add(missing, vectors)
            self.computed += len(missing)
            if self._store:
                self._store.add(list(missing), vectors)
        return self._vectors[[self._rows[digest] for digest in digests]]

    def _load(self, store: VectorStore) -> list[bytes]:
        for digests, vectors in store.read():
            # Two runs at once may have computed the same texts.
            fresh = {digest: row for row, digest in enumerate(digests) if digest not in self._rows}
            self._add(fresh, vectors[list(fresh.values())])
        return list(self._rows)

    def _add(self, digests: Iterable[bytes], vectors: Vectors) -> None:
        digests = list(digests)
        if vectors.shape != (len(digests), self._vectors.shape[1]):
            raise SentportError(
                f"expected vectors of shape {[len(digests), self._vectors.shape[1]]}, a row a text; "
                f"found {list(vectors.shape)}"
            )
        self._rows.update((digest, len(self._vectors) + row) for row, digest in enumerate(digests))
        self._vectors = np.concatenate([self._vectors, vectors])


def kept_as(kind: str, embed: Embed) -> Embed:
    """The same vectors as they are after having been kept in one of ``VECTOR_TYPES``."""
    if kind == "float32":
        return embed
    return lambda texts: quantize(embed(texts), kind).restore()


class VectorStore:
    """Vectors on disk: a folder for everything that decides them, in it a file for each set that was added.

    Args:
        folder: Where stores lie, made where it is missing.
        identity: All that decides the vectors: fingerprint, precision, engine and whatever else changes them.
    """

    def __init__(self, folder: Path, identity: Sequence[str]) -> None:
        self.folder = folder / hashlib.sha256("\0".join(identity).encode()).hexdigest()
        self.folder.mkdir(parents=True, exist_ok=True)

    def read(self) -> Iterable[tuple[list[bytes], Vectors]]:
        """Every set: SHA-256 of each text, and the vectors ``[n, dim]``.

        Raises:
            SentportError: When a file is damaged.
        """
        for file in sorted(self.folder.glob("*.npz")):
            try:
                with np.load(file) as held:
                    digests, vectors = held["digests"], held["vectors"]
            except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
                raise SentportError(
                    f"{file} is damaged ({error}); remove it, and its vectors are computed again"
                ) from None
            yield [row.tobytes() for row in digests], vectors

    def add(self, digests: Sequence[bytes], vectors: Vectors) -> None:
        """Keep the vectors ``[n, dim]`` of n texts."""
        table: NDArray[np.uint8] = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, _DIGEST_BYTES)  # [n, 32]
        name = hashlib.sha256(table.tobytes()).hexdigest()
        with file_written_aside(self.folder / f"{name[:32]}.npz") as aside, aside.open("wb") as file:
            np.savez(file, digests=table, vectors=vectors)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
