"""all-MiniLM-L6-v2 from its checkpoint through the command line to vectors, against sentence-transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import data_folder, run_cli

from sentport import Encoder
from sentport.batch import TokenBatch
from sentport.bundle import read_bundle
from sentport.engines.opening import open_graph
from sentport.evaluation.metrics import cosine_pairs, spearman
from sentport.evaluation.sts import read_sts
from sentport.tokenizer import Tokenizer


def test_both_flavours_passed_the_gate(minilm_bundle: Path) -> None:
    graphs = {graph.flavour: graph for graph in read_bundle(minilm_bundle).graphs}
    assert set(graphs) == {"portable", "ort"}
    for graph in graphs.values():
        assert graph.parity["passed"]
        assert graph.parity["relative_l2"] <= 1e-5
        assert graph.parity["company"] <= 2e-6
    assert graphs["ort"].operators["com.microsoft.Attention"] == 6
    assert read_bundle(minilm_bundle).tokenizer_proof == {"lines": 2073, "limits": [4, 8, 16, 64, 128, 256]}


def test_fingerprint_is_the_one_that_stored_vectors_carry(minilm_bundle: Path) -> None:
    found = read_bundle(minilm_bundle).spec.fingerprint
    assert found == "21b056f2acbd9abb1f04dfb22d7a1ed54a034728089d99511be872d6109058e0"


def test_sts_benchmark_equals_sentence_transformers(minilm_bundle: Path, minilm_checkpoint: Path) -> None:
    from sentence_transformers import SentenceTransformer

    pairs = read_sts(data_folder() / "sts_raw" / "STSBenchmark" / "test.tsv")
    texts = [*pairs.sentences1, *pairs.sentences2]
    with Encoder(minilm_bundle) as encoder:
        ours = encoder.encode(texts)
    theirs = SentenceTransformer(str(minilm_checkpoint), device="cpu").encode(texts, batch_size=64)
    assert ours.shape == (2758, 384)
    assert cosine_pairs(ours, theirs).min() >= 0.999999
    half = len(texts) // 2
    assert round(100 * spearman(cosine_pairs(ours[:half], ours[half:]), pairs.scores), 2) == 82.03


def test_meaning_survives_the_command_line(minilm_bundle: Path, tmp_path: Path) -> None:
    out = tmp_path / "vectors.npy"
    lines = "A man is eating food.\nSomeone eats a meal.\nThe stock market fell sharply.\n"
    run_cli("encode", str(minilm_bundle), "--input", "-", "--output", str(out), stdin=lines.encode(), check=True)
    vectors = np.load(out)
    similarity = vectors @ vectors.T
    assert similarity[0, 1] > 0.6 > 0.2 > similarity[0, 2]


@pytest.mark.full
def test_verify_against_the_source(minilm_bundle: Path, minilm_checkpoint: Path) -> None:
    done = run_cli("verify", str(minilm_bundle), "--source", str(minilm_checkpoint), check=True)
    assert done.stdout.count(b"passed") == 2


@pytest.fixture(scope="module")
def low_bundle(minilm_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every precision below fp32, both layouts and flavours; about two minutes."""
    out = tmp_path_factory.mktemp("low") / "low.bundle"
    options = ("--layout", "padded,packed", "--precision", "fp16,bf16,int8")
    run_cli("export", str(minilm_checkpoint), "--out", str(out), *options, check=True)
    return out


@pytest.mark.full
def test_every_lower_precision_passes_its_gate(low_bundle: Path) -> None:
    graphs = read_bundle(low_bundle).graphs
    assert len(graphs) == 12
    for graph in graphs:
        assert graph.parity["cosine"] >= {"fp16": 0.9999, "bf16": 0.9995, "int8": 0.95}[graph.precision]
    assert run_cli("verify", str(low_bundle), check=True).stdout.count(b"passed") == 12


@pytest.mark.full
@pytest.mark.parametrize("flavour", ["portable", "ort"])
@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_int8_keeps_its_rank_and_needs_no_company(low_bundle: Path, layout: str, flavour: str) -> None:
    bundle = read_bundle(low_bundle)
    wanted = (layout, "int8", flavour)
    graph = next(graph for graph in bundle.graphs if (graph.layout, graph.precision, graph.flavour) == wanted)
    pairs = read_sts(data_folder() / "sts_raw" / "STSBenchmark" / "test.tsv")
    texts = [*pairs.sentences1, *pairs.sentences2]
    tokenizer = Tokenizer.from_file(bundle.tokenizer_file(), bundle.spec.max_tokens)
    rows = tokenizer.encode(texts).rows
    for threads in (1, 2):
        engine = open_graph(bundle, graph, threads=threads, device="cpu")
        found = np.concatenate([engine.run(TokenBatch.from_rows(rows[n : n + 32])) for n in range(0, len(rows), 32)])
        half = len(texts) // 2
        assert 100 * spearman(cosine_pairs(found[:half], found[half:]), pairs.scores) >= 81.7
        alone = np.concatenate([engine.run(TokenBatch.from_rows([row])) for row in rows[::20]])
        assert cosine_pairs(alone, found[::20]).min() >= 0.99999
