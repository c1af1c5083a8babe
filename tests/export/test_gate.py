"""The parity gate on a tiny real model: it passes good graphs and refuses each kind of damage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from sentport.batch import TokenBatch
from sentport.bundle import Bundle, read_bundle
from sentport.errors import BundleError, GateError
from sentport.gate import check
from sentport.suite import Suite, load_suite, save_suite
from sentport.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def bundle(tiny_bundle: Path) -> Bundle:
    return read_bundle(tiny_bundle)


@pytest.fixture(scope="module")
def suite(bundle: Bundle) -> Suite:
    return load_suite(bundle.golden_file())


@pytest.fixture(scope="module")
def tokenizer(bundle: Bundle) -> Tokenizer:
    return Tokenizer.from_file(bundle.tokenizer_file(), bundle.spec.max_tokens)


def portable(bundle: Bundle) -> onnx.ModelProto:
    return onnx.load(bundle.path / "graphs" / "padded-fp32-portable.onnx")


def runner(model: onnx.ModelProto) -> Callable[[TokenBatch], np.ndarray]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = {value.name for value in session.get_inputs()}

    def run(batch: TokenBatch) -> np.ndarray:
        ids, mask, types, _ = batch.padded()
        feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
        return session.run(None, {name: feed[name] for name in names})[0]

    return run


def test_good_graphs_pass_with_room(bundle: Bundle, suite: Suite, tokenizer: Tokenizer) -> None:
    parity = check(runner(portable(bundle)), suite, tokenizer)
    assert parity.relative_l2 < 5e-6
    assert parity.cosine > 0.999999
    assert parity.company < 2e-6
    assert parity.rows > 80
    recorded = {graph.flavour: graph.parity for graph in bundle.graphs}
    assert recorded["ort"]["passed"]
    assert recorded["portable"]["relative_l2"] == pytest.approx(parity.relative_l2, abs=5e-6)


def test_suite_has_the_fixed_shapes_cut_to_max_tokens_and_an_empty_row(suite: Suite) -> None:
    names = [case.name for case in suite.cases]
    assert names[:5] == ["1x1", "1x8", "2x7", "3x33", "5x48"]
    assert len(names) == 11
    assert any(not case.has_tokens.all() for case in suite.cases)
    case = suite.cases[3]
    mask, ids = case.batch.attention_mask, case.batch.ids
    assert mask is not None
    assert (mask == 0).any()
    assert ids[mask == 0].any(), "the ids under the mask must be garbage, not padding"


def test_suite_survives_the_file_and_damage_is_refused(suite: Suite, tmp_path: Path) -> None:
    save_suite(suite, tmp_path / "golden.npz")
    again = load_suite(tmp_path / "golden.npz")
    assert again.texts == suite.texts
    assert (again.text_vectors == suite.text_vectors).all()
    assert all((a.batch.ids == b.batch.ids).all() for a, b in zip(again.cases, suite.cases, strict=True))
    (tmp_path / "golden.npz").write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(BundleError, match="is damaged"):
        load_suite(tmp_path / "golden.npz")


def node(model: onnx.ModelProto, op_type: str) -> onnx.NodeProto:
    return next(n for n in model.graph.node if n.op_type == op_type)


def initializer(model: onnx.ModelProto, part: str) -> onnx.TensorProto:
    return next(tensor for tensor in model.graph.initializer if part in tensor.name)


def scale(model: onnx.ModelProto, part: str, edit: Callable[[np.ndarray], np.ndarray]) -> None:
    tensor = initializer(model, part)
    tensor.CopyFrom(numpy_helper.from_array(edit(numpy_helper.to_array(tensor).copy()), tensor.name))


def pooling_mask_cast(model: onnx.ModelProto) -> onnx.NodeProto:
    """The cast of the mask that pooling multiplies with: the last one in the graph."""
    return [n for n in model.graph.node if n.op_type == "Cast"][-1]


def mean_over_pads(model: onnx.ModelProto) -> None:
    cast = pooling_mask_cast(model)
    ones = onnx.helper.make_node("Equal", [cast.input[0], cast.input[0]], ["all_ones"])
    model.graph.node.insert(list(model.graph.node).index(cast), ones)
    cast.input[0] = "all_ones"


def epsilon_1e3(model: onnx.ModelProto) -> None:
    for norm in (n for n in model.graph.node if n.op_type == "LayerNormalization"):
        for attribute in norm.attribute:
            if attribute.name == "epsilon":
                attribute.f = 1e-3


def shifted_positions(model: onnx.ModelProto) -> None:
    scale(model, "position_embeddings", lambda table: np.roll(table, -1, axis=0))


def missing_token_types(model: onnx.ModelProto) -> None:
    scale(model, "token_type_embeddings", lambda table: np.repeat(table[:1], len(table), axis=0))


def tanh_to_identity(model: onnx.ModelProto) -> None:
    node(model, "Tanh").op_type = "Identity"


def unmasked_attention(model: onnx.ModelProto) -> None:
    softmax = node(model, "Softmax")
    add = next(n for n in model.graph.node if softmax.input[0] in n.output)
    scores = next(name for name in add.input if "mul" in name or "matmul" in name.lower())
    other = next(n for n in model.graph.node if scores in n.output)
    if other.op_type == "Mul" and not any("matmul" in i for i in other.input):  # the mask, not the scores
        scores = next(name for name in add.input if name != scores)
    softmax.input[0] = scores


def frozen_batch(model: onnx.ModelProto) -> None:
    """Every view of the heads takes two rows, as a trace with a fixed batch would."""
    for concat in (n for n in model.graph.node if n.op_type == "Concat"):
        two = f"{concat.output[0]}_two"
        model.graph.initializer.append(numpy_helper.from_array(np.array([2]), two))
        concat.input[0] = two


def no_normalisation(model: onnx.ModelProto) -> None:
    last = model.graph.node[-1]
    assert last.op_type == "Div"
    last.op_type = "Identity"
    del last.input[1:]


def dropped_dense(model: onnx.ModelProto) -> None:
    """The Dense of equal width, whose absence no shape tells."""
    square = next(tensor.name for tensor in model.graph.initializer if list(tensor.dims) == [24, 24])
    product = next(n for n in model.graph.node if square in n.input)
    product.op_type = "Identity"
    del product.input[1:]
    del product.attribute[:]


def swapped_pooling(model: onnx.ModelProto) -> None:
    """The greatest value of each dimension instead of the sum that the mean divides."""
    node(model, "ReduceSum").op_type = "ReduceMax"


DAMAGE = [
    dropped_dense,
    swapped_pooling,
    mean_over_pads,
    epsilon_1e3,
    shifted_positions,
    missing_token_types,
    tanh_to_identity,
    unmasked_attention,
    frozen_batch,
    no_normalisation,
]


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_damaged_graph_is_refused(
    bundle: Bundle, suite: Suite, tokenizer: Tokenizer, damage: Callable[[onnx.ModelProto], None]
) -> None:
    model = portable(bundle)
    before = model.SerializeToString(deterministic=True)
    damage(model)
    assert model.SerializeToString(deterministic=True) != before
    with pytest.raises(GateError):
        check(runner(model), suite, tokenizer)


def test_nan_wrong_width_wrong_rows_and_failures_are_refused(suite: Suite, tokenizer: Tokenizer) -> None:
    def answering(vectors: Callable[[int], np.ndarray]) -> Callable[[TokenBatch], np.ndarray]:
        return lambda batch: vectors(len(batch.lengths))

    for answer, reason in (
        (lambda rows: np.full((rows, 24), np.nan, np.float32), "not finite"),
        (lambda rows: np.zeros((rows, 25), np.float32), "vectors are"),
        (lambda rows: np.zeros((rows + 1, 24), np.float32), "vectors for"),
        (lambda rows: np.zeros((rows, 24), np.float32), "relative L2 error"),
        (lambda rows: np.zeros((1, 24), np.float32)[rows:][0], "cannot be run: IndexError"),
    ):
        with pytest.raises(GateError, match=reason):
            check(answering(answer), suite, tokenizer)


def test_suite_that_could_prove_nothing_is_refused(
    bundle: Bundle, suite: Suite, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    run = runner(portable(bundle))
    for broken in (
        replace(suite, text_vectors=suite.text_vectors * np.float32("nan")),
        replace(suite, cases=tuple(replace(case, vectors=case.vectors * np.float32("nan")) for case in suite.cases)),
    ):
        with pytest.raises(GateError, match="not finite"):
            check(run, broken, tokenizer)
    save_suite(replace(suite, cases=()), tmp_path / "golden.npz")
    with pytest.raises(BundleError, match="too little to check with"):
        load_suite(tmp_path / "golden.npz")


def test_batch_dependence_is_refused_even_within_the_error_limit(
    bundle: Bundle, suite: Suite, tokenizer: Tokenizer
) -> None:
    run = runner(portable(bundle))

    def drifting(batch: TokenBatch) -> np.ndarray:
        vectors = run(batch)
        vectors[:, 0] += np.float32(6e-6 if len(batch.lengths) > 1 else 0)
        return vectors

    with pytest.raises(GateError, match="company"):
        check(drifting, suite, tokenizer)


def test_tiny_vectors_are_compared_by_absolute_difference(suite: Suite, tokenizer: Tokenizer) -> None:
    dead = replace(
        suite,
        text_vectors=np.zeros_like(suite.text_vectors),
        cases=tuple(replace(case, vectors=np.zeros_like(case.vectors)) for case in suite.cases),
    )
    check(lambda batch: np.full((len(batch.lengths), 24), 5e-7, np.float32), dead, tokenizer)
    with pytest.raises(GateError, match="norm under 1e-6"):
        check(lambda batch: np.full((len(batch.lengths), 24), 2e-6, np.float32), dead, tokenizer)
