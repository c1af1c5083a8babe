"""fp16, bf16 and int8: what is in the graphs, what the gate says of them, and damage that it has to refuse."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from export.calibration import calibration_texts
from export.exporter import ExportOptions, export_bundle
from export.int8 import WEIGHT_LIMIT, quantised, smoothing, weight_levels
from export.linear import open_model
from export.sixteen_bits import TYPES, lower, rounding_twin
from export.verify import check_graph, verify_bundle
from sentport.batch import TokenBatch
from sentport.bundle import Bundle, GraphRecord, read_bundle, sha256_of, write_description
from sentport.encoder import Encoder
from sentport.engines.feeds import make_feed
from sentport.engines.opening import open_graph
from sentport.errors import GateError, PrecisionError, SentportError
from sentport.gate import Limits, check
from sentport.suite import load_suite, save_suite
from sentport.tokenizer import Tokenizer
from tests.conftest import export_tiny

LOW = ("fp16", "bf16", "int8")


@pytest.fixture(scope="module")
def bundle(every_precision: Path) -> Bundle:
    return read_bundle(every_precision)


@pytest.fixture
def tokenizer(bundle: Bundle) -> Tokenizer:
    return Tokenizer.from_file(bundle.tokenizer_file(), bundle.spec.max_tokens)


def graph_of(bundle: Bundle, precision: str, layout: str = "padded", flavour: str = "portable") -> GraphRecord:
    return next(g for g in bundle.graphs if (g.precision, g.layout, g.flavour) == (precision, layout, flavour))


def load(bundle: Bundle, graph: GraphRecord) -> ir.Model:
    return ir.load(bundle.graph_file(graph))


def test_every_precision_is_there_in_both_layouts_and_flavours_with_its_record(bundle: Bundle) -> None:
    assert len(bundle.graphs) == 16
    for graph in bundle.graphs:
        assert graph.file == f"graphs/{graph.layout}-{graph.precision}-{graph.flavour}.onnx"
        parity = graph.parity
        assert parity["cosine"] <= parity["mean_cosine"] <= 1.0000001
        assert parity["worst"]
        assert parity["by"] == (
            "its rounding twin on onnxruntime, cpu" if graph.precision in TYPES else "onnxruntime, cpu"
        )
        assert (graph.int8 is not None) == (graph.precision == "int8")
    assert graph_of(bundle, "int8").int8["form"] == "static"
    assert graph_of(bundle, "int8", flavour="ort").int8["form"] == "per token"
    layers = graph_of(bundle, "int8").int8["layers"]
    assert layers[0] == "transformer.model.encoder.layer.0.attention.self.query.weight"
    assert layers[-1] == "transformer.model.encoder.layer.1.output.dense.weight"


@pytest.mark.parametrize("precision", LOW)
def test_no_lower_precision_is_taken_unasked(bundle: Bundle, precision: str) -> None:
    assert bundle.select("auto", "auto").precision == "fp32"
    assert bundle.select("auto", precision).precision == precision
    assert bundle.select("auto", "int8", "cuda").flavour == "portable"
    assert bundle.select("auto", "int8", "cpu").flavour == "ort"


@pytest.mark.parametrize("precision", TYPES)
@pytest.mark.parametrize("flavour", ["portable", "ort"])
def test_products_are_in_16_bits_and_all_else_is_not(bundle: Bundle, precision: str, flavour: str) -> None:
    model = load(bundle, graph_of(bundle, precision, "packed", flavour))
    low = TYPES[precision]
    products = 0
    for node in model.graph:
        if node.op_type in ("MatMul", "Gemm", "MultiHeadAttention"):
            assert node.inputs[0].dtype == low
            products += 1
        elif node.op_type not in ("Cast", "Gather"):
            kinds = {value.dtype for value in (*node.inputs, *node.outputs) if value is not None}
            assert low not in kinds, (node.op_type, kinds)
    assert products >= 9
    stored = {value.const_value.dtype for value in model.graph.initializers.values() if len(value.shape) == 2}
    assert stored <= {low, ir.DataType.INT64}, "weights and embedding tables are half as large"


def test_the_twin_rounds_as_the_types_do() -> None:
    """A product of bf16 values, by hand: inputs rounded, exact product, output rounded."""
    a = np.array([[1.0039, 2.0]], np.float32)
    w = np.array([[1.0, 3.3333], [0.5, -1.0]], np.float32)
    x, y = ir.Value(name="x", shape=ir.Shape([1, 2]), type=ir.TensorType(ir.DataType.FLOAT)), None
    weight = ir.Value(name="w", const_value=ir.tensor(w, name="w"), shape=ir.Shape([2, 2]))
    weight.type = ir.TensorType(ir.DataType.FLOAT)
    product = ir.node("MatMul", [x, weight], outputs=[ir.Value(name="p", type=ir.TensorType(ir.DataType.FLOAT))])
    last = ir.node("Identity", product.outputs, outputs=[ir.Value(name="y", type=ir.TensorType(ir.DataType.FLOAT))])
    y = last.outputs[0]
    y.shape = ir.Shape([1, 2])
    graph = ir.Graph([x], [y], nodes=[product, last], initializers=[weight], opset_imports={"": 18}, name="g")
    model = ir.Model(graph, ir_version=10)

    def bf16(values: np.ndarray) -> np.ndarray:
        bits = values.astype(np.float32).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)

    found = open_model(rounding_twin(lower(model, "bf16"), "bf16")).run(None, {"x": a})[0]
    assert found.tolist() == bf16(bf16(a) @ bf16(w)).tolist()
    assert found.tolist() != (a @ w).tolist()


def test_a_weight_beyond_fp16_is_refused_by_name(bundle: Bundle) -> None:
    model = load(bundle, graph_of(bundle, "fp32"))
    node = next(node for node in model.graph if node.op_type == "MatMul" and node.inputs[1].const_value is not None)
    value = node.inputs[1]
    value.const_value = ir.tensor(value.const_value.numpy() * np.float32(1e9), name=value.name)
    with pytest.raises(SentportError, match="beyond float16's range"):
        lower(model, "fp16")


@pytest.mark.parametrize("flavour", ["portable", "ort"])
@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize("threads", [1, 2])
def test_int8_of_a_text_does_not_depend_on_its_batch(bundle: Bundle, layout: str, flavour: str, threads: int) -> None:
    engine = open_graph(bundle, graph_of(bundle, "int8", layout, flavour), threads=threads, device="cpu")
    rng = np.random.default_rng(3)
    rows = [rng.integers(0, 25, size=n) for n in (5, 1, 40, 17, 48, 2, 9)]
    together = engine.run(TokenBatch.from_rows(rows)).astype(np.float64)
    alone = np.concatenate([engine.run(TokenBatch.from_rows([row])) for row in rows]).astype(np.float64)
    cosines = (together * alone).sum(axis=1) / np.linalg.norm(together, axis=1) / np.linalg.norm(alone, axis=1)
    assert cosines.min() >= 0.99999


def test_rows_without_a_token_are_finite_in_every_precision_that_runs(bundle: Bundle) -> None:
    batch = TokenBatch(np.arange(6), np.array([3, 3], np.int32), np.array([1, 1, 1, 0, 0, 0]))
    for graph in bundle.graphs:
        if graph.precision != "bf16":
            vectors = open_graph(bundle, graph, device="cpu").run(batch)
            assert np.isfinite(vectors).all(), graph.file


def test_bf16_on_a_cpu_is_refused_and_fp16_is_told(bundle: Bundle, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(PrecisionError, match="does not multiply on a CPU"):
        Encoder(bundle.path, precision="bf16", device="cpu")
    with Encoder(bundle.path, precision="fp16", device="cpu") as encoder, Encoder(bundle.path) as exact:
        assert encoder.info.precision == "fp16"
        a, b = (one.encode(["a cat sat", "on the mat"]) for one in (encoder, exact))
    assert (a * b).sum(axis=1).min() / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)).max() > 0.999
    assert "computes fp16 in fp32 on a CPU" in caplog.text


def test_weights_have_seven_bits_so_that_two_products_fit_into_sixteen() -> None:
    levels, scale = weight_levels(np.array([[1.0, -0.2, 0.0], [-0.6, 0.05, 0.0]], np.float32))
    assert levels.tolist() == [[63, -63, 0], [-38, 16, 0]]
    assert scale[:2] == pytest.approx([1 / 63, 0.2 / 63])
    assert 2 * 255 * WEIGHT_LIMIT <= 32767


def test_smoothing_moves_range_from_activations_to_weights() -> None:
    matrix = np.array([[1.0, -1.0, 0.5], [4.0, 1.0, 2.0]], np.float32)
    factors = smoothing([matrix], np.array([16.0, 1.0], np.float32))
    assert factors == pytest.approx([8**0.5, 1 / 8**0.5])  # sqrt(16 / 1) and sqrt(1 / 4), of geometric mean 1
    wide = np.ones((4, 2), np.float32)
    assert smoothing([wide], np.array([9, 1, 1, 1], np.float32)).tolist() == [1, 1, 1, 1]


def test_an_input_that_calibration_missed_does_not_take_all_steps() -> None:
    """A text that reaches it would lose all its other inputs."""
    draw = np.random.default_rng(0)
    weight = draw.normal(size=(64, 16)).astype(np.float32)
    seen = np.abs(draw.normal(size=64)).astype(np.float32) + 1
    seen[:3] = 0, 1e-4, 0
    factors = smoothing([weight], seen, narrowing=True)
    assert factors.min() > 0.05
    row = seen.copy()
    row[0] = 2  # of a text
    step = float((row / factors).max()) / 255
    found = np.rint(row / factors / step) * step * factors
    assert np.linalg.norm(found - row) < 0.05 * np.linalg.norm(row)
    assert np.isfinite(smoothing([weight], np.zeros(64, np.float32), narrowing=True)).all()


def test_calibration_texts_are_varied_and_a_short_file_is_refused(tmp_path: Path) -> None:
    texts, source = calibration_texts()
    assert (len(texts), source) == (256, "sentport")
    assert len(set(texts)) > 225
    assert min(map(len, texts)) < 10
    assert max(map(len, texts)) > 300
    (tmp_path / "few.txt").write_text("one\n\ntwo\n")
    with pytest.raises(SentportError, match="has 2 texts; calibration needs at least 16"):
        calibration_texts(tmp_path / "few.txt")


@pytest.mark.parametrize("option", ["calibration", "gate_corpus"])
def test_a_file_of_texts_that_cannot_be_used_is_told_before_anything_is_computed(
    tiny_checkpoint: Path, tmp_path: Path, option: str
) -> None:
    said: list[str] = []
    options = ExportOptions(precisions=("int8",), **{option: tmp_path / "missing.txt"})
    with pytest.raises(SentportError, match=r"missing\.txt"):
        export_bundle(tiny_checkpoint, tmp_path / "x.bundle", options, said.append)
    assert not said


def test_ranks_are_those_of_the_corpus_where_one_is_given(bundle: Bundle, tokenizer: Tokenizer, tmp_path: Path) -> None:
    """The suite as written and read; a corpus whose vectors are another text's is ranked otherwise."""
    texts = tuple(f"the cat {word}" for word in ("sat", "on", "mat", "dog", "a", "and the dog", "the the", "a mat sat"))
    engine = open_graph(bundle, graph_of(bundle, "fp32"), device="cpu")
    suite = load_suite(bundle.golden_file())
    assert check(engine.run, suite, tokenizer, Limits()).ranked == len(suite.texts)
    rows = tokenizer.encode([suite.prompt + text for text in texts]).rows
    vectors = np.concatenate([engine.run(suite.batch([row])) for row in rows])
    save_suite(replace(suite, corpus=texts, corpus_vectors=vectors), tmp_path / "golden.npz")
    found = check(engine.run, load_suite(tmp_path / "golden.npz"), tokenizer, Limits(rank=0.9999999))
    assert (found.ranked, found.rank) == (8, pytest.approx(1.0))
    moved = replace(suite, corpus=texts, corpus_vectors=np.roll(vectors, 1, axis=0))
    with pytest.raises(GateError, match="pairs of 8 texts are ranked as the source ranks them to"):
        check(engine.run, moved, tokenizer, Limits(rank=0.99))


