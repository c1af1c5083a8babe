"""Runners: one forward pass each, from a batch of host ids to unit vectors on the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import BertModel

from bench.gpu_check.attention import Choice, Packing, choose_attention
from bench.gpu_check.bert import Weights, encode_packed, read_weights
from bench.gpu_check.policies import Batch, Policy
from bench.gpu_check.workload import Corpus, Floats, Ints

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
Inputs = TypeVar("Inputs")
EncodePadded = Callable[[Tensor, Tensor], Tensor]


class Runner(Protocol[Inputs]):
    """Computes batches; the harness plans them, times them and judges the vectors."""

    def upload(self, corpus: Corpus, batch: Batch) -> Inputs:
        """Lays out a batch on the host and copies it to the device."""

    def forward(self, inputs: Inputs) -> Tensor:
        """Computes fp32 unit vectors ``[padded_rows, dim]``; the first rows are the batch's."""

    def details(self) -> dict[str, Any]:
        """Returns what the record should say beyond the contestant's name."""


@dataclass
class Model:
    """One model on one device; copies of it in each precision are made when first asked for.

    Attributes:
        name: as recorded.
        source: fp32 on the CPU.
        device: where it runs.
        graphs: folder of its exported graphs, where there is one.
    """

    name: str
    source: BertModel
    device: torch.device
    graphs: Path | None = None
    _weights: dict[str, Weights] = field(default_factory=dict)
    _modules: dict[str, BertModel] = field(default_factory=dict)

    def weights(self, precision: str) -> Weights:
        """Returns the parameters for the forward pass of this package."""
        if precision not in self._weights:
            self._weights[precision] = read_weights(self.source, self.device, DTYPES[precision])
        return self._weights[precision]

    def module(self, precision: str) -> BertModel:
        """Returns transformers' own model."""
        if precision not in self._modules:
            copy = BertModel(self.source.config, add_pooling_layer=False).eval()
            copy.load_state_dict(self.source.state_dict())
            self._modules[precision] = copy.to(self.device, DTYPES[precision])
        return self._modules[precision]


class PaddedRunner:
    """Right-padded rows through any ``encode(ids [B, L], lengths [B])``."""

    def __init__(self, encode: EncodePadded, device: torch.device, details: dict[str, Any]) -> None:
        """Keeps the forward pass; ``details`` goes into the record."""
        self.encode = encode
        self.device = device
        self._details = details

    def upload(self, corpus: Corpus, batch: Batch) -> tuple[Tensor, Tensor]:
        """Pads the rows with id 0; see ``Runner``."""
        ids, lengths = pad(corpus, batch)
        return to_device(ids, self.device), to_device(lengths, self.device)

    def forward(self, inputs: tuple[Tensor, Tensor]) -> Tensor:
        """See ``Runner``."""
        return self.encode(*inputs)

    def details(self) -> dict[str, Any]:
        """See ``Runner``."""
        return self._details


class GraphRunner(PaddedRunner):
    """Replays one CUDA graph per shape: the host issues one launch a batch instead of one a kernel."""

    def __init__(self, encode: EncodePadded, device: torch.device, details: dict[str, Any]) -> None:
        """See ``PaddedRunner``; graphs are captured when their shape first comes."""
        super().__init__(encode, device, details)
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: dict[torch.Size, tuple[torch.cuda.CUDAGraph, Tensor, Tensor, Tensor]] = {}

    def forward(self, inputs: tuple[Tensor, Tensor]) -> Tensor:
        """See ``Runner``."""
        ids, lengths = inputs
        if ids.shape not in self._graphs:
            self._graphs[ids.shape] = self._capture(ids, lengths)
        graph, graph_ids, graph_lengths, out = self._graphs[ids.shape]
        graph_ids.copy_(ids)
        graph_lengths.copy_(lengths)
        graph.replay()
        # All graphs share one memory pool, so the next replay may write where this result lies.
        return out.clone()

    def details(self) -> dict[str, Any]:
        """See ``Runner``; adds how many shapes were captured."""
        return {**self._details, "graphs": len(self._graphs)}

    def _capture(self, ids: Tensor, lengths: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor, Tensor, Tensor]:
        ids, lengths = ids.clone(), lengths.clone()
        # Libraries choose kernels and allocate workspaces on first use, which a capture must not record.
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self.encode(ids, lengths)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            out = self.encode(ids, lengths)
        return graph, ids, lengths, out


class PackedRunner:
    """Rows laid end to end, no padding."""

    def __init__(self, model: Model, precision: str, choice: Choice | None = None) -> None:
        """Takes the attention given, else probes the device for the best one."""
        self.weights = model.weights(precision)
        self.device = model.device
        shape = self.weights.shape
        self.choice = choice or choose_attention(
            model.device, DTYPES[precision], shape.heads, shape.hidden // shape.heads
        )

    def upload(self, corpus: Corpus, batch: Batch) -> tuple[Tensor, Packing]:
        """Lays the rows end to end; see ``Runner``."""
        lengths = corpus.lengths[batch.rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        ids = to_device(corpus.gather(batch.rows), self.device)
        return ids, Packing(to_device(offsets, self.device), lengths.tolist())

    def forward(self, inputs: tuple[Tensor, Packing]) -> Tensor:
        """See ``Runner``."""
        ids, packing = inputs
        return encode_packed(self.weights, ids, packing, self.choice.run)

    def details(self) -> dict[str, Any]:
        """See ``Runner``."""
        return {"attention": self.choice.name, "attention_passed_over": self.choice.passed_over}


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Copies a host array to the device without making the host wait for what the device still computes."""
    tensor = torch.from_numpy(array)
    # From ordinary memory a copy of more than a few kilobytes waits for its turn in the stream.
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def pad(corpus: Corpus, batch: Batch) -> tuple[Ints, Ints]:
    """Lays a batch out as ``ids [padded_rows, padded_tokens]`` and ``lengths [padded_rows]``.

    Rows that only fill a fixed shape get one token: a row without any has no softmax.
    """
    lengths = np.ones(batch.padded_rows, dtype=np.int64)
    lengths[: len(batch.rows)] = corpus.lengths[batch.rows]
    ids = np.zeros((batch.padded_rows, batch.padded_tokens), dtype=np.int64)
    real = np.arange(batch.padded_tokens) < lengths[:, None]
    real[len(batch.rows) :] = False
    ids[real] = corpus.gather(batch.rows)  # row-major on both sides
    return ids, lengths


def end_to_end(runner: Runner[Any], corpus: Corpus, policy: Policy) -> Floats:
    """Encodes the corpus from host ids to host vectors ``[B, dim]`` in arrival order.

    Vectors cross to the host once, at the end: a copy per batch would stop the host from preparing the next one.
    """
    plan = policy.plan(corpus.lengths)
    return restore([runner.forward(runner.upload(corpus, batch)) for batch in plan], plan)


def restore(pieces: list[Tensor], plan: list[Batch]) -> Floats:
    """Puts the batches' vectors back into arrival order on the host, ``[B, dim]``."""
    found = torch.cat([piece[: len(batch.rows)] for piece, batch in zip(pieces, plan, strict=True)]).cpu().numpy()
    vectors = np.empty_like(found)
    vectors[np.concatenate([batch.rows for batch in plan])] = found
    return vectors
