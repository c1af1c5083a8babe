"""Scores of pairs, triplets and spaces, against values worked out by hand."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from sentport.encoder import EncoderInfo, Vectors
from sentport.errors import SentportError
from sentport.evaluation import StsPairs, sts_score
from sentport.evaluation.arguments import argument_score, best_threshold, mean_f1, read_arguments
from sentport.evaluation.geometry import alignment, cosine_histograms, geometry, uniformity
from sentport.evaluation.scoring import RatedPairs, correlate, correlate_shuffled, correlate_subsets, rate
from sentport.evaluation.triplets import read_triplets, triplet_accuracy

INFO = EncoderInfo(2, 8, {}, None, "cosine", "f" * 64, "by hand", "fp32", "padded", "cpu", 1, 1)


class Angles:
    """A text is a number of degrees, its vector of length ``length`` points there; noise is up to ``noise``."""

    info = INFO

    def __init__(self, length: float = 1.0, noise: float = 0.0, *, constant: bool = False) -> None:
        self._length, self._noise, self._constant = length, noise, constant

    def encode(
        self, texts: Sequence[str], *, prompt: str | None = None, dim: int | None = None, progress: bool = False
    ) -> Vectors:
        degrees = np.array([30.0 if self._constant else float(text) for text in texts])
        vectors = self._length * np.stack([np.cos(np.radians(degrees)), np.sin(np.radians(degrees))], axis=1)
        noise = np.random.default_rng(0).uniform(-self._noise, self._noise, vectors.shape)
        return (vectors + noise).astype(np.float32)


def pairs_of(*rows: tuple[float, float]) -> StsPairs:
    """Pairs of the given angles between their halves, with the given scores."""
    return StsPairs(("0",) * len(rows), tuple(str(angle) for angle, _ in rows), np.array([score for _, score in rows]))


def rated_by_hand() -> RatedPairs:
    """Subset a: ranks agree (1). Subset b of 4 pairs: ranks 1 2 3 4 and 2 1 4 3, so 1 - 6 x 4 / (4 x 15) = 0.6."""
    similarities = np.array([0.1, 0.2, 0.3, 0.5, 0.6, 0.7, 0.8])
    gold = np.array([0.0, 1.0, 2.0, 2.0, 1.0, 4.0, 3.0])
    return RatedPairs(similarities, gold, {"a": 3, "b": 4})


def test_aggregations_by_hand() -> None:
    """Pooled, the ranks of the gold scores are 1, 2.5, 4.5, 4.5, 2.5, 7, 6: covariance 22, squares 28 and 27."""
    rated = rated_by_hand()
    assert correlate_subsets(rated) == pytest.approx({"a": 100, "b": 60})
    assert correlate(rated, aggregation="mean") == pytest.approx(80)
    assert correlate(rated, aggregation="wmean") == pytest.approx((3 * 100 + 4 * 60) / 7)
    assert correlate(rated) == pytest.approx(100 * 22 / math.sqrt(28 * 27))
    # Pearson of b: deviations -1.5 -0.5 0.5 1.5 (x 0.1) and -0.5 -1.5 1.5 0.5; covariance 3, squares 5 and 5.
    assert correlate_subsets(rated, "pearson")["b"] == pytest.approx(60)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"aggregation": "median"}, "aggregation is 'median'; expected one of all, mean, wmean"),
        ({"correlation": "kendall"}, "correlation is 'kendall'; expected one of spearman, pearson"),
    ],
)
def test_unknown_protocols_are_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(SentportError, match=said):
        correlate(rated_by_hand(), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean", "manhattan"])
def test_sts_score_follows_the_angles(similarity: str) -> None:
    pairs = pairs_of((80, 0), (60, 1), (40, 3), (20, 4), (0, 5))
    assert sts_score(Angles(), pairs, similarity=similarity) == 100
    assert sts_score(Angles(), StsPairs(pairs.sentences1, pairs.sentences2, -pairs.scores)) == -100


def test_shuffled_gold_scores_near_zero() -> None:
    """A perfect model, and subsets that differ so much that shuffling inside each would still score high."""
    low = [(90 - 0.1 * row, row / 1000) for row in range(300)]
    high = [(30 - 0.1 * row, 4 + row / 1000) for row in range(300)]
    rated = rate({"low": pairs_of(*low), "high": pairs_of(*high)}, Angles().encode)
    assert correlate(rated) == pytest.approx(100)
    for aggregation in ("all", "mean", "wmean"):
        assert abs(correlate_shuffled(rated, aggregation=aggregation)) < 5


@pytest.mark.parametrize("encoder", [Angles(constant=True), Angles(noise=1e-8, constant=True), Angles(length=0)])
@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean", "manhattan"])
def test_a_constant_encoder_has_no_score(encoder: Angles, similarity: str, caplog: pytest.LogCaptureFixture) -> None:
    """Rounding differences between equal vectors would give a number that means nothing."""
    with caplog.at_level(logging.WARNING):
        assert math.isnan(sts_score(encoder, pairs_of((80, 0), (60, 1), (40, 3)), similarity=similarity))
    assert "gives all pairs the same similarity in all pairs, so their correlation is undefined (nan)" in caplog.text


def test_a_subset_without_differences_makes_its_mean_undefined(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        rated = rate({"flat": pairs_of((10, 1), (10, 2)), "fine": pairs_of((30, 1), (20, 2))}, Angles().encode)
    assert "in flat, so" in caplog.text
    assert math.isnan(correlate(rated, aggregation="mean"))
    # Pooled: ranks 3.5 3.5 1 2 and 1.5 3.5 1.5 3.5.
    assert correlate(rated) == pytest.approx(100 / math.sqrt(4.5 * 4))


def test_alignment_and_uniformity_by_hand() -> None:
    """Unit vectors at 0, 90 and 180 degrees: squared distances 2, 2 and 4. Lengths do not matter."""
    points = np.array([[2.0, 0.0], [0.0, 5.0], [-1.0, 0.0]])
    assert uniformity(points) == pytest.approx(math.log((2 * math.exp(-4) + math.exp(-8)) / 3))
    assert uniformity(np.ones((700, 3))) == pytest.approx(0, abs=1e-9), "more rows than a block, all in one place"
    assert alignment(points[:2], points[[0, 2]]) == pytest.approx((0 + 2) / 2)
    assert math.isnan(alignment(points[:0], points[:0]))
    with pytest.raises(SentportError, match="two or more vectors; found 1"):
        uniformity(points[:1])


def test_geometry_of_rated_pairs() -> None:
    """Sentences 0, 90 and 60, each once; the pair rated 4 is no positive."""
    found = geometry(pairs_of((90, 4), (60, 4.5), (0, 5)), Angles(length=3).encode)
    assert found.alignment == pytest.approx((2 - 2 * math.cos(math.pi / 3)) / 2, abs=1e-6), "of 60 and 0 degrees"
    distances = [2, 1, 2 - math.sqrt(3)]  # 0-90, 0-60, 60-90
    assert found.uniformity == pytest.approx(math.log(np.mean(np.exp(-2 * np.array(distances)))), abs=1e-6)
    assert found.singular_values[0] == 1
    assert len(found.singular_values) == 2


def test_histograms_group_pairs_by_rating() -> None:
    """Bounds belong to the lower group, except for 0; rounding past 1 is still the last bin."""
    found = cosine_histograms(np.array([-1, 0.01, 0.99, 1.0000001]), np.array([0, 1, 4.5, 5]))
    assert {group: int(counts.sum()) for group, counts in found.items()} == {
        (0, 1): 2,
        (1, 2): 0,
        (2, 3): 0,
        (3, 4): 0,
        (4, 5): 2,
    }
    assert np.flatnonzero(found[0, 1]).tolist() == [0, 20]
    assert np.flatnonzero(found[4, 5]).tolist() == [39]


def test_triplet_accuracy_by_hand(tmp_path: Path) -> None:
    """Nearer, farther, and as far: a tie is not right."""
    path = tmp_path / "triplets.tsv"
    path.write_text("0\t10\t20\n0\t30\t20\n0\t10\t10\n0\t-5\t40\n")
    for similarity in ("euclidean", "cosine"):
        assert triplet_accuracy(read_triplets(path), Angles().encode, similarity) == 50


def test_threshold_and_f1_by_hand() -> None:
    """Best between 0.6 and 0.3: both similar pairs found with one too many, two of three dissimilar ones."""
    similarities = np.array([0.9, 0.6, 0.7, 0.3, 0.1])
    similar = np.array([True, True, False, False, False])
    threshold = best_threshold(similarities, similar)
    assert threshold == pytest.approx(0.45)
    assert mean_f1(similarities >= threshold, similar) == pytest.approx((2 * 2 / 5 + 2 * 2 / 5) / 2)
    assert best_threshold(np.array([0.5, 0.5, 0.2]), np.array([True, False, False])) == 0.35, "equal ones stay together"
    assert mean_f1(np.array([True, True]), np.array([True, True])) == 0.5, "no dissimilar one to be found"


@pytest.mark.parametrize("threshold", range(3))
def test_threshold_is_the_best_of_all(threshold: int) -> None:
    rng = np.random.default_rng(threshold)
    similarities, similar = rng.integers(0, 12, 60) / 12, rng.random(60) < 0.3
    best = mean_f1(similarities >= best_threshold(similarities, similar), similar)
    assert best == max(mean_f1(similarities >= value, similar) for value in similarities)


def argument_file(folder: Path, labels: Sequence[str], topics: int = 3) -> Path:
    """Pairs whose angle falls as their label's place in ``labels`` rises, on topics that take turns."""
    path = folder / "arguments.tsv"
    lines = []
    for row in range(60):
        group, label = divmod(row, len(labels))
        lines.append(f"{labels[label]}\t0\t{90 - 20 * label - row / 10}\ttopic {group % topics}\n")
    path.write_text("".join(lines))
    return path


