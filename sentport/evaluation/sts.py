"""Semantic textual similarity test sets: pairs of sentences with a human score."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sentport.errors import SentportError
from sentport.evaluation.tsv import read_columns, read_number

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
    """Read a file of ``score<TAB>sentence1<TAB>sentence2`` lines.

    Returns:
        The pairs in the file's order, texts exactly as they stand.

    Raises:
        SentportError: When the file is missing, empty or not UTF-8, or a line ends in CR LF, has other
            columns or no finite score.
    """
    path = Path(path)
    scores, first, second = read_columns(path, ("score", "sentence1", "sentence2"))
    numbers = [read_number(score, path, line, "score") for line, score in enumerate(scores, 1)]
    return StsPairs(first, second, np.asarray(numbers, np.float64))


def require_correlation(pairs: StsPairs, name: str) -> StsPairs:
    """The pairs, once it is sure that a correlation with their scores exists: before a run, not at its end.

    Raises:
        SentportError: When all scores of the pairs called ``name`` are equal, or there is one pair.
    """
    if len(set(pairs.scores.tolist())) < 2:
        raise SentportError(f"{name} has one score in {len(pairs)} lines; expected different ones, for a correlation")
    return pairs


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
