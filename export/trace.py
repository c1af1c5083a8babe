"""The source model traced to one ONNX graph with pooling and normalisation inside."""

from __future__ import annotations

import contextlib
import gc
import logging
import warnings
from collections.abc import Iterator

import onnx_ir as ir
import torch

from export.signature import OUTPUT, padded_inputs
from sentport.errors import SentportError
from sentport.modeling.sentence_model import SentenceModel

# torch translates to 18 natively and converts upwards; 21 is the newest that Triton 24.10 takes.
DEFAULT_OPSET = 18
OPSETS = range(18, 24)
DEFAULT_IR_VERSION = 10
IR_VERSIONS = range(8, 12)


def trace_padded(model: SentenceModel, opset: int = DEFAULT_OPSET) -> ir.Model:
    """Trace layout ``padded``: every axis but ``dim`` is dynamic.

    Args:
        model: The source model, loaded with attention ``eager``.
        opset: ONNX operator set.

    Raises:
        SentportError: When torch cannot trace the model.
    """
    names = [tensor.name for tensor in padded_inputs(model.uses_token_types)]
    # Two rows of seven tokens: sizes of one would be taken for constants.
    example = tuple(torch.ones((2, 7), dtype=torch.int64) for _ in names)
    positions = model.transformer.config.max_position_embeddings
    batch, tokens = torch.export.Dim("batch"), torch.export.Dim("tokens", max=positions)
    with _undisturbed():
        try:
            program = torch.onnx.export(
                model,
                example,
                dynamo=True,
                dynamic_shapes={name: {0: batch, 1: tokens} for name in names},
                input_names=names,
                output_names=[OUTPUT],
                opset_version=opset,
                optimize=True,
                verbose=False,
            )
        except Exception as error:  # torch wraps whatever failed in several kinds
            raise SentportError(f"torch cannot trace this model: {type(error).__name__}: {error}") from error
    if program is None:
        raise SentportError("torch traced the model but returned no graph")
    return program.model


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Without the exporter's progress notes and deprecation warnings, which are about torch, not about the model."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    collecting = gc.isenabled()
    gc.disable()  # tracing makes millions of objects that live to its end; collecting among them is lost time
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if collecting:
            gc.enable()
        logger.setLevel(level)