@pytest.mark.parametrize(("protocol", "folds"), [("10-fold", 10), ("cross-topic", 3)])
def test_arguments_with_labels_and_with_scores(tmp_path: Path, protocol: str, folds: int) -> None:
    """Angles alone tell the labels apart, so a threshold that is chosen elsewhere is right everywhere."""
    labelled = argument_score(read_arguments(argument_file(tmp_path, ["NS", "SS", "HS"])), Angles().encode, protocol)
    assert (labelled.f1, labelled.folds) == (100, folds)
    assert labelled.spearman > 85
    scored = argument_score(read_arguments(argument_file(tmp_path, ["0", "2.5", "5"])), Angles().encode, protocol)
    assert (scored.f1, scored.folds) == (None, folds)
    assert scored.pearson > 85


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("NS\ta\tb\tt\n3\ta\tb\tt\n", "line 2: label is '3'; expected one of NS, DTORCD, SS, HS"),
        ("3\ta\tb\tt\nNS\ta\tb\tt\n", "line 2: label is 'NS'; expected a finite number"),
        ("3\ta\tb\n", r"3 tab-separated columns; expected 4 \(label, sentence1, sentence2, topic\)"),
    ],
)
def test_bad_argument_files_are_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "arguments.tsv"
    path.write_text(text)
    with pytest.raises(SentportError, match=said):
        read_arguments(path)


def test_too_few_arguments_are_refused(tmp_path: Path) -> None:
    pairs = read_arguments(argument_file(tmp_path, ["NS", "HS"], topics=1))
    with pytest.raises(SentportError, match="needs two topics or more; found 1"):
        argument_score(pairs, Angles().encode, "cross-topic")
    with pytest.raises(SentportError, match="protocol is 'leave-one-out'; expected one of 10-fold, cross-topic"):
        argument_score(pairs, Angles().encode, "leave-one-out")
