"""Flavour ``ort``: the portable graph after ONNX Runtime's transformer optimiser."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping

import onnx_ir as ir
from onnx_ir.passes import Sequential
from onnxruntime.transformers.fusion_options import FusionOptions
from onnxruntime.transformers.optimizer import optimize_model
from transformers import PretrainedConfig

from export.passes import DivideScores, SplitMaskUnsqueeze
from sentport.errors import SentportError

_MAXIMUM = "a maximum:"


def fuse(portable: ir.Model, config: PretrainedConfig) -> ir.Model:
    """A copy of a portable graph with what ONNX Runtime's optimiser fuses of it: attention, bias + GELU, skip + norm.

    It knows some architectures and not others, and says nothing about what it leaves: see ``fused_attention``.

    Raises:
        SentportError: When it fuses nothing at all, or fails.
    """
    # The optimiser works on protobuf and edits it, so the portable graph is copied at this border.
    copy = ir.from_proto(ir.to_proto(portable))
    prepared = Sequential(SplitMaskUnsqueeze(), DivideScores())(copy).model
    options = FusionOptions("bert")
    # The raw mask: the optimiser's default form counts the ones of a row and is wrong for any other mask.
    options.use_raw_attention_mask()
    options.enable_embed_layer_norm = False  # its operator takes int32 ids, and our signature says int64
    options.enable_layer_norm = False  # torch writes them as one; its form of RMS norms is in no operator set
    norms = [node for node in prepared.graph.all_nodes() if node.op_type == "LayerNormalization"]
    options.enable_skip_layer_norm = all(len(norm.inputs) == 3 for norm in norms)  # it takes their bias for granted
    _disguise_maxima(prepared)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # it prints; stdout is for data
            fused = optimize_model(
                ir.to_proto(prepared),
                model_type="bert",
                num_heads=getattr(config, "num_attention_heads", 0),  # 0: it finds out
                hidden_size=config.hidden_size,
                optimization_options=options,
                opt_level=0,  # rewriting by pattern only: what the session does at load time depends on the machine
            )
    except Exception as error:  # patterns that it half recognises surface as whatever its code meets
        raise SentportError(
            f"ONNX Runtime's optimiser fails on a {config.model_type} graph ({type(error).__name__}: {error})"
        ) from error
    model: ir.Model = ir.from_proto(fused.model)
    _restore_maxima(model)
    if not any(name.startswith("com.microsoft.") for name in operators(model)):
        raise SentportError(f"ONNX Runtime's optimiser fuses nothing of a {config.model_type} graph")
    model.opset_imports["com.microsoft"] = 1  # the optimiser declares it only when it saves the file itself
    return model


def _disguise_maxima(model: ir.Model) -> None:
    """ReduceMax as ReduceSum, which has the same shapes: at the former the optimiser's shape inference gives up."""
    for node in model.graph.all_nodes():
        if node.op_type == "ReduceMax":
            node.op_type, node.name = "ReduceSum", f"{_MAXIMUM}{node.name}"


def _restore_maxima(model: ir.Model) -> None:
    for node in model.graph.all_nodes():
        if (node.name or "").startswith(_MAXIMUM):
            node.op_type = "ReduceMax"


def fused_attention(model: ir.Model) -> int:
    """Attention layers that are one operator."""
    counts = operators(model)
    return sum(counts.get(f"com.microsoft.{name}", 0) for name in ("Attention", "MultiHeadAttention"))


def operators(model: ir.Model) -> Mapping[str, int]:
    """Operators of a graph with their counts, domain in front where it is not ONNX's own."""
    counts: dict[str, int] = {}
    for node in model.graph.all_nodes():
        name = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        counts[name] = counts.get(name, 0) + 1
    return dict(sorted(counts.items()))
