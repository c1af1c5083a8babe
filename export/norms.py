"""Norms as plain operators, in a form that ONNX Runtime does not fuse again.

Its fused SkipLayerNormalization on a CPU takes as long as scalar code: a fifth of an int8 graph's time.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from export.editing import Editor

_NORMS = ("LayerNormalization", "SkipLayerNormalization")


class PlainNorms(InPlacePass):
    """``LayerNormalization`` and ``SkipLayerNormalization`` over the last axis become sums, products and a root.

    With ``c = x - mean(x)``: ``c / sqrt(sum(c^2) + width * epsilon) * (sqrt(width) * scale) + bias``.
    """

    def call(self, model: ir.Model) -> PassResult:
        """Rewrite every norm whose other outputs nobody reads."""
        found = [node for node in model.graph if node.op_type in _NORMS and not any(v.uses() for v in node.outputs[1:])]
        for node in found:
            self._rewrite(model.graph, node)
        return PassResult(model, modified=bool(found))

    @staticmethod
    def _rewrite(graph: ir.Graph, node: ir.Node) -> None:
        edit = Editor(graph, f"{node.outputs[0].name}:norm_")
        x, *others = node.inputs
        if node.op_type == "SkipLayerNormalization":
            skip, scale, bias, linear_bias = (*others, None, None)[:4]
            x = edit.op("Add", [x, linear_bias]) if linear_bias is not None else x
            x = edit.op("Add", [x, skip])
        else:
            scale, bias = (*others, None)[:2]
        assert scale is not None
        assert scale.const_value is not None
        width, epsilon = scale.const_value.size, node.attributes.get_float("epsilon", 1e-5) or 0.0
        axes = edit.constant("axes", np.array([-1], np.int64))
        centred = edit.op("Sub", [x, edit.op("ReduceMean", [x, axes], {"keepdims": 1})])
        squares = edit.op("ReduceSumSquare", [centred, axes], {"keepdims": 1})  # [..., 1]
        length = edit.op("Sqrt", [edit.op("Add", [squares, edit.constant("epsilon", np.float32(width * epsilon))])])
        gain = edit.constant("scale", (scale.const_value.numpy() * math.sqrt(width)).astype(np.float32))
        result = edit.op("Mul", [edit.op("Div", [centred, length]), gain])
        edit.replace(node, result if bias is None else edit.op("Add", [result, bias]))
