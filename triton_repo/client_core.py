"""What both clients do alike, without any input or output: check, split, put together."""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentport.encoder import EncoderInfo, Vectors
from sentport.errors import InputError, SentportError, TruncationError
from sentport.inputs import check_dim, prompt_text, truncation, valid_rows
from triton_repo import wire
from triton_repo.transport import Request, ServerError, Tensors, readable

logger = logging.getLogger(__name__)

PROTOCOLS = ("grpc", "http")
TRUNCATE_CHOICES = ("warn", "error", "allow")

_REQUEST_BYTES = 4 << 20
_FIRST_DELAY_SECONDS = 0.05
_MOST_SECONDS = 1_000_000  # far beyond it, sockets take no time limit


@dataclass(frozen=True, slots=True)
class Options:
    """How a client sends; see ``Client``."""

    model: str
    rows_per_request: int
    in_flight: int
    timeout: float
    retries: int
    on_truncate: str
    priority: int = 0

    def __post_init__(self) -> None:
        for name, least in (("rows_per_request", 1), ("in_flight", 1), ("retries", 0), ("priority", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise SentportError(f"{name} is {value!r}; expected a whole number from {least}")
        seconds = self.timeout
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds <= _MOST_SECONDS:
            raise SentportError(f"timeout is {seconds!r}; expected seconds, more than 0 and at most {_MOST_SECONDS}")
        if self.on_truncate not in TRUNCATE_CHOICES:
            raise SentportError(f"on_truncate is {self.on_truncate!r}; expected one of {', '.join(TRUNCATE_CHOICES)}")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a model's config tells a client.

    Attributes:
        info: The encoder, without what only the running model knows.
        max_batch: Rows that a request may have.
        outputs: Names of the outputs.
    """

    info: EncoderInfo
    max_batch: int
    outputs: frozenset[str]

    @property
    def fixed(self) -> bool:
        """Whether this is the cacheable variant, to which no request parameter may be sent."""
        return wire.INFO not in self.outputs


@dataclass(frozen=True, slots=True)
class Chunk:
    """A request and the caller's row that is its first."""

    start: int
    request: Request

    @property
    def rows(self) -> slice:
        """Its rows among the caller's."""
        return slice(self.start, self.start + len(self.request.texts))


def bare_address(url: str, protocol: str) -> str:
    """``host:port`` of an address as users write it.

    Raises:
        SentportError: For a protocol that is none, or an address without a port.
    """
    if protocol not in PROTOCOLS:
        raise SentportError(f"protocol is {protocol!r}; expected one of {', '.join(PROTOCOLS)}")
    if not isinstance(url, str):
        raise SentportError(f"{url!r} is not an address; expected host:port, as `sentport serve` prints it")
    scheme, separator, rest = url.rpartition("://")
    if separator and scheme not in (protocol, ""):
        raise SentportError(f"{url} is not an address for protocol {protocol}; give host:port, or another protocol")
    address = rest.rstrip("/")
    host, _, port = address.rpartition(":")
    numbered = port.isascii() and port.isdecimal() and int(port) <= 65535
    if not numbered or not _is_host(host):
        raise SentportError(f"{url!r} is not an address; expected host:port, as `sentport serve` prints it")
    return address


def _is_host(host: str) -> bool:
    try:
        named = bool(host.encode("idna"))
    except UnicodeError:  # an empty label, or one that is too long
        return False
    return named and "/" not in host and host.isprintable() and " " not in host


def check_open(closed: bool) -> None:
    """Refuse to go on with a client that was closed.

    Raises:
        SentportError: When it was.
    """
    if closed:
        raise SentportError("this client is closed; make a new one")


def described(model: str, config: Mapping[str, Any]) -> ModelFacts:
    """A model's facts from its config, as JSON with protobuf's field names.

    Raises:
        SentportError: When it is not one of ours.
    """
    try:
        encoder = json.loads(config["parameters"][wire.ENCODER]["string_value"])
        facts = ModelFacts(
            read_info(encoder), int(config["max_batch_size"]), frozenset(output["name"] for output in config["output"])
        )
    except (KeyError, TypeError, ValueError):
        raise SentportError(
            f"model {model!r} is served, but not as a text encoder that `sentport repository` wrote"
        ) from None
    return facts


def read_info(values: Mapping[str, Any]) -> EncoderInfo:
    """An encoder's description; of a newer server's, what this version knows.

    Raises:
        KeyError: When something is missing.
    """
    known: dict[str, Any] = {field.name: values[field.name] for field in fields(EncoderInfo)}
    return EncoderInfo(**known)


INFO_REQUEST = Request(np.array([[b""]], dtype=object), {wire.ASK_INFO: True}, (wire.INFO,))


def info_from(tensors: Tensors) -> EncoderInfo:
    """The answer to ``INFO_REQUEST``.

    Raises:
        ServerError: When it cannot be read.
    """
    with readable():
        return read_info(json.loads(tensors[wire.INFO][0, 0]))


def not_met(error: ServerError, address: str, protocol: str) -> SentportError:
    """The one line for an address where no server answers."""
    return SentportError(
        f"no Triton server answers at {address} over {protocol} ({error}); "
        "check address and protocol, or start one with `sentport serve BUNDLE`"
    )


def not_served(model: str, address: str, models: Sequence[str] | None, error: ServerError) -> SentportError:
    """The one line for a model that a server does not have; ``models`` is None where it does not tell which it has."""
    if models is None:
        return SentportError(f"{address} has no model {model!r} (which it has, it does not tell): {error}")
    if model in models:
        return SentportError(f"model {model!r} at {address} is not ready: {error}")
    return SentportError(f"{address} has no model {model!r}; it has {', '.join(sorted(models)) or 'none'}")


def check_truncation(facts: ModelFacts, options: Options) -> None:
    """Say at once when a model cannot tell what the client was asked to watch."""
    if wire.TRUNCATED in facts.outputs or options.on_truncate == "allow":
        return
    remark = f"model {options.model!r} is the cacheable variant, which does not tell when it cuts a text"
    if options.on_truncate == "error":
        raise SentportError(
            f"{remark}: its prompt, dim and truncation are fixed; use on_truncate='allow', or a model without --cache"
        )
    logger.warning("%s", remark)


class Patience:
    """How long to go on with one request: until its time is over or its tries are used up."""

    def __init__(self, options: Options) -> None:
        self._seconds = options.timeout
        self._deadline = time.monotonic() + options.timeout
        self._tries_left = options.retries
        self._delay = _FIRST_DELAY_SECONDS

    @property
    def left(self) -> float:
        """Seconds left, never quite none."""
        return max(0.001, self._deadline - time.monotonic())

    def delay_after(self, error: ServerError) -> float:
        """Seconds to wait before the next try.

        Raises:
            ServerError: The error itself, when there is no next try.
        """
        # Spread out: those who were refused together should not come back together.
        delay = self._delay * random.uniform(0.5, 1.5)
        if not error.transient or self._tries_left < 1 or delay >= self.left:
            raise error
        self._tries_left -= 1
        self._delay *= 2
        return delay


class Job:
    """One call of ``encode``: its requests, and the vectors as they come in, in any order.

    Attributes:
        chunks: The requests, in order.
        total: Number of texts.

    Args:
        facts: The model.
        info: The encoder.
        options: How the client sends.
        texts: The caller's texts.
        prompt: As in ``TextEncoder.encode``.
        dim: As in ``TextEncoder.encode``.

    Raises:
        TypeError: For a bare string.
        InputError: Listing the rows that are not text.
        SentportError: For an unknown prompt, a dim that the model does not have, or either where both are fixed.
    """

    def __init__(
        self,
        facts: ModelFacts,
        info: EncoderInfo,
        options: Options,
        texts: Sequence[str],
        prompt: str | None,
        dim: int | None,
    ) -> None:
        width = check_dim(dim, info.dim)
        prompt_text(info.prompts, info.default_prompt, prompt)  # an unknown name is told before anything is sent
        data = _encoded(texts)
        self._fixed = facts.fixed
        if self._fixed and (prompt is not None or width != info.dim):
            raise SentportError(
                f"the prompt, dim ({info.dim}) and truncation of model {options.model!r} are fixed, since its answers "
                "are cached; leave prompt and dim out, or use a model without --cache"
            )
        parameters: dict[str, str | int | bool] = {}
        if prompt is not None:
            parameters[wire.PROMPT] = prompt
        if dim is not None and not self._fixed:
            parameters[wire.DIM] = width
        self.total = len(data)
        self._policy = options.on_truncate
        self._watched = self._policy != "allow" and wire.TRUNCATED in facts.outputs
        outputs = (wire.EMBEDDING, wire.TOKENS, wire.TRUNCATED) if self._watched else (wire.EMBEDDING,)
        most = min(options.rows_per_request, facts.max_batch)
        self.chunks = [
            Chunk(rows.start, Request(_column(data[rows]), parameters, outputs, options.priority))
            for rows in _slices(data, most)
        ]
        self._limit = info.max_tokens
        self._vectors = np.empty((len(data), width), np.float32)
        self._tokens = np.zeros(len(data), np.int64)
        self._truncated = np.zeros(len(data), bool)
        self._accepted = np.zeros(len(data), bool)

    def accept(self, chunk: Chunk, tensors: Tensors) -> int:
        """Take a request's answer and return its number of rows.

        Raises:
            ServerError: When it does not have the rows and values that were asked for.
        """
        if self._fixed and wire.EMBEDDING not in tensors:
            raise ServerError(
                "the server answered without vectors: it keeps refusals of a cached model (a text that is too long or "
                "not UTF-8) in its cache and answers them empty",
                transient=False,
            )
        expected = self._vectors[chunk.rows].shape
        for name in chunk.request.outputs:
            shape = None if tensors.get(name) is None else tensors[name].shape
            wanted = expected if name == wire.EMBEDDING else (expected[0], 1)
            if shape != wanted:
                raise ServerError(
                    f"the server answered {name} {shape}, expected {wanted}; serve with this version of sentport",
                    transient=False,
                )
        self._vectors[chunk.rows] = tensors[wire.EMBEDDING]
        self._accepted[chunk.rows] = True
        if self._watched:
            self._tokens[chunk.rows] = tensors[wire.TOKENS][:, 0]
            self._truncated[chunk.rows] = tensors[wire.TRUNCATED][:, 0]
        return len(chunk.request.texts)

    def refused(self, chunk: Chunk, error: ServerError) -> SentportError:
        """A request's error in the caller's row numbers."""
        message, rows = wire.shift_rows(str(error), chunk.start)
        if len(self.chunks) > 1:
            message = f"rows {chunk.rows.start} to {chunk.rows.stop - 1} failed: {message}"
        return InputError(message, rows) if rows else ServerError(message, transient=error.transient)

    def result(self) -> Vectors:
        """All vectors ``[n, dim]``, once every request was accepted.

        Raises:
            ServerError: When a request was not.
            TruncationError: When texts were too long and that was declared an error.
        """
        missing = int(self.total - self._accepted.sum())
        if missing:
            raise ServerError(f"{missing} of {self.total} texts were not answered", transient=False)
        told = truncation(self._tokens, self._limit)
        if told is not None and self._watched:
            if self._policy == "error":
                raise TruncationError(
                    f"{told}; shorten them, or let them be cut (on_truncate warn or allow)", told.rows, told.tokens
                )
            logger.warning("%s", told)
        return self._vectors


def _encoded(texts: Sequence[str]) -> list[bytes]:
    return [text.encode() for text in valid_rows(texts)]


def _column(texts: list[bytes]) -> NDArray[np.object_]:
    return np.array([[text] for text in texts], dtype=object)  # [n, 1]


def _slices(data: list[bytes], most: int) -> Iterator[slice]:
    """Cut into requests of at most so many rows and so many bytes (a text larger than that goes alone)."""
    start = size = 0
    for row, text in enumerate(data):
        if row > start and (row - start == most or size + len(text) > _REQUEST_BYTES):
            yield slice(start, row)
            start, size = row, 0
        size += len(text)
    if start < len(data):
        yield slice(start, len(data))