@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize("precision", TYPES)
@pytest.mark.parametrize("size", [20.0, 300.0, 1e-6 / 32**0.5], ids=["sum-past-fp16", "squares-past-fp16", "tiny"])
def test_pooling_and_l2_of_4096_tokens_neither_overflow_nor_vanish(
    bundle: Bundle, precision: str, layout: str, size: float
) -> None:
    """Every token's last hidden state is a constant of this size in all 32 channels, half of them negative."""
    exact = load(bundle, graph_of(bundle, "fp32", layout))
    state = np.where(np.arange(32) % 2, size, -size).astype(np.float32)
    for name, value in list(exact.graph.initializers.items()):
        if "position_embeddings" in name:
            replace_constant(exact, value, np.resize(value.const_value.numpy(), (4096, 32)))
        elif "position_ids" in name:
            replace_constant(exact, value, np.arange(4096)[None])
    first, *_, norm = [node for node in exact.graph if node.op_type == "LayerNormalization"]
    norm.replace_input_with(0, first.outputs[0])  # what is between has no say, and would take long
    for place, value in ((1, state * 0), (2, state)):
        norm.replace_input_with(place, constant(exact, f"last_norm_{place}", value))
    dense = next(node for node in exact.graph if node.op_type == "Gemm")
    normalised = exact.graph.outputs[0].producer().inputs[0]  # what L2 divides: take the mean, not the Dense layers'
    normalised.replace_all_uses_with(dense.inputs[0])
    exact.graph.outputs[0].shape = ir.Shape(["batch", 32])
    low = lower(exact, precision)
    batch = TokenBatch.from_rows([np.arange(4096) % 25])
    for model in (rounding_twin(low, precision), *([low] if precision == "fp16" else [])):  # bf16 has no runtime here
        session = open_model(model)
        found = session.run(None, make_feed(layout, [value.name for value in session.get_inputs()], batch))[0]
        assert found == pytest.approx((np.sign(state) / 32**0.5)[None], rel=1e-5)


