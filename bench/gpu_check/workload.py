"""What is encoded: token ids of a corpus on the host, and the folder they are read from."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

LENGTHS_FILE = Path(__file__).with_name("lengths.json")
# Random ids leave out the low end of the vocabulary, where pads and other special tokens live.
FIRST_RANDOM_ID = 1000
CORPORA = ("stsb", "long")
GRAPHS = "graphs"  # the folder's own of exported graphs, where it has one


class CheckError(Exception):
    """The check cannot run as asked; the message says what was found, what was expected and the way out."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """Token ids of texts laid end to end, in arrival order.

    Attributes:
        name: ``stsb`` or ``long``.
        ids: ``[T]`` the rows one after the other.
        lengths: ``[B]`` tokens of each row; they add up to T.
        source: where the ids come from, for the record.
    """

    name: str
    ids: Ints
    lengths: Ints
    source: str

    def __post_init__(self) -> None:
        if self.ids.shape != (int(self.lengths.sum()),) or (self.lengths < 1).any():
            raise CheckError(
                f"corpus {self.name}: {len(self.ids)} ids for lengths that add up to {int(self.lengths.sum())}, "
                f"shortest {int(self.lengths.min())}; expected as many ids as the lengths say and no empty row"
            )

    def gather(self, rows: Ints) -> Ints:
        """Returns the ids of ``rows`` laid end to end, ``[tokens of those rows]``."""
        starts = np.cumsum(self.lengths) - self.lengths  # [B] offset of each row in ids
        lengths = self.lengths[rows]
        places = np.cumsum(lengths) - lengths  # offset of each chosen row in the result
        return self.ids[np.repeat(starts[rows] - places, lengths) + np.arange(int(lengths.sum()))]

    def first(self, rows: int) -> Corpus:
        """Returns the corpus cut to its first ``rows`` rows."""
        lengths = self.lengths[:rows]
        return Corpus(self.name, self.ids[: int(lengths.sum())], lengths, self.source)


def stored_lengths(name: str) -> Ints:
    """Returns the committed token counts of a corpus, ``[B]`` in arrival order."""
    return np.array(json.loads(LENGTHS_FILE.read_text(encoding="utf-8"))[name]["lengths"], dtype=np.int64)


def long_lengths(texts: int = 512, seed: int = 20) -> Ints:
    """Draws token counts of long texts, ``[texts]``: log-normal around 320, between 64 and BERT's 512 positions."""
    draws = np.random.default_rng(seed).lognormal(np.log(320), 0.3, texts)
    return np.clip(np.rint(draws), 64, 512).astype(np.int64)


def random_corpus(name: str, lengths: Ints, vocab_size: int, seed: int) -> Corpus:
    """Fills rows of the given lengths with seeded random ids, distinct texts for any sensible vocabulary."""
    low = min(FIRST_RANDOM_ID, vocab_size // 4)
    ids = np.random.default_rng(seed).integers(low, vocab_size, int(lengths.sum()), dtype=np.int64)
    return Corpus(name, ids, lengths, f"random ids, seed {seed}")


@dataclass(frozen=True, slots=True)
class Folder:
    """A prepared folder.

    Attributes:
        path: the folder; ``path / "model"`` is the checkpoint, ``path / GRAPHS`` its exported graphs, if any.
        meta: ``meta.json``: the model's name, whether it is a smoke folder, how the reference was made.
        corpora: by name.
        golden: by corpus name, ``[B, dim]`` vectors computed one text at a time in fp32.
    """

    path: Path
    meta: dict[str, Any]
    corpora: dict[str, Corpus]
    golden: dict[str, Floats]


def write_folder(folder: Folder) -> None:
    """Writes everything of ``folder`` but the checkpoint. ``meta.json`` comes last: it marks a finished folder."""
    for name, corpus in folder.corpora.items():
        np.savez(
            folder.path / f"{name}.npz",
            ids=corpus.ids.astype(np.int32),
            lengths=corpus.lengths.astype(np.int32),
            golden=folder.golden[name],
        )
    sources = {name: corpus.source for name, corpus in folder.corpora.items()}
    text = json.dumps({**folder.meta, "sources": sources}, indent=1)
    (folder.path / "meta.json").write_text(text + "\n", encoding="utf-8")


def read_folder(path: Path) -> Folder:
    """Reads a folder made by ``bench.gpu_check.prepare``.

    Raises:
        CheckError: the folder is not a finished one.
    """
    if not (path / "meta.json").is_file():
        raise CheckError(
            f"{path} has no meta.json; expected a prepared folder: "
            "make it with python3 -m bench.gpu_check.prepare MODEL_FOLDER FOLDER --name NAME"
        )
    meta = json.loads((path / "meta.json").read_text(encoding="utf-8"))
    corpora: dict[str, Corpus] = {}
    golden: dict[str, Floats] = {}
    for name in CORPORA:
        with np.load(path / f"{name}.npz", allow_pickle=False) as arrays:
            ids, lengths = arrays["ids"].astype(np.int64), arrays["lengths"].astype(np.int64)
            golden[name] = arrays["golden"]
        corpora[name] = Corpus(name, ids, lengths, meta["sources"][name])
    return Folder(path, meta, corpora, golden)
