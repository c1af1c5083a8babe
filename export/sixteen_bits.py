"""Precisions ``fp16`` and ``bf16``, written into the graph as types and casts, and the twin that proves them.

Products (linear layers, attention) take 16-bit tensors and give 16-bit tensors; between them all is fp32: the residual
stream, norms, softmax, pooling, L2. That is what a strongly typed TensorRT network takes as it is. Weights and
embedding tables are stored in 16 bits.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass, TopologicalSortPass

from export.editing import Editor
from sentport.errors import GateError, SentportError

TYPES = {"fp16": ir.DataType.FLOAT16, "bf16": ir.DataType.BFLOAT16}
_SIXTEEN = tuple(TYPES.values())
# Places of the inputs that are float; fused attention takes its mask as whole numbers behind them.
_FLOAT_INPUTS = {"MatMul": 2, "Gemm": 3, "Einsum": 2, "Attention": 3, "MultiHeadAttention": 4}
_SCORE_BIAS = 5  # fused attention's input that is added to scores: a mask of -3.4e38 would be infinite in fp16


def lower(model: ir.Model, precision: str) -> ir.Model:
    """A copy of an fp32 graph, of either layout and flavour, with its products in ``fp16`` or ``bf16``.

    Raises:
        SentportError: When a weight is too large for fp16.
    """
    copy, dtype = model.clone(), TYPES[precision]
    for node in list(copy.graph):
        if lowered := _lowered_inputs(node):
            for place, value in lowered:
                node.replace_input_with(place, _lowered(copy.graph, value, dtype))
            _cast_output(copy.graph, node, [ir.DataType.FLOAT], dtype)
    TopologicalSortPass()(copy)
    RemoveUnusedNodesPass()(copy)
    return copy


def rounding_twin(model: ir.Model, precision: str) -> ir.Model:
    """A graph in fp32 that gives what one in 16 bits gives: every 16-bit tensor computed in fp32, then rounded.

    So the vectors of a precision can be checked where no runtime has its products.
    """
    copy, dtype = model.clone(), TYPES[precision]
    for value in list(copy.graph.initializers.values()):
        if value.const_value is not None and value.const_value.dtype == dtype:
            twin = Editor(copy.graph, f"{value.name}:").constant("twin", value.const_value.numpy().astype(np.float32))
            value.replace_all_uses_with(twin)
    for node in list(copy.graph):
        for value in node.outputs:
            if value.dtype == dtype:
                value.type = ir.TensorType(ir.DataType.FLOAT)
        if node.op_type == "Cast" and node.attributes.get_int("to", 0) == dtype:
            _cast_output(copy.graph, node, [ir.DataType.FLOAT], dtype)
        elif _is_product(node):
            _cast_output(copy.graph, node, [dtype, ir.DataType.FLOAT], ir.DataType.FLOAT)
    TopologicalSortPass()(copy)
    RemoveUnusedNodesPass()(copy)
    return copy


def check_structure(model: ir.Model, precision: str) -> None:
    """Raises GateError unless everything that ``lower`` puts into 16 bits is in this precision's."""
    for node in model.graph:
        for _, value in _lowered_inputs(node):
            if value.dtype not in (None, TYPES[precision]):  # None: a value whose type inference does not know
                raise GateError(
                    f"{node.op_type} takes {value.name} as {value.dtype}, so it does not run in {precision}"
                )


def _lowered_inputs(node: ir.Node) -> list[tuple[int, ir.Value]]:
    """The inputs of a node that have 16 bits, with their places: of products, and an embedding's table."""
    count = _FLOAT_INPUTS[node.op_type] if _is_product(node) else 0
    if node.op_type == "Gather" and _matrix(node.inputs[0]):
        count = 1
    return [(place, value) for place, value in enumerate(node.inputs[:count]) if value is not None]


def _is_product(node: ir.Node) -> bool:
    """Whether a node multiplies by a matrix of weights, or two computed tensors with each other.

    Not by a vector: positions times the frequencies of rotary embeddings are angles, which 8 bits cannot hold.
    """
    if node.op_type not in _FLOAT_INPUTS or any(
        v.dtype not in (None, ir.DataType.FLOAT, *_SIXTEEN) for v in node.outputs
    ):
        return False
    if len(node.inputs) > _SCORE_BIAS and node.inputs[_SCORE_BIAS] is not None:
        return False
    return all(value is None or value.const_value is None or _matrix(value) for value in node.inputs[:2])


def _matrix(value: ir.Value | None) -> bool:
    """Whether a value is a constant with two axes and more."""
    tensor = value.const_value if value is not None else None
    floats = (ir.DataType.FLOAT, *_SIXTEEN)
    return tensor is not None and tensor.dtype in floats and sum(size > 1 for size in tensor.shape.numpy()) > 1


def _lowered(graph: ir.Graph, value: ir.Value, dtype: ir.DataType) -> ir.Value:
    """A value in 16 bits: a constant stored so, anything else cast; one for all that read it."""
    edit = Editor(graph, f"{value.name}:")
    if value.const_value is None:
        name = f"{value.name}:{dtype.name.lower()}"
        known = [use.node.outputs[0] for use in value.uses() if use.node.outputs[0].name == name]
        if known:
            return known[0]
        cast = edit.op("Cast", [value], {"to": dtype})
        cast.name, cast.type = name, ir.TensorType(dtype)
        graph.extend(edit.nodes)
        return cast
    with np.errstate(over="ignore"):
        array = value.const_value.numpy().astype(dtype.numpy())
    if not np.isfinite(array.astype(np.float32)).all():
        raise SentportError(f"weight {value.name} has values beyond {dtype.name.lower()}'s range; export bf16 or fp32")
    return edit.constant(dtype.name.lower(), array)


def _cast_output(graph: ir.Graph, node: ir.Node, types: list[ir.DataType], own: ir.DataType) -> None:
    """Cast what a node gives, through some types, before anything reads it."""
    value = node.outputs[0]
    name, users = value.name, list(value.uses())
    value.name, value.type = f"{name}:raw", ir.TensorType(own)
    last = value
    for number, dtype in enumerate(types):
        edit = Editor(graph, f"{name}:as{number}:")
        last = edit.op("Cast", [last], {"to": dtype})
        last.type = ir.TensorType(dtype)
        graph.extend(edit.nodes)
    last.name, last.shape = name, value.shape
    for user, place in users:
        user.replace_input_with(place, last)
    for place, output in enumerate(graph.outputs):
        if output is value:  # a chain that ends in a linear layer
            graph.outputs[place] = last
