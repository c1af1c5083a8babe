"""Texts to vectors: the library's front door."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sentport.bundle import ModelSpec
from sentport.engines import Engine
from sentport.engines.opening import open_source
from sentport.errors import SentportError, TruncationError, list_rows
from sentport.hardware import available_cores
from sentport.inputs import bad_rows, check_dim, counted, prompt_text, refuse_bare_string, truncation, valid_rows
from sentport.progress import Progress
from sentport.scheduler import plan_batches, run_batches, shared_budget, unique_texts
from sentport.tokenizer import Tokenizer, Tokens

logger = logging.getLogger(__name__)

Vectors = NDArray[np.float32]

# Texts of one block of a stream: enough to sort by length, little enough to stay flat in memory.
STREAM_ROWS = 4096


@dataclass(frozen=True, slots=True)
class EncoderInfo:
    """What an encoder is and what it runs on; the conditions that belong beside its vectors.

    Attributes:
        dim: Width of a vector.
        max_tokens: Length limit, special tokens included.
        prompts: Saved prompts by name.
        default_prompt: Name of the prompt used when none is named.
        similarity: The similarity that the model was trained for.
        fingerprint: Identity of the embedding space.
        engine: Name of the engine.
        precision: Precision of the graph.
        layout: ``padded`` or ``packed``.
        device: Device of the nodes that really ran.
        sessions: Engine calls in flight at once.
        threads: Compute threads of each.
    """

    dim: int
    max_tokens: int
    prompts: dict[str, str]
    default_prompt: str | None
    similarity: str
    fingerprint: str
    engine: str
    precision: str
    layout: str
    device: str
    sessions: int
    threads: int


class TextEncoder(Protocol):
    """Anything that turns texts into vectors: in this process, behind a server, or still in training."""

    @property
    def info(self) -> EncoderInfo:
        """What it is and what it runs on."""
        ...

    def encode(
        self, texts: Sequence[str], *, prompt: str | None = None, dim: int | None = None, progress: bool = False
    ) -> Vectors:
        """Vectors ``[n, dim]`` float32, one row a text, in input order."""
        ...


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Tokens of each text, special tokens and prompt included: ``full`` without the limit, ``used`` after it."""

    full: NDArray[np.int64]
    used: NDArray[np.int64]