def constant(model: ir.Model, name: str, array: np.ndarray) -> ir.Value:
    """A new constant of a graph."""
    value = ir.Value(name=name, const_value=ir.tensor(array, name=name), shape=ir.Shape(array.shape))
    value.type = ir.TensorType(value.const_value.dtype)
    model.graph.register_initializer(value)
    return value


def replace_constant(model: ir.Model, old: ir.Value, array: np.ndarray) -> None:
    """Another array for all that read a constant."""
    old.replace_all_uses_with(constant(model, f"{old.name}_replaced", array))


def scaled(model: ir.Model) -> None:
    """One layer's input scale doubled."""
    value = next(v for name, v in model.graph.initializers.items() if name.endswith((":input_scale", ":int8_scale")))
    value.const_value = ir.tensor(np.asarray(value.const_value.numpy() * 2, np.float32), name=value.name)


def moved_zero_point(model: ir.Model) -> None:
    value = next(v for name, v in model.graph.initializers.items() if name.endswith(("input_zero", ":zero")))
    value.const_value = ir.tensor(value.const_value.numpy() + value.const_value.numpy().dtype.type(3), name=value.name)


def moved_weight_zero_point(model: ir.Model) -> None:
    value = next(v for name, v in model.graph.initializers.items() if name.endswith("int8_zero"))
    value.const_value = ir.tensor(value.const_value.numpy() + np.int8(1), name=value.name)


