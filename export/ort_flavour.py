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


def fuse(portable: ir.Model, config: PretrainedConfig) -> ir.Model:
    """A fused copy of a portable graph: attention, bias + GELU, skip + layer norm as single operators.

    Raises:
        SentportError: When the attention of a layer was not fused; the optimiser itself says nothing then.
    """
    # The optimiser works on protobuf and edits it, so the portable graph is copied at this border.
    copy = ir.from_proto(ir.to_proto(portable))
    prepared = Sequential(SplitMaskUnsqueeze(), DivideScores())(copy).model
    options = FusionOptions("bert")
    # The raw mask: the optimiser's default form counts the ones of a row and is wrong for any other mask.
    options.use_raw_attention_mask()
    options.enable_embed_layer_norm = False  # its operator takes int32 ids, and our signature says int64
    with contextlib.redirect_stdout(sys.stderr):  # it prints; stdout is for data
        fused = optimize_model(
            ir.to_proto(prepared),
            model_type="bert",
            num_heads=config.num_attention_heads,
            hidden_size=config.hidden_size,
            optimization_options=options,
            opt_level=0,  # rewriting by pattern only: what the session does at load time depends on the machine
        )
    model: ir.Model = ir.from_proto(fused.model)
    model.opset_imports["com.microsoft"] = 1  # the optimiser declares it only when it saves the file itself
    attention = operators(model).get("com.microsoft.Attention", 0)
    if attention != config.num_hidden_layers:
        raise SentportError(
            f"ONNX Runtime's optimiser fused {attention} of {config.num_hidden_layers} attention layers; "
            "export with --flavour portable"
        )
    return model


def operators(model: ir.Model) -> Mapping[str, int]:
    """Operators of a graph with their counts, domain in front where it is not ONNX's own."""
    counts: dict[str, int] = {}
    for node in model.graph.all_nodes():
        name = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        counts[name] = counts.get(name, 0) + 1
    return dict(sorted(counts.items()))
