"""Clusters, against scikit-learn, sentence-transformers and groups that are known."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from stored import clouds, write_npy, write_parquet

from sentport.errors import SentportError
from sentport.search import clusters as module
from sentport.search.clusters import agglomerative, agglomerative_bytes, communities, kmeans, summary
from sentport.search.collection import Collection, collection, limited_threads

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small work is slower with more."""
    with limited_threads(1):
        yield


def held(vectors: np.ndarray, similarity: str = "cosine") -> Collection:
    return collection(np.arange(len(vectors)), vectors, None, similarity)


def groups(labels: np.ndarray) -> set[frozenset[int]]:
    return {frozenset(np.flatnonzero(labels == number).tolist()) for number in set(labels.tolist()) if number >= 0}


APART = clouds(80, 16, centres=4, spread=0.1)
FOUR = {frozenset(range(first, 80, 4)) for first in range(4)}


@pytest.mark.parametrize("similarity", ["cosine", "euclidean"])
def test_every_method_finds_groups_that_lie_apart(similarity: str) -> None:
    some = held(APART, similarity)
    near = 0.8 if similarity == "cosine" else -2.0
    assert groups(kmeans(some, 4)) == FOUR
    assert groups(agglomerative(some, k=4)) == FOUR
    assert groups(agglomerative(some, threshold=near)) == FOUR
    assert groups(communities(some, near)) == FOUR
    assert kmeans(some, 4).tolist()[:5] == [0, 1, 2, 3, 0]  # of one size: by first row


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("k", [1, 7, 50, 150])
def test_agglomerative_is_scikit_learns(metric: str, k: int) -> None:
    from sklearn.cluster import AgglomerativeClustering

    vectors = clouds(150, 6)
    theirs = AgglomerativeClustering(n_clusters=k, metric=metric, linkage="average").fit_predict(vectors)
    assert groups(agglomerative(held(vectors, metric), k=k)) == groups(theirs)


def test_agglomerative_threshold_is_an_average_similarity() -> None:
    from sklearn.cluster import AgglomerativeClustering

    vectors = clouds(150, 6)
    theirs = AgglomerativeClustering(n_clusters=None, distance_threshold=0.3, metric="cosine", linkage="average")
    assert groups(agglomerative(held(vectors), threshold=0.7)) == groups(theirs.fit_predict(vectors))
    assert agglomerative(held(vectors[:1]), threshold=0.7).tolist() == [0]
    assert agglomerative(held(np.tile(vectors[:1], (5, 1))), threshold=1.0).tolist() == [0] * 5


