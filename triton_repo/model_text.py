"""What the model of form ``text`` does, apart from Triton: bytes and request parameters in, arrays out.

All requests of one execution are one piece of work: their texts are tokenised once, batched by tokens across requests,
and the vectors given back request by request. What is wrong with a request is that request's answer and nobody else's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentport.encoder import Encoder, Vectors
from sentport.errors import BundleError, InputError, SentportError, TruncationError
from sentport.inputs import MOST_BYTES, TOO_LONG, check_dim, counted, name_bad_rows, truncation
from sentport.scheduler import unique_texts
from sentport.tokenizer import Tokens
from triton_repo import wire

BUNDLE_FOLDER = "bundle"


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
    """One request: its texts as they came, and its parameters."""

    texts: Sequence[bytes]
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TextAnswer:
    """The answer to a request of n texts.

    Attributes:
        embedding: ``[n, dim]`` float32.
        tokens: ``[n, 1]`` int32, tokens of each text without the limit, special tokens and prompt included.
        truncated: ``[n, 1]`` bool, whether a text lost its end.
        info: The encoder's description as JSON, where it was asked for.
    """

    embedding: Vectors
    tokens: NDArray[np.int32]
    truncated: NDArray[np.bool_]
    info: str | None = None

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The answer by tensor name; what a client does not ask for, Triton leaves out."""
        tensors: dict[str, NDArray[Any]] = {
            wire.EMBEDDING: self.embedding,
            wire.TOKENS: self.tokens,
            wire.TRUNCATED: self.truncated,
        }
        if self.info is not None:
            tensors[wire.INFO] = np.array([[self.info.encode()]] * len(self.embedding), dtype=object)  # [n, 1]
        return tensors


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A request that can be read: its texts with their prompt in front, and what to do with them.

    ``unpooled`` is how many of the prompt's tokens pooling leaves out.
    """

    texts: list[str]
    unpooled: int
    dim: int
    on_truncate: str
    info: bool


@dataclass(frozen=True, slots=True)
class _Placed:
    """A request that will be computed, and which of the execution's distinct texts its rows are: ``[n]``."""

    wanted: _Wanted
    rows: NDArray[np.int64]


class TextModel:
    """Answers requests with an encoder.

    Attributes:
        takes_parameters: Whether request parameters are looked at.

    Args:
        encoder: Runs the bundle, with ``on_truncate="allow"``.
        fixed: The one way in which all requests are answered, or None for request parameters.
    """

    def __init__(self, encoder: Encoder, fixed: Fixed | None = None) -> None:
        self._encoder = encoder
        self._fixed = fixed
        self._info = json.dumps(asdict(encoder.info))
        self.takes_parameters = fixed is None

    @classmethod
    def from_config(cls, config: Mapping[str, Any], folder: Path) -> TextModel:
        """Open the model that a repository's config describes.

        Args:
            config: The model's configuration, as Triton hands it over.
            folder: The version's folder, with the bundle in it.

        Raises:
            SentportError: When the bundle, the device or a setting cannot be had as written there.
        """
        settings = {key: value["string_value"] for key, value in config["parameters"].items()}
        encoder = Encoder(
            folder / BUNDLE_FOLDER,
            engine="onnxruntime",
            layout=settings["layout"],
            precision=settings["precision"],
            threads=_whole("threads", settings.get("threads")),
            device=settings["device"],
            on_truncate="allow",
        )
        if encoder.info.fingerprint != json.loads(settings[wire.ENCODER])["fingerprint"]:
            encoder.close()
            raise BundleError(
                f"config.pbtxt describes another model than the one in {folder / BUNDLE_FOLDER}; "
                "write the repository again with `sentport repository`"
            )
        fixed = None
        if "fixed_on_truncate" in settings:
            dim = _whole("fixed_dim", settings.get("fixed_dim"))
            fixed = Fixed(settings.get("fixed_prompt"), dim, settings["fixed_on_truncate"])
        return cls(encoder, fixed)

    def close(self) -> None:
        """Free the engine."""
        self._encoder.close()

    def answer(self, requests: Sequence[TextRequest | SentportError]) -> list[TextAnswer | SentportError]:
        """Answer the requests of one execution, in their order; an error is the answer to its own request.

        An error in the place of a request, one that could not be read, is its answer as it is.
        """
        read = [one if isinstance(one, SentportError) else self._read(one) for one in requests]
        # Across prompts too: a text is computed once however many requests bring it.
        distinct, inverse = unique_texts(
            [(text, one.unpooled) for one in read if isinstance(one, _Wanted) for text in one.texts]
        )
        tokens = self._tokens(distinct)
        placed: list[_Placed | SentportError] = []
        start = 0
        for one in read:
            if isinstance(one, _Wanted):
                rows = inverse[start : start + len(one.texts)]
                start += len(one.texts)
                placed.append(self._too_long(one, tokens.full_lengths[rows]) or _Placed(one, rows))
            else:
                placed.append(one)
        vectors = self._vectors(tokens, [one.rows for one in placed if isinstance(one, _Placed)])
        return [self._split(one, vectors, tokens) if isinstance(one, _Placed) else one for one in placed]

    def _read(self, request: TextRequest) -> _Wanted | SentportError:
        try:
            parameters = self._parameters(request.parameters)
            prefix = self._encoder.prefix(parameters.get(wire.PROMPT))
            dim = check_dim(parameters.get(wire.DIM), self._encoder.info.dim)
            texts = [prefix + text for text in _decoded(request.texts)]
        except SentportError as error:
            return error
        unpooled = self._encoder.unpooled(prefix)
        return _Wanted(
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
        tokens = self._encoder.tokenizer.encode([text for text, _ in distinct])
        unpooled = np.fromiter((count for _, count in distinct), np.int64, count=len(distinct))
        return replace(tokens, unpooled=unpooled) if unpooled.any() else tokens

    def _too_long(self, wanted: _Wanted, lengths: NDArray[np.int64]) -> SentportError | None:
        told = truncation(lengths, self._encoder.info.max_tokens)
        if wanted.on_truncate == "allow" or told is None:
            return None
        way_out = f", or send {wire.ON_TRUNCATE}=allow" if self.takes_parameters else ""
        return TruncationError(f"{told}; shorten them{way_out}", told.rows, told.tokens)

    def _vectors(self, tokens: Tokens, rows_of_requests: list[NDArray[np.int64]]) -> Vectors:
        """Vectors of the distinct texts, ``[distinct, dim]``; those that only refused requests want stay empty."""
        vectors = np.empty((len(tokens.rows), self._encoder.info.dim), np.float32)
        if rows_of_requests:
            needed = np.unique(np.concatenate(rows_of_requests))
            vectors[needed] = self._encoder.compute(tokens.take(needed))
        return vectors

    def _split(self, placed: _Placed, vectors: Vectors, tokens: Tokens) -> TextAnswer:
        lengths = tokens.full_lengths[placed.rows, None]  # [n, 1]
        return TextAnswer(
            embedding=self._encoder.shorten(vectors[placed.rows], placed.wanted.dim),
            tokens=lengths.astype(np.int32),
            truncated=lengths > self._encoder.info.max_tokens,
            info=self._info if placed.wanted.info else None,
        )


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


def _whole(name: str, value: str | None) -> int | None:
    if value is None:
        return None
    if not value.isdecimal() or int(value) < 1:
        raise SentportError(f"parameter {name} of config.pbtxt is {value!r}; expected a whole number from 1")
    return int(value)
