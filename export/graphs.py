"""The graphs of one model: traced once, then each flavour in each layout, as they are written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import onnx_ir as ir

from export.int8 import numbers_sha256, quantise, quantised
from export.norms import PlainNorms
from export.ort_flavour import fuse, fused_attention
from export.packed import UNPACKED, pack, split_projections
from export.passes import finish
from export.sensitivity import Calibration, Int8Plan, plan_int8
from export.signature import outputs, packed_inputs, padded_inputs
from export.sixteen_bits import TYPES, lower
from export.tokenwise import Shapes, shapes_of
from export.trace import trace_padded
from sentport.bundle import TensorRecord
from sentport.errors import SentportError
from sentport.modeling.sentence_model import SentenceModel

FLAVOURS = ("portable", "ort")

Say = Callable[[str], None]


class Graph(NamedTuple):
    """One graph of a model.

    Attributes:
        layout: ``padded`` or ``packed``.
        flavour: ``portable`` or ``ort``.
        model: The graph itself.
        inputs: Its inputs, in order.
        packed: How it is packed; None for layout ``padded``.
        precision: ``fp32``, ``fp16``, ``bf16`` or ``int8``.
        int8: Of precision int8 alone: form, layers in int8 and kept, and what was measured.
    """

    layout: str
    flavour: str
    model: ir.Model
    inputs: tuple[TensorRecord, ...]
    packed: str | None = None
    precision: str = "fp32"
    int8: dict[str, Any] | None = None


def make_graphs(
    model: SentenceModel,
    layouts: tuple[str, ...],
    flavours: tuple[str, ...] | None,
    opset: int,
    ir_version: int,
    say: Say,
    precisions: tuple[str, ...] = ("fp32",),
    calibration: Calibration | None = None,
) -> Iterator[Graph]:
    """Every graph asked for.

    Args:
        model: The source model, loaded with attention ``eager``.
        layouts: Of ``padded`` and ``packed``.
        flavours: Of ``portable`` and ``ort``; None = both, ``ort`` only where ONNX Runtime fuses something.
        opset: ONNX operator set.
        ir_version: ONNX file format version.
        say: Told what a user should know.
        precisions: Of ``sentport.bundle.PRECISIONS``.
        calibration: What int8 is made with; needed for it alone.

    Raises:
        SentportError: When a flavour that was asked for cannot be made.
        GateError: When int8 cannot be made good enough.
    """
    traced = trace_padded(model, opset)
    shapes = shapes_of(traced)
    inputs = padded_inputs(model.uses_token_types, model.uses_pooling_mask)
    portable = finish(traced, inputs, outputs(model.dim), ir_version)
    for flavour in flavours or FLAVOURS:
        padded = portable if flavour == "portable" else fused(portable, model, ir_version, flavours is not None, say)
        if padded is None:
            continue
        plan = None
        if "int8" in precisions:
            assert calibration is not None
            plan = plan_int8(_apart(padded, flavour), flavour, calibration, say)
        for layout in layouts:
            if layout == "padded":
                graph = Graph(layout, flavour, padded, inputs)
            else:
                graph = _packed(padded, shapes, model, flavour, ir_version, say)
            for precision in precisions:
                yield _in_precision(graph, precision, plan, model.dim, ir_version)


def _in_precision(graph: Graph, precision: str, plan: Int8Plan | None, dim: int, ir_version: int) -> Graph:
    if precision == "fp32":
        return graph
    int8 = None
    if precision in TYPES:
        found = lower(graph.model, precision)
    else:
        assert plan is not None
        found = quantise(_apart(graph.model, graph.flavour), graph.flavour, plan.ranges, plan.kept)
        int8 = plan.record(quantised(found), numbers_sha256(found))
    found = finish(found, graph.inputs, outputs(dim), ir_version)
    return graph._replace(model=found, precision=precision, int8=int8)


def _apart(model: ir.Model, flavour: str) -> ir.Model:
    """A copy with what stands between its linear layers and int8 taken apart: fused attention, slow norms."""
    copy = model.clone()
    if flavour == "ort":
        split_projections(copy.graph)
        PlainNorms()(copy)
    return copy


def fused(portable: ir.Model, model: SentenceModel, ir_version: int, required: bool, say: Say) -> ir.Model | None:
    """The graph for flavour ``ort``; None where there is nothing to fuse and the flavour is not required."""
    config = model.transformer.config
    try:
        found = fuse(portable, config)
    except SentportError as error:
        if required:
            raise SentportError(f"{error}; export with --flavour portable") from error
        say(f"note: {error}; flavour ort is left out")
        return None
    attention, layers = fused_attention(found), config.num_hidden_layers
    if attention < layers:
        say(f"note: ONNX Runtime's optimiser fuses {attention} of the {layers} attention layers of {config.model_type}")
    inputs = padded_inputs(model.uses_token_types, model.uses_pooling_mask)
    return finish(found, inputs, outputs(model.dim), ir_version)


def _packed(padded: ir.Model, shapes: Shapes, model: SentenceModel, flavour: str, ir_version: int, say: Say) -> Graph:
    inputs = packed_inputs(model.uses_pooling_mask)
    found = pack(padded, shapes)
    if found.how == UNPACKED:
        kind = model.transformer.config.model_type
        say(f"note: not all dense work of {kind} can leave its pads out; packed-{flavour} is right, and not faster")
    return Graph("packed", flavour, finish(found.model, inputs, outputs(model.dim), ir_version), inputs, found.how)
