"""Small helpers of passes that put nodes into a graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir


class Editor:
    """Makes nodes and constants in one graph; every name begins with what they are made for.

    Args:
        graph: The graph to put them into.
        about: The beginning of all names.
        nodes_about: Of the names of nodes, where constants are shared with other places; None = ``about``.
    """

    def __init__(self, graph: ir.Graph, about: str, nodes_about: str | None = None) -> None:
        self._graph = graph
        self._about = about
        self._nodes_about = about if nodes_about is None else nodes_about
        self._made = 0
        self.nodes: list[ir.Node] = []

    def constant(self, name: str, array: np.ndarray | np.generic, dtype: ir.DataType | None = None) -> ir.Value:
        """A constant of the graph; the same name gives the same one again."""
        full = f"{self._about}{name}"
        if full not in self._graph.initializers:
            tensor = ir.tensor(np.asarray(array), dtype=dtype, name=full)
            value = ir.Value(
                name=full, const_value=tensor, shape=ir.Shape(np.shape(array)), type=ir.TensorType(tensor.dtype)
            )
            self._graph.register_initializer(value)
        return self._graph.initializers[full]

    def op(
        self,
        kind: str,
        inputs: Sequence[ir.Value | None],
        attributes: dict[str, int] | None = None,
        *,
        domain: str = "",
    ) -> ir.Value:
        """The first output of a new node, which has still to be put into the graph (``nodes``)."""
        output = ir.Value(name=f"{self._nodes_about}{kind}_{self._made}")
        self._made += 1
        self.nodes.append(ir.node(kind, inputs, attributes, domain=domain, outputs=[output]))
        return output

    def replace(self, old: ir.Node, new: ir.Value) -> None:
        """Put the nodes made so far where ``old`` stands; ``new`` takes over its only output."""
        ir.convenience.replace_nodes_and_values(self._graph, old, [old], self.nodes, [old.outputs[0]], [new])
        self.nodes = []
