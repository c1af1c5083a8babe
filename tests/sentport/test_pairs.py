"""The most similar pairs, against a table of all pairs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from stored import clouds, write_npy, write_parquet

from sentport.errors import SentportError
from sentport.search import collection as module
from sentport.search.collection import collection
from sentport.search.pairs import similar_pairs

Cli = Callable[..., tuple[int, str, str]]


def by_all_pairs(vectors: np.ndarray, similarity: str) -> list[tuple[float, int, int]]:
    a = vectors.astype(np.float64)
    if similarity == "cosine":
        a = a / np.linalg.norm(a, axis=1, keepdims=True)
    table = -np.linalg.norm(a[:, None] - a[None], axis=2) if similarity == "euclidean" else a @ a.T
    first, second = np.triu_indices(len(a), 1)
    return sorted(zip((-table[first, second]).tolist(), first.tolist(), second.tolist(), strict=True))


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
@pytest.mark.parametrize(("rows", "top"), [(1, 5), (2, 5), (60, 1), (60, 200), (60, 5000)])
def test_pairs_are_those_of_the_full_table(
    similarity: str, rows: int, top: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LEAST_ROWS", 7)
    monkeypatch.setattr(module, "_BLOCK_VALUES", 1)
    vectors = clouds(rows, 8)
    found = similar_pairs(collection(np.arange(rows), vectors, None, similarity), top)
    wanted = by_all_pairs(vectors, similarity)[:top]
    assert found.rows.tolist() == [[i, j] for _, i, j in wanted]
    assert np.allclose(found.scores, [-score for score, _, _ in wanted], atol=1e-6)


def test_equal_pairs_come_in_the_order_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = np.tile(clouds(1, 8), (40, 1))
    for least in (3, 64):
        monkeypatch.setattr(module, "_LEAST_ROWS", least)
        monkeypatch.setattr(module, "_BLOCK_VALUES", 1)
        found = similar_pairs(collection(np.arange(40), vectors, None, "cosine"), 45)
        assert found.rows.tolist() == [*([0, n] for n in range(1, 40)), *([1, n] for n in range(2, 8))]


def test_min_score_is_a_bound_on_the_exact_score() -> None:
    held = collection(np.arange(50), clouds(50, 8), None, "cosine")
    every = similar_pairs(held, 2000)
    bound = float(every.scores[20])
    assert similar_pairs(held, 2000, bound).rows.tolist() == every.rows[:21].tolist()
    assert similar_pairs(held, 5, bound).rows.tolist() == every.rows[:5].tolist()
    assert similar_pairs(held, 5, 2.0).rows.shape == (0, 2)
    with pytest.raises(SentportError, match="top is 0"):
        similar_pairs(held, 0)


def test_memory_stays_flat(monkeypatch: pytest.MonkeyPatch) -> None:
    import tracemalloc

    held = collection(np.arange(8000), clouds(8000, 4), None, "cosine")
    tracemalloc.start()
    similar_pairs(held, 10)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8000 * 8000 * 4 / 2  # a table of all pairs would take 256 MB


def test_a_zero_vector_is_told_and_similar_to_nothing(tmp_path: Path, cli: Cli) -> None:
    vectors = clouds(6, 4)
    vectors[4] = 0
    code, lines, said = cli("pairs", str(write_npy(tmp_path / "v.npy", vectors)), "--top", "15")
    assert code == 0
    assert "1 vector zero, similar to nothing: ids 4" in said
    scores = {tuple(line.split("\t")[1:]): float(line.split("\t")[0]) for line in lines.splitlines()}
    assert scores["0", "4"] == scores["4", "5"] == 0


def test_command_shows_ids_and_texts(tmp_path: Path, cli: Cli) -> None:
    vectors = np.array([[1, 0], [0, 1], [1, 0.1]], np.float32)
    path = write_parquet(tmp_path / "v.parquet", vectors, ids=["x", "y", "z"], texts=["one", "two", "th\tree"])
    code, lines, said = cli("pairs", str(path), "--top", "1")
    assert (code, lines) == (0, "0.995037\tx\tz\tone\tth\\tree\n")
    assert "3 vectors, 3 pairs by cosine: search" in said
    code, text, said = cli("pairs", str(path), "--json", "-q", "--min-score", "0.5")
    assert said == ""
    report = json.loads(text)
    assert report["pairs"] == [{"score": pytest.approx(0.995037), "ids": ["x", "z"], "texts": ["one", "th\tree"]}]
    assert report["seconds"]["embedding"] is None


def test_lines_are_encoded_first(tiny_bundle: Path, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "t.txt").write_text("the cat sat\nred mat\nthe cat sat\n")
    code, lines, said = cli("pairs", str(tiny_bundle), "--input", str(tmp_path / "t.txt"), "--top", "1")
    assert (code, lines) == (0, "1.000000\t0\t2\tthe cat sat\tthe cat sat\n")
    assert "embedding" in said
    assert "search" in said


def test_vectors_into_a_closed_pipe_are_quiet(tmp_path: Path) -> None:
    path = write_npy(tmp_path / "v.npy", clouds(300, 4))
    command = f"{sys.executable} -m sentport pairs {path} --top 40000 -q | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, cwd=ROOT)
    assert done.stderr == b""
    assert done.stdout.count(b"\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("BUNDLE",), "is a bundle; expected vectors"),
        (("VECTORS", "--top", "0"), "argument --top: '0' is not a whole number from 1 to 2147483647"),
        (("VECTORS", "--top", "99999999999"), "not a whole number from 1"),
        (("VECTORS", "--min-score", "nan"), "argument --min-score: 'nan' is not a finite number"),
        (("VECTORS", "--threads", "0"), "argument --threads: '0' is not a whole number from 1 to 1024"),
        (("VECTORS", "--texts", "FEW"), "1 text given for"),
        (("BUNDLE", "--input", "FEW", "--texts", "FEW"), "leave --texts out"),
        (("NAN",), "not finite: 1 of 5 vectors, ids 3; encode again"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    arguments: tuple[str, ...], said: str, tiny_bundle: Path, tmp_path: Path, cli: Cli
) -> None:
    write_npy(tmp_path / "v.npy", clouds(5, 4))
    broken = clouds(5, 4)
    broken[3, 2] = np.inf
    write_npy(tmp_path / "nan.npy", broken)
    (tmp_path / "few.txt").write_text("one\n")
    places = {
        "BUNDLE": tiny_bundle,
        "VECTORS": tmp_path / "v.npy",
        "FEW": tmp_path / "few.txt",
        "NAN": tmp_path / "nan.npy",
    }
    code, out, told = cli("pairs", *(str(places.get(word, word)) for word in arguments))
    assert (code, out, told.count("\n")) == (2, "", 1), told
    assert said in told
