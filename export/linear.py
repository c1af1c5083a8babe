"""The linear layers of a graph, and how large what goes into them gets."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from numpy.typing import NDArray

from sentport.batch import TokenBatch
from sentport.engines.feeds import make_feed
from sentport.hardware import available_cores

# By the name of a linear layer's weight: the largest absolute value of each of its input channels, [in] float32.
Ranges = Mapping[str, NDArray[np.float32]]


class Linear(NamedTuple):
    """A product of tokens and a matrix of weights.

    Attributes:
        node: The ``MatMul``.
        name: Name of its weight; layers that share one have the same.
        weight: ``[in, out]`` float32.
    """

    node: ir.Node
    name: str
    weight: NDArray[np.float32]


def linears(graph: ir.Graph) -> list[Linear]:
    """The linear layers in the order of the graph; heads on sentence vectors (``Gemm``) are none."""
    found = []
    for node in graph:
        weight = node.inputs[1].const_value if node.op_type == "MatMul" and node.inputs[1] is not None else None
        if weight is not None and len(weight.shape) == 2 and weight.dtype == ir.DataType.FLOAT:
            found.append(Linear(node, weight.name or "", weight.numpy()))
    return found


def input_ranges(padded: ir.Model, rows: Sequence[NDArray[np.int64]]) -> Ranges:
    """What goes into each linear layer at most, over some texts, each alone so that no pad is among it.

    Args:
        padded: A graph of layout ``padded``; it is not changed.
        rows: Token ids of the texts.
    """
    model = padded.clone()
    layers: dict[ir.Value, set[str]] = {}
    for layer in linears(model.graph):
        value = layer.node.inputs[0]
        assert value is not None
        layers.setdefault(value, set()).add(layer.name)
    for value in layers:
        value.type = ir.TensorType(ir.DataType.FLOAT)  # an output has to say so; not every rewriting keeps it
    wanted = [value.name for value in layers]
    given = [value.name or "" for value in model.graph.inputs]
    model.graph.outputs.extend(value for value in layers if value not in model.graph.outputs)
    session = open_model(model)
    largest: dict[str, NDArray[np.float32]] = {}
    for ids in rows:
        values = session.run(wanted, make_feed("padded", given, TokenBatch.from_rows([ids])))
        for names, value in zip(layers.values(), values, strict=True):
            channels = np.abs(value).reshape(-1, value.shape[-1]).max(axis=0)  # [1, tokens, in] -> [in]
            for name in names:
                largest[name] = np.maximum(largest.get(name, 0.0), channels)
    return largest


def open_model(model: ir.Model) -> Any:
    """A session of ONNX Runtime on the CPU for a graph in memory, whatever its size."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = available_cores()
    options.log_severity_level = 4  # fatal only; what fails raises
    with tempfile.TemporaryDirectory(prefix="sentport-graph-") as folder:
        file = Path(folder) / "graph.onnx"
        ir.save(model, file, external_data="graph.onnx.data")
        return ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
