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
from sentport.modeling.source_files import first_line

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
    names = [tensor.name for tensor in padded_inputs(model.uses_token_types, model.uses_pooling_mask)]
    # Two rows of seven tokens: sizes of one would be taken for constants.
    example = {name: torch.ones((2, 7), dtype=torch.int64) for name in names}
    batch, tokens = torch.export.Dim("batch"), torch.export.Dim("tokens", max=model.transformer.positions)
    with _undisturbed():
        try:
            program = torch.onnx.export(
                model,
                (),
                kwargs=example,
                dynamo=True,
                dynamic_shapes={name: {0: batch, 1: tokens} for name in names},
                input_names=names,
                output_names=[OUTPUT],
                opset_version=opset,
                optimize=True,
                verbose=False,
            )
        except Exception as error:  # torch wraps whatever failed in pages of advice
            cause = error.__cause__ or error
            kind = model.transformer.config.model_type
            raise SentportError(
                f"torch cannot trace this {kind} model ({type(cause).__name__}: {first_line(cause)})"
            ) from error
    if program is None:
        raise SentportError("torch traced the model but returned no graph")
    return program.model


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Without the exporter's progress notes and deprecation warnings, which are about torch, not about the model."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript")]
    levels = [logger.level for logger in loggers]
    collecting = gc.isenabled()
    gc.disable()  # tracing makes millions of objects that live to its end; collecting among them is lost time
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if collecting:
            gc.enable()
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
