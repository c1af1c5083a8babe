"""A portable graph as TensorRT parses it: strongly typed, and in the precision that its record names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from sentport.bundle import GraphRecord
from sentport.engines.tensorrt_library import log_of
from sentport.errors import EngineError, GraphError, PrecisionError

_TYPES = {"FLOAT": "fp32", "HALF": "fp16", "BF16": "bf16"}
# What may stand between a product and its constant weights.
_PASSED_THROUGH = ("SHUFFLE", "CAST", "IDENTITY", "DEQUANTIZE", "QUANTIZE")


class Network(NamedTuple):
    """A parsed network with all that has to outlive it.

    Attributes:
        builder: Of the library.
        network: Its definition.
        parser: Holds the weights.
        types: Linear layers by the type in which they multiply.
    """

    builder: Any
    network: Any
    parser: Any
    types: dict[str, int]


def parse(trt: Any, graph: GraphRecord, file: Path) -> Network:
    """Parse a graph into a strongly typed network and prove its precision.

    Args:
        trt: The library (``sentport.engines.tensorrt_library``).
        graph: The graph's record.
        file: The graph, weights beside it where they are.

    Raises:
        GraphError: Naming the ONNX node and its tensor that the parser does not take.
        PrecisionError: When the network's linear layers are not in the record's precision.
    """
    log = log_of(trt)
    # Version 10 has networks of both kinds, and the flag may go where there is but one.
    flag = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    builder = trt.Builder(log)
    network = builder.create_network(0 if flag is None else 1 << int(flag))
    if flag is not None and not network.get_flag(flag):
        raise EngineError(f"version {trt.__version__} made a network without the types of its graph; use 10 or newer")
    parser = trt.OnnxParser(network, log)
    if not parser.parse_from_file(str(file)):
        errors = [parser.get_error(number) for number in range(parser.num_errors)]
        raise GraphError(f"{graph.file} cannot be parsed: {_where(errors[0], file) if errors else 'no reason given'}")
    types = linear_types(trt, network)
    check_types(graph, types)
    return Network(builder, network, parser, types)


def linear_types(trt: Any, network: Any) -> dict[str, int]:
    """How many products of tokens and weights a network has, by type; int8 where both sides come from 8 bits.

    Products of two computed tensors (attention) are none of them, nor those with a constant vector (angles).
    """
    layers = [network.get_layer(number) for number in range(network.num_layers)]
    producers = {layer.get_output(n).name: layer for layer in layers for n in range(layer.num_outputs)}
    found: Counter[str] = Counter()
    for layer in layers:
        if layer.type not in (trt.LayerType.MATRIX_MULTIPLY, trt.LayerType.EINSUM):
            continue
        sides = [layer.get_input(side) for side in range(layer.num_inputs)]
        weights = next((side for side in reversed(sides) if _is_matrix(side, producers)), None)
        if weights is not None:
            eight_bits = all("DEQUANTIZE" in _kinds(side, producers) for side in sides)
            found["int8" if eight_bits else _TYPES.get(weights.dtype.name, weights.dtype.name.lower())] += 1
    return dict(sorted(found.items()))


def check_types(graph: GraphRecord, types: dict[str, int]) -> None:
    """Raises PrecisionError unless linear layers have the types that the record of their graph asks for."""
    wanted = len(graph.int8["layers"]) if graph.int8 else sum(types.values())
    others = {"fp32"} if graph.precision == "int8" else set()
    if not wanted or types.get(graph.precision, 0) != wanted or types.keys() - {graph.precision} - others:
        found = ", ".join(f"{count} in {name}" for name, count in types.items()) or "none"
        raise PrecisionError(
            f"{graph.file} is {graph.precision}, but the network has of its linear layers {found}; export it again"
        )


def _is_matrix(tensor: Any, producers: dict[str, Any]) -> bool:
    return sum(size != 1 for size in tensor.shape) > 1 and _kinds(tensor, producers)[-1:] == ["CONSTANT"]


def _kinds(tensor: Any, producers: dict[str, Any]) -> list[str]:
    """Kinds of the layers that a tensor comes from, up to the first that computes."""
    return list(_walk_up(tensor, producers))


def _walk_up(tensor: Any, producers: dict[str, Any]) -> Iterator[str]:
    while tensor is not None and tensor.name in producers:
        layer = producers[tensor.name]
        yield layer.type.name
        if layer.type.name not in _PASSED_THROUGH:
            return
        tensor = layer.get_input(0)


def _where(error: Any, file: Path) -> str:
    """An error of the parser, with the node and the tensor that it makes in our graph."""
    import onnx_ir as ir

    nodes = list(ir.load(file).graph)
    number = error.node()
    tensor = f", tensor {nodes[number].outputs[0].name!r}" if 0 <= number < len(nodes) else ""
    return f"node {error.node_name()!r} ({error.node_operator()}{tensor}): {' '.join(error.desc().split())}"
