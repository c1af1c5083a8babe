"""``config.pbtxt`` in pieces, and how requests wait: what the forms of a repository have in common."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sentport.errors import SentportError

CONFIG_FILE = "config.pbtxt"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
# Rows of one execution. Form text cuts them into batches by tokens itself; the other forms compute what they are given.
MAX_BATCH = {"text": 512, "ragged": 64, "plan": 64}
MOST_PRIORITIES = 16
# The numbers of a config have 32 bits or more.
_MOST = 2**31 - 1
_PARAMETER = "parameters {{ key: {} value: {{ string_value: {} }} }}"


@dataclass(frozen=True, slots=True)
class Batching:
    """How requests wait and are put together.

    Attributes:
        max_batch: Rows of one execution, and of one request. Form ``text`` batches them by tokens, with less padding
            the more there are; it bounds how long an execution holds up the next.
        delay_us: How long the first request of an execution waits for company, microseconds.
        max_queue: Requests that may wait, of each priority; one more is refused at once. 0 = any number, for any time.
        timeout_ms: How long a request may wait before it is refused, milliseconds; it may itself ask for less.
        priorities: Levels of priority that a request may ask for, 1 the most urgent; a request that asks for none has
            the middle one. 0 = all are alike.
        shares: Name of something that only one model of the server has at a time, such as its cores; None = nothing.
            It holds where the server runs with ``--rate-limit=execution_count``.
    """

    max_batch: int = MAX_BATCH["text"]
    delay_us: int = 500
    max_queue: int = 1024
    timeout_ms: int = 30_000
    priorities: int = 0
    shares: str | None = None

    @property
    def own_line(self) -> bool:
        """Whether a python model has these limits in a line of its own, and Triton's queue has none.

        Triton's batcher sleeps up to half a second where its queue has limits (docs/architecture.md). But urgent
        requests overtake others in that queue alone, and models take turns by their executions.
        """
        return bool(self.max_queue) and not self.priorities and self.shares is None

    def __post_init__(self) -> None:
        for name, least in (("max_batch", 1), ("delay_us", 0), ("max_queue", 0), ("timeout_ms", 1), ("priorities", 0)):
            if not least <= getattr(self, name) <= _MOST:
                raise SentportError(f"{name} is {getattr(self, name)}; expected a whole number from {least} to {_MOST}")
        if self.priorities > MOST_PRIORITIES:
            raise SentportError(f"priorities is {self.priorities}; expected at most {MOST_PRIORITIES} levels")
        if self.priorities and not self.max_queue:
            raise SentportError("priorities need a queue with limits; give max_queue, or leave out priorities")
        if self.shares is not None and not NAME.fullmatch(self.shares):
            raise SentportError(f"{self.shares!r} cannot be a resource's name (letters, digits, '_', '-', '.')")


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """One model of a repository, before it is written.

    Attributes:
        config: The content of ``config.pbtxt``.
        files: What lies in its version folder, by its path there: a file or folder on disk.
        warmup: Contents of its warm-up files, by name.
    """

    config: str
    files: Mapping[str, Path] = field(default_factory=dict)
    warmup: Mapping[str, bytes] = field(default_factory=dict)


def quoted(text: str) -> str:
    """A text as protobuf's text format has it."""
    # JSON's escapes are a subset of those that protobuf's text format knows.
    return json.dumps(text, ensure_ascii=False)


def tensor(side: str, name: str, dtype: str, dims: Sequence[int], *, ragged: bool = False) -> str:
    """A line that declares an input or an output (``side``); ``dims`` without the batch axis."""
    shape = ", ".join(map(str, dims))
    more = " allow_ragged_batch: true" if ragged else ""
    return f"{side} [ {{ name: {quoted(name)} data_type: TYPE_{dtype} dims: [ {shape} ]{more} }} ]"


def parameters(values: Mapping[str, str]) -> list[str]:
    """Lines of parameters."""
    return [_PARAMETER.format(quoted(key), quoted(value)) for key, value in values.items()]


def read_parameter(text: str, key: str) -> str | None:
    """A parameter of a config that ``parameters`` wrote; None where it is not there."""
    begin, end = _PARAMETER.format(quoted(key), "\0").split("\0")
    line = next((line for line in text.splitlines() if line.startswith(begin) and line.endswith(end)), None)
    return None if line is None else str(json.loads(line.removeprefix(begin).removesuffix(end)))


def with_parameter(text: str, key: str, value: str) -> str:
    """A config that ``parameters`` wrote, with another value of a parameter that it has."""
    old = _PARAMETER.format(quoted(key), quoted(read_parameter(text, key) or ""))
    return text.replace(old, _PARAMETER.format(quoted(key), quoted(value)))


def instances(kind: str, batching: Batching, profiles: int = 0) -> str:
    """The line of one instance of kind ``cpu`` or ``gpu``, with all of a plan's profiles where it has some."""
    where = "kind: KIND_GPU count: 1 gpus: [ 0 ]" if kind == "gpu" else "kind: KIND_CPU count: 1"
    limit = ""
    if batching.shares is not None:
        limit = f" rate_limiter {{ resources [ {{ name: {quoted(batching.shares)} global: true count: 1 }} ] }}"
    if profiles:
        where += f" profile: [ {', '.join(quoted(str(number)) for number in range(profiles))} ]"
    return f"instance_group [ {{ {where}{limit} }} ]"


def queue(batching: Batching, *, limits: bool = True, prefer_full: bool = False) -> list[str]:
    """Lines of a queue whose requests are put together, into full batches where these are preferred.

    Args:
        batching: How.
        limits: Whether the queue has those of ``batching``; False = the model has them itself.
        prefer_full: Whether a batch waits to be full.
    """
    preferred = f" preferred_batch_size: [ {batching.max_batch} ]" if prefer_full else ""
    if not (limits and batching.max_queue):
        return [f"dynamic_batching {{ max_queue_delay_microseconds: {batching.delay_us}{preferred} }}"]
    levels = []
    if batching.priorities:
        middle = (batching.priorities + 1) // 2
        levels = [f"  priority_levels: {batching.priorities}", f"  default_priority_level: {middle}"]
    return [
        "dynamic_batching {",
        f"  max_queue_delay_microseconds: {batching.delay_us}{preferred}",
        *levels,
        "  default_queue_policy {",
        "    timeout_action: REJECT",
        f"    default_timeout_microseconds: {batching.timeout_ms * 1000}",
        "    allow_timeout_override: true",
        f"    max_queue_size: {batching.max_queue}",
        "  }",
        "}",
    ]


def warmup_sample(name: str, inputs: Mapping[str, tuple[str, Sequence[int], str]]) -> str:
    """A line with one warm-up request of one row: of each input the type, the dims and the file."""
    given = " ".join(
        f"inputs {{ key: {quoted(key)} value {{ data_type: TYPE_{dtype} dims: [ {', '.join(map(str, dims))} ] "
        f"input_data_file: {quoted(file)} }} }}"
        for key, (dtype, dims, file) in inputs.items()
    )
    # Batch size 1: a larger one would be that many requests of the same content.
    return f"model_warmup [ {{ name: {quoted(name)} batch_size: 1 {given} }} ]"


def text_element(text: str) -> bytes:
    """One text as Triton reads it from a file: its length in bytes (not characters), then the bytes."""
    data = text.encode()
    return struct.pack("<I", len(data)) + data


def ids_file(ids: NDArray[np.int64]) -> bytes:
    """Token ids as Triton reads them from a file."""
    return ids.astype("<i8").tobytes()
