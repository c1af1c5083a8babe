"""SentEval's transfer tasks: a logistic regression on sentence vectors, its strength chosen on held-out training data.

Source: Conneau & Kiela 2018, "SentEval: An Evaluation Toolkit for Universal Sentence Representations". Its choices are
kept: stratified shuffled folds of seed 1111, ten of them, and its grids of the inverse strength C, ties to the
smaller C. Its old solver regularised the intercept and took one class against the rest; this one does neither.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentport.errors import SentportError
from sentport.evaluation.metrics import Floats
from sentport.evaluation.scoring import Embed
from sentport.evaluation.tsv import read_columns
from sentport.hardware import available_cores

try:
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import f1_score
    from sklearn.model_selection import StratifiedKFold
    from threadpoolctl import threadpool_limits
except ModuleNotFoundError as missing:
    raise SentportError(f"{missing.name} is not installed; pip install 'sentport[evaluate]'") from missing

FOLDS = 10
_SEED = 1111
_NESTED_OR_DEV_STRENGTHS = tuple(2.0**power for power in range(-2, 4))
_FOLDS_STRENGTHS = tuple(2.0**power for power in range(-1, 6))

Labels = NDArray[np.str_]
Rows = NDArray[np.int64]
Data = tuple[Floats, Labels]
"""Features ``[N, F]`` and labels ``[N]``."""


@dataclass(frozen=True, slots=True, eq=False)
class LabelledTexts:
    """N labelled sentences, or sentence pairs.

    Attributes:
        labels: ``[N]``.
        columns: N texts; of pairs, twice.
    """

    labels: Labels
    columns: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class TransferScore:
    """How well labels are predicted.

    Attributes:
        accuracy: Of the test rows x 100; over folds, their mean.
        dev_accuracy: Of the held-out training rows x 100, by which the strength was chosen.
        f1: Of label 1 among the test rows x 100, where labels are 0 and 1 and there is one test set.
        strengths: The inverse strength C that was chosen; over folds, each one's.
        rows: Test rows.
    """

    accuracy: float
    dev_accuracy: float
    f1: float | None
    strengths: tuple[float, ...]
    rows: int


def read_labelled(path: Path, *, pairs: bool = False) -> LabelledTexts:
    """Read a file of ``label<TAB>sentence`` lines, or ``label<TAB>sentence1<TAB>sentence2``.

    Raises:
        SentportError: As ``read_columns`` does.
    """
    labels, *texts = read_columns(path, ("label", "sentence1", "sentence2") if pairs else ("label", "sentence"))
    return LabelledTexts(np.asarray(labels), tuple(texts))


def labelled_features(texts: LabelledTexts, embed: Embed) -> Data:
    """A sentence's vector, of a pair (u, v) the values of |u - v| and then those of u * v; beside the labels."""
    count = len(texts.labels)
    vectors = embed([text for column in texts.columns for text in column]).astype(np.float64)  # [N or 2N, D]
    if len(texts.columns) == 1:
        return vectors, texts.labels
    first, second = vectors[:count], vectors[count:]  # [N, D] each
    return np.concatenate([np.abs(first - second), first * second], axis=1), texts.labels  # [N, 2D]


def transfer_score(
    parts: Sequence[Data], *, threads: int | None = None, done: Callable[[int], None] = lambda _: None
) -> TransferScore:
    """The score by SentEval's protocol for data that comes in these parts.

    Args:
        parts: All rows (ten folds, in each of which ten inner folds choose the strength); training and test set (ten
            folds of the former choose it); or training, development and test set.
        threads: Folds that are computed at once; None = the cores allowed.
        done: Told of finished folds, ten in all where there are any.

    Raises:
        SentportError: When there are too few labels, or rows of one.
    """
    # One thread a fold: several take longer over matrices this small.
    with threadpool_limits(1), ThreadPoolExecutor(threads or available_cores()) as pool:
        return _nested_folds(parts[0], pool, done) if len(parts) == 1 else _given_test(parts, pool, done)


