"""Metrics against their references, and the STS reader against files good and bad."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sentport.errors import SentportError
from sentport.evaluation import cosine_pairs, pair_similarity, pearson, read_sts, read_sts_task, spearman


@pytest.fixture
def data() -> Path:
    """The folder of STS files, which may not be redistributed and so is not part of the project."""
    folder = os.environ.get("SENTPORT_DATA")
    if not folder:
        pytest.skip("SENTPORT_DATA is not set; it names the folder that holds sts/ and sts_raw/")
    return Path(folder)


def _dice(first: str, second: str) -> float:
    left, right = (set(re.findall(r"\w+", text.lower())) for text in (first, second))
    return 2 * len(left & right) / (len(left) + len(right)) if left or right else 0.0


def test_cosine_pairs_by_hand() -> None:
    """Parallel, orthogonal, without direction, opposite; and no rows at all."""
    a = np.array([[3.0, 4.0], [1.0, 0.0], [0.0, 0.0], [1.0, 1.0]], np.float32)
    b = np.array([[6.0, 8.0], [0.0, 2.0], [1.0, 0.0], [-2.0, -2.0]], np.float32)
    cosines = cosine_pairs(a, b)
    assert cosines.dtype == np.float64
    np.testing.assert_allclose(cosines, [1, 0, 0, -1], atol=1e-15)
    vectors = np.random.default_rng(0).normal(size=(500, 33)).astype(np.float32)
    assert set(cosine_pairs(vectors, vectors)) == {1.0}, "equal texts are ties, not ranks made of rounding"
    assert cosine_pairs(np.zeros((0, 3)), np.zeros((0, 3))).shape == (0,)


@pytest.mark.parametrize(("a", "b"), [((2, 3), (3, 3)), ((2, 3), (2, 4)), ((3,), (3,))])
def test_cosine_pairs_refuses_other_shapes(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    """Broadcasting would answer a question that nobody asked."""
    with pytest.raises(SentportError, match=re.escape(f"found {list(a)} and {list(b)}")):
        cosine_pairs(np.ones(a), np.ones(b))


def test_similarities_by_hand() -> None:
    """3-4-5 triangles, by name; a distance is negative, so that more is always more similar."""
    a = np.array([[3.0, 4.0], [1.0, 2.0]], np.float32)
    b = np.array([[0.0, 0.0], [4.0, 6.0]], np.float32)
    assert pair_similarity(a, b, "dot").tolist() == [0, 16]
    assert pair_similarity(a, b, "euclidean").tolist() == [-5, -5]
    assert pair_similarity(a, b, "manhattan").tolist() == [-7, -7]
    assert pair_similarity(a, b).tolist() == pytest.approx([0, 16 / math.sqrt(5 * 52)], abs=1e-15)
    with pytest.raises(SentportError, match="similarity is 'angle'; expected one of cosine, dot, euclidean, manhattan"):
        pair_similarity(a, b, "angle")


def test_pearson_by_hand() -> None:
    """Of 1, 2, 6 and 1, 3, 5: covariance 10, sums of squares 14 and 8."""
    assert pearson([1, 2, 6], [1, 3, 5]) == pytest.approx(10 / math.sqrt(14 * 8), abs=1e-15)
    assert pearson([1, 2, 3], [-2, -4, -6]) == -1.0
    with pytest.raises(SentportError, match=r"first list is constant \(every value is 2\.0\)"):
        pearson([2, 2], [1, 3])


def test_spearman_by_hand() -> None:
    """Small enough to follow on paper."""
    assert spearman([1, 2, 3], [10, 200, 3000]) == 1.0
    assert spearman([1, 2, 3], [0, -1, -2]) == -1.0
    # Ranks 1, 2.5, 2.5, 4 and 1, 2, 3, 4: covariance 4.5, variances 4.5 and 5.
    assert spearman([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(4.5 / math.sqrt(22.5), abs=1e-15)


@pytest.mark.parametrize("levels", [2, 5, 1000])
def test_spearman_equals_scipy_with_ties(levels: int) -> None:
    """Few levels make nearly every value a tie."""
    stats = pytest.importorskip("scipy.stats", reason="the reference needs the evaluate extra")
    rng = np.random.default_rng(levels)
    x = rng.integers(0, levels, 500)
    y = 0.3 * x + rng.integers(0, levels, 500)
    assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ([1, 2], [1, 2, 3], r"same length; found shapes \[2\] and \[3\]"),
        ([[1, 2]], [[1, 2]], r"found shapes \[1, 2\]"),
        ([1], [1], "at least 2 pairs; found 1"),
        ([1, 2, math.nan], [1, 2, 3], r"first list has 1 that are not, the first at row 2 \(nan\)"),
        ([1, 2], [math.inf, 2], r"second list has 1 that are not, the first at row 0 \(inf\)"),
        ([1, 2], [5, 5], r"second list is constant \(every value is 5\.0\)"),
    ],
)
def test_spearman_refuses_what_has_no_answer(x: list[float], y: list[float], message: str) -> None:
    """A nan returned here would reach a table of results."""
    with pytest.raises(SentportError, match=message):
        spearman(x, y)


def test_read_sts_splits_on_newline_only(tmp_path: Path) -> None:
    """Python's splitlines and universal newlines would cut these sentences; quotes are plain characters."""
    path = tmp_path / "pairs.tsv"
    path.write_bytes('4.5\tone\u2028line\x85 \x0b\x1c still\t"a quote\n0\t\tafter an empty one'.encode())
    pairs = read_sts(path)
    assert pairs.sentences1 == ("one\u2028line\x85 \x0b\x1c still", "")
    assert pairs.sentences2 == ('"a quote', "after an empty one")
    assert pairs.scores.dtype == np.float64
    assert pairs.scores.tolist() == [4.5, 0.0]
    assert len(pairs) == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"1.0\tonly one sentence", "2 tab-separated columns; expected 3 (score, sentence1, sentence2)"),
        (b"1.0\ta\tb\tc", "4 tab-separated columns; expected 3"),
        (b"", "1 tab-separated columns; expected 3"),
        (b"high\ta\tb", "score is 'high'; expected a finite number"),
        (b"nan\ta\tb", "score is 'nan'; expected a finite number"),
        (b"1\ta\xff\tb", "byte 0xff at offset 3 is not UTF-8"),
        (b"1\ta\tb\r", "ends in CR LF"),
    ],
)
def test_read_sts_names_the_bad_line(tmp_path: Path, line: bytes, message: str) -> None:
    """One line that says where, what was found and what was expected."""
    path = tmp_path / "pairs.tsv"
    path.write_bytes(b"3\tgood\tline\n" + line + b"\n3\tgood\tline\n")
    with pytest.raises(SentportError) as caught:
        read_sts(path)
    assert str(caught.value).startswith(f"{path}, line 2: {message}")
    assert len(str(caught.value).splitlines()) == 1


