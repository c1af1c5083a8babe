"""A graph is in the precision that its record names, product by product: vectors that are better prove nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from export import int8, sixteen_bits
from export.linear import linears
from export.sensitivity import Calibration, plan_int8
from export.verify import check_graph
from sentport.bundle import Bundle, GraphRecord, read_bundle
from sentport.errors import GateError, SentportError
from sentport.gate import LIMITS
from sentport.suite import load_suite
from sentport.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def bundle(every_precision: Path) -> Bundle:
    return read_bundle(every_precision)


def graph_of(bundle: Bundle, precision: str, flavour: str, layout: str = "padded") -> GraphRecord:
    return next(g for g in bundle.graphs if (g.precision, g.flavour, g.layout) == (precision, flavour, layout))


def load(bundle: Bundle, graph: GraphRecord) -> ir.Model:
    return ir.load(bundle.path / graph.file)


def first_product(model: ir.Model) -> ir.Node:
    return next(
        node
        for node in model.graph
        if node.op_type == "MatMulIntegerToFloat"
        or (node.op_type == "MatMul" and all(made_by(node, place, "DequantizeLinear") for place in (0, 1)))
    )


def made_by(node: ir.Node, place: int, operator: str) -> bool:
    value = node.inputs[place]
    return value is not None and value.producer() is not None and value.producer().op_type == operator


def before(value: ir.Value | None, steps: int) -> ir.Value | None:
    """What stands so many nodes in front of a value."""
    for _ in range(steps):
        assert value is not None
        producer = value.producer()
        assert producer is not None
        value = producer.inputs[0]
    return value


def activations_in_fp32(model: ir.Model) -> None:
    """One layer's weights are in int8 still, and what it multiplies them with is not."""
    product = first_product(model)
    product.replace_input_with(0, before(product.inputs[0], 2))  # quantised and restored


def beside_the_product_that_is_used(model: ir.Model) -> None:
    """One layer multiplies in fp32; its int8 product hangs beside it, and no output is made of that."""
    product = first_product(model)
    if product.op_type == "MatMul":
        last, x = product, before(product.inputs[0], 2)
        restored = product.inputs[1].producer()
        weight, scale = restored.inputs[:2]
    else:
        last = next(use.node for use in product.outputs[0].uses())  # times the tokens' scales
        x, weight, scale = before(product.inputs[0], 2), product.inputs[1], product.inputs[3]
    matrix = ir.tensor(weight.const_value.numpy() * scale.const_value.numpy(), name="fp32")
    value = ir.Value(name="fp32", const_value=matrix, shape=ir.Shape(matrix.shape), type=ir.TensorType(matrix.dtype))
    model.graph.register_initializer(value)
    exact = ir.node("MatMul", [x, value], outputs=[ir.Value(name="exact")])
    model.graph.insert_after(last, exact)
    last.outputs[0].replace_all_uses_with(exact.outputs[0])


@pytest.mark.parametrize(
    ("flavour", "damage"),
    [
        ("portable", activations_in_fp32),
        ("portable", beside_the_product_that_is_used),
        ("ort", beside_the_product_that_is_used),
    ],
)
def test_a_layer_whose_product_is_not_in_int8_is_none(
    bundle: Bundle, flavour: str, damage: Callable[[ir.Model], None]
) -> None:
    graph = graph_of(bundle, "int8", flavour)
    assert graph.int8 is not None
    layers, sha256 = graph.int8["layers"], graph.int8["sha256"]
    model = load(bundle, graph)
    int8.check_structure(model, layers, sha256)
    damage(model)
    with pytest.raises(GateError, match=rf"names {len(layers)} layers in int8, the graph has {len(layers) - 1}"):
        int8.check_structure(model, layers, sha256)


def another_layers_scales(model: ir.Model) -> None:
    """Two layers with each other's scales, which hold the very numbers that export made."""
    places = {"DequantizeLinear": 1, "MatMulIntegerToFloat": 3}
    nodes = [n for n in model.graph if n.op_type in places and n.inputs[places[n.op_type]].name.endswith(":int8_scale")]
    first = nodes[0]
    place = places[first.op_type]
    other = next(node for node in nodes[1:] if node.inputs[place].shape == first.inputs[place].shape)
    a, b = first.inputs[place], other.inputs[place]
    first.replace_input_with(place, b)
    other.replace_input_with(place, a)


