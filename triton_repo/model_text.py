"""What the model of form ``text`` does, apart from Triton: bytes and request parameters in, arrays out.

All requests of one execution are one piece of work: their texts are tokenised once, batched by tokens across requests,
and the vectors given back request by request.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentport.encoder import Encoder, Vectors
from sentport.errors import SentportError
from sentport.scheduler import computed_tokens
from sentport.tokenizer import Tokens
from triton_repo import settings, wire
from triton_repo.requests import Counts, Fixed, Placed, RequestReader, TextRequest


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


class TextModel:
    """Answers requests with an encoder; see ``ServedModel``.

    Args:
        encoder: Runs the bundle, with ``on_truncate="allow"``.
        fixed: The one way in which all requests are answered, or None for request parameters.
    """

    def __init__(self, encoder: Encoder, fixed: Fixed | None = None) -> None:
        self._encoder = encoder
        self._reader = RequestReader(encoder.spec, encoder.tokenizer, fixed)
        self._info = json.dumps(asdict(encoder.info))
        self.takes_parameters = fixed is None
        self.counts = Counts()

    @classmethod
    def from_config(cls, config: Mapping[str, Any], folder: Path) -> TextModel:
        """Open the model that a repository's config describes.

        Args:
            config: The model's configuration, as Triton hands it over.
            folder: The version's folder, with the bundle in it.

        Raises:
            SentportError: When the bundle, the device or a setting cannot be had as written there.
        """
        values = settings.values(config)
        encoder = Encoder(
            folder / settings.BUNDLE_FOLDER,
            engine=settings.engine(values),
            layout=values["layout"],
            precision=values["precision"],
            threads=settings.whole("threads", values.get("threads")),
            device=values["device"],
            on_truncate="allow",
        )
        try:
            settings.check_fingerprint(values, encoder.spec, folder)
            return cls(encoder, settings.fixed(values))
        except SentportError:
            encoder.close()
            raise

    def close(self) -> None:
        """Free the engine."""
        self._encoder.close()

    def answer(self, requests: Sequence[TextRequest | SentportError]) -> list[TextAnswer | SentportError]:
        """See ``ServedModel``."""
        tokens, placed = self._reader.place(requests)
        vectors = self._vectors(tokens, [one.rows for one in placed if isinstance(one, Placed)])
        answers = [self._split(one, vectors, tokens) if isinstance(one, Placed) else one for one in placed]
        self.counts.served(answers)
        return answers

    def _vectors(self, tokens: Tokens, rows_of_requests: list[NDArray[np.int64]]) -> Vectors:
        """Vectors of the distinct texts, ``[distinct, dim]``; those that only refused requests want stay empty."""
        vectors = np.empty((len(tokens.rows), self._encoder.info.dim), np.float32)
        if rows_of_requests:
            needed = np.unique(np.concatenate(rows_of_requests))
            taken = tokens.take(needed)
            vectors[needed] = self._encoder.compute(taken)
            lengths = taken.lengths
            self.counts.tokens += int(lengths.sum())
            self.counts.computed += computed_tokens(lengths, self._encoder.plan(lengths), self._encoder.info.layout)
        return vectors

    def _split(self, placed: Placed, vectors: Vectors, tokens: Tokens) -> TextAnswer:
        lengths, truncated = self._reader.told(placed, tokens)
        return TextAnswer(
            embedding=self._encoder.shorten(vectors[placed.rows], placed.wanted.dim),
            tokens=lengths,
            truncated=truncated,
            info=self._info if placed.wanted.info else None,
        )
