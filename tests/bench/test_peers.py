"""Peers: their environments, their worker, how wrong vectors of theirs are shown, and what vectors are worth."""

from __future__ import annotations

import json
import sys
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from bench.contestants import Conditions, Vectors, Work
from bench.contestants.bundle_engine import open_contestant
from bench.contestants.http_peer import HttpPeer
from bench.contestants.peer import PeerContestant
from bench.contestants.peer import open_contestant as open_peer
from bench.contestants.sentence_transformers import SentenceTransformersContestant
from bench.corpus import Corpus, stsb_pairs
from bench.grid import RunOptions, open_contestants, reference_of
from bench.judge import Rejected, Trial, compare
from bench.peers import FILES, Variant, environment_of, requirements, variants
from bench.peers.common import length_limit
from bench.peers.environments import MANIFEST, peer_python
from bench.peers.sentence_transformers_onnx import quantisation
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


def test_an_environment_is_built_once_and_again_for_other_packages(tmp_path: Path) -> None:
    wheel = (str(package(tmp_path)),)
    python = peer_python("one", wheel, tmp_path / "envs")
    manifest = python.parents[1] / MANIFEST
    assert json.loads(manifest.read_text())["packages"] == {"nothing": "1.0"}
    stamp = manifest.stat().st_mtime_ns
    assert peer_python("one", wheel, tmp_path / "envs") == python
    assert manifest.stat().st_mtime_ns == stamp

    with pytest.raises(SentportError, match=r"environment of one could not be installed: .*missing") as caught:
        peer_python("one", (str(tmp_path / "missing-1.0-py3-none-any.whl"),), tmp_path / "envs")
    assert "\n" not in str(caught.value)
    assert manifest.stat().st_mtime_ns == stamp  # the old one stays until a new one is whole
    assert [path.name for path in (tmp_path / "envs").iterdir()] == ["one"]


def test_an_environment_never_replaces_something_else(tmp_path: Path) -> None:
    mine = tmp_path / "fastembed" / "thesis.txt"
    mine.parent.mkdir()
    mine.write_text("years of work")
    with pytest.raises(SentportError, match="something else"):
        peer_python("fastembed", requirements()["fastembed"], tmp_path)
    assert mine.read_text() == "years of work"


def test_every_file_is_a_peer_and_every_peer_has_a_row_of_its_own() -> None:
    folder = Path(length_limit.__code__.co_filename).parent
    helpers = {"__init__", "common", "environments", "worker"}
    assert {file.stem for file in folder.glob("*.py")} == {*FILES, *helpers}
    assert len({variant.title for variant in variants().values()}) == len(variants())
    assert all(variant.rows and variant.precision in ("fp32", "bf16", "int8") for variant in variants().values())
    assert all("==" in pin or "<" in pin for pins in requirements().values() for pin in pins)
    assert environment_of("sentence-transformers-qint8") == environment_of("optimum") == "sentence-transformers-onnx"
    with pytest.raises(SentportError, match="peer transformers runs in this Python"):
        environment_of("transformers")
    with pytest.raises(SentportError, match="peer 'none' is unknown; known: sentence-transformers-onnx"):
        environment_of("none")


def test_loops_that_pool_by_hand_refuse_what_they_do_not_make(tiny_checkpoint: Path, minilm_checkpoint: Path) -> None:
    assert length_limit(str(minilm_checkpoint)) == 256
    with pytest.raises(ValueError, match="the checkpoint is Transformer, Pooling, Dense, Dense, Normalize"):
        length_limit(str(tiny_checkpoint))