def _given_test(parts: Sequence[Data], pool: ThreadPoolExecutor, done: Callable[[int], None]) -> TransferScore:
    train, *dev, test = parts
    _check_rows(train[1], 1 if dev else FOLDS)
    if unseen := sorted(set(test[1]) - set(train[1])):
        raise SentportError(f"test rows have label {str(unseen[0])!r}; expected only labels that training rows have")
    if dev:
        accuracies = _path(train, dev[0], _NESTED_OR_DEV_STRENGTHS)
        return _score(train, test, *_best(accuracies, _NESTED_OR_DEV_STRENGTHS))
    return _score(train, test, *_choose_by_folds(train, _FOLDS_STRENGTHS, pool, done))


def _nested_folds(data: Data, pool: ThreadPoolExecutor, done: Callable[[int], None]) -> TransferScore:
    _check_rows(data[1], 2 * FOLDS)
    accuracies, dev_accuracies, strengths = [], [], []
    for rows in _fold_rows(data):
        train, test = _parts(data, rows)
        strength, dev_accuracy = _choose_by_folds(train, _NESTED_OR_DEV_STRENGTHS, pool)
        accuracies.append(_fit(train, strength).score(*test))
        dev_accuracies.append(dev_accuracy)
        strengths.append(strength)
        done(1)
    return TransferScore(
        accuracy=100 * float(np.mean(accuracies)),
        dev_accuracy=100 * float(np.mean(dev_accuracies)),
        f1=None,
        strengths=tuple(strengths),
        rows=len(data[1]),
    )


def _score(train: Data, test: Data, strength: float, dev_accuracy: float) -> TransferScore:
    vectors, labels = test
    predicted = _fit(train, strength).predict(vectors)  # [N]
    binary = set(train[1]) == {"0", "1"}
    return TransferScore(
        accuracy=100 * float((predicted == labels).mean()),
        dev_accuracy=100 * dev_accuracy,
        f1=100 * float(f1_score(labels, predicted, pos_label="1", zero_division=0)) if binary else None,
        strengths=(strength,),
        rows=len(labels),
    )


def _choose_by_folds(
    data: Data, strengths: Sequence[float], pool: ThreadPoolExecutor, done: Callable[[int], None] = lambda _: None
) -> tuple[float, float]:
    """The strength with the best mean accuracy over ten folds, and that accuracy."""

    def path(rows: tuple[Rows, Rows]) -> list[float]:
        accuracies = _path(*_parts(data, rows), strengths)
        done(1)
        return accuracies

    return _best(np.mean(list(pool.map(path, _fold_rows(data))), axis=0).tolist(), strengths)


def _best(accuracies: Sequence[float], strengths: Sequence[float]) -> tuple[float, float]:
    best = int(np.argmax(accuracies))
    return strengths[best], accuracies[best]


def _path(train: Data, held_out: Data, strengths: Sequence[float]) -> list[float]:
    """Accuracy at each strength; every fit starts from the one before."""
    model = _classifier(strengths[0], warm_start=True)
    return [float(model.set_params(C=strength).fit(*train).score(*held_out)) for strength in strengths]


def _fit(data: Data, strength: float) -> Any:
    return _classifier(strength).fit(*data)


def _classifier(strength: float, *, warm_start: bool = False) -> Any:
    # Small steps to the end: at the default tolerance the result would depend on where the fit started.
    return LogisticRegression(C=strength, max_iter=1000, tol=1e-5, warm_start=warm_start)


def _fold_rows(data: Data) -> Iterator[tuple[Rows, Rows]]:
    """Training and held-out rows of each fold."""
    folds: Iterator[tuple[Rows, Rows]] = StratifiedKFold(FOLDS, shuffle=True, random_state=_SEED).split(*data)
    return folds


def _parts(data: Data, rows: tuple[Rows, Rows]) -> tuple[Data, Data]:
    x, y = data
    train, held_out = rows
    return (x[train], y[train]), (x[held_out], y[held_out])


def _check_rows(labels: Labels, least: int) -> None:
    counts = Counter(labels.tolist())
    rare, rows = min(counts.items(), key=lambda item: item[1])
    if len(counts) < 2 or rows < least:
        raise SentportError(
            f"label {rare!r} has {rows} rows among {len(counts)} labels; a classifier needs two labels or more here, "
            f"with {least} rows or more each"
        )
