"""Graph edits as small passes with one contract: a model in, the model and whether it changed out.

The contract is onnx_ir's ``InPlacePass``. Housekeeping that onnx_ir has (clearing metadata, shape inference, dead
nodes) is used as it is; what stands here is ours alone.
"""

from __future__ import annotations

import ast

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult, Sequential
from onnx_ir.passes.common import (
    CheckerPass,
    ClearMetadataAndDocStringPass,
    RemoveUnusedNodesPass,
    RemoveUnusedOpsetsPass,
    ShapeInferencePass,
)

from sentport.bundle import TensorRecord
from sentport.errors import SentportError


class NameAxes(InPlacePass):
    """Give graph inputs and outputs their declared axes, and forget the shapes traced in between.

    Tracing names axes after its own symbols (``s18``); a reader, and every tool that compares axes by name, needs
    the declared ones everywhere, so intermediate shapes are left to inference.

    Args:
        inputs: The declared inputs, in order.
        outputs: The declared outputs, in order.
    """

    def __init__(self, inputs: tuple[TensorRecord, ...], outputs: tuple[TensorRecord, ...]) -> None:
        self._declared = {"input": inputs, "output": outputs}

    def call(self, model: ir.Model) -> PassResult:
        """Rename; raises SentportError when the graph has other inputs or outputs than declared."""
        for side, values in (("input", model.graph.inputs), ("output", model.graph.outputs)):
            declared = self._declared[side]
            found = [value.name for value in values]
            if found != [tensor.name for tensor in declared]:
                raise SentportError(f"the traced graph has {side}s {found}, expected {[t.name for t in declared]}")
            for value, tensor in zip(values, declared, strict=True):
                value.shape = ir.Shape(list(tensor.axes))
        ends = {*model.graph.inputs, *model.graph.outputs}
        for node in model.graph.all_nodes():
            for value in node.outputs:
                if value not in ends:
                    value.shape = None
        return PassResult(model, modified=True)


class NameWeights(InPlacePass):
    """Give a linear layer's weight its module's name: what tracing transposed is called ``val_78`` otherwise.

    So a report can say which layers stay in fp32. Nodes know their module until their metadata is cleared.
    """

    def call(self, model: ir.Model) -> PassResult:
        """Rename every such weight whose name is free."""
        named = 0
        for node in model.graph:
            weight = node.inputs[1] if node.op_type == "MatMul" else None
            scopes = node.metadata_props.get("pkg.torch.onnx.name_scopes")
            if weight is None or scopes is None or not (weight.name or "").startswith("val_"):
                continue
            module = ast.literal_eval(scopes)[-2]  # the last one is the operation
            if weight.is_initializer() and module and f"{module}.weight" not in model.graph.initializers:
                weight.name = f"{module}.weight"
                named += 1
        return PassResult(model, modified=named > 0)


class SplitMaskUnsqueeze(InPlacePass):
    """``Unsqueeze(axes=[1, 2])`` becomes two, as ONNX Runtime's attention fusion expects of the mask.

    Before: mask → Unsqueeze[1, 2] → …    After: mask → Unsqueeze[1] → Unsqueeze[2] → …
    """

    def call(self, model: ir.Model) -> PassResult:
        """Split every such node."""
        found = [
            node
            for node in model.graph.all_nodes()
            if node.op_type == "Unsqueeze" and _constant(node.inputs[1], (1, 2)) is not None
        ]
        for node in found:
            first = ir.node("Unsqueeze", [node.inputs[0], _integers(model, "axis_1", [1])])
            second = ir.node("Unsqueeze", [first.outputs[0], _integers(model, "axis_2", [2])])
            _replace(model, node, [first, second])
        return PassResult(model, modified=bool(found))


