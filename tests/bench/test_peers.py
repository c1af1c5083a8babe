"""Peers: their environments, their worker, how wrong vectors of theirs are shown, and what vectors are worth."""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from bench import peers
from bench.contestants import Conditions, Vectors, Work
from bench.contestants.bundle_engine import open_contestant
from bench.contestants.peer import PeerContestant, quantisation
from bench.contestants.peer import open_contestant as open_peer
from bench.contestants.sentence_transformers import SentenceTransformersContestant
from bench.corpus import Corpus, stsb_pairs
from bench.grid import RunOptions, _opened, _reference
from bench.judge import Rejected, Trial, compare
from bench.quality import ask, make_questions
from sentport.errors import SentportError
from sentport.evaluation.sts import StsPairs
from sentport.scheduler import BatchPolicy

OWN = Work(None)
TEXTS = ("the cat sat.", "a dog", "the dog ran in the park on the mat", "é日", "red cat", "cats sitting")


def package(folder: Path) -> Path:
    """A wheel of nothing."""
    file = folder / "nothing-1.0-py3-none-any.whl"
    info = "nothing-1.0.dist-info"
    about = "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(file, "w") as wheel:
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: nothing\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", about)
        wheel.writestr(f"{info}/RECORD", f"{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return file


def test_an_environment_is_built_once_and_again_for_other_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "PEERS", {"one": (str(package(tmp_path)),)})
    python = peers.peer_python("one", tmp_path / "envs")
    manifest = python.parents[1] / peers.MANIFEST
    assert json.loads(manifest.read_text())["packages"] == {"nothing": "1.0"}
    stamp = manifest.stat().st_mtime_ns
    assert peers.peer_python("one", tmp_path / "envs") == python
    assert manifest.stat().st_mtime_ns == stamp

    monkeypatch.setattr(peers, "PEERS", {"one": (str(tmp_path / "missing-1.0-py3-none-any.whl"),)})
    with pytest.raises(SentportError, match=r"environment of one could not be installed: .*missing") as caught:
        peers.peer_python("one", tmp_path / "envs")
    assert "\n" not in str(caught.value)
    assert manifest.stat().st_mtime_ns == stamp  # the old one stays until a new one is whole
    assert [path.name for path in (tmp_path / "envs").iterdir()] == ["one"]


def test_an_environment_never_replaces_something_else(tmp_path: Path) -> None:
    with pytest.raises(SentportError, match="peer 'none' is unknown; known: sentence-transformers-onnx"):
        peers.peer_python("none", tmp_path)
    mine = tmp_path / "sentence-transformers-onnx" / "thesis.txt"
    mine.parent.mkdir()
    mine.write_text("years of work")
    with pytest.raises(SentportError, match="something else"):
        peers.peer_python("sentence-transformers-onnx", tmp_path)
    assert mine.read_text() == "years of work"


def test_the_worker_gives_the_vectors_of_the_library(tiny_checkpoint: Path) -> None:
    peer = PeerContestant("peer", Path(sys.executable), tiny_checkpoint, "torch", 1)
    try:
        inside = SentenceTransformersContestant(tiny_checkpoint, 1, "cpu")
        for texts in (TEXTS, TEXTS[:1], TEXTS[::-1]):
            for contestant in (peer, inside):
                contestant.prepare(texts, OWN)
            np.testing.assert_allclose(peer.run(OWN), inside.run(OWN), atol=1e-6)
            assert peer.computed_tokens() == inside.computed_tokens()
        peer.run(Work(None, rows_per_batch=1))
        assert (peer.computed_tokens() or 0) < 6 * (len(TEXTS[2].split()) + 2)  # batches of one text have no padding
        found = peer.conditions()
        assert (found.engine, found.precision, found.threads, found.peer) == ("torch", "fp32", 1, True)
        assert "sentence-transformers 6" in found.peer_versions
    finally:
        peer.close()


