"""What the first step of forms ``ragged`` and ``plan`` does, apart from Triton: texts in, padded token ids out.

The step after it is a graph, which takes no request parameters; so whatever a request asks for is done here or refused
here, by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentport.batch import TokenBatch
from sentport.bundle import ModelSpec, read_bundle
from sentport.errors import SentportError
from sentport.tokenizer import Tokenizer, Tokens
from triton_repo import settings, wire
from triton_repo.requests import Counts, Placed, RequestReader, TextRequest


@dataclass(frozen=True, slots=True)
class TokenAnswer:
    """The tokens of a request of n texts, each row padded to the request's longest, L.

    Attributes:
        input_ids: ``[n, L]`` int64.
        attention_mask: ``[n, L]`` int64, 0 for pads.
        pooling_mask: ``[n, L]`` int64, 0 also for prompt tokens that pooling leaves out.
        tokens: ``[n, 1]`` int32, tokens of each text without the limit, special tokens and prompt included.
        truncated: ``[n, 1]`` bool, whether a text lost its end.
        info: The encoder's description as JSON; empty where it was not asked for.
    """

    input_ids: NDArray[np.int64]
    attention_mask: NDArray[np.int64]
    pooling_mask: NDArray[np.int64]
    tokens: NDArray[np.int32]
    truncated: NDArray[np.bool_]
    info: str

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The answer by tensor name; what the config does not list, Triton leaves out.

        INFO is always there: an ensemble that is asked for all its outputs fails where one is missing.
        """
        return {
            wire.INPUT_IDS: self.input_ids,
            wire.ATTENTION_MASK: self.attention_mask,
            wire.POOLING_MASK: self.pooling_mask,
            wire.TOKEN_TYPE_IDS: np.zeros_like(self.input_ids),
            wire.TOKENS: self.tokens,
            wire.TRUNCATED: self.truncated,
            wire.INFO: np.array([[self.info.encode()]] * len(self.tokens), dtype=object),  # [n, 1]
        }


class TokenModel:
    """Answers requests with tokens; see ``ServedModel``.

    Args:
        spec: What the model is.
        tokenizer: Its tokenizer.
        info: The encoder's description as JSON.
        edges: Token counts, ascending, to the next of which a request is padded; none = to its longest row.
    """

    takes_parameters = True

    def __init__(self, spec: ModelSpec, tokenizer: Tokenizer, info: str, edges: tuple[int, ...] = ()) -> None:
        self._dim = spec.dim
        self._reader = RequestReader(spec, tokenizer)
        self._info = info
        self._edges = edges
        self.counts = Counts()

    @classmethod
    def from_config(cls, config: Mapping[str, Any], folder: Path) -> TokenModel:
        """Open the step that a repository's config describes; as ``TextModel.from_config``.

        Raises:
            SentportError: When the tokenizer or a setting cannot be had as written there.
        """
        values = settings.values(config)
        bundle = read_bundle(folder / settings.BUNDLE_FOLDER)
        settings.check_fingerprint(values, bundle.spec, folder)
        threads = settings.whole("threads", values.get("threads")) or 1
        tokenizer = Tokenizer.from_file(bundle.tokenizer_file(), bundle.spec.max_tokens, threads)
        edges = settings.edges(values.get(settings.EDGES), bundle.spec.max_tokens)
        return cls(bundle.spec, tokenizer, values[wire.ENCODER], edges)

    def close(self) -> None:
        """Nothing is held that Python would not free."""

    def answer(self, requests: Sequence[TextRequest | SentportError]) -> list[TokenAnswer | SentportError]:
        """See ``ServedModel``."""
        tokens, placed = self._reader.place(requests)
        answers = [one if isinstance(one, SentportError) else self._padded(one, tokens) for one in placed]
        self.counts.served(answers)
        return answers

    def _padded(self, placed: Placed, tokens: Tokens) -> TokenAnswer | SentportError:
        if placed.wanted.dim != self._dim:
            form = "plan" if self._edges else "ragged"
            return SentportError(
                f"request parameter {wire.DIM} is {placed.wanted.dim}, but form {form} gives all {self._dim} values, "
                "as its graph makes them; leave it out and cut the vectors, or serve form text"
            )
        taken = tokens.take(placed.rows)
        batch = TokenBatch.from_rows(taken.rows, taken.unpooled)
        ids, mask, _, pooling = (self._to_edge(table) for table in batch.padded())  # [n, L] each
        self.counts.tokens += len(batch.ids)
        # A packed graph drops the pads, a plan computes them.
        self.counts.computed += ids.size if self._edges else len(batch.ids)
        lengths, truncated = self._reader.told(placed, tokens)
        return TokenAnswer(ids, mask, pooling, lengths, truncated, self._info if placed.wanted.info else "")

    def _to_edge(self, table: NDArray[np.int64]) -> NDArray[np.int64]:
        """``[n, L]`` to ``[n, edge]``, so that all requests of one profile have one shape."""
        edge = next((edge for edge in self._edges if edge >= table.shape[1]), table.shape[1])
        return np.pad(table, ((0, 0), (0, edge - table.shape[1])))
