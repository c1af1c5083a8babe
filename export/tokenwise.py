"""Which nodes of a padded graph act on every token alone, so that they may run on tokens without their rectangle.

A value is *of tokens* when its first two axes are rows and tokens, in either order, and all others are numbers. A node
is *tokenwise* when it makes such values out of such values at the same place, of weights, and of what the row or the
position alone decides. An operator that is not named here is not tokenwise, which costs speed and never correctness.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

Dims = tuple[int | str | None, ...]
Shapes = Mapping[str, Dims]

BATCH, TOKENS = "batch", "tokens"
ROWS_FIRST, TOKENS_FIRST = (BATCH, TOKENS), (TOKENS, BATCH)
_UNKNOWN: Dims = (None,)

_ELEMENTWISE = frozenset(
    {
        *("Abs", "Add", "And", "Cast", "Clip", "Cos", "Div", "Elu", "Equal", "Erf", "Exp", "Gelu", "Greater"),
        *("GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Less", "LessOrEqual", "Log"),
        *("Max", "Min", "Mish", "Mul", "Neg", "Not", "Or", "Pow", "Reciprocal", "Relu", "Selu", "Sigmoid", "Sin"),
        *("Softplus", "Sqrt", "Sub", "Sum", "Tanh", "Where"),
        *("com.microsoft.BiasGelu", "com.microsoft.FastGelu", "com.microsoft.Gelu", "com.microsoft.QuickGelu"),
    }
)
# What these do, they do along one axis, the last one where none is named.
_ALONG_AN_AXIS = frozenset(
    {
        *("Concat", "LayerNormalization", "RMSNormalization", "Softmax", "Split"),
        *("com.microsoft.SkipLayerNormalization", "com.microsoft.SkipSimplifiedLayerNormalization"),
    }
)
# Which input holds the axes.
_AXES_INPUT = {
    **dict.fromkeys(("ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "Squeeze"), 1),
    "Slice": 3,
}
_PRODUCTS = frozenset({"Attention", "Einsum", "FusedMatMul", "Gemm", "MatMul", "MatMulInteger"})


def shapes_of(model: ir.Model) -> dict[str, Dims]:
    """The shape of every value of a traced graph by name; a symbolic axis is its name."""
    found: dict[str, Dims] = {}
    for value in (*model.graph.inputs, *(output for node in model.graph for output in node.outputs)):
        if value.name and value.shape is not None:
            found[value.name] = tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)
    return found


class Tokenwise:
    """Answers for the nodes of one graph.

    Args:
        shapes: Of its values by name; a graph does not keep them through every rewriting.
    """

    def __init__(self, shapes: Shapes) -> None:
        self._shapes = dict(shapes)

    def declare(self, value: ir.Value, dims: Dims) -> None:
        """The shape of a value that was not traced."""
        assert value.name is not None
        self._shapes[value.name] = dims

    def dims(self, value: ir.Value | None) -> Dims:
        """Shape of a value; ``(None,)`` where nothing is known."""
        if value is None:
            return _UNKNOWN
        if value.const_value is not None:
            return tuple(value.const_value.shape.numpy())
        return self._shapes.get(value.name or "", _UNKNOWN)

    def order(self, value: ir.Value | None) -> Dims | None:
        """``ROWS_FIRST`` or ``TOKENS_FIRST`` for a value of tokens, None for any other."""
        dims = self.dims(value)
        return dims[:2] if dims[:2] in (ROWS_FIRST, TOKENS_FIRST) and _numbers(dims[2:]) else None

    def is_dense(self, node: ir.Node) -> bool:
        """Whether a node multiplies every token by a matrix of weights: what a padded batch computes for its pads."""
        symbols = {name for dim in self.dims(node.outputs[0]) if isinstance(dim, str) for name in _symbols(dim)}
        return (
            node.op_type in _PRODUCTS
            and any(len(self.dims(value)) > 1 and _numbers(self.dims(value)) for value in node.inputs)
            and symbols >= {BATCH, TOKENS}
        )

    def is_tokenwise(self, node: ir.Node) -> bool:
        """Whether a node acts on every token alone."""
        name = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        order, first = self.order(node.outputs[0]), self.order(node.inputs[0]) if node.inputs else None
        if name == "Transpose":  # rows first to tokens first or back; of tokens end to end nothing changes
            perm = node.attributes.get_ints("perm", ()) or ()
            return first is not None and tuple(perm) == (1, 0, *range(2, len(perm)))
        if order is None or any(self.order(value) != order for value in node.outputs):
            return False
        if name == "Gather":  # rows of an embedding table
            return _numbers(self.dims(node.inputs[0])) and self.order(node.inputs[1]) == order and _axis(node, 0) == 0
        if name in _ELEMENTWISE:
            return any(self.order(value) == order for value in node.inputs) and self._all_meet(node)
        return first == order and self._keeps_first_two(node, name)

    def _keeps_first_two(self, node: ir.Node, name: str) -> bool:
        """For a node whose first input is of tokens: whether what it does lies behind the first two axes."""
        rank = len(self.dims(node.inputs[0]))
        if name in _ALONG_AN_AXIS:
            return _axis(node, 0 if name == "Split" else -1) % rank > 1 and self._all_meet(node)
        if name == "MatMul":
            return len(self.dims(node.inputs[1])) == 2 and _numbers(self.dims(node.inputs[1])) and rank > 2
        if name == "Einsum":
            return self._multiplies_tokens(node)
        if name == "Unsqueeze":
            return _axes_behind(node, 1, len(self.dims(node.outputs[0])))
        return name in _AXES_INPUT and _axes_behind(node, _AXES_INPUT[name], rank)

    def _all_meet(self, node: ir.Node) -> bool:
        """Whether every input meets the output with weights, or with its rows, its positions or both at their place."""
        out = self.dims(node.outputs[0])
        return all(value is None or self._meets(self.dims(value), out) for value in node.inputs)

    @staticmethod
    def _meets(dims: Dims, out: Dims) -> bool:
        padded = (1,) * (len(out) - len(dims)) + dims
        return _numbers(dims) or (
            len(padded) == len(out)
            and all(dim in (1, axis) for dim, axis in zip(padded[:2], out[:2], strict=True))
            and _numbers(padded[2:])
        )

    def _multiplies_tokens(self, node: ir.Node) -> bool:
        """An Einsum of tokens and weights, such as ``ibh,hnd->ibnd``, whose first two axes stay as they are."""
        terms, _, result = (node.attributes.get_string("equation") or "").replace(" ", "").partition("->")
        tokens, _, weights = terms.partition(",")
        kept, others = tokens[:2], weights + tokens[2:] + result[2:]
        stay = kept == result[:2] and not {*kept} & {*others}
        return stay and len(node.inputs) == 2 and _numbers(self.dims(node.inputs[1]))


def _numbers(dims: Dims) -> bool:
    return all(isinstance(dim, int) for dim in dims)


def _symbols(dim: str) -> list[str]:
    """The names in an axis such as ``2*tokens``."""
    return "".join(sign if sign.isalnum() or sign == "_" else " " for sign in dim).split()


def _axis(node: ir.Node, otherwise: int) -> int:
    axis = node.attributes.get_int("axis", otherwise)
    assert axis is not None
    return axis


def _axes_behind(node: ir.Node, place: int, rank: int) -> bool:
    """Whether the axes, a constant input, are none of the first two."""
    axes = node.inputs[place] if len(node.inputs) > place else None
    if axes is None or axes.const_value is None:
        return False
    return all(int(axis) % rank > 1 for axis in axes.const_value.numpy().reshape(-1))
