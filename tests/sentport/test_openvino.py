"""Engine openvino: the portable graphs of both layouts, in the precision of their record or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import Cli

from sentport import Encoder
from sentport.batch import TokenBatch
from sentport.bundle import Bundle, GraphRecord, TensorRecord, read_bundle
from sentport.engines.opening import open_graph
from sentport.errors import BundleError, EngineError, GraphError, InputError, PrecisionError

openvino = pytest.importorskip("openvino", reason="pip install 'sentport[openvino]'")

from sentport.engines.openvino import OpenVinoEngine  # noqa: E402 - not before it is known to be there

LAYOUTS = ("padded", "packed")
TEXTS = ["the cat sat on the red mat", "a dog", "", "the dog ran in the park , on a blue mat ! " * 3, "日本 é"]


@pytest.fixture(scope="module")
def bundle(both_layouts: Path) -> Bundle:
    return read_bundle(both_layouts)


@pytest.fixture(scope="module", params=LAYOUTS)
def engine(request: pytest.FixtureRequest, bundle: Bundle) -> Iterator[OpenVinoEngine]:
    opened = OpenVinoEngine(bundle, graph_of(bundle, request.param), threads=2)
    yield opened
    opened.close()


def graph_of(bundle: Bundle, layout: str) -> GraphRecord:
    return next(graph for graph in bundle.graphs if graph.layout == layout)


def random_batch(seed: int) -> TokenBatch:
    """Rows of several lengths, some with pads behind their tokens, one all pads."""
    random = np.random.default_rng(seed)
    lengths = random.integers(1, 30, size=6).astype(np.int32)
    mask = np.concatenate([np.arange(length) < random.integers(1, length + 1) for length in lengths]).astype(np.int64)
    mask[: lengths[0]] = 0
    return TokenBatch(random.integers(0, 20, size=int(lengths.sum())), lengths, mask)


def test_vectors_are_those_of_onnxruntime(engine: OpenVinoEngine, bundle: Bundle) -> None:
    other = open_graph(bundle, graph_of(bundle, engine.layout), "onnxruntime", threads=1)
    for seed in range(4):
        batch = random_batch(seed)
        found = engine.run(batch, beside=bool(seed % 2))
        assert (found.dtype, found.shape) == (np.float32, (6, 24))
        assert np.isfinite(found).all(), "the first row has no token"
        np.testing.assert_allclose(found, other.run(batch), atol=1e-6)
    assert engine.run(TokenBatch.from_rows([])).shape == (0, 24)


def test_a_row_does_not_depend_on_its_batch(engine: OpenVinoEngine) -> None:
    rows = [[2, 5, 7, 9, 3], [2, 6, 3], list(range(2, 24)) * 2]
    together = engine.run(TokenBatch.from_rows(rows))
    for row, vector in zip(rows, together, strict=True):
        np.testing.assert_allclose(engine.run(TokenBatch.from_rows([row]))[0], vector, atol=2e-6)


def test_calls_side_by_side_give_what_they_give_alone(engine: OpenVinoEngine) -> None:
    batches = [random_batch(seed) for seed in range(24)]
    alone = [engine.run(batch) for batch in batches]
    with ThreadPoolExecutor(6) as pool:
        beside = list(pool.map(lambda batch: engine.run(batch, beside=True), batches))
    for found, wanted in zip(beside, alone, strict=True):
        np.testing.assert_allclose(found, wanted, atol=2e-6)


def test_it_tells_what_really_runs(engine: OpenVinoEngine) -> None:
    assert (engine.name, engine.precision, engine.device) == ("openvino", "fp32", "cpu")
    assert set(engine.products) == {"f32"}
    assert engine.sessions * engine.threads <= 2
    assert engine.threads == 1, "one-thread workers"


def test_masks_with_a_pad_before_a_token_are_refused(engine: OpenVinoEngine) -> None:
    ids, lengths = np.array([5, 6, 7, 8], np.int64), np.array([4], np.int32)
    for mask in ([0, 1, 1, 1], [1, 0, 1, 1]):
        with pytest.raises(InputError, match="rows 0 have a pad before a token"):
            engine.run(TokenBatch(ids, lengths, np.array(mask, np.int64)))


def test_inputs_that_the_graph_lacks_are_refused(engine: OpenVinoEngine) -> None:
    ids, lengths = np.array([5, 6], np.int64), np.array([2], np.int32)
    with pytest.raises(EngineError, match="a pooling mask was handed in"):
        engine.run(TokenBatch(ids, lengths, pooling_mask=np.ones(2, np.int64)))
    typed = TokenBatch(ids, lengths, token_type_ids=np.ones(2, np.int64))
    if engine.layout == "packed":
        with pytest.raises(EngineError, match="layout packed takes none; use layout padded"):
            engine.run(typed)
    else:
        assert np.abs(engine.run(typed) - engine.run(TokenBatch(ids, lengths))).max() > 1e-3


def test_a_closed_engine_says_so(bundle: Bundle) -> None:
    engine = OpenVinoEngine(bundle, bundle.graphs[0], threads=1)
    engine.close()
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.run(random_batch(0))


def test_a_precision_that_the_cpu_lacks_is_refused(bundle: Bundle) -> None:
    """OpenVINO itself would compute in fp32 instead, and say nothing."""
    held = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    for precision, capability in (("bf16", "BF16"), ("fp16", "FP16")):
        if capability not in held:
            graph = replace(bundle.graphs[0], precision=precision)
            with pytest.raises(
                PrecisionError, match=f"is {precision}, which openvino does not run on this CPU; it runs"
            ):
                OpenVinoEngine(bundle, graph)


def test_products_in_another_precision_than_recorded_are_refused(bundle: Bundle) -> None:
    graph = replace(bundle.graphs[0], precision="int8", int8={"layers": ["a", "b"]})
    with pytest.raises(GraphError, match=r"is int8, but openvino ran its products in f32 \(\d+\)"):
        OpenVinoEngine(bundle, graph)


def test_another_signature_than_recorded_is_refused(bundle: Bundle) -> None:
    graph = bundle.graphs[0]
    frozen = replace(graph, inputs=tuple(replace(tensor, dtype="int32") for tensor in graph.inputs))
    wide = replace(graph, outputs=(TensorRecord("sentence_embedding", "float32", ("batch", 25)),))
    for record in (frozen, wide, replace(graph, inputs=graph.inputs[:-1])):
        with pytest.raises(EngineError, match=r"bundle\.json records"):
            OpenVinoEngine(bundle, record)


def test_encoder_takes_it_by_name_alone(both_layouts: Path) -> None:
    with Encoder(both_layouts, threads=1) as usual:
        assert usual.info.engine != "openvino"
        wanted = usual.encode(TEXTS)
    for layout in ("auto", *LAYOUTS):
        with Encoder(both_layouts, engine="openvino", layout=layout, threads=1) as encoder:
            assert (encoder.info.engine, encoder.info.precision) == ("openvino", "fp32")
            np.testing.assert_allclose(encoder.encode(TEXTS), wanted, atol=1e-6)
    with pytest.raises(EngineError, match="device 'cuda' is unknown to engine openvino; it knows auto, cpu"):
        Encoder(both_layouts, engine="openvino", device="cuda")


def test_only_portable_graphs_are_taken(bundle: Bundle) -> None:
    fused = replace(bundle, graphs=tuple(replace(graph, flavour="ort") for graph in bundle.graphs))
    with pytest.raises(BundleError, match=r"no fp32 graph that this engine runs; .* --flavour portable"):
        fused.select("auto", "auto", flavours=("portable",))


def test_verify_runs_the_gate_with_it(both_layouts: Path, cli: Cli) -> None:
    code, out, _ = cli("verify", str(both_layouts), "--engine", "openvino", "--json")
    found = json.loads(out)
    assert (code, found["passed"]) == (0, True)
    assert all(graph["relative_l2"] < 1e-5 for graph in found["graphs"].values())
    assert len(found["graphs"]) == 2
    code, _, err = cli("verify", str(both_layouts), "--engine", "torch")
    assert code == 2
    assert "engine 'torch' does not run bundles; expected one of onnxruntime, openvino" in err