@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.9])
@pytest.mark.parametrize("min_size", [1, 3, 10])
def test_communities_are_sentence_transformers(
    threshold: float, min_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from sentence_transformers.util import community_detection

    monkeypatch.setattr(module, "_COMMUNITY_BLOCK_VALUES", 1)
    vectors = clouds(200, 6, seed=3)
    theirs = community_detection(torch.tensor(vectors), threshold, min_community_size=min_size, show_progress_bar=False)
    ours = communities(held(vectors), threshold, min_size)
    assert groups(ours) == {frozenset(map(int, group)) for group in theirs}
    sizes = np.bincount(ours[ours >= 0])
    assert (np.diff(sizes) <= 0).all()


def test_communities_have_a_bound_on_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_NEIGHBOURS", 1000)
    with pytest.raises(SentportError, match=r"too many neighbours at threshold -1.0; raise it"):
        communities(held(APART), -1.0)


def test_dot_products_are_a_distance_only_between_unit_vectors() -> None:
    unit = APART / np.linalg.norm(APART, axis=1, keepdims=True)
    assert groups(kmeans(held(unit, "dot"), 4)) == FOUR
    assert groups(agglomerative(held(unit, "dot"), threshold=0.8)) == FOUR
    for cluster in (lambda some: kmeans(some, 4), lambda some: agglomerative(some, k=4)):
        with pytest.raises(SentportError, match=r"similarity is dot and vectors have lengths .* use communities"):
            cluster(held(APART, "dot"))
    assert groups(communities(held(unit, "dot"), 0.8)) == FOUR


def test_too_many_rows_and_impossible_numbers_are_refused() -> None:
    with pytest.raises(SentportError, match=r"of 30001 rows needs 7.2 GB; at most 30000 rows"):
        agglomerative(held(np.ones((30_001, 1), np.float32)), k=2)
    assert agglomerative_bytes(10_000) == 10_000 * 9_999 * 8
    for k in (0, 81):
        for cluster in (kmeans, lambda some, k: agglomerative(some, k=k)):
            with pytest.raises(SentportError, match=f"k is {k}; expected 1 to 80"):
                cluster(held(APART), k)


def test_a_seed_decides_kmeans() -> None:
    some = held(clouds(2000, 8))
    assert (kmeans(some, 20, 5) == kmeans(some, 20, 5)).all()
    assert (kmeans(some, 20, 5) != kmeans(some, 20, 6)).any()


def test_summary() -> None:
    some = held(APART)
    found = summary(some, np.array([0] * 40 + [1] * 25 + [2] * 5 + [-1] * 10))
    assert (found.rows, found.clusters, found.largest, found.median, found.smallest, found.outside) == (
        80,
        3,
        40,
        25,
        5,
        10,
    )
    from sklearn.metrics import silhouette_score

    labels = kmeans(some, 4)
    assert summary(some, labels).silhouette == pytest.approx(silhouette_score(APART, labels, metric="cosine"), abs=1e-5)
    assert summary(some, np.zeros(80, np.int64)).silhouette is None
    assert summary(some, np.full(80, -1)).clusters == 0


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    return write_parquet(tmp_path / "v.parquet", APART, texts=[f"text, {n}" for n in range(80)])


def test_command_writes_rows(vectors: Path, tmp_path: Path, cli: Cli) -> None:
    code, table, said = cli("cluster", str(vectors), "--method", "kmeans", "--k", "4")
    assert code == 0
    rows = list(csv.reader(table.splitlines()))
    assert rows[:2] == [["id", "cluster", "text"], ["0", "0", "text, 0"]]
    assert len(rows) == 81
    assert "80 vectors in 4 clusters by kmeans, 0 in none: largest 20, median 20, smallest 20; silhouette 0.9" in said
    out = tmp_path / "c.jsonl"
    base = ("cluster", str(vectors), "--method", "communities", "--threshold", "0.8", "--min-size", "30", "-q", "--out")
    assert cli(*base, str(out)) == (0, "", "")
    assert [json.loads(line) for line in out.read_text().splitlines()][3] == {"id": 3, "cluster": -1, "text": "text, 3"}
    code, _, said = cli(*base, str(out))
    assert (code, "exists; add --force" in said) == (2, True)
    assert cli(*base, str(out), "--force")[0] == 0
    code, lines, _ = cli("cluster", str(vectors), "--method", "agglomerative", "--k", "2", "--json")
    assert json.loads(lines.splitlines()[0])["id"] == 0


def test_memory_is_told_before_it_is_taken(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from sentport.cli import cluster

    monkeypatch.setattr(cluster, "_TOLD_ROWS", 100)
    path = write_npy(tmp_path / "v.npy", clouds(101, 4))
    said = cli("cluster", str(path), "--method", "agglomerative", "--k", "2", "--out", str(tmp_path / "c.csv"))[2]
    assert said.startswith("agglomerative clustering of 101 rows needs 0.0 GB")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--method", "dbscan"), "invalid choice"),
        (("--method", "kmeans"), "kmeans needs --k"),
        (("--method", "kmeans", "--k", "2", "--threshold", "0.5"), "--threshold means nothing to kmeans"),
        (("--method", "communities"), "communities need --threshold"),
        (("--method", "communities", "--threshold", "0.5", "--min-size", "0"), "argument --min-size: '0' is"),
        (("--method", "communities", "--threshold", "nan"), "argument --threshold: 'nan' is not a finite number"),
        (("--method", "kmeans", "--k", "2", "--seed", "-1"), "argument --seed: '-1' is not a whole number from 0"),
        (("--method", "agglomerative"), "either --threshold or --k"),
        (("--method", "agglomerative", "--k", "2", "--min-size", "3"), "--min-size means nothing"),
        (("--method", "kmeans", "--k", "2", "--out", "/tmp/none.txt"), "neither .csv nor .jsonl"),
        (("--method", "kmeans", "--k", "2", "--out", "/nowhere/x.csv"), "/nowhere is not a folder"),
        (("--method", "kmeans", "--k", "100"), "k is 100; expected 1 to 80"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(arguments: tuple[str, ...], said: str, vectors: Path, cli: Cli) -> None:
    code, out, told = cli("cluster", str(vectors), *arguments)
    assert (code, out, told.count("\n")) == (2, "", 1), told
    assert said in told
