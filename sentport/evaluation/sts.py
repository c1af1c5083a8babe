"""Semantic textual similarity test sets: pairs of sentences with a human score."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sentport.errors import SentportError

Form = Literal["raw", "senteval"]

_FOLDERS: dict[str, str] = {"raw": "sts_raw", "senteval": "sts"}
# SentEval leaves SICK untouched, so its one copy, kept in the SentEval folder, is the raw form as well.
_ONE_FORM = ("SICK-R",)
# Genre, file and year of each row stand beside the pairs under this ending.
_NOT_PAIRS = ".source.tsv"


# Without generated equality, which cannot compare arrays.
@dataclass(frozen=True, slots=True, eq=False)
class StsPairs:
    """Sentence pairs with gold scores, N of them.

    Attributes:
        sentences1: N texts.
        sentences2: N texts, the other half of each pair.
        scores: ``[N]`` float64, higher is more similar; 0-5, in SICK-R 1-5.
    """

    sentences1: tuple[str, ...]
    sentences2: tuple[str, ...]
    scores: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.sentences1)


def read_sts(path: str | Path) -> StsPairs:
    r"""Read a file of ``score<TAB>sentence1<TAB>sentence2`` lines: UTF-8, no header, no quoting.

    Only ``\n`` ends a line; other separators, such as U+2028, belong to the sentence they stand in.

    Returns:
        The pairs in the file's order, texts exactly as they stand.

    Raises:
        SentportError: When the file is missing, empty or not UTF-8, or a line ends in CR LF, has other
            columns or no finite score.
    """
    path = Path(path)
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise SentportError(
            f"{path} cannot be read ({error.strerror}); expected a file of score, sentence1, sentence2 lines"
        ) from error
    if not lines[-1]:
        lines.pop()
    if not lines:
        raise SentportError(f"{path} is empty; expected lines of score, sentence1, sentence2 separated by tabs")
    rows = [_parse(line, path, number) for number, line in enumerate(lines, 1)]
    scores, first, second = zip(*rows, strict=True)
    return StsPairs(first, second, np.asarray(scores, np.float64))


def _parse(line: bytes, path: Path, number: int) -> tuple[float, str, str]:
    """Score and both sentences of one line; ``path`` and ``number`` say where in an error."""
    if line.endswith(b"\r"):
        # Kept, it would become part of sentence2 and of a byte-level tokenizer's ids.
        raise SentportError(f"{path}, line {number}: ends in CR LF; expected LF alone, convert the line endings")
    try:
        columns = line.decode("utf-8").split("\t")
    except UnicodeDecodeError as error:
        raise SentportError(
            f"{path}, line {number}: byte 0x{line[error.start]:02x} at offset {error.start} is not UTF-8; "
            "expected UTF-8 text"
        ) from error
    if len(columns) != 3:
        raise SentportError(
            f"{path}, line {number}: {len(columns)} tab-separated columns; expected 3 (score, sentence1, sentence2)"
        )
    try:
        score = float(columns[0])
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise SentportError(f"{path}, line {number}: score is {columns[0][:40]!a}; expected a finite number")
    return score, columns[1], columns[2]


def read_sts_task(folder: Path, task: str, form: Form = "raw") -> dict[str, StsPairs]:
    """Read all subsets of a task from a data folder with ``sts/<task>/`` and ``sts_raw/<task>/``.

    SICK-R has one form only, in ``sts/``, and is read from there whatever ``form`` says.

    Args:
        folder: The folder that holds ``sts/`` and ``sts_raw/``.
        task: A folder's name there, such as STS12 or STSBenchmark.
        form: ``raw`` for the sentences as released, ``senteval`` for SentEval's tokenised lower-cased ones.

    Returns:
        Subset name (the file's name without ``.tsv``) to pairs, sorted by name.

    Raises:
        SentportError: For an unknown form or task (the known ones are listed), a task without files, or a bad line.
    """
    if form not in _FOLDERS:
        raise SentportError(f"form is {form!r}; expected one of {', '.join(_FOLDERS)}")
    home = folder / _FOLDERS["senteval" if task in _ONE_FORM else form]
    known = sorted(path.name for path in home.iterdir() if path.is_dir()) if home.is_dir() else []
    if task not in known:
        raise SentportError(
            f"task {task!r} is not in {home}; found {', '.join(known) or 'no task there'}. "
            "Pass the folder that holds sts/ and sts_raw/"
        )
    files = sorted(path for path in (home / task).glob("*.tsv") if not path.name.endswith(_NOT_PAIRS))
    if not files:
        raise SentportError(f"{home / task} holds no .tsv file; expected one per subset of {task}")
    return {path.stem: read_sts(path) for path in files}
