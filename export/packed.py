"""Layout ``packed``: a padded graph with its dense work on the tokens of all rows, laid end to end.

The padded graph stays what it is; only where a value lives changes. Tokenwise nodes (projections, feed-forward, norms)
run on ``[1, tokens, …]``, as a batch of one row; all else (attention, with whatever bias an architecture has, pooling)
runs on the rectangle ``[batch, longest, …]`` as before, gathered from the tokens and gathered back. So whatever can be
exported padded can be exported packed, and what its graph says about masks, positions and pooling is not said a second
time. Where dense work cannot move, it runs on the rectangle, which is right and no faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass, TopologicalSortPass

from export.signature import packed_inputs
from export.token_stream import TokenStream
from export.tokenwise import ROWS_FIRST, Dims, Shapes, Tokenwise
from sentport.bundle import PACKINGS

REWRITTEN, UNPACKED = PACKINGS


class Packed(NamedTuple):
    """A packed graph.

    Attributes:
        model: The graph.
        how: ``rewritten`` where all dense work runs on tokens, ``unpacked`` where some of it computes pads too.
    """

    model: ir.Model
    how: str


def pack(padded: ir.Model, shapes: Shapes) -> Packed:
    """A copy of a padded graph in layout ``packed``.

    Args:
        padded: The graph; portable, or with ONNX Runtime's fused operators.
        shapes: Shapes of its values by name, as traced (``shapes_of``).
    """
    model = padded.clone()
    tokenwise = Tokenwise(shapes)
    split_projections(model.graph, tokenwise)
    mover = _Mover(model.graph, tokenwise)
    moved = _beside_dense([node for node in model.graph if tokenwise.is_tokenwise(node)], tokenwise)
    stays = [node for node in set(model.graph) - set(moved) if tokenwise.is_dense(node)]
    mover.move(moved)
    TopologicalSortPass()(model)
    RemoveUnusedNodesPass()(model)
    return Packed(model, UNPACKED if stays or not moved else REWRITTEN)


class _Mover:
    """Gives a graph its packed inputs, and moves nodes from the rectangle to the tokens."""

    def __init__(self, graph: ir.Graph, tokenwise: Tokenwise) -> None:
        self._graph = graph
        self._tokenwise = tokenwise
        self._on_tokens: dict[ir.Value, ir.Value] = {}  # a rectangle's value -> the same as [1, N, …]
        tables = {value.name: value for value in graph.inputs}
        given = {
            record.name: ir.Value(
                name=record.name,
                shape=ir.Shape(list(record.axes)),
                type=ir.TensorType(ir.DataType.INT32 if record.dtype == "int32" else ir.DataType.INT64),
            )
            for record in packed_inputs("pooling_mask" in tables)
        }
        graph.inputs.clear()
        graph.inputs.extend(given.values())
        self._stream = TokenStream(graph, given["input_ids"], given["attention_mask"], given["lengths"])
        for name, table in tables.items():
            packed = self._stream.with_pad(given[name]) if name in given else self._stream.zeros()  # types: all zero
            tokens = self._stream.as_one_row(packed)
            rectangle = self._stream.to_rectangle(tokens, ROWS_FIRST)
            tokenwise.declare(rectangle, ROWS_FIRST)
            self._on_tokens[rectangle] = tokens
            table.replace_all_uses_with(rectangle)
            if name == "input_ids":
                self._ask_for_sizes(rectangle)

    def _ask_for_sizes(self, ids: ir.Value) -> None:
        """Sizes are those of the ids: no value has to be a rectangle only to be asked how large it is."""
        for node in self._graph:
            if node.op_type == "Shape" and self._tokenwise.order(node.inputs[0]) == ROWS_FIRST:
                end = node.attributes.get_int("end", None)
                if end is not None and 0 <= end <= 2:
                    node.replace_input_with(0, ids)

    def move(self, nodes: Sequence[ir.Node]) -> None:
        """Move tokenwise nodes, given in the order of the graph; what others take of them is a rectangle again."""
        for node in nodes:
            if node.op_type == "Transpose":
                self._on_tokens[node.outputs[0]] = self._input(node.inputs[0], self._tokenwise.dims(node.inputs[0]))
                continue
            dims = self._tokenwise.dims(node.outputs[0])
            moved = ir.node(
                node.op_type,
                [None if value is None else self._input(value, dims) for value in node.inputs],
                dict(node.attributes),
                domain=node.domain,
                outputs=[ir.Value(name=f"{value.name}_tokens", type=value.type) for value in node.outputs],
            )
            self._graph.append(moved)
            self._on_tokens |= zip(node.outputs, moved.outputs, strict=True)
        gone = set(nodes)
        for value in [value for node in nodes for value in node.outputs]:
            if users := [use for use in value.uses() if use.node not in gone]:
                rectangle = self._stream.to_rectangle(self._on_tokens[value], self._tokenwise.dims(value))
                for user, place in users:
                    user.replace_input_with(place, rectangle)

    def _input(self, value: ir.Value | None, output: Dims) -> ir.Value:
        """What a moved node takes for a value that met ``output`` in the rectangle."""
        assert value is not None
        dims = self._tokenwise.dims(value)
        if value not in self._on_tokens:
            if all(isinstance(dim, int) for dim in dims):
                return value  # weights
            dims = (1,) * (len(output) - len(dims)) + dims
            if 1 in dims[:2]:
                return self._stream.spread(value, dims)
            self._on_tokens[value] = self._stream.to_tokens(value, dims)
        return self._on_tokens[value]


def _beside_dense(nodes: Sequence[ir.Node], tokenwise: Tokenwise) -> list[ir.Node]:
    """Of tokenwise nodes those that are connected, through others of them, with dense work."""
    makers = {value: node for node in nodes for value in node.outputs}
    group = {node: [node] for node in nodes}
    for node in nodes:
        for value in node.inputs:
            other = group[makers[value]] if value in makers else group[node]
            if other is not group[node]:
                other += group[node]
                group |= dict.fromkeys(group[node], other)
    dense = {id(group[node]) for node in nodes if tokenwise.is_dense(node)}
    return [node for node in nodes if id(group[node]) in dense]


def split_projections(graph: ir.Graph, tokenwise: Tokenwise | None = None) -> None:
    """Take the projections out of ONNX Runtime's fused attention, so that they can run on tokens end to end.

    Before: Attention(x, weight, bias, mask)
    After: MatMul(x, weight) → Split → MultiHeadAttention(query, key, value, bias, mask)
    """
    for node in [node for node in graph if (node.domain, node.op_type) == ("com.microsoft", "Attention")]:
        if len(node.inputs) != 4 or node.attributes.keys() - {"num_heads", "mask_filter_value", "scale"}:
            continue  # with a bias on its scores, say; it stays on the rectangle as it is
        x, weight, bias, mask = node.inputs
        name = node.outputs[0].name
        projected = ir.node("MatMul", [x, weight], outputs=[ir.Value(name=f"{name}_projected")])
        if tokenwise is not None:
            tokenwise.declare(projected.outputs[0], (*tokenwise.dims(x)[:-1], tokenwise.dims(weight)[-1]))
        parts = ir.node(
            "Split",
            projected.outputs,
            {"axis": 2, "num_outputs": 3},
            outputs=[ir.Value(name=f"{name}_{part}") for part in ("query", "key", "value")],
        )
        attention = ir.node(
            "MultiHeadAttention", [*parts.outputs, bias, mask], dict(node.attributes), domain=node.domain, num_outputs=1
        )
        ir.convenience.replace_nodes_and_values(
            graph, node, [node], [projected, parts, attention], node.outputs, attention.outputs
        )