class Encoder:
    """Encodes texts with a bundle, or with a checkpoint folder on engine ``torch``. Safe from several threads.

    Args:
        source: A bundle folder, or a checkpoint folder.
        engine: ``native``, ``onnxruntime``, ``openvino`` or ``tensorrt`` (bundles), ``torch`` (checkpoints), or
            ``auto``, which never takes ``openvino`` or ``tensorrt``.
        layout: ``padded``, or ``packed`` for bundles with a graph that computes no padding between rows; ``auto``
            takes the faster one by measure.
        precision: ``auto`` takes fp32 where there is one and never a lower precision unasked.
        threads: Compute threads in all; None = the cores that affinity and cgroup allow.
        device: ``auto``, ``cpu`` or ``cuda``.
        on_truncate: ``warn`` logs once a call, ``error`` raises, ``allow`` says nothing.
        errors: ``raise`` refuses texts with lone surrogates, ``replace`` puts U+FFFD in their place.

    Attributes:
        spec: What the model is.
        info: What it is and what it runs on.
        tokenizer: Texts to tokens, with the model's limit.
        graph: SHA-256 of the bundle's graph that runs; "" for engine ``torch``.

    Raises:
        SentportError: When the source, or what was asked for, cannot be had.
    """

    def __init__(
        self,
        source: str | Path,
        engine: str = "auto",
        layout: str = "auto",
        precision: str = "auto",
        threads: int | None = None,
        device: str = "auto",
        on_truncate: str = "warn",
        errors: str = "raise",
    ) -> None:
        _check_choice("on_truncate", on_truncate, ("warn", "error", "allow"))
        _check_choice("errors", errors, ("raise", "replace"))
        if threads is not None and (type(threads) is not int or threads < 1):
            raise SentportError(
                f"threads is {threads!r}; expected a positive whole number, or None for all allowed cores"
            )
        cores = available_cores()
        if threads is not None and threads > cores:
            allowed = counted(cores, "core")
            logger.warning("threads is %d, and this process may use %s: they take turns, slower", threads, allowed)
        self._on_truncate = on_truncate
        self._errors = errors
        opened = open_source(source, engine, layout, precision, threads, device)
        self.spec, self._engine, self.graph = opened.spec, opened.engine, opened.graph
        self.tokenizer = Tokenizer(opened.tokenizer_definition, self.spec.max_tokens, threads or cores)
        self.info = _info(self.spec, self._engine)

    def encode(
        self, texts: Sequence[str], *, prompt: str | None = None, dim: int | None = None, progress: bool = False
    ) -> Vectors:
        """Vectors of texts.

        Args:
            texts: Any number of texts.
            prompt: Name of a saved prompt; None = the default prompt, "" = none.
            dim: Cut vectors to their first ``dim`` values, normalised again where the chain ends in Normalize.
            progress: Show a bar on stderr when that is a terminal and the work takes over two seconds.

        Returns:
            ``[n, dim]`` float32, rows in input order; ``[0, dim]`` for no texts.

        Raises:
            TypeError: For a bare string.
            InputError: Listing the rows that are not text, or hold lone surrogates.
            TruncationError: When a text is over the limit and ``on_truncate="error"``.
            SentportError: For an unknown prompt, or a dim that the model does not have.
        """
        width = check_dim(dim, self.spec.dim)
        prefix = self.prefix(prompt)
        distinct, inverse = unique_texts(valid_rows(texts, errors=self._errors))
        tokens = self._tokens(distinct, prefix)
        self._report_truncation(tokens.full_lengths[inverse])
        with Progress("encoding", len(distinct), "sentences", shown=progress) as bar:
            vectors = self.compute(tokens, done=bar.advance)  # [distinct, dim]
        return self.shorten(vectors, width)[inverse]  # [n, width]

    def encode_stream(
        self, texts: Iterable[str], *, prompt: str | None = None, dim: int | None = None
    ) -> Iterator[Vectors]:
        """Vectors of an endless or huge stream, as ``[k, dim]`` blocks in order, with flat memory.

        A bad text does not stop the stream: its row is all NaN and its position is logged. What is wrong with the
        arguments is told at once; with ``on_truncate="error"`` a text over the limit ends the stream.
        """
        refuse_bare_string(texts)
        check_dim(dim, self.spec.dim)
        self.prefix(prompt)
        return self._blocks(iter(texts), prompt, dim)

    def _blocks(self, source: Iterator[str], prompt: str | None, dim: int | None) -> Iterator[Vectors]:
        start = 0
        while block := list(islice(source, STREAM_ROWS)):
            yield self._encode_block(block, start, prompt, dim)
            start += len(block)

    def tokenize(self, texts: Sequence[str], *, prompt: str | None = None) -> TokenCounts:
        """How many tokens each text has, before and after the length limit.

        Raises:
            InputError: As ``encode`` does.
        """
        tokens = self.tokens(texts, prompt=prompt)
        return TokenCounts(full=tokens.full_lengths, used=tokens.lengths)

    def tokens(self, texts: Sequence[str], *, prompt: str | None = None) -> Tokens:
        """Tokens of each text under a prompt, cut to the limit: what ``compute`` takes.

        Raises:
            InputError: As ``encode`` does.
        """
        prefix = self.prefix(prompt)
        return self._tokens(valid_rows(texts, errors=self._errors), prefix)

    def close(self) -> None:
        """Free the engine; a second call does nothing."""
        self._engine.close()

    def __enter__(self) -> Encoder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def prefix(self, prompt: str | None = None) -> str:
        """The text that goes in front of every text under a prompt.

        Raises:
            SentportError: For a name that is not saved with the model.
        """
        return prompt_text(self.spec.prompts, self.spec.default_prompt, prompt)

    def unpooled(self, prefix: str) -> int:
        """How many of a prompt's tokens pooling leaves out: none, unless the chain says ``include_prompt: false``."""
        return 0 if self.spec.pools_prompt else self.tokenizer.prompt_tokens(prefix)

    def compute(self, tokens: Tokens, *, done: Callable[[int], None] | None = None) -> Vectors:
        """Vectors ``[n, dim]`` of rows that are already tokens, in their order; ``done`` is told of rows computed."""
        return run_batches(self._engine, tokens, self.plan(tokens.lengths), self.spec.dim, done)

    def plan(self, lengths: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """The batches in which ``compute`` runs rows of these lengths, as row numbers."""
        budget = shared_budget(lengths, self._engine)
        return plan_batches(lengths, token_budget=budget, layout=self._engine.layout)

    def shorten(self, vectors: Vectors, dim: int) -> Vectors:
        """Vectors ``[n, dim]`` cut from full ones, normalised again where the chain ends in Normalize."""
        if dim == vectors.shape[1]:
            return vectors
        cut = vectors[:, :dim].copy()
        if self.spec.normalized:
            cut /= np.maximum(np.linalg.norm(cut, axis=1, keepdims=True), 1e-12)
        return cut

    def _tokens(self, texts: list[str], prefix: str) -> Tokens:
        tokens = self.tokenizer.encode([prefix + text for text in texts])
        unpooled = self.unpooled(prefix)
        return replace(tokens, unpooled=np.full(len(texts), unpooled, np.int64)) if unpooled else tokens

    def _encode_block(self, block: list[str], start: int, prompt: str | None, dim: int | None) -> Vectors:
        bad = bad_rows(block, surrogates=self._errors == "raise")
        if not bad:
            return self.encode(block, prompt=prompt, dim=dim)
        logger.warning(
            "rows %s of the stream cannot be encoded; their vectors are NaN",
            list_rows([start + row for row in bad]),
        )
        good = [row for row in range(len(block)) if row not in bad]
        vectors = np.full((len(block), check_dim(dim, self.spec.dim)), np.nan, np.float32)
        vectors[good] = self.encode([block[row] for row in good], prompt=prompt, dim=dim)
        return vectors

    def _report_truncation(self, lengths: NDArray[np.int64]) -> None:
        told = None if self._on_truncate == "allow" else truncation(lengths, self.spec.max_tokens)
        if told is None:
            return
        if self._on_truncate == "error":
            way_out = "shorten them, or let them be cut (on_truncate warn or allow)"
            raise TruncationError(f"{told}; {way_out}", told.rows, told.tokens)
        logger.warning("%s", told)


def _check_choice(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise SentportError(f"{name} is {value!r}; expected one of {', '.join(known)}")


def _info(spec: ModelSpec, engine: Engine) -> EncoderInfo:
    return EncoderInfo(
        dim=spec.dim,
        max_tokens=spec.max_tokens,
        prompts=dict(spec.prompts),
        default_prompt=spec.default_prompt,
        similarity=spec.similarity,
        fingerprint=spec.fingerprint,
        engine=engine.name,
        precision=engine.precision,
        layout=engine.layout,
        device=engine.device,
        sessions=engine.sessions,
        threads=engine.threads,
    )