def test_read_sts_refuses_missing_and_empty_files(tmp_path: Path) -> None:
    """A user's mistake, so no bare OSError."""
    with pytest.raises(SentportError, match="cannot be read"):
        read_sts(tmp_path / "none.tsv")
    (tmp_path / "empty.tsv").touch()
    with pytest.raises(SentportError, match="is empty"):
        read_sts(tmp_path / "empty.tsv")


@pytest.fixture
def small_data(tmp_path: Path) -> Path:
    """A data folder with one task in both forms, SICK-R, and a list of sources that holds no pairs."""
    for name in ("sts_raw/A/two.x.tsv", "sts_raw/A/one.tsv", "sts/A/one.tsv", "sts/SICK-R/test.tsv"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"1\t{name}\tother\n", encoding="utf-8")
    (tmp_path / "sts_raw/A/one.source.tsv").write_text("genre\tfile\n", encoding="utf-8")
    return tmp_path


def test_read_sts_task_finds_the_subsets_of_each_form(small_data: Path) -> None:
    """A subset's name may hold dots; SICK-R is read from its only folder."""
    raw = read_sts_task(small_data, "A")
    assert list(raw) == ["one", "two.x"]
    assert raw["two.x"].sentences1 == ("sts_raw/A/two.x.tsv",)
    senteval = read_sts_task(small_data, "A", form="senteval")
    assert [pairs.sentences1[0] for pairs in senteval.values()] == ["sts/A/one.tsv"]
    assert list(read_sts_task(small_data, "SICK-R")) == ["test"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda folder: read_sts_task(folder, "B"), "task 'B' is not in .*sts_raw; found A"),
        (lambda folder: read_sts_task(folder / "sts", "A"), "found no task there"),
        (
            lambda folder: read_sts_task(folder, "A", form="cooked"),  # type: ignore[arg-type]
            "form is 'cooked'; expected one of raw, senteval",
        ),
    ],
)
def test_read_sts_task_lists_what_it_knows(small_data: Path, call: Callable[[Path], object], message: str) -> None:
    """A typing mistake is answered with the choices there are."""
    with pytest.raises(SentportError, match=message):
        call(small_data)


def test_a_task_without_files_is_refused(tmp_path: Path) -> None:
    """An empty result would pass for an evaluation of nothing."""
    (tmp_path / "sts_raw/A").mkdir(parents=True)
    with pytest.raises(SentportError, match=r"holds no \.tsv file"):
        read_sts_task(tmp_path, "A")


def test_word_overlap_on_sts_benchmark_gives_the_known_figure(data: Path) -> None:
    """56.5 is what the data's own description reports, so gold scores and pairs are read in step."""
    pairs = read_sts_task(data, "STSBenchmark")["test"]
    assert len(pairs) == 1379
    overlap = [_dice(first, second) for first, second in zip(pairs.sentences1, pairs.sentences2, strict=True)]
    assert 100 * spearman(overlap, pairs.scores) == pytest.approx(56.5, abs=0.05)


@pytest.mark.parametrize(
    ("task", "rows"),
    [("STS12", 3108), ("STS13", 1500), ("STS14", 3750), ("STS15", 3000), ("STS16", 1186), ("SICK-R", 9927)],
)
def test_task_sizes_are_the_published_ones(data: Path, task: str, rows: int) -> None:
    """STS13 is without its SMT subset, which may not be passed on."""
    for subsets in (read_sts_task(data, task), read_sts_task(data, task, "senteval")):
        assert sum(map(len, subsets.values())) == rows
