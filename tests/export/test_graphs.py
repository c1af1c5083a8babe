"""Structure of exported graphs, and each pass on its own: what it changes, and that numbers stay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from export.ort_flavour import operators
from export.passes import DivideScores, NameAxes, PinVersions, SplitMaskUnsqueeze
from sentport.bundle import TensorRecord, read_bundle
from sentport.errors import SentportError


@pytest.mark.parametrize("flavour", ["portable", "ort"])
def test_declared_axes_hold_no_number_but_dim(tiny_bundle: Path, flavour: str) -> None:
    graph = onnx.load(tiny_bundle / "graphs" / f"padded-fp32-{flavour}.onnx").graph
    axes = {
        value.name: [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.output)
    }
    assert axes == {
        "input_ids": ["batch", "tokens"],
        "attention_mask": ["batch", "tokens"],
        "token_type_ids": ["batch", "tokens"],
        "sentence_embedding": ["batch", 24],
    }
    assert {value.type.tensor_type.elem_type for value in graph.input} == {onnx.TensorProto.INT64}


def test_versions_are_pinned_for_the_target(tiny_bundle: Path) -> None:
    for record in read_bundle(tiny_bundle).graphs:
        model = onnx.load(tiny_bundle / record.file)
        onnx.checker.check_model(model, full_check=record.flavour == "portable")
        opsets = {entry.domain: entry.version for entry in model.opset_import}
        assert opsets.pop("") == record.opset == 18
        assert model.ir_version == record.ir_version == 10
        assert opsets == ({} if record.flavour == "portable" else {"com.microsoft": 1})


def test_portable_has_plain_operators_and_ort_has_the_fused_ones(tiny_bundle: Path) -> None:
    by_flavour = {graph.flavour: graph.operators for graph in read_bundle(tiny_bundle).graphs}
    assert not any("." in name for name in by_flavour["portable"])
    assert not {"NonZero", "Compress", "Loop", "If", "Expand"} & set(by_flavour["portable"])
    assert by_flavour["ort"]["com.microsoft.Attention"] == 2
    assert by_flavour["ort"]["com.microsoft.SkipLayerNormalization"] == 4
    assert by_flavour["ort"]["com.microsoft.BiasGelu"] == 2


def attention_model() -> ir.Model:
    """softmax(q kᵀ · c + mask) for two heads of one row, written out."""
    text = """
    <ir_version: 10, opset_import: ["" : 18]>
    scores (float[batch, 2, tokens, 4] q, float[batch, 2, 4, tokens] k, int64[batch, tokens] mask)
      => (float[batch, 2, tokens, tokens] p)
      <int64[2] axes = {1, 2}, float c = {0.35355338}, float one = {1.0}, float low = {-10000.0}>
    {
      raw = MatMul(q, k)
      scaled = Mul(raw, c)
      wide = Unsqueeze(mask, axes)
      real = Cast<to=1>(wide)
      inverse = Sub(one, real)
      bias = Mul(inverse, low)
      biased = Add(scaled, bias)
      p = Softmax<axis=-1>(biased)
    }
    """
    return ir.from_proto(onnx.parser.parse_model(text))


def run(model: ir.Model) -> np.ndarray:
    random = np.random.default_rng(0)
    feed = {
        "q": random.normal(size=(3, 2, 5, 4)).astype(np.float32),
        "k": random.normal(size=(3, 2, 4, 5)).astype(np.float32),
        "mask": (np.arange(5) < np.array([[5], [2], [3]])).astype(np.int64),
    }
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feed)[0]


def test_split_mask_unsqueeze() -> None:
    model, before = attention_model(), run(attention_model())
    result = SplitMaskUnsqueeze()(model)
    assert result.modified
    counts = operators(result.model)
    assert counts["Unsqueeze"] == 2
    np.testing.assert_array_equal(run(result.model), before)
    assert not SplitMaskUnsqueeze()(result.model).modified


def test_divide_scores_touches_the_score_and_not_the_mask() -> None:
    model, before = attention_model(), run(attention_model())
    result = DivideScores()(model)
    assert result.modified
    counts = operators(result.model)
    assert (counts["Div"], counts["Mul"]) == (1, 1)
    np.testing.assert_allclose(run(result.model), before, atol=1e-7)
    assert not DivideScores()(result.model).modified


def test_pin_versions() -> None:
    model = attention_model()
    assert not PinVersions(10)(model).modified
    assert PinVersions(9)(model).modified
    assert model.ir_version == 9


def test_name_axes_renames_and_refuses_another_signature() -> None:
    model = attention_model()
    inputs = (
        TensorRecord("q", "float32", ("b", 2, "t", 4)),
        TensorRecord("k", "float32", ("b", 2, 4, "t")),
        TensorRecord("mask", "int64", ("b", "t")),
    )
    outputs = (TensorRecord("p", "float32", ("b", 2, "t", "t")),)
    NameAxes(inputs, outputs)(model)
    assert str(model.graph.outputs[0].shape) == "[b,2,t,t]"
    with pytest.raises(SentportError, match=r"has inputs \['q', 'k', 'mask'\], expected \['q', 'k'\]"):
        NameAxes(inputs[:2], outputs).call(model)
