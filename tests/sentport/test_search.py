"""Nearest-neighbour indexes and the vectors that go into them, against tables of all pairs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from stored import KINDS, clouds, manifest, write_npy, write_parquet

from sentport.bulk.manifest import StoreError, seal, unseal
from sentport.bulk.store import open_vectors
from sentport.encoder import Encoder
from sentport.errors import InputError, SentportError
from sentport.search import collection as module
from sentport.search.collection import Collection, collection, limited_threads, load, score_blocks
from sentport.search.index import (
    LEAST_IVFPQ_ROWS,
    Index,
    IndexManifest,
    build_index,
    index_parameters,
    is_index,
    read_index,
    recall_at_10,
    write_index,
)

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small work is slower with more."""
    with limited_threads(1):
        yield


def held(vectors: np.ndarray, similarity: str = "cosine") -> Collection:
    return collection(np.arange(len(vectors)), vectors, None, similarity)


def all_scores(vectors: np.ndarray, others: np.ndarray, similarity: str) -> np.ndarray:
    a, b = vectors.astype(np.float64), others.astype(np.float64)
    if similarity == "euclidean":
        return -np.linalg.norm(a[:, None] - b[None], axis=2)
    if similarity == "cosine":
        a, b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (a, b))
    return a @ b.T


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
@pytest.mark.parametrize("upper", [False, True])
def test_blocks_hold_the_scores_of_all_pairs(similarity: str, upper: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LEAST_ROWS", 7)
    vectors = clouds(50, 8)
    wanted = all_scores(vectors, vectors, similarity)
    seen = []
    for start, scores in score_blocks(held(vectors, similarity).vectors, similarity, upper=upper, values=1):
        assert np.allclose(scores, wanted[start : start + 7, start if upper else 0 :], atol=1e-5)
        seen += range(start, start + len(scores))
    assert seen == list(range(50))


def test_rows_that_are_not_finite_are_refused_by_id_and_zeros_are_named() -> None:
    vectors = clouds(6, 4)
    vectors[2] = 0
    assert held(vectors).zeros == (2,)
    assert (held(vectors).vectors[2] == 0).all()
    vectors[3, 1], vectors[5, 0] = np.nan, np.inf
    with pytest.raises(InputError, match="not finite: 2 of 6 vectors, ids c, e"):
        collection(np.array(["x", "y", "z", "c", "d", "e"], object), vectors, None, "cosine")
    with pytest.raises(SentportError, match=r"similarity is manhattan, .* expected cosine, dot, euclidean"):
        held(clouds(3, 4), "manhattan")
    with pytest.raises(SentportError, match="no vectors"):
        held(clouds(0, 4))


def test_texts_belong_to_ids_where_bad_rows_have_no_vector(tmp_path: Path) -> None:
    vectors = clouds(3, 4)
    with_gap = np.concatenate([vectors[:1], np.full((1, 4), np.nan, np.float32), vectors[1:]])
    path = write_npy(tmp_path / "v.npy", with_gap, replace(manifest(3, 4), bad_rows=1))
    found = load(open_vectors(path), ["a", "bad", "b", "c"])
    assert (found.ids.tolist(), found.texts) == ([0, 2, 3], ["a", "b", "c"])
    with pytest.raises(SentportError, match=r"3 texts given for .*, which was made from 4"):
        load(open_vectors(path), ["a", "b", "c"])
    named = write_parquet(tmp_path / "v.parquet", vectors, ids=["x", "y", "z"], texts=["p", "q", "r"])
    assert load(open_vectors(named)).texts == ["p", "q", "r"]
    assert load(open_vectors(named), ["1", "2", "3"]).texts == ["1", "2", "3"]


def test_threads_are_limited_and_given_back() -> None:
    before = module.faiss.omp_get_max_threads()
    with limited_threads(1) as count:
        assert (count, module.faiss.omp_get_max_threads()) == (1, 1)
    assert module.faiss.omp_get_max_threads() == before
    with pytest.raises(SentportError, match="threads is 0"), limited_threads(0):
        pass


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_finds_what_a_full_table_finds(kind: str, similarity: str) -> None:
    rows = LEAST_IVFPQ_ROWS if kind == "ivfpq" else 600
    vectors = clouds(rows, 16)
    some = held(vectors, similarity)
    parameters = index_parameters(kind, rows, 16, {"nlist": 16, "nprobe": 8} if kind == "ivfpq" else {})
    index = build_index(some, kind, parameters)
    opened = Index(
        IndexManifest(kind, parameters, None, manifest(rows, 16, similarity)), some.ids.tolist(), None, index
    )
    scores, found = opened.search(vectors[:40] * 3, 5)
    wanted = all_scores(vectors[:40] * 3, vectors, similarity)
    best = np.argsort(-wanted, axis=1)[:, :5]
    share = np.mean([len(set(a) & set(b)) / 5 for a, b in zip(found.tolist(), best.tolist(), strict=True)])
    assert share >= {"flat": 1.0, "hnsw": 0.95, "ivfpq": 0.3}[kind]
    if kind != "ivfpq":  # whose scores are those of its codes
        assert np.allclose(scores, np.take_along_axis(wanted, found, axis=1), rtol=1e-4, atol=1e-4)


def test_recall_is_measured_without_the_vector_itself_and_with_ties() -> None:
    some = held(np.repeat(clouds(60, 8), 3, axis=0))  # three equal rows each
    assert recall_at_10(build_index(some, "flat", {}), some) == 1.0
    assert recall_at_10(build_index(held(clouds(1, 8)), "flat", {}), held(clouds(1, 8))) is None
    poor = build_index(held(clouds(3000, 16)), "hnsw", {"m": 2, "ef_construction": 2, "ef_search": 1})
    recall = recall_at_10(poor, held(clouds(3000, 16)))
    assert recall is not None
    assert 0.05 < recall < 0.9


@pytest.mark.parametrize("kind", ["hnsw", "ivfpq"])
def test_a_seed_decides_an_index(kind: str) -> None:
    some = held(clouds(LEAST_IVFPQ_ROWS if kind == "ivfpq" else 2000, 8))
    parameters = index_parameters(kind, len(some.vectors), 8, {"nlist": 16} if kind == "ivfpq" else {})
    one, same, other = (
        module.faiss.serialize_index(build_index(some, kind, parameters, seed)).tobytes() for seed in (5, 5, 6)
    )
    assert one == same
    assert one != other


@pytest.mark.parametrize(
    ("kind", "rows", "dim", "chosen", "said"),
    [
        ("tree", 10, 8, {}, "'tree' is unknown; known: flat, hnsw, ivfpq"),
        ("ivfpq", 9_983, 8, {}, "ivfpq needs 9,984 rows .* there are 9,983; use flat or hnsw"),
        ("ivfpq", 20_000, 8, {"m": 3}, "m must divide 8"),
        ("ivfpq", 20_000, 8, {"nlist": 2_000}, "nlist be at most 512"),
        ("flat", 10, 8, {"m": 4}, "m is no parameter of flat"),
        ("hnsw", 10, 8, {"nlist": 4}, "nlist is no parameter of hnsw; it has m, ef_construction, ef_search"),
        ("hnsw", 10, 8, {"m": 1}, "m of hnsw is 1; expected 2 to 1024"),
        ("hnsw", 10, 8, {"ef_search": 2**31}, "ef_search of hnsw is 2147483648; expected 1 to 1048576"),
    ],
)
def test_parameters_that_cannot_be_are_refused(
    kind: str, rows: int, dim: int, chosen: dict[str, int | None], said: str
) -> None:
    with pytest.raises(SentportError, match=said):
        index_parameters(kind, rows, dim, chosen)


def test_parameters_follow_size() -> None:
    assert index_parameters("ivfpq", 100_000, 384) == {"nlist": 1265, "m": 96, "nprobe": 79}
    assert index_parameters("ivfpq", LEAST_IVFPQ_ROWS, 7)["m"] == 1
    assert index_parameters("hnsw", 10, 8, {"m": 8, "nlist": None})["m"] == 8


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    some = collection(np.arange(20), clouds(20, 4), [f"text {n}" for n in range(20)], "cosine")
    out = tmp_path / "my.index"
    write_index(out, build_index(some, "flat", {}), some, IndexManifest("flat", {}, None, manifest(20, 4)))
    return out


def test_an_index_is_read_as_it_was_written(folder: Path) -> None:
    index = read_index(folder)
    assert index.manifest.vectors == manifest(20, 4)
    assert index.texts is not None
    assert (index.ids[7], index.texts[7]) == (7, "text 7")
    scores, rows = index.search(clouds(20, 4), 30)
    assert rows.shape == (20, 20)  # no more than it holds
    assert (rows[:, 0] == np.arange(20)).all()
    assert np.allclose(scores[:, 0], 1, atol=1e-6)
    with pytest.raises(SentportError, match="it has no effort to set"):
        index.search(clouds(1, 4), 1, effort=3)
    with pytest.raises(SentportError, match="1 or more"):
        index.search(clouds(1, 4), 0)


@pytest.mark.parametrize("name", ["index.faiss", "rows.json", "manifest.json"])
def test_a_changed_or_missing_file_is_refused(folder: Path, name: str) -> None:
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[:-9] + b"?" + data[-8:])
    with pytest.raises(StoreError, match="build the index again"):
        read_index(folder)
    (folder / name).unlink()
    with pytest.raises(StoreError, match=r"is no index; make one|is missing"):
        read_index(folder)


