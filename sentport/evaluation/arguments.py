"""Argument similarity: pairs of arguments on several topics, judged over ten folds or on each topic in turn.

Sources: Reimers & Gurevych 2019 ("Sentence-BERT"), section 4.3, for pairs with scores (the AFS corpus of Misra et al.
2016): Pearson and Spearman correlation; Reimers et al. 2019, "Classification and Clustering of Arguments with
Contextualized Word Embeddings", for labelled pairs (UKP ASPECT): mean F1 of similar and dissimilar pairs, told apart
by a threshold that is chosen on the other folds or topics.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sentport.errors import SentportError
from sentport.evaluation.metrics import Floats
from sentport.evaluation.scoring import Embed, RatedPairs, correlate, embed_pairs
from sentport.evaluation.tsv import read_columns, read_number

FOLDS = 10
PROTOCOLS = ("10-fold", "cross-topic")
# No similarity; different topic or cannot decide; some similarity; high similarity.
_GRADES = {"NS": 0.0, "DTORCD": 0.0, "SS": 1.0, "HS": 2.0}
_SEED = 0

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class ArgumentPairs:
    """N pairs of arguments.

    Attributes:
        sentences1: N texts.
        sentences2: N texts, the other half of each pair.
        scores: ``[N]``, higher is more similar; of labels 0 (NS, DTORCD), 1 (SS) and 2 (HS).
        topics: ``[N]``.
        labelled: Whether the scores stand for labels, so that pairs above 0 are similar.
    """

    sentences1: tuple[str, ...]
    sentences2: tuple[str, ...]
    scores: Floats
    topics: NDArray[np.str_]
    labelled: bool


@dataclass(frozen=True, slots=True)
class ArgumentScore:
    """Means over folds or topics, x 100.

    Attributes:
        spearman: Correlation of similarities and scores.
        pearson: Likewise.
        f1: Mean F1 of similar and dissimilar pairs; None where pairs have scores instead of labels.
        folds: How many folds or topics.
    """

    spearman: float
    pearson: float
    f1: float | None
    folds: int


def read_arguments(path: Path) -> ArgumentPairs:
    """Read a file of ``label<TAB>sentence1<TAB>sentence2<TAB>topic`` lines; a label is HS, SS, NS, DTORCD or a score.

    Raises:
        SentportError: As ``read_columns`` does, or when a label is neither, or labels and scores are mixed.
    """
    labels, first, second, topics = read_columns(path, ("label", "sentence1", "sentence2", "topic"))
    labelled = labels[0] in _GRADES
    read = _grade if labelled else read_number
    scores = [read(label, path, line, "label") for line, label in enumerate(labels, 1)]
    return ArgumentPairs(first, second, np.asarray(scores, np.float64), np.asarray(topics), labelled)


def argument_score(
    pairs: ArgumentPairs, embed: Embed, protocol: str = "10-fold", similarity: str = "cosine"
) -> ArgumentScore:
    """The score over ten random folds (``10-fold``), or over the topics in turn (``cross-topic``).

    Raises:
        SentportError: For an unknown protocol or similarity, or too few pairs or topics.
    """
    if protocol not in PROTOCOLS:
        raise SentportError(f"protocol is {protocol!r}; expected one of {', '.join(PROTOCOLS)}")
    folds = list(_random_folds(len(pairs.scores)) if protocol == "10-fold" else _topic_folds(pairs.topics))
    similarities = embed_pairs(pairs.sentences1, pairs.sentences2, embed, similarity)  # [N]
    return _mean_score(similarities, pairs, folds)


def _mean_score(similarities: Floats, pairs: ArgumentPairs, folds: list[tuple[Rows, Rows]]) -> ArgumentScore:
    tested = [RatedPairs(similarities[test], pairs.scores[test], {"": len(test)}) for _, test in folds]
    similar = pairs.scores > 0
    f1 = [
        mean_f1(similarities[test] >= best_threshold(similarities[train], similar[train]), similar[test])
        for train, test in folds
        if pairs.labelled
    ]
    return ArgumentScore(
        spearman=float(np.mean([correlate(rated, "spearman") for rated in tested])),
        pearson=float(np.mean([correlate(rated, "pearson") for rated in tested])),
        f1=100 * float(np.mean(f1)) if pairs.labelled else None,
        folds=len(folds),
    )


def best_threshold(similarities: Floats, similar: NDArray[np.bool_]) -> float:
    """The similarity that best tells the similar by ``mean_f1``: half way between two pairs, the higher on a tie."""
    order = np.argsort(-similarities, kind="stable")
    falling, truth = similarities[order], similar[order]  # [N] each
    last = np.append(falling[1:] != falling[:-1], True)  # [N] equal values are on the same side
    hits = np.cumsum(truth)  # [N] similar pairs among the first 1 to N
    taken = np.arange(1, len(truth) + 1)
    positive = 2 * hits / (taken + truth.sum())  # F1 = 2 TP / (predicted + actual)
    right = (len(truth) - taken) - (truth.sum() - hits)  # dissimilar pairs below the threshold
    negative = 2 * right / np.maximum((len(truth) - taken) + (~truth).sum(), 1)
    best = int(np.argmax(np.where(last, positive + negative, -1)))
    return float(falling[best : best + 2].mean())


def mean_f1(predicted: NDArray[np.bool_], truth: NDArray[np.bool_]) -> float:
    """Mean of the F1 of True and the F1 of False; a class that is neither there nor predicted has 0."""
    return float(np.mean([_f1(predicted, truth), _f1(~predicted, ~truth)]))


def _f1(predicted: NDArray[np.bool_], truth: NDArray[np.bool_]) -> float:
    return 2 * int((predicted & truth).sum()) / max(1, int(predicted.sum()) + int(truth.sum()))


def _random_folds(count: int) -> Iterator[tuple[Rows, Rows]]:
    """Training and test rows of ten folds."""
    if count < 2 * FOLDS:
        raise SentportError(f"{FOLDS} folds need {2 * FOLDS} pairs or more; found {count}")
    order = np.random.default_rng(_SEED).permutation(count)
    for test in np.array_split(order, FOLDS):
        yield np.setdiff1d(order, test), test


def _topic_folds(topics: NDArray[np.str_]) -> Iterator[tuple[Rows, Rows]]:
    """Training and test rows, each topic tested in turn."""
    names = np.unique(topics)
    if len(names) < 2:
        raise SentportError(f"cross-topic evaluation needs two topics or more; found {len(names)}")
    for name in names:
        yield np.flatnonzero(topics != name), np.flatnonzero(topics == name)


def _grade(label: str, path: Path, number: int, name: str) -> float:
    if label not in _GRADES:
        raise SentportError(f"{path}, line {number}: {name} is {label[:40]!a}; expected one of {', '.join(_GRADES)}")
    return _GRADES[label]
