"""The graphs of one model: traced once, then each flavour in each layout, as they are written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import onnx_ir as ir

from export.ort_flavour import fuse, fused_attention
from export.packed import UNPACKED, pack
from export.passes import finish
from export.signature import outputs, packed_inputs, padded_inputs
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
    """

    layout: str
    flavour: str
    model: ir.Model
    inputs: tuple[TensorRecord, ...]
    packed: str | None = None


def make_graphs(
    model: SentenceModel,
    layouts: tuple[str, ...],
    flavours: tuple[str, ...] | None,
    opset: int,
    ir_version: int,
    say: Say,
) -> Iterator[Graph]:
    """Every graph asked for.

    Args:
        model: The source model, loaded with attention ``eager``.
        layouts: Of ``padded`` and ``packed``.
        flavours: Of ``portable`` and ``ort``; None = both, ``ort`` only where ONNX Runtime fuses something.
        opset: ONNX operator set.
        ir_version: ONNX file format version.
        say: Told what a user should know.

    Raises:
        SentportError: When a flavour that was asked for cannot be made.
    """
    traced = trace_padded(model, opset)
    shapes = shapes_of(traced)
    inputs = padded_inputs(model.uses_token_types, model.uses_pooling_mask)
    portable = finish(traced, inputs, outputs(model.dim), ir_version)
    for flavour in flavours or FLAVOURS:
        padded = portable if flavour == "portable" else fused(portable, model, ir_version, flavours is not None, say)
        if padded is None:
            continue
        for layout in layouts:
            if layout == "padded":
                yield Graph(layout, flavour, padded, inputs)
            else:
                yield _packed(padded, shapes, model, flavour, ir_version, say)


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