def test_another_format_is_refused(folder: Path) -> None:
    file = folder / "manifest.json"
    file.write_text(seal({**unseal(file.read_bytes()), "format": "2.0"}))
    with pytest.raises(StoreError, match=r"has format 2.0, this sentport reads 1.0"):
        read_index(folder)


# The commands


@pytest.fixture(scope="module")
def spoken(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Vectors of twelve texts by the tiny model, with the texts."""
    words = ["cat", "dog", "mat", "park"]
    texts = [f"the {a} sat on the {b}" for a in words for b in words if a != b]
    with Encoder(tiny_bundle, threads=1) as encoder:
        info, vectors = encoder.info, encoder.encode(texts)
    stored = replace(manifest(len(texts), info.dim), fingerprint=info.fingerprint)
    return write_parquet(tmp_path_factory.mktemp("spoken") / "v.parquet", vectors, texts=texts, about=stored)


@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_build_then_query(spoken: Path, tiny_bundle: Path, tmp_path: Path, cli: Cli, kind: str) -> None:
    out = tmp_path / "i"
    code, report, said = cli("search", "build", str(spoken), "--out", str(out), "--kind", kind, "--json")
    assert code == 0
    assert json.loads(report)["rows"] == 12
    assert ("recall@10 1.0000 against flat" in said) == (kind == "hnsw")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["i"]
    base = ("search", "query", str(out), "--model", str(tiny_bundle), "--threads", "1")
    code, lines, said = cli(*base, "the cat sat on the mat", "the dog sat on the park", "--top", "3")
    assert code == 0
    first = [line.split("\t") for line in lines.splitlines()]
    assert [fields[0] for fields in first] == ["0"] * 3 + ["1"] * 3
    assert first[0][1:] == ["1.000000", "1", "the cat sat on the mat"]
    assert first[3][3] == "the dog sat on the park"
    assert "tokenise + embed" in said
    assert "2 queries at once" in said
    (tmp_path / "q.txt").write_text("the cat sat on the mat\n")
    code, text, _ = cli(*base, "--input", str(tmp_path / "q.txt"), "--json", "-q")
    answer = json.loads(text)
    assert answer["results"][0]["hits"][0] == {"score": pytest.approx(1), "id": 1, "text": "the cat sat on the mat"}
    assert set(answer["milliseconds_a_query"]) == {"embedding", "search"}


def test_an_existing_folder_is_replaced_only_by_force_and_only_an_index(spoken: Path, tmp_path: Path, cli: Cli) -> None:
    base = ("search", "build", str(spoken), "--out")
    assert cli(*base, str(tmp_path / "i"))[0] == 0
    code, _, said = cli(*base, str(tmp_path / "i"))
    assert (code, "exists; add --force" in said) == (2, True)
    assert cli(*base, str(tmp_path / "i"), "--force", "--kind", "hnsw")[0] == 0
    assert read_index(tmp_path / "i").manifest.kind == "hnsw"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").touch()
    code, _, said = cli(*base, str(tmp_path / "mine"), "--force")
    assert (code, "is not what this command makes" in said) == (2, True)
    assert (tmp_path / "mine" / "diary.txt").exists()


def test_a_model_of_another_space_or_precision_is_refused(
    spoken: Path, tiny_bundle: Path, tmp_path: Path, cli: Cli
) -> None:
    stored = open_vectors(spoken)
    block = stored.load()
    for change, said in (({"fingerprint": "0" * 64}, "has fingerprint 000000"), ({"precision": "int8"}, "int8")):
        about = replace(stored.manifest, **change)  # type: ignore[arg-type]
        other = write_parquet(tmp_path / "o.parquet", block.vectors, texts=block.texts, about=about)
        assert cli("search", "build", str(other), "--out", str(tmp_path / "o"), "--force")[0] == 0
        base = ("search", "query", str(tmp_path / "o"), "--model", str(tiny_bundle), "cat")
        code, lines, told = cli(*base)
        assert (code, lines, said in told) == (2, "", True), told
    code, _, told = cli(*base, "--precision", "fp32")
    assert (code, "has precision int8, " in told) == (2, True), told


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("search",), "the following arguments are required"),
        (("search", "build", "/nowhere.npy", "--out", "/tmp/none.index"), "/nowhere.npy does not exist"),
        (("search", "build", "BUNDLE", "--out", "/tmp/none.index"), "is a bundle; expected vectors"),
        (("search", "build", "VECTORS", "--out", "/nowhere/i"), "/nowhere is not a folder"),
        (("search", "build", "VECTORS", "--out", "/tmp/none.index", "--kind", "ivfpq"), "ivfpq needs 9,984 rows"),
        (("search", "query", "/nowhere", "--model", "BUNDLE", "x"), "/nowhere is no index; make one with"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    arguments: tuple[str, ...], said: str, spoken: Path, tiny_bundle: Path, cli: Cli
) -> None:
    places = {"BUNDLE": str(tiny_bundle), "VECTORS": str(spoken)}
    code, out, told = cli(*(places.get(word, word) for word in arguments))
    assert (code, out, told.count("\n")) == (2, "", 1), told
    assert said in told
    assert not is_index(Path("/tmp/none.index"))


def test_queries_come_from_one_place(spoken: Path, tiny_bundle: Path, tmp_path: Path, cli: Cli) -> None:
    assert cli("search", "build", str(spoken), "--out", str(tmp_path / "i"))[0] == 0
    base = ("search", "query", str(tmp_path / "i"), "--model", str(tiny_bundle))
    (tmp_path / "empty.txt").touch()
    for more in ((), ("cat", "--input", str(tmp_path / "empty.txt"))):
        assert "expected queries either as arguments" in cli(*base, *more)[2]
    assert "holds no lines" in cli(*base, "--input", str(tmp_path / "empty.txt"))[2]


def test_a_missing_extra_is_one_line(spoken: Path, tmp_path: Path) -> None:
    code = (
        "import sys\nfor name in ('faiss', 'sklearn', 'scipy', 'threadpoolctl'): sys.modules[name] = None\n"
        f"from sentport.cli import main\nsys.exit(main(['pairs', {str(spoken)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    assert done.stderr == "sentport: faiss is not installed; pip install 'sentport[search]'\n"