class DivideScores(InPlacePass):
    """Attention scores divided by √d instead of multiplied by 1/√d, which ONNX Runtime's fusion tells from the mask.

    Before: MatMul → Mul(c) → Add(mask) → Softmax    After: MatMul → Div(1/c) → Add(mask) → Softmax

    The two differ in the last bit only where 1/c is not exact; the gate runs on the result.
    """

    def call(self, model: ir.Model) -> PassResult:
        """Rewrite every score that feeds a softmax through the mask's addition."""
        scaled = [mul for node in model.graph.all_nodes() if (mul := _score_scale(node)) is not None]
        for mul in scaled:
            factor = _scalar(mul.inputs[1])
            assert factor is not None  # _score_scale matched it
            name = f"score_divisor_{mul.outputs[0].name}"
            divisor = model.graph.initializers.get(name) or _initializer(model, name, np.float32(1.0 / factor))
            _replace(model, mul, [ir.node("Div", [mul.inputs[0], divisor])])
        return PassResult(model, modified=bool(scaled))


class PinVersions(InPlacePass):
    """Write the IR version that the target runtime takes."""

    def __init__(self, ir_version: int) -> None:
        self._ir_version = ir_version

    def call(self, model: ir.Model) -> PassResult:
        """Set it."""
        changed = model.ir_version != self._ir_version
        model.ir_version = self._ir_version
        return PassResult(model, modified=changed)


def finish(
    model: ir.Model, inputs: tuple[TensorRecord, ...], outputs: tuple[TensorRecord, ...], ir_version: int
) -> ir.Model:
    """What every graph goes through before it is written; metadata goes, since it holds paths of this machine."""
    passes = Sequential(
        NameWeights(),
        ClearMetadataAndDocStringPass(),
        RemoveUnusedNodesPass(),
        RemoveUnusedOpsetsPass(),
        NameAxes(inputs, outputs),
        PinVersions(ir_version),
        ShapeInferencePass(),
        CheckerPass(),
    )
    return passes(model).model


def _constant(value: ir.Value | None, wanted: tuple[int, ...]) -> np.ndarray | None:
    if value is None or value.const_value is None:
        return None
    array = value.const_value.numpy()
    return array if array.ndim == 1 and tuple(array.tolist()) == wanted else None


def _scalar(value: ir.Value | None) -> float | None:
    if value is None or value.const_value is None or value.const_value.size != 1:
        return None
    return float(value.const_value.numpy().item())


def _score_scale(softmax: ir.Node) -> ir.Node | None:
    """The Mul by a constant between a score's MatMul and the mask's Add, for a softmax that has them."""
    if softmax.op_type != "Softmax" or softmax.inputs[0] is None:
        return None
    add = softmax.inputs[0].producer()
    if add is None or add.op_type != "Add":
        return None
    for value in add.inputs:
        mul = value.producer() if value is not None else None
        if mul is None or mul.op_type != "Mul" or mul.inputs[0] is None or _scalar(mul.inputs[1]) is None:
            continue
        matmul = mul.inputs[0].producer()
        if matmul is not None and matmul.op_type == "MatMul":
            return mul
    return None


def _initializer(model: ir.Model, name: str, array: np.ndarray | np.generic) -> ir.Value:
    tensor = ir.tensor(np.asarray(array), name=name)
    value = ir.Value(name=name, const_value=tensor, shape=ir.Shape(np.shape(array)), type=ir.TensorType(tensor.dtype))
    model.graph.register_initializer(value)
    return value


def _integers(model: ir.Model, name: str, values: list[int]) -> ir.Value:
    return model.graph.initializers.get(name) or _initializer(model, name, np.asarray(values, np.int64))


def _replace(model: ir.Model, old: ir.Node, new: list[ir.Node]) -> None:
    """Put a chain of nodes in the place of one; its last output takes over the name."""
    new[-1].outputs[0].name = old.outputs[0].name
    ir.convenience.replace_nodes_and_values(model.graph, old, [old], new, [old.outputs[0]], [new[-1].outputs[0]])
