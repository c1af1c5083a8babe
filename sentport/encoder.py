"""Texts to vectors: the library's front door."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sentport.batch import TokenBatch
from sentport.bundle import ModelSpec, is_bundle, read_bundle
from sentport.engines import Engine
from sentport.errors import EngineError, InputError, SentportError, TruncationError, list_rows
from sentport.hardware import available_cores
from sentport.progress import Progress
from sentport.scheduler import plan_batches, unique_texts
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
        engine: ``auto``, ``onnxruntime`` (bundles) or ``torch`` (checkpoints).
        layout: ``auto`` or ``padded``.
        precision: ``auto`` takes fp32 where there is one and never a lower precision unasked.
        threads: Compute threads in all; None = the cores that affinity and cgroup allow.
        device: ``auto``, ``cpu`` or ``cuda``.
        on_truncate: ``warn`` logs once a call, ``error`` raises, ``allow`` says nothing.
        errors: ``raise`` refuses texts with lone surrogates, ``replace`` puts U+FFFD in their place.

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
        _check_choice("layout", layout, ("auto", "padded"))
        if threads is not None and (not isinstance(threads, int) or threads < 1):
            raise SentportError(
                f"threads is {threads!r}; expected a positive whole number, or None for all allowed cores"
            )
        self._on_truncate = on_truncate
        self._errors = errors
        path = Path(source)
        opened = _open_bundle if is_bundle(path) or not _is_checkpoint(path) else _open_checkpoint
        self._spec, definition, self._engine = opened(path, engine, layout, precision, threads, device)
        self._tokenizer = Tokenizer(definition, self._spec.max_tokens, threads or available_cores())
        self.info = _info(self._spec, self._engine)

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
        width = _check_dim(dim, self._spec.dim)
        prefix = self._prefix(prompt)
        distinct, inverse = unique_texts(self._valid(texts))
        tokens = self._tokenizer.encode([prefix + text for text in distinct])
        self._report_truncation(tokens, inverse)
        vectors = self._run(tokens, progress)  # [distinct, dim]
        return _cut(vectors, width, self._spec.normalized)[inverse]  # [n, width]

    def encode_stream(
        self, texts: Iterable[str], *, prompt: str | None = None, dim: int | None = None
    ) -> Iterator[Vectors]:
        """Vectors of an endless or huge stream, as ``[k, dim]`` blocks in order, with flat memory.

        A bad text does not stop the stream: its row is all NaN and its position is logged.
        """
        if isinstance(texts, str):
            raise TypeError(_BARE_STRING)
        _check_dim(dim, self._spec.dim)
        self._prefix(prompt)
        source = iter(texts)
        start = 0
        while block := list(islice(source, STREAM_ROWS)):
            yield self._encode_block(block, start, prompt, dim)
            start += len(block)

    def tokenize(self, texts: Sequence[str], *, prompt: str | None = None) -> TokenCounts:
        """How many tokens each text has, before and after the length limit.

        Raises:
            InputError: As ``encode`` does.
        """
        prefix = self._prefix(prompt)
        tokens = self._tokenizer.encode([prefix + text for text in self._valid(texts)])
        return TokenCounts(full=tokens.full_lengths, used=tokens.lengths)

    def close(self) -> None:
        """Free the engine; a second call does nothing."""
        self._engine.close()

    def __enter__(self) -> Encoder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _prefix(self, prompt: str | None) -> str:
        name = self._spec.default_prompt if prompt is None else prompt
        if name is None or name == "":
            return ""
        if name not in self._spec.prompts:
            known = ", ".join(sorted(self._spec.prompts)) or "none"
            raise SentportError(f"prompt {name!r} is not saved with this model; known: {known}")
        return self._spec.prompts[name]

    def _valid(self, texts: Sequence[str]) -> list[str]:
        """The texts, all of them fit to be tokenised, or one error that lists the bad rows."""
        if isinstance(texts, str):
            raise TypeError(_BARE_STRING)
        rows = list(texts)
        bad = bad_rows(rows, surrogates=self._errors == "raise")
        if bad:
            shown = [f"{row} ({reason})" for row, reason in list(bad.items())[:8]]
            more = f" and {len(bad) - 8} more" if len(bad) > 8 else ""
            raise InputError(f"{len(bad)} of {len(rows)} rows cannot be encoded: {', '.join(shown)}{more}", tuple(bad))
        return rows if self._errors == "raise" else [_without_surrogates(text) for text in rows]

    def _encode_block(self, block: list[str], start: int, prompt: str | None, dim: int | None) -> Vectors:
        bad = bad_rows(block, surrogates=self._errors == "raise")
        if not bad:
            return self.encode(block, prompt=prompt, dim=dim)
        logger.warning(
            "rows %s of the stream cannot be encoded; their vectors are NaN",
            list_rows([start + row for row in bad]),
        )
        good = [row for row in range(len(block)) if row not in bad]
        vectors = np.full((len(block), _check_dim(dim, self._spec.dim)), np.nan, np.float32)
        vectors[good] = self.encode([block[row] for row in good], prompt=prompt, dim=dim)
        return vectors

    def _report_truncation(self, tokens: Tokens, inverse: NDArray[np.int64]) -> None:
        if self._on_truncate == "allow":
            return
        over = tokens.full_lengths > self._spec.max_tokens
        if not over.any():
            return
        rows = np.flatnonzero(over[inverse]).tolist()
        longest = int(tokens.full_lengths.max())
        message = (
            f"{len(rows)} of {len(inverse)} texts are longer than {self._spec.max_tokens} tokens (longest {longest}) "
            f"and lose their end: rows {list_rows(rows)}"
        )
        if self._on_truncate == "error":
            raise TruncationError(f"{message}; shorten them, or use on_truncate='warn'", tuple(rows))
        logger.warning("%s", message)

    def _run(self, tokens: Tokens, progress: bool) -> Vectors:
        vectors = np.empty((len(tokens.rows), self._spec.dim), np.float32)
        batches = plan_batches(tokens.lengths)

        def compute(rows: NDArray[np.int64]) -> int:
            vectors[rows] = self._engine.run(TokenBatch.from_rows([tokens.rows[row] for row in rows]))
            return len(rows)

        with Progress("encoding", len(tokens.rows), "sentences", shown=progress) as bar:
            if self._engine.sessions == 1 or len(batches) < 2:
                for rows in batches:
                    bar.advance(compute(rows))
            else:
                with ThreadPoolExecutor(self._engine.sessions) as pool:
                    for count in pool.map(compute, batches):
                        bar.advance(count)
        return vectors


_BARE_STRING = "encode takes a list of texts, not one string; write encode([text])[0]"


def bad_rows(texts: Sequence[object], *, surrogates: bool) -> dict[int, str]:
    """Rows that cannot be encoded, each with its reason.

    Args:
        texts: The rows.
        surrogates: Whether lone surrogates are bad too: they are no Unicode text, and tokenizers refuse them.
    """
    bad = {}
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            bad[row] = f"{type(text).__name__}, not text"
        elif surrogates and not text.isascii() and _without_surrogates(text) != text:
            bad[row] = "lone surrogate"
    return bad


def _without_surrogates(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        # A surrogate pair is one character; UTF-16 joins it, and only what stays alone becomes U+FFFD.
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _check_choice(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise SentportError(f"{name} is {value!r}; expected one of {', '.join(known)}")


def _check_dim(dim: int | None, full: int) -> int:
    if dim is None:
        return full
    if isinstance(dim, bool) or not isinstance(dim, int | np.integer) or not 1 <= dim <= full:
        raise SentportError(
            f"dim is {dim!r}; this model has vectors of {full}, so give a whole number from 1 to {full}"
        )
    return int(dim)


def _cut(vectors: Vectors, dim: int, normalized: bool) -> Vectors:
    if dim == vectors.shape[1]:
        return vectors
    cut = vectors[:, :dim]
    if not normalized:
        return np.ascontiguousarray(cut)
    shortened: Vectors = cut / np.maximum(np.linalg.norm(cut, axis=1, keepdims=True), 1e-12)
    return shortened


def _is_checkpoint(path: Path) -> bool:
    return (path / "modules.json").is_file() or (path / "config.json").is_file()


def _open_bundle(
    path: Path, engine: str, layout: str, precision: str, threads: int | None, device: str
) -> tuple[ModelSpec, str, Engine]:
    if engine == "torch":
        raise EngineError(f"engine torch runs checkpoints, and {path} is a bundle; give the checkpoint folder")
    if engine not in ("auto", "onnxruntime"):
        raise EngineError(f"engine {engine!r} is unknown; known: auto, onnxruntime (bundles), torch (checkpoints)")
    bundle = read_bundle(path)
    graph = bundle.select(layout, precision)
    definition = bundle.tokenizer_file().read_text(encoding="utf-8")
    from sentport.engines.onnxruntime import OnnxRuntimeEngine

    return bundle.spec, definition, OnnxRuntimeEngine(bundle, graph, threads, device)


def _open_checkpoint(
    path: Path, engine: str, layout: str, precision: str, threads: int | None, device: str
) -> tuple[ModelSpec, str, Engine]:
    if engine not in ("auto", "torch"):
        raise EngineError(
            f"engine {engine} runs bundles, and {path} is a checkpoint; "
            f"export it first (`sentport export {path} --out BUNDLE`), or use engine torch"
        )
    if precision not in ("auto", "fp32"):
        raise EngineError(f"engine torch runs fp32 only, not {precision}")
    from sentport.engines.torch import open_checkpoint

    return open_checkpoint(path, threads, device)


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
        layout="padded",
        device=engine.device,
        sessions=engine.sessions,
        threads=engine.threads,
    )