@pytest.mark.parametrize("flavour", ["portable", "ort"])
@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_a_layer_takes_its_own_scales(bundle: Bundle, layout: str, flavour: str) -> None:
    graph = graph_of(bundle, "int8", flavour, layout)
    assert graph.int8 is not None
    model = load(bundle, graph)
    another_layers_scales(model)
    with pytest.raises(GateError, match="takes numbers of several layers"):
        int8.check_structure(model, graph.int8["layers"], graph.int8["sha256"])


@pytest.mark.parametrize(("constant", "value"), [("one", 2.0), ("limit", 64.0), ("zero", 127)])
def test_a_constant_of_the_form_is_what_it_always_is(bundle: Bundle, constant: str, value: float) -> None:
    """Twice the step for all tokens: vectors a little worse, of no number that calibration made."""
    graph = graph_of(bundle, "int8", "ort", "packed")
    assert graph.int8 is not None
    model = load(bundle, graph)
    name = next(name for name in model.graph.initializers if name.endswith(f":{constant}"))
    held = model.graph.initializers[name]
    held.const_value = ir.tensor(np.asarray(value, held.const_value.numpy().dtype), name=name)
    with pytest.raises(GateError, match=f"{constant} is {value}, which int8 has"):
        int8.check_structure(model, graph.int8["layers"], graph.int8["sha256"])


@pytest.mark.parametrize("flavour", ["portable", "ort"])
@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize("called", ["fp16", "bf16"])
def test_products_in_another_type_than_recorded_are_refused(
    bundle: Bundle, called: str, layout: str, flavour: str
) -> None:
    for precision in ("fp32", "fp16", "bf16"):
        model = load(bundle, graph_of(bundle, precision, flavour, layout))
        if precision == called:
            sixteen_bits.check_structure(model, called)
            continue
        with pytest.raises(GateError, match=f"so it does not run in {called}"):
            sixteen_bits.check_structure(model, called)


def test_the_gate_looks_at_the_types_first(bundle: Bundle) -> None:
    """An fp32 graph called fp16 has better vectors than any in fp16."""
    graph = replace(graph_of(bundle, "fp32", "portable"), precision="fp16")
    tokenizer = Tokenizer.from_file(bundle.tokenizer_file(), bundle.spec.max_tokens)
    with pytest.raises(GateError, match=r"padded-fp32-portable\.onnx is refused: .* so it does not run in fp16"):
        check_graph(bundle, graph, load_suite(bundle.golden_file()), tokenizer)


def test_a_model_without_a_linear_layer_is_not_called_int8(bundle: Bundle) -> None:
    """SqueezeBERT multiplies by convolutions; all would stay in fp32."""
    model = load(bundle, graph_of(bundle, "fp32", "portable"))
    for node in model.graph:
        if node.op_type == "MatMul" and node.inputs[1].const_value is not None:
            node.op_type = "Conv"
    tokenizer = Tokenizer.from_file(bundle.tokenizer_file(), bundle.spec.max_tokens)
    calibration = Calibration([], load_suite(bundle.golden_file()), tokenizer, LIMITS["int8"], "nothing")
    with pytest.raises(SentportError, match="no linear layer on its tokens, so nothing of it can be int8"):
        plan_int8(model, "portable", calibration, lambda _: None)


def test_a_layer_that_calibration_never_reached_has_a_scale(bundle: Bundle) -> None:
    model = load(bundle, graph_of(bundle, "fp32", "portable"))
    ranges = {layer.name: np.zeros(len(layer.weight), np.float32) for layer in linears(model.graph)}
    for flavour in ("portable", "ort"):
        made = int8.quantise(model, flavour, ranges)
        int8.check_structure(made, int8.quantised(made), int8.numbers_sha256(made))