def swapped_weights(model: ir.Model) -> None:
    """Two layers of equal shape with each other's weights."""
    found = [v for name, v in model.graph.initializers.items() if name.endswith(":int8")]
    one = found[0]
    other = next(v for v in found[1:] if v.shape == one.shape)
    one.const_value, other.const_value = other.const_value, one.const_value


@pytest.mark.parametrize("flavour", ["portable", "ort"])
@pytest.mark.parametrize("damage", [scaled, moved_zero_point, moved_weight_zero_point, swapped_weights])
def test_damaged_int8_is_refused_by_verify(
    bundle: Bundle, tmp_path: Path, flavour: str, damage: Callable[[ir.Model], None]
) -> None:
    graph = graph_of(bundle, "int8", "padded", flavour)
    model = load(bundle, graph)
    damage(model)
    verdict = verify_bundle(with_graph(bundle, graph, model, tmp_path))[0]
    assert verdict.parity is None
    assert not verdict.skipped
    assert graph.file in verdict.reason


def test_a_graph_that_the_runtime_does_not_load_is_refused_and_the_others_are_judged(
    bundle: Bundle, tmp_path: Path
) -> None:
    """Products of bf16, which ONNX Runtime has on no CPU, in a graph that is called fp32."""
    exact = graph_of(bundle, "fp32")
    damaged = with_graph(bundle, exact, load(bundle, graph_of(bundle, "bf16")), tmp_path)
    other = graph_of(bundle, "fp32", "packed")
    shutil.copy(bundle.graph_file(other), tmp_path / other.file)
    refused, judged = verify_bundle(replace(damaged, graphs=(*damaged.graphs, other)))
    assert refused.parity is None
    assert f"{exact.file} is refused: onnxruntime cannot load" in refused.reason
    assert judged.parity is not None