SERVER = """
import json, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 1.0  # of an idle connection

    def do_POST(self):
        texts = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["input"]
        rows = [{"index": n, "embedding": [len(text), len(texts), 1.0]} for n, text in enumerate(texts)]
        body = json.dumps({"data": rows[::-1]} if "fail" not in texts else "no").encode()
        self.send_response(500 if "fail" in texts else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass

time.sleep(0.3)
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def of_server(code: str) -> Variant:
    module = ModuleType("peer")
    module.URL = "http://127.0.0.1:{port}/embeddings"  # type: ignore[attr-defined]
    module.REQUIREMENTS = ()  # type: ignore[attr-defined]
    module.command = lambda checkpoint, kind, threads, port: ["-c", code, str(port)]  # type: ignore[attr-defined]
    return Variant("server", "a server", "torch", "fp32", "its own", (32,), module)


def test_a_server_is_asked_by_several_clients_and_the_order_is_kept(tmp_path: Path) -> None:
    peer = HttpPeer(of_server(SERVER), Path(sys.executable), tmp_path, 1, 3, 4)
    try:
        texts = ["x" * size for size in range(1, 31)]
        peer.prepare(texts, OWN)
        found = peer.run(OWN)
        assert found[:, 0].tolist() == list(range(1, 31))
        assert found[:, 1].tolist() == [4.0] * 28 + [2.0] * 2
        assert peer.conditions().transport == "http, 3 clients, 4 texts a request"
        time.sleep(1.5)  # others are timed meanwhile, and the server hangs up
        peer.prepare(texts, OWN)
        np.testing.assert_array_equal(peer.run(OWN), found)
        peer.prepare(["fail"], OWN)
        with pytest.raises(SentportError, match="a server, 4 texts a request answered 500"):
            peer.run(OWN)
        peer._process.kill()
        peer._process.wait()
        for _ in range(2):
            with pytest.raises(SentportError, match=r"a server, 4 texts a request stopped answering: .*refused"):
                peer.prepare(texts, OWN)
    finally:
        peer.close()
    with pytest.raises(SentportError, match="a server did not answer: ModuleNotFoundError: No module named 'nothing'"):
        HttpPeer(of_server("import nothing"), Path(sys.executable), tmp_path, 1, 1, 1)


def test_the_worker_gives_the_vectors_of_the_library(tiny_checkpoint: Path) -> None:
    peer = PeerContestant(variants()["sentence-transformers-fp32"], Path(sys.executable), tiny_checkpoint, 1)
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
    peer = PeerContestant(variants()["optimum"], python, tmp_path, 1)
    with pytest.raises(SentportError, match="optimum ended: ImportError: no optimum"):
        peer.conditions()
    peer.close()


@pytest.mark.parametrize("part", ["nothing", "half"])
def test_a_worker_that_dies_in_the_middle_takes_nothing_with_it(tmp_path: Path, part: str) -> None:
    python = tmp_path / "python"
    answer = '{"shape": [2, 100], "computed_tokens": 9}\nand a bit'
    script = f"""#!/bin/sh
echo '{{"versions": {{}}, "threads": 1}}'
read texts; echo '{{"texts": 2}}'; read rows
test {part} = nothing || printf '%s' '{answer}'
echo 'Killed by the kernel' >&2
"""
    python.write_text(script)
    python.chmod(0o755)
    peer = PeerContestant(variants()["optimum"], python, tmp_path, 1)
    peer.prepare(TEXTS, OWN)
    with pytest.raises(SentportError, match="optimum ended: Killed by the kernel"):
        peer.run(OWN)
    peer._process.wait()
    with pytest.raises(SentportError, match="optimum ended"):
        peer.prepare(["x" * 100_000], OWN)
    peer.close()
    peer.close()
    assert peer._process.returncode is not None


@pytest.mark.parametrize(
    ("machine", "flags", "expected"),
    [
        ("x86_64", "avx2", "avx2"),
        ("x86_64", "avx2 avx512f", "avx512"),
        ("x86_64", "avx2 avx512f avx512_vnni", "avx512_vnni"),
        ("aarch64", "", "arm64"),
    ],
)
def test_the_quantisation_is_that_of_the_cpu(tmp_path: Path, machine: str, flags: str, expected: str) -> None:
    (tmp_path / "cpuinfo").write_text(f"flags : {flags}\n")
    assert quantisation(machine, tmp_path / "cpuinfo") == expected


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
    with pytest.raises(Rejected, match=r"under the peers gate of 0.5"):
        compare(turned(vectors, 0.4), trial, theirs)


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
    assert found["neighbours_kept"] == 1.0
    # Angles 0.1, 0.5, 0.9, 0.6 with gold ranks 4, 2, 1, 3: two neighbours are exchanged.
    assert found["spearman"] == pytest.approx(80.0)


def test_graphs_of_the_bundle_are_set_side_by_side(tiny_checkpoint: Path, tiny_bundle: Path) -> None:
    options = RunOptions(
        tiny_checkpoint,
        tiny_bundle,
        (Corpus("made", "six texts", TEXTS),),
        contestants=("torch", "onnxruntime", "openvino"),
        precisions=("fp32-portable", "fp32-ort", "fp32", "auto"),
        threads=1,
    )
    opened = [each.contestant for each in open_contestants(options, [])]
    assert [contestant.name for contestant in opened] == [
        "sentport torch",
        "sentport onnxruntime fp32 portable",
        "sentport onnxruntime fp32 ort",
        "sentport onnxruntime",  # once, though it was asked for by two names
        "sentport openvino fp32 portable",
        "sentport openvino",
    ]
    pairs = StsPairs(TEXTS[:4], TEXTS[1:5], np.array([1.0, 2.0, 3.0, 4.0]))
    questions = make_questions("made", pairs, reference_of(opened[0]), 1)
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
        kind = "sentence-transformers-qint8" if quantised else "sentence-transformers-onnx"
        peer = open_peer(kind, minilm_checkpoint, 2, environments)
        found[quantised] = ask(peer, OWN, questions)
        peer.close()
    ours.close()
    assert found[False]["worst_cosine"] > 0.99999
    assert found[False]["alone_cosine"] > 0.99999
    assert 0.8 < found[True]["worst_cosine"] < 0.99
    assert 0.8 < found[True]["alone_cosine"] < 0.999
