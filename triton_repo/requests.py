"""Requests as they come from the server: which texts, which parameters, and what is wrong with them.

What is wrong with a request is that request's answer and nobody else's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sentport.bundle import ModelSpec
from sentport.errors import InputError, SentportError, TruncationError
from sentport.inputs import MOST_BYTES, TOO_LONG, check_dim, counted, name_bad_rows, prompt_text, truncation
from sentport.scheduler import unique_texts
from sentport.tokenizer import Tokenizer, Tokens
from triton_repo import wire


@dataclass(frozen=True, slots=True)
class Fixed:
    """A model's answer to every request alike: the cacheable variant, which takes no notice of request parameters.

    The cache in front of it does not see them either, and would keep a refusal as everybody's answer to these texts,
    without vectors.

    Attributes:
        prompt: Name of a saved prompt; None = the default prompt, "" = none.
        dim: Values of a vector; None = all.
        on_truncate: ``allow`` or ``error``.
    """

    prompt: str | None = None
    dim: int | None = None
    on_truncate: str = "allow"


@dataclass(frozen=True, slots=True)
class TextRequest:
    """One request: its texts as they came, its parameters, and how long it may wait, microseconds or 0 for any time."""

    texts: Sequence[bytes]
    parameters: Mapping[str, Any]
    timeout_us: int = 0


class Unavailable(SentportError):
    """A request that is refused for what else there is to do, not for what it is."""


class ModelFailure(SentportError):
    """A request that met a fault of ours."""


class Answer(Protocol):
    """An answer to a request."""

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The answer by tensor name."""
        ...


@dataclass(slots=True)
class Counts:
    """What a model has done since it was opened.

    Attributes:
        executions: Times that it answered requests, as many as went together.
        requests: Requests in these.
        refused: Of these, the ones that were answered with an error.
        rows: Texts of the requests that were not.
        tokens: Their tokens after the length limit, a text that came twice in one execution counted once.
        computed: The same tokens with the padding of the batches that were computed.
        truncated: Texts that lost their end.
        turned_away: Requests that found the queue full, and are in none of the other counts.
        queue_us: Microseconds that requests waited in the model's own line, added up.
        compute_us: Microseconds in which they were answered, each with those of its whole execution, added up; where
            the model has no line, Triton knows both times and these are 0.
    """

    executions: int = 0
    requests: int = 0
    refused: int = 0
    rows: int = 0
    tokens: int = 0
    computed: int = 0
    truncated: int = 0
    turned_away: int = 0
    queue_us: int = 0
    compute_us: int = 0

    def took(self, came: Sequence[float], began: float, ended: float) -> None:
        """Count the time of one execution, of whose requests it is told when they came; all in seconds."""
        self.queue_us += round(1e6 * sum(began - each for each in came))
        self.compute_us += round(1e6 * (ended - began) * len(came))

    def served(self, answers: Sequence[Answer | SentportError]) -> None:
        """Count one execution by its answers."""
        self.executions += 1
        self.requests += len(answers)
        for answer in answers:
            if isinstance(answer, SentportError):
                self.refused += 1
            else:
                truncated = answer.tensors()[wire.TRUNCATED]  # [n, 1]
                self.rows += len(truncated)
                self.truncated += int(truncated.sum())


class ServedModel(Protocol):
    """What a ``model.py`` calls.

    Attributes:
        takes_parameters: Whether request parameters are looked at.
        counts: What it has done.
    """

    takes_parameters: bool
    counts: Counts

    def answer(self, requests: Sequence[TextRequest | SentportError]) -> Sequence[Answer | SentportError]:
        """Answer the requests of one execution, in their order; an error is the answer to its own request.

        An error in the place of a request, one that could not be read, is its answer as it is.
        """
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request that can be read: its texts with their prompt in front, and what to do with them.

    ``unpooled`` is how many of the prompt's tokens pooling leaves out.
    """

    texts: list[str]
    unpooled: int
    dim: int
    on_truncate: str
    info: bool


@dataclass(frozen=True, slots=True)
class Placed:
    """A request that will be computed, and which of the execution's distinct texts its rows are: ``[n]``."""

    wanted: Wanted
    rows: NDArray[np.int64]