def test_a_worker_that_ends_says_its_last_word(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho Traceback >&2\necho 'ImportError: no optimum' >&2\n")
    python.chmod(0o755)
    peer = PeerContestant("peer", python, tmp_path, "onnx", 1)
    with pytest.raises(SentportError, match="peer ended: ImportError: no optimum"):
        peer.conditions()
    peer.close()


@pytest.mark.parametrize(
    ("machine", "features", "expected"),
    [
        ("x86_64", {"AVX2"}, "avx2"),
        ("x86_64", {"AVX2", "AVX512F"}, "avx512"),
        ("x86_64", {"AVX2", "AVX512F", "AVX512-VNNI"}, "avx512_vnni"),
        ("aarch64", None, "arm64"),
    ],
)
def test_the_quantisation_is_that_of_the_cpu(
    monkeypatch: pytest.MonkeyPatch, machine: str, features: set[str] | None, expected: str
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("bench.contestants.peer.cpu_features", lambda: features)
    assert quantisation() == expected


def turned(vectors: Vectors, cosine: float) -> Vectors:
    """Unit vectors at this cosine to others."""
    aside = np.roll(vectors, 1, axis=1)
    aside -= (aside * vectors).sum(1, keepdims=True) * vectors
    aside /= np.linalg.norm(aside, axis=1, keepdims=True)
    return (cosine * vectors + np.sqrt(1 - cosine**2) * aside).astype(np.float32)


def test_a_peer_may_be_wrong_but_must_have_read_the_texts() -> None:
    vectors = np.random.default_rng(1).standard_normal((4, 16)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    trial = Trial("texts", TEXTS[:4], vectors)
    ours = Conditions("e", "m", "int8", "padded", "cpu", 1, 1)
    theirs = Conditions("e", "m", "int8", "padded", "cpu", 1, 1, peer=True)
    assert compare(turned(vectors, 0.9), trial, theirs) == pytest.approx(0.9)
    with pytest.raises(Rejected, match=r"under the int8 gate of 0.95"):
        compare(turned(vectors, 0.9), trial, ours)
    with pytest.raises(Rejected, match=r"under the peers gate of 0.7"):
        compare(turned(vectors, 0.5), trial, theirs)


class Company:
    """Directions by a text's number, turned a little where the text is not alone."""

    name, own_rows, policies, tokenises_apart = "company", (32,), (None,), False

    def __init__(self, cosine: float) -> None:
        self.cosine, self.texts = cosine, []

    def conditions(self) -> Conditions:
        return Conditions("e", "m", "int8", "padded", "cpu", 1, 1)

    def prepare(self, texts: Sequence[str], work: Work) -> None:
        self.texts = [int(text) for text in texts]

    def run(self, work: Work) -> Vectors:
        angles = np.array(self.texts) / 10
        vectors = np.stack([np.cos(angles), np.sin(angles), 0 * angles], axis=1).astype(np.float32)
        return vectors if len(self.texts) == 1 else turned(vectors, self.cosine)

    def computed_tokens(self) -> None:
        return None

    def close(self) -> None:
        return None


def test_quality_sees_company_rank_and_distance() -> None:
    pairs = StsPairs(("0", "0", "0", "1"), ("1", "5", "9", "7"), np.array([4.0, 2.0, 1.0, 3.0]))

    def right(texts: Sequence[str]) -> Vectors:
        angles = np.array([int(text) for text in texts]) / 10
        return np.stack([np.cos(angles), np.sin(angles), 0 * angles], axis=1).astype(np.float32)

    found = ask(Company(0.98), OWN, make_questions("made", pairs, right, 3))
    assert found["alone_cosine"] == pytest.approx(0.98, abs=1e-5)
    assert found["worst_cosine"] == pytest.approx(0.98, abs=1e-5)
    assert found["alone_texts"] == 8
    # Angles 0.1, 0.5, 0.9, 0.6 with gold ranks 4, 2, 1, 3: two neighbours are exchanged.
    assert found["spearman"] == pytest.approx(80.0)


def test_graphs_of_the_bundle_are_set_side_by_side(tiny_checkpoint: Path, tiny_bundle: Path) -> None:
    options = RunOptions(
        tiny_checkpoint,
        tiny_bundle,
        Corpus("made", "six texts", TEXTS),
        contestants=("torch", "onnxruntime", "openvino"),
        precisions=("fp32-portable", "fp32-ort"),
    )
    opened = list(_opened(options, 1, []))
    assert [contestant.name for contestant in opened] == [
        "sentport torch",
        "sentport onnxruntime fp32 portable",
        "sentport onnxruntime fp32 ort",
        "sentport openvino fp32 portable",
    ]
    pairs = StsPairs(TEXTS[:4], TEXTS[1:5], np.array([1.0, 2.0, 3.0, 4.0]))
    questions = make_questions("made", pairs, _reference(opened[0]), 1)
    for contestant in opened:
        found = ask(contestant, Work(BatchPolicy.TOKEN_BUDGET), questions)
        assert min(found["worst_cosine"], found["alone_cosine"]) > 0.99999
        contestant.close()


@pytest.mark.full
def test_sentence_transformers_onnx_beside_ours(minilm_checkpoint: Path, minilm_bundle: Path) -> None:
    """Its fp32 is right; its int8 depends on a text's company, which is what its row has to show."""
    environments = Path(__file__).parents[2] / "build" / "envs"
    pairs = stsb_pairs()
    some = StsPairs(pairs.sentences1[:100], pairs.sentences2[:100], pairs.scores[:100])
    ours = open_contestant(minilm_bundle, 2, "cpu", "auto")
    budget = Work(BatchPolicy.TOKEN_BUDGET)

    def reference(texts: Sequence[str]) -> Vectors:
        ours.prepare(texts, budget)
        return ours.run(budget)

    questions = make_questions("some pairs", some, reference, 1)
    found = {}
    for quantised in (False, True):
        peer = open_peer(minilm_checkpoint, 2, quantised=quantised, environments=environments)
        found[quantised] = ask(peer, OWN, questions)
        peer.close()
    ours.close()
    assert found[False]["worst_cosine"] > 0.99999
    assert found[False]["alone_cosine"] > 0.99999
    assert 0.8 < found[True]["worst_cosine"] < 0.99
    assert 0.8 < found[True]["alone_cosine"] < 0.999
