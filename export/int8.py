"""Precision ``int8``: the linear layers in 8 bits, all else as it was; a text's vector does not depend on its batch.

Two forms, chosen by the graph's flavour:

* ``portable``: static. Activations by a scale from calibration, as QuantizeLinear and DequantizeLinear, which TensorRT
  and OpenVINO take as well.
* ``ort``: per token. The scale of a token's activations is made of that token alone, around ONNX Runtime's
  MatMulIntegerToFloat.

Both: weights symmetric per output channel, and large input channels made smaller at the price of their weights
(SmoothQuant, Xiao et al. 2023, eq. 4). A scale over the whole batch, as in the usual dynamic quantisation, is no form
of it: a text's neighbours would change its vector.

Weights have 7 bits, -63 … 63. On x86 without VNNI the 8-bit product adds two of its 16-bit parts with saturation
(``vpmaddubsw``), and 255 x 127 x 2 passes 32767: vectors would be right on one machine and silently worse on another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import RemoveUnusedNodesPass

from export.editing import Editor
from export.linear import Linear, Ranges, linears
from sentport.errors import GateError

FORMS = {"portable": "static", "ort": "per token"}
WEIGHT_LIMIT = 63
_ACTIVATION_LIMIT = 127
_TOKEN_ZERO = 128  # ONNX Runtime's fast products take activations without a sign
_SMOOTHING = 0.5  # SmoothQuant's alpha
_SMALLEST = 1e-5
_LEAST_FACTOR = 0.1  # of the median one; all-MiniLM-L6-v2 has none under 0.14
# What constants must hold wherever they stand, by the ends of their names.
_EXACT = {"int8_zero": 0, "input_zero": 0, "zero": _TOKEN_ZERO, "one": 1, "limit": _ACTIVATION_LIMIT}
_OF_ONE_LAYER = ("int8", "int8_scale", "int8_zero")
_NUMBERS = (*_OF_ONE_LAYER, "input_scale", "input_zero", "zero", "smoothing")


def quantise(model: ir.Model, flavour: str, ranges: Ranges, kept: Collection[str] = ()) -> ir.Model:
    """A copy of a graph with its linear layers in int8.

    Args:
        model: A graph of either layout, fused attention taken apart (``export.packed.split_projections``).
        flavour: ``portable`` or ``ort``, which is the form.
        ranges: Of calibration; layers that are not in it stay as they are.
        kept: Names of layers that stay in fp32.
    """
    copy = model.clone()
    fed: dict[ir.Value, list[Linear]] = {}
    for layer in linears(copy.graph):
        value = layer.node.inputs[0]
        if layer.name in ranges and layer.name not in kept and value is not None:
            fed.setdefault(value, []).append(layer)
    form = _per_token if flavour == "ort" else _static
    groups: dict[str, list[tuple[str, ...]]] = {}
    for value, layers in fed.items():
        form(copy.graph, value, _labelled(layers, groups), ranges[layers[0].name])
    if flavour == "ort":
        copy.opset_imports["com.microsoft"] = 1
    RemoveUnusedNodesPass()(copy)
    return copy


def _labelled(layers: list[Linear], groups: dict[str, list[tuple[str, ...]]]) -> list[Linear]:
    """The layers with names under which their numbers can be kept.

    Layers that share a weight (ALBERT) share its numbers too; but not with one that has other layers at its side
    (DeBERTa's positions), since smoothing is made for all at once. ``groups`` holds who stood beside each so far.
    """
    names, labelled = tuple(layer.name for layer in layers), []
    for layer in layers:
        met = groups.setdefault(layer.name, [])
        if names not in met:
            met.append(names)
        place = met.index(names)
        labelled.append(layer._replace(name=f"{layer.name}#{place}") if place else layer)
    return labelled


def quantised(model: ir.Model) -> list[str]:
    """Names of the weights that a graph multiplies with in int8, in its order.

    A weight counts where its product is reached from an output, and takes activations in 8 bits too: one that is only
    stored in int8, or hangs beside the product that is used, is none.
    """
    weights = [_multiplied(node) for node in _used(model)]
    return [(weight.name or "").removesuffix(":int8") for weight in weights if weight is not None]


def _multiplied(node: ir.Node) -> ir.Value | None:
    """The weight in int8 of a node that multiplies activations in 8 bits with it; None for all others."""
    weight = None
    if node.op_type == "MatMulIntegerToFloat":
        weight = node.inputs[1]
    elif node.op_type == "MatMul":
        if not _rounded(node.inputs[0]):
            return None
        weight = _before(node.inputs[1], "DequantizeLinear")
    tensor = weight.const_value if weight is not None else None
    return weight if tensor is not None and tensor.dtype == ir.DataType.INT8 else None


def _rounded(value: ir.Value | None) -> bool:
    """Whether a value was quantised and restored, by one scale and zero point."""
    levels = _before(value, "DequantizeLinear")
    if value is None or levels is None or _before(levels, "QuantizeLinear") is None:
        return False
    restored, quantised = value.producer(), levels.producer()
    return restored is not None and quantised is not None and restored.inputs[1:] == quantised.inputs[1:]


def _before(value: ir.Value | None, operator: str) -> ir.Value | None:
    """What an operator makes a value of; None for a value that is not its."""
    node = value.producer() if value is not None else None
    return node.inputs[0] if node is not None and node.op_type == operator else None


def _used(model: ir.Model) -> list[ir.Node]:
    """The nodes that outputs are made of, in the order of the graph."""
    used: set[ir.Node] = set()
    reached = [value.producer() for value in model.graph.outputs]
    while reached:
        node = reached.pop()
        if node is not None and node not in used:
            used.add(node)
            reached += [value.producer() for value in node.inputs if value is not None]
    return [node for node in model.graph if node in used]


def numbers_sha256(model: ir.Model) -> str:
    """SHA-256 over all that quantisation put into a graph: weights, scales, zero points, smoothing."""
    digest = hashlib.sha256()
    for name, value in sorted(model.graph.initializers.items()):
        if value.const_value is not None and name.partition(":")[2] in _NUMBERS:
            digest.update(name.encode() + b"\0" + value.const_value.tobytes())
    return digest.hexdigest()


def check_structure(model: ir.Model, layers: Sequence[str], sha256: str) -> None:
    """Raises GateError unless a graph has exactly these layers in int8, with the numbers that export gave them."""
    found = quantised(model)
    if found != list(layers):
        odd = sorted({*found} ^ {*layers}) or ["their order"]
        raise GateError(f"the record names {len(layers)} layers in int8, the graph has {len(found)}: {odd[0]} differs")
    for name, value in model.graph.initializers.items():
        kind = name.partition(":")[2]
        if value.const_value is None or kind not in (*_NUMBERS, *_EXACT):
            continue
        numbers = value.const_value.numpy()
        if kind in _EXACT and (numbers != _EXACT[kind]).any():
            raise GateError(f"{name} is {numbers.flat[0]}, which int8 has {_EXACT[kind]} for")
        if kind.endswith("scale") and not (np.isfinite(numbers) & (numbers > 0)).all():
            raise GateError(f"{name} has scales that are not positive numbers")
    for node in _used(model):
        names = [value.name or "" for value in node.inputs if value is not None and value.const_value is not None]
        owners = {name.partition(":")[0] for name in names if name.partition(":")[2] in _OF_ONE_LAYER}
        if len(owners) > 1:
            raise GateError(f"{node.op_type} takes numbers of several layers: {', '.join(sorted(owners))}")
    if numbers_sha256(model) != sha256:
        raise GateError("its int8 weights, scales or zero points are not those that export made")


def smoothing(
    matrices: Sequence[NDArray[np.float32]], largest: NDArray[np.float32], narrowing: bool = False
) -> NDArray[np.float32]:
    """By what each input channel is divided, and its weights ``[in, out]`` multiplied; ``[in]``, of geometric mean 1.

    The second layer of a feed-forward block keeps its channels, unless ``narrowing`` ones are smoothed too: behind its
    activation function few are large, and with steps on both sides of zero taking from them cost more than it gave
    (measured: all-MiniLM-L6-v2, worst cosine 0.93 to 0.80).
    """
    inputs, outputs = matrices[0].shape
    if inputs > outputs and not narrowing:
        return np.ones(inputs, np.float32)
    weights = np.max([np.abs(matrix).max(axis=1) for matrix in matrices], axis=0)
    factors = np.maximum(largest, _SMALLEST) ** _SMOOTHING / np.maximum(weights, _SMALLEST) ** (1 - _SMOOTHING)
    # An input may be larger than calibration saw it, above all one that it never saw: divided by next to nothing, that
    # one would take all steps of its row.
    if (seen := largest > _SMALLEST).any():
        factors = np.maximum(factors, _LEAST_FACTOR * np.median(factors[seen]))
    return np.asarray(factors / np.exp(np.log(factors).mean()), np.float32)


def _static(graph: ir.Graph, value: ir.Value, layers: list[Linear], largest: NDArray[np.float32]) -> None:
    edit = Editor(graph, f"{layers[0].name}:", f"{value.name}:int8_")
    factors = smoothing([layer.weight for layer in layers], largest)
    most = max(float((largest / factors).max()), _SMALLEST**2)  # of texts that never reach a layer, zero would be left
    scale = edit.constant("input_scale", np.float32(most / _ACTIVATION_LIMIT))
    zero = edit.constant("input_zero", np.int8(0))
    smoothed = _smoothed(edit, value, factors)
    for layer in layers:
        # Each layer its own pair, though they are equal: ONNX Runtime fuses no product whose levels others read too.
        levels = edit.op("QuantizeLinear", [smoothed, scale, zero])
        activation = edit.op("DequantizeLinear", [levels, scale, zero])
        weight, weight_scale, weight_zero = _weight(graph, layer, factors)
        matrix = edit.op("DequantizeLinear", [weight, weight_scale, weight_zero], {"axis": 1})
        edit.replace(layer.node, edit.op("MatMul", [activation, matrix]))


def _per_token(graph: ir.Graph, value: ir.Value, layers: list[Linear], largest: NDArray[np.float32]) -> None:
    edit = Editor(graph, f"{layers[0].name}:", f"{value.name}:int8_")
    factors = smoothing([layer.weight for layer in layers], largest)
    smoothed = _smoothed(edit, value, factors)
    axes = edit.constant("axes", np.array([-1], np.int64))
    peak = edit.op("ReduceMax", [edit.op("Abs", [smoothed]), axes], {"keepdims": 1})  # [..., 1] of each token
    # A token of zeros has no scale of its own.
    peak = edit.op("Max", [peak, edit.constant("smallest", np.float32(1e-30))])
    scale = edit.op("Div", [peak, edit.constant("limit", np.float32(_ACTIVATION_LIMIT))])
    one, zero = edit.constant("one", np.float32(1)), edit.constant("zero", np.uint8(_TOKEN_ZERO))
    levels = edit.op("QuantizeLinear", [edit.op("Div", [smoothed, scale]), one, zero])  # uint8, zero at 128
    for layer in layers:
        weight, weight_scale, weight_zero = _weight(graph, layer, factors)
        inputs = [levels, weight, one, weight_scale, zero, weight_zero]
        product = edit.op("MatMulIntegerToFloat", inputs, domain="com.microsoft")
        edit.replace(layer.node, edit.op("Mul", [product, scale]))


def _smoothed(edit: Editor, value: ir.Value, factors: NDArray[np.float32]) -> ir.Value:
    if (factors == 1).all():
        return value
    return edit.op("Mul", [value, edit.constant("smoothing", (1 / factors).astype(np.float32))])


def _weight(graph: ir.Graph, layer: Linear, factors: NDArray[np.float32]) -> tuple[ir.Value, ir.Value, ir.Value]:
    """A layer's weight in int8, its scale ``[out]`` and its zero point ``[out]``."""
    levels, scale = weight_levels(layer.weight * factors[:, None])
    edit = Editor(graph, f"{layer.name}:")
    return (
        edit.constant("int8", levels),
        edit.constant("int8_scale", scale),
        edit.constant("int8_zero", np.zeros(len(scale), np.int8)),
    )


def weight_levels(weight: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """``[in, out]`` as whole numbers and the scale of each output channel ``[out]``."""
    scale = np.maximum(np.abs(weight).max(axis=0), _SMALLEST**2) / np.float32(WEIGHT_LIMIT)
    return np.clip(np.rint(weight / scale), -WEIGHT_LIMIT, WEIGHT_LIMIT).astype(np.int8), scale.astype(np.float32)
