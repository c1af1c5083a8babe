"""The contestants in order of priority: what runs first when time is short."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bench.gpu_check.bert import encode_padded, encode_with_transformers
from bench.gpu_check.graphs import Absent, OnnxRuntimeRunner, TensorRtRunner, package
from bench.gpu_check.policies import Policy, arrival, bucketed, packed_budget, shuffled, smart, token_budget
from bench.gpu_check.runners import GraphRunner, Model, PackedRunner, PaddedRunner, Runner

ROWS = 32
MANY_ROWS = 256
SDPA = {"attention": "SDPA with a padding bias"}


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way to compute a corpus.

    Attributes:
        implementation: whose forward pass, and how it is launched.
        precision: ``fp32``, ``bf16`` or ``fp16``.
        layout: ``padded`` or ``packed``.
        policy: how batches are cut.
        build: makes the runner for a model.
        needs_cuda: it is recorded as not run on a CPU.
    """

    implementation: str
    precision: str
    layout: str
    policy: Policy
    build: Callable[[Model, str], Runner[Any]]
    needs_cuda: bool = False

    @property
    def name(self) -> str:
        """Unique among the contestants of one workload."""
        return f"{self.implementation} {self.precision}, {self.policy.name} of {self.policy.size}"


def contestants(tokens: int, few_tokens: int) -> list[Contestant]:
    """Lists every contestant, the most telling first.

    Args:
        tokens: the token budget of a batch that should fill the device.
        few_tokens: the budget of a batch about as small as ``ROWS`` short texts.
    """
    half = ("bf16", "fp16")
    forms: list[tuple[tuple[str, ...], Callable[[str], Contestant]]] = [
        (("fp32", "bf16"), lambda p: Contestant("transformers", p, "padded", arrival(ROWS), _transformers)),
        (("fp32", *half), lambda p: Contestant("torch", p, "padded", arrival(ROWS), _padded)),
        (("fp32", *half), lambda p: Contestant("torch", p, "padded", smart(ROWS), _padded)),
        (("fp32", *half), lambda p: Contestant("torch", p, "padded", token_budget(tokens), _padded)),
        (("fp32", *half), lambda p: Contestant("torch, no padding", p, "packed", packed_budget(tokens), PackedRunner)),
        (("fp32", *half), lambda p: Contestant("CUDA graphs", p, "padded", bucketed(few_tokens), _graphs, True)),
        (("fp32", *half), lambda p: Contestant("CUDA graphs", p, "padded", bucketed(tokens), _graphs, True)),
        (("fp32", *half), lambda p: Contestant("torch", p, "padded", shuffled(ROWS), _padded)),
        (("fp32", *half), lambda p: Contestant("torch", p, "padded", smart(MANY_ROWS), _padded)),
        (("fp32", *half), lambda p: Contestant("torch", p, "padded", arrival(MANY_ROWS), _padded)),
        (("fp32", "fp16"), lambda p: Contestant("onnxruntime", p, "padded", smart(MANY_ROWS), OnnxRuntimeRunner)),
        (("fp32", "fp16"), lambda p: Contestant("TensorRT", p, "padded", smart(MANY_ROWS), _tensorrt)),
        (("bf16",), lambda p: Contestant("torch.compile", p, "padded", token_budget(tokens), _compiled, True)),
    ]
    # fp16 adds least to what bf16 shows, so all of it comes after everything else.
    first = [make(precision) for precisions, make in forms for precision in precisions if precision != "fp16"]
    return first + [make("fp16") for precisions, make in forms if "fp16" in precisions]


def _transformers(model: Model, precision: str) -> Runner[Any]:
    module = model.module(precision)
    details = {"attention": f"transformers {getattr(module.config, '_attn_implementation', 'default')}"}
    return PaddedRunner(partial(encode_with_transformers, module), model.device, details)


def _padded(model: Model, precision: str) -> Runner[Any]:
    return PaddedRunner(partial(encode_padded, model.weights(precision)), model.device, SDPA)


def _tensorrt(model: Model, precision: str) -> Runner[Any]:
    package("tensorrt")  # before anything else is asked of the machine
    if model.device.type != "cuda":
        raise Absent("needs CUDA")
    return TensorRtRunner(model, precision, MANY_ROWS, model.source.config.max_position_embeddings)


def _graphs(model: Model, precision: str) -> Runner[Any]:
    return GraphRunner(partial(encode_padded, model.weights(precision)), model.device, SDPA)


def _compiled(model: Model, precision: str) -> Runner[Any]:
    compiled = torch.compile(encode_padded)
    weights = model.weights(precision)

    def encode(ids: Tensor, lengths: Tensor) -> Tensor:
        # Only the batch is dynamic: one compilation serves every shape, and the weights' sizes stay constants in it.
        for tensor, axes in ((ids, (0, 1)), (lengths, (0,))):
            torch._dynamo.maybe_mark_dynamic(tensor, axes)
        return compiled(weights, ids, lengths)

    return PaddedRunner(encode, model.device, SDPA)