class RequestReader:
    """Reads the requests of one execution and tokenises their texts, each distinct one once.

    Args:
        spec: What the model is.
        tokenizer: Its tokenizer.
        fixed: The one way in which all requests are answered, or None for request parameters.
    """

    def __init__(self, spec: ModelSpec, tokenizer: Tokenizer, fixed: Fixed | None = None) -> None:
        self._spec = spec
        self._tokenizer = tokenizer
        self._fixed = fixed

    def place(self, requests: Sequence[TextRequest | SentportError]) -> tuple[Tokens, list[Placed | SentportError]]:
        """The tokens of all distinct texts, and each request's rows among them or what is wrong with it."""
        read = [one if isinstance(one, SentportError) else self._read(one) for one in requests]
        # Across prompts too: a text is computed once however many requests bring it.
        distinct, inverse = unique_texts(
            [(text, one.unpooled) for one in read if isinstance(one, Wanted) for text in one.texts]
        )
        tokens = self._tokens(distinct)
        placed: list[Placed | SentportError] = []
        start = 0
        for one in read:
            if isinstance(one, Wanted):
                rows = inverse[start : start + len(one.texts)]
                start += len(one.texts)
                placed.append(self._too_long(one, tokens.full_lengths[rows]) or Placed(one, rows))
            else:
                placed.append(one)
        return tokens, placed

    def told(self, placed: Placed, tokens: Tokens) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Of a request's rows, both ``[n, 1]``: tokens without the limit, and whether the text lost its end."""
        lengths = tokens.full_lengths[placed.rows, None]
        return lengths.astype(np.int32), lengths > self._spec.max_tokens

    def _read(self, request: TextRequest) -> Wanted | SentportError:
        spec = self._spec
        try:
            parameters = self._parameters(request.parameters)
            prefix = prompt_text(spec.prompts, spec.default_prompt, parameters.get(wire.PROMPT))
            dim = check_dim(parameters.get(wire.DIM), spec.dim)
            texts = [prefix + text for text in _decoded(request.texts)]
        except SentportError as error:
            return error
        unpooled = 0 if spec.pools_prompt else self._tokenizer.prompt_tokens(prefix)
        return Wanted(
            texts, unpooled, dim, parameters.get(wire.ON_TRUNCATE, "allow"), parameters.get(wire.ASK_INFO, False)
        )

    def _parameters(self, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._fixed is not None:
            return asdict(self._fixed)
        unknown = sorted(parameters.keys() - set(wire.REQUEST_PARAMETERS))
        if unknown:
            raise SentportError(
                f"unknown request parameter {', '.join(unknown)}; known: {', '.join(wire.REQUEST_PARAMETERS)}"
            )
        _check_type(parameters, wire.PROMPT, str, "the name of a saved prompt, or an empty string for none")
        _check_type(parameters, wire.ASK_INFO, bool, "true or false")
        policy = parameters.get(wire.ON_TRUNCATE, "allow")
        if policy not in wire.TRUNCATE_POLICIES:
            known = ", ".join(wire.TRUNCATE_POLICIES)
            raise SentportError(f"request parameter {wire.ON_TRUNCATE} is {policy!r}; expected one of {known}")
        return parameters

    def _tokens(self, distinct: Sequence[tuple[str, int]]) -> Tokens:
        tokens = self._tokenizer.encode([text for text, _ in distinct])
        unpooled = np.fromiter((count for _, count in distinct), np.int64, count=len(distinct))
        return replace(tokens, unpooled=unpooled) if unpooled.any() else tokens

    def _too_long(self, wanted: Wanted, lengths: NDArray[np.int64]) -> SentportError | None:
        told = truncation(lengths, self._spec.max_tokens)
        if wanted.on_truncate == "allow" or told is None:
            return None
        way_out = f", or send {wire.ON_TRUNCATE}=allow" if self._fixed is None else ""
        return TruncationError(f"{told}; shorten them{way_out}", told.rows, told.tokens)


def _decoded(texts: Sequence[bytes]) -> list[str]:
    """The texts, or one error that names the rows that are none."""
    decoded, bad = [], []
    for row, text in enumerate(texts):
        if len(text) > MOST_BYTES:
            bad.append((row, TOO_LONG))
            continue
        try:
            decoded.append(text.decode())
        except UnicodeDecodeError:  # lone surrogates included
            bad.append((row, "not valid UTF-8"))
    if bad:
        message = f"{len(bad)} of {counted(len(texts), 'text')} cannot be encoded: {name_bad_rows(bad)}"
        raise InputError(message, tuple(row for row, _ in bad))
    return decoded


def _check_type(parameters: Mapping[str, Any], name: str, kind: type, expected: str) -> None:
    if name in parameters and not isinstance(parameters[name], kind):
        raise SentportError(f"request parameter {name} is {parameters[name]!r}; expected {expected}")