def test_a_layer_that_is_called_int8_and_is_not_is_refused(
    bundle: Bundle, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    graph = graph_of(bundle, "int8")
    model = load(bundle, graph_of(bundle, "fp32"))
    with pytest.raises(GateError, match=r"the record names \d+ layers in int8, the graph has 0"):
        damaged = with_graph(bundle, graph, model, tmp_path)
        check_graph(damaged, damaged.graphs[0], load_suite(bundle.golden_file()), tokenizer)
    assert quantised(load(bundle, graph)) == graph.int8["layers"]
    with pytest.raises(GateError, match="does not say which layers are in int8"):
        check_graph(bundle, replace(graph, int8=None), load_suite(bundle.golden_file()), tokenizer)


def with_graph(bundle: Bundle, graph: GraphRecord, model: ir.Model, folder: Path) -> Bundle:
    """A bundle of one graph that was changed, and hashed again by whoever changed it."""
    (folder / "graphs").mkdir()
    for file in (bundle.tokenizer_file(), bundle.golden_file()):
        (folder / file.name).write_bytes(file.read_bytes())
    ir.save(model, folder / graph.file)
    changed = replace(bundle, path=folder, graphs=(replace(graph, sha256=sha256_of(folder / graph.file)),))
    write_description(changed)
    return read_bundle(folder)


def test_limits_of_each_kind_are_kept(bundle: Bundle, tokenizer: Tokenizer) -> None:
    suite = load_suite(bundle.golden_file())
    engine = open_graph(bundle, graph_of(bundle, "int8"), device="cpu")
    found = check(engine.run, suite, tokenizer, Limits())
    assert found.cosine < 1
    for name, value in (("cosine", found.cosine), ("mean_cosine", found.mean_cosine), ("rank", found.rank)):
        check(engine.run, suite, tokenizer, Limits(**{name: value - 1e-6}))
        if value < 1 - 1e-6:
            with pytest.raises(GateError, match=", allowed"):
                check(engine.run, suite, tokenizer, Limits(**{name: value + 1e-6}))


def test_inspect_shows_all_graphs_in_one_table(bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    from sentport.cli import main

    assert main(["inspect", str(bundle.path)]) == 0
    text = capsys.readouterr().out
    table = text[text.index("graph ", text.index("fp32-portable")) :]
    for graph in bundle.graphs:
        assert f"\n{graph.file[7:-5]}" in table
    assert "int8 of ort: per token, calibrated on 256 texts of sentport" in table
    assert main(["inspect", str(bundle.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["graphs"][0]["parity"]["rank"] > 0.99999


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"calibration": Path("texts.txt")}, "calibration is for precision int8, which --precision does not name"),
        ({"gate_corpus": Path("texts.txt")}, "gate_corpus is for precision int8, which --precision does not name"),
        ({"min_cosine": 0.99}, "min_cosine is for precision fp16, bf16, int8, which --precision does not name"),
        ({"min_cosine": 1.5, "precisions": ("int8",)}, "expected a number from 0 to under 1"),
        ({"min_cosine": 1.0, "precisions": ("int8",)}, "expected a number from 0 to under 1"),
        ({"min_cosine": float("nan"), "precisions": ("int8",)}, "expected a number from 0 to under 1"),
        (
            {"min_cosine": 0.9, "precisions": ("fp32", "int8")},
            r"0\.9 would do nothing: the gate asks for 0\.95 for int8",
        ),
        ({"min_cosine": 0.9, "precisions": ("bf16", "int8")}, r"asks for 0\.999 for bf16, 0\.95 for int8 anyway"),
        ({"precisions": ("int8", "fp32", "int8")}, "precision int8, fp32, int8 names one twice"),
        ({"layouts": ("padded", "padded")}, "layout padded, padded names one twice"),
    ],
)
def test_options_that_would_do_nothing_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(SentportError, match=said):
        ExportOptions(**options)
    ExportOptions(precisions=("bf16", "int8"), min_cosine=0.97)  # which is more than int8 has to reach anyway


@pytest.mark.parametrize("precision", ["fp8", "int8-dynamic", ""])
def test_unknown_precisions_are_refused(tiny_checkpoint: Path, tmp_path: Path, precision: str) -> None:
    with pytest.raises(SentportError, match="is unknown; known: fp32, fp16, bf16, int8"):
        export_tiny(tiny_checkpoint, tmp_path / "x.bundle", precisions=(precision,))


@pytest.mark.parametrize("precision", TYPES)
def test_a_chain_that_ends_in_a_product_still_gives_float32(precision: str) -> None:
    table = np.arange(6, dtype=np.float32).reshape(3, 2)
    floats = ir.TensorType(ir.DataType.FLOAT)
    x = ir.Value(name="x", shape=ir.Shape(["batch", 3]), type=floats)
    weight = ir.Value(name="w", const_value=ir.tensor(table, name="w"), shape=ir.Shape([3, 2]), type=floats)
    last = ir.node("MatMul", [x, weight], outputs=[ir.Value(name="y", shape=ir.Shape(["batch", 2]), type=floats)])
    graph = ir.Graph([x], last.outputs, nodes=[last], initializers=[weight], opset_imports={"": 18}, name="g")
    twin = rounding_twin(lower(ir.Model(graph, ir_version=10), precision), precision)
    found = open_model(twin).run(["y"], {"x": np.eye(3, dtype=np.float32)})[0]
    assert found.dtype == np.float32
    assert found.tolist() == table.tolist()
