"""SentEval's protocols on vectors made by hand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from sentport.encoder import Vectors
from sentport.errors import SentportError

pytest.importorskip("sklearn", reason="transfer tasks need the evaluate extra")

from sentport.evaluation import transfer
from sentport.evaluation.transfer import (
    Data,
    LabelledTexts,
    labelled_features,
    read_labelled,
    transfer_score,
)

SEED = 1111
FOLDS = 4


@pytest.fixture(autouse=True)
def _fewer_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything else is the same, in a seventh of the time."""
    assert transfer.FOLDS == 10
    monkeypatch.setattr(transfer, "FOLDS", FOLDS)


def blobs(rows: int, classes: int, spread: float, seed: int = 0) -> Data:
    """Points around the corners of a square, and the corner's number."""
    rng = np.random.default_rng(seed)
    corners = np.array([[0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [1.0, 0.0]])[:classes]
    labels = np.arange(rows) % classes
    return corners[labels] + rng.normal(0, spread, (rows, 2)), labels.astype(str)


def halves(data: Data, at: int) -> tuple[Data, Data]:
    x, y = data
    return (x[:at], y[:at]), (x[at:], y[at:])


def test_pairs_become_difference_and_product() -> None:
    table = {"a": [1.0, 2.0], "b": [4.0, -1.0], "c": [0.5, 3.0]}

    def embed(texts: Sequence[str]) -> Vectors:
        return np.array([table[text] for text in texts], np.float32)

    x, y = labelled_features(LabelledTexts(np.array(["1", "0"]), (("a", "b"), ("b", "c"))), embed)
    assert x.tolist() == [[3, 3, 4, -2], [3.5, 4, 2, -3]]
    assert y.tolist() == ["1", "0"]
    x, _ = labelled_features(LabelledTexts(np.array(["1"]), (("c",),)), embed)
    assert x.tolist() == [[0.5, 3]]


def test_nested_folds_are_sentevals() -> None:
    """Against its loops written out: seed 1111 outside and inside, the strength by mean accuracy of inner folds."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold
    from threadpoolctl import threadpool_limits

    x, y = blobs(120, 2, 0.6)
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=SEED)
    strengths = [2.0**power for power in range(-2, 4)]

    def accuracy(strength: float, train: np.ndarray, test: np.ndarray) -> float:
        return float(LogisticRegression(C=strength, tol=1e-5).fit(x[train], y[train]).score(x[test], y[test]))

    accuracies, chosen = [], []
    with threadpool_limits(1):
        for train, test in folds.split(x, y):
            inner = [(train[fit], train[held]) for fit, held in folds.split(x[train], y[train])]
            means = [np.mean([accuracy(strength, *parts) for parts in inner]) for strength in strengths]
            chosen.append(strengths[int(np.argmax(means))])
            accuracies.append(accuracy(chosen[-1], train, test))
    finished: list[int] = []
    score = transfer_score([(x, y)], done=finished.append)
    assert score.accuracy == pytest.approx(100 * np.mean(accuracies))
    assert score.strengths == tuple(chosen)
    assert len(set(chosen)) > 1, "otherwise this says nothing about the choice"
    assert (sum(finished), score.rows, score.f1) == (FOLDS, 120, None)


def test_given_test_set_is_never_trained_on() -> None:
    """Labels of the test set turned round give the opposite accuracy; F1 is of label 1."""
    train, test = halves(blobs(200, 2, 0.2), 120)
    score = transfer_score([train, test])
    turned = transfer_score([train, (test[0], np.where(test[1] == "1", "0", "1"))])
    assert score.accuracy > 95
    assert turned.accuracy == pytest.approx(100 - score.accuracy)
    assert score.f1 is not None
    assert score.strengths == turned.strengths
    assert score.rows == 80


def test_f1_by_hand() -> None:
    """Far from each other, so predicted as placed: 3 of 4 ones found, 1 zero taken for a one."""
    train = blobs(60, 2, 0.01)
    corner = {"0": [0.0, 0.0], "1": [1.0, 1.0]}
    placed = np.array([corner[name] for name in ("1", "1", "1", "0", "1", "0", "0", "0")])
    labels = np.array(["1", "1", "1", "1", "0", "0", "0", "0"])
    score = transfer_score([train, (placed, labels)])
    assert (score.accuracy, score.f1) == (75, 75)


def test_development_set_chooses_the_strength() -> None:
    """Of a set that only strong regularisation gets right, and of one that only weak regularisation does."""
    x = np.array([[-1.0], [-1.0], [-1.0], [1.0], [1.0], [1.0], [1.0], [1.0]])
    y = np.array(["0", "0", "0", "1", "1", "1", "1", "1"])
    # A weak weight moves the border away from 0, since ones are more.
    near = (np.array([[-0.2]]), np.array(["1"]))
    far = (np.array([[-0.2]]), np.array(["0"]))
    assert transfer_score([(x, y), near, near]).strengths == (0.25,)
    assert transfer_score([(x, y), far, far]).strengths[0] > 0.25


def test_several_classes() -> None:
    train, test = halves(blobs(240, 4, 0.1), 160)
    score = transfer_score([train, test])
    assert score.accuracy > 95
    assert score.f1 is None


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (
            [blobs(14, 2, 0.1)],
            "label '0' has 7 rows among 2 labels; a classifier needs two labels or more here, with 8",
        ),
        ([blobs(6, 2, 0.1), blobs(4, 2, 0.1)], "label '0' has 3 rows among 2 labels"),
        ([blobs(9, 1, 0.1), blobs(4, 2, 0.1), blobs(4, 2, 0.1)], "label '0' has 9 rows among 1 labels"),
        (
            [blobs(20, 2, 0.1), blobs(4, 3, 0.1)],
            "test rows have label '2'; expected only labels that training rows have",
        ),
    ],
)
def test_too_little_to_learn_from(parts: Sequence[Data], said: str) -> None:
    with pytest.raises(SentportError, match=re.escape(said)):
        transfer_score(parts)


def test_reads_sentences_and_pairs(tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    path.write_text("NUM\tHow far is it ?\nLOC\tWhere ?\n")
    assert read_labelled(path).columns == (("How far is it ?", "Where ?"),)
    assert read_labelled(path).labels.tolist() == ["NUM", "LOC"]
    with pytest.raises(SentportError, match=r"2 tab-separated columns; expected 3 \(label, sentence1, sentence2\)"):
        read_labelled(path, pairs=True)
