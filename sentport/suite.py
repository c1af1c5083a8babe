"""The golden suite: texts and hand-made token batches with the source model's vectors for them.

Vectors are the source's for each row alone and unpadded, so that nothing a batch does can hide in them. The suite is
written into the bundle; a later check needs neither torch nor the source.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from sentport.batch import TokenBatch
from sentport.engines import Engine
from sentport.errors import BundleError
from sentport.tokenizer import Tokenizer

# Rows x tokens: smallest, single row, odd sizes, and long; each is cut to max_tokens.
FIXED_SHAPES = ((1, 1), (1, 8), (2, 7), (3, 33), (5, 512))
_RANDOM_SHAPES = 6
_MAX_RANDOM_ROWS = 8
_MAX_RANDOM_TOKENS = 160

_PARTS, _OPTIONAL_PART = ("ids", "lengths", "attention_mask", "token_type_ids"), "pooling_mask"


@dataclass(frozen=True)
class Case:
    """One hand-made batch.

    Attributes:
        name: Its shape, for messages.
        batch: Token ids with random ids (garbage) under the zeros of the mask.
        vectors: ``[rows, dim]`` of the source; zeros for rows without a token.
    """

    name: str
    batch: TokenBatch
    vectors: NDArray[np.float32]

    @property
    def has_tokens(self) -> NDArray[np.bool_]:
        """``[rows]`` whether any token of the row is attended to."""
        return np.array([mask.any() for mask in _rows(self.batch.attention_mask, self.batch.lengths)], bool)


@dataclass(frozen=True)
class Suite:
    """Texts with their vectors ``[texts, dim]``, and hand-made batches.

    Attributes:
        texts: The texts.
        text_vectors: ``[texts, dim]`` of the source, the prompt in front of every text.
        cases: Hand-made batches.
        prompt: The text of the model's default prompt; empty without one.
        unpooled: How many of the prompt's tokens pooling leaves out.
        corpus: Texts of the user's, over which the agreement of ranks is measured instead.
        corpus_vectors: ``[corpus, dim]`` of the source.
    """

    texts: tuple[str, ...]
    text_vectors: NDArray[np.float32]
    cases: tuple[Case, ...]
    prompt: str = ""
    unpooled: int = 0
    corpus: tuple[str, ...] = ()
    corpus_vectors: NDArray[np.float32] | None = None

    def without_types(self) -> Suite:
        """Without the batches that have token types, for layout ``packed``, which takes none."""
        return replace(self, cases=tuple(case for case in self.cases if not np.any(case.batch.token_type_ids)))

    def rows(self, tokenizer: Tokenizer) -> list[NDArray[np.int64]]:
        """The texts' token ids, the prompt in front."""
        return self._rows(tokenizer, self.texts)

    def corpus_rows(self, tokenizer: Tokenizer) -> list[NDArray[np.int64]]:
        """The same of the corpus."""
        return self._rows(tokenizer, self.corpus)

    def _rows(self, tokenizer: Tokenizer, texts: Sequence[str]) -> list[NDArray[np.int64]]:
        return tokenizer.encode([self.prompt + text for text in texts]).rows

    def batch(self, rows: list[NDArray[np.int64]]) -> TokenBatch:
        """Some of these rows as a batch."""
        return TokenBatch.from_rows(rows, np.full(len(rows), self.unpooled, np.int64) if self.unpooled else None)


def build_suite(
    source: Engine,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    vocabulary: int,
    token_types: int,
    without_types: bool = False,
    prompt: str = "",
    pools_prompt: bool = True,
    corpus: Sequence[str] = (),
    seed: int = 0,
) -> Suite:
    """Compute a suite with the source model.

    Args:
        source: The source model as an engine.
        tokenizer: The bundle's tokenizer.
        texts: The parity texts.
        vocabulary: Ids of hand-made batches are drawn below this.
        token_types: Token types are drawn below this; 1 for a model without.
        without_types: Have every batch with token types once more without them.
        prompt: The text of the model's default prompt.
        pools_prompt: Whether a prompt's tokens take part in pooling.
        corpus: Texts to measure the agreement of ranks over; none = the parity texts.
        seed: For shapes and ids.
    """
    random = np.random.default_rng(seed)
    limit = tokenizer.max_tokens
    shapes = [(rows, min(tokens, limit)) for rows, tokens in FIXED_SHAPES]
    for _ in range(_RANDOM_SHAPES):
        rows = int(random.integers(1, _MAX_RANDOM_ROWS + 1))
        shapes.append((rows, int(random.integers(1, min(limit, _MAX_RANDOM_TOKENS) + 1))))
    batches = [_random_batch(random, rows, tokens, vocabulary, token_types) for rows, tokens in shapes]
    if without_types and token_types > 1:
        shapes *= 2
        batches += [replace(batch, token_type_ids=np.zeros_like(batch.ids)) for batch in batches]
    if not pools_prompt:
        batches = [_with_prompts(random, batch) for batch in batches]
    suite = Suite(
        texts=tuple(texts),
        text_vectors=np.empty(0, np.float32),
        cases=tuple(
            Case(f"{rows}x{tokens}", batch, _row_by_row(source, batch))
            for (rows, tokens), batch in zip(shapes, batches, strict=True)
        ),
        prompt=prompt,
        unpooled=0 if pools_prompt else tokenizer.prompt_tokens(prompt),
        corpus=tuple(corpus),
    )
    vectors = [source.run(suite.batch([row])) for row in suite.rows(tokenizer)]
    of_corpus = [source.run(suite.batch([row])) for row in suite.corpus_rows(tokenizer)]
    return replace(
        suite,
        text_vectors=np.concatenate(vectors),
        corpus_vectors=np.concatenate(of_corpus) if of_corpus else None,
    )


def _random_batch(random: np.random.Generator, rows: int, tokens: int, vocabulary: int, token_types: int) -> TokenBatch:
    """``rows x tokens`` of random ids; the first row is full, a last row of four and more has no token at all."""
    real = random.integers(1, tokens + 1, size=rows)
    real[0] = tokens
    if rows > 3:
        real[-1] = 0
    mask = (np.arange(tokens) < real[:, None]).astype(np.int64)  # [rows, tokens]
    return TokenBatch(
        ids=random.integers(0, vocabulary, size=rows * tokens),
        lengths=np.full(rows, tokens, np.int32),
        attention_mask=mask.reshape(-1),
        token_type_ids=random.integers(0, token_types, size=rows * tokens),
    )


def _with_prompts(random: np.random.Generator, batch: TokenBatch) -> TokenBatch:
    """The batch with a prompt of random length in front of each row: none, or up to all of it but in the first row."""
    masks = _rows(batch.attention_mask, batch.lengths)
    pooled = []
    for row, mask in enumerate(masks):
        prompt = random.integers(0, mask.sum(), endpoint=row > 0)
        pooled.append(mask * (np.arange(len(mask)) >= prompt))
    return replace(batch, pooling_mask=np.concatenate(pooled))


def _rows(flat: NDArray[np.int64] | None, lengths: NDArray[np.int32]) -> list[NDArray[np.int64]]:
    assert flat is not None  # hand-made batches give every array
    return np.split(flat, np.cumsum(lengths)[:-1])


def _row_by_row(source: Engine, batch: TokenBatch) -> NDArray[np.float32]:
    """The source's vector of each row alone, its masked tail cut off."""
    tables = [batch.ids, batch.attention_mask, batch.token_type_ids]
    tables += [] if batch.pooling_mask is None else [batch.pooling_mask]
    vectors: list[NDArray[np.float32] | None] = []
    for ids, mask, *rest in zip(*(_rows(table, batch.lengths) for table in tables), strict=True):
        real = int(mask.sum())
        alone = TokenBatch(ids[:real], np.array([real], np.int32), None, *(part[:real] for part in rest))
        vectors.append(source.run(alone)[0] if real else None)
    dim = next(len(vector) for vector in vectors if vector is not None)  # the first row is never empty
    return np.stack([np.zeros(dim, np.float32) if vector is None else vector for vector in vectors])


def save_suite(suite: Suite, path: Path) -> None:
    """Write ``golden.npz``; plain arrays only, texts as JSON bytes."""
    arrays: dict[str, NDArray[np.generic]] = {
        "texts": np.frombuffer(json.dumps(suite.texts).encode(), np.uint8),
        "text_vectors": suite.text_vectors,
        "cases": np.frombuffer(json.dumps([case.name for case in suite.cases]).encode(), np.uint8),
    }
    if suite.prompt:
        arrays["prompt"] = np.frombuffer(json.dumps([suite.prompt, suite.unpooled]).encode(), np.uint8)
    if suite.corpus_vectors is not None:
        arrays["corpus"] = np.frombuffer(json.dumps(suite.corpus).encode(), np.uint8)
        arrays["corpus_vectors"] = suite.corpus_vectors
    for number, case in enumerate(suite.cases):
        for name in (*_PARTS, _OPTIONAL_PART):
            if (part := getattr(case.batch, name)) is not None:
                arrays[f"case{number}_{name}"] = part
        arrays[f"case{number}_vectors"] = case.vectors
    with path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # numpy types the keyword arrays as its own flags


def load_suite(path: Path) -> Suite:
    """Read ``golden.npz``.

    Raises:
        BundleError: When it is damaged.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            names = json.loads(arrays["cases"].tobytes())
            cases = tuple(
                Case(name, _load_batch(arrays, f"case{n}"), arrays[f"case{n}_vectors"]) for n, name in enumerate(names)
            )
            prompt = json.loads(arrays["prompt"].tobytes()) if "prompt" in arrays else ["", 0]
            suite = Suite(tuple(json.loads(arrays["texts"].tobytes())), arrays["text_vectors"], cases, *prompt)
            if "corpus" in arrays:
                corpus = tuple(json.loads(arrays["corpus"].tobytes()))
                suite = replace(suite, corpus=corpus, corpus_vectors=arrays["corpus_vectors"])
    except (KeyError, ValueError, OSError, BadZipFile) as error:
        raise BundleError(f"{path} is damaged ({error}); export the checkpoint again") from error
    if not suite.texts or len(suite.cases) < len(FIXED_SHAPES) or len(suite.texts) != len(suite.text_vectors):
        raise BundleError(f"{path} has too little to check with; export the checkpoint again")
    return suite


def _load_batch(arrays: Mapping[str, NDArray[Any]], case: str) -> TokenBatch:
    ids, lengths, mask, types = (arrays[f"{case}_{part}"] for part in _PARTS)
    return TokenBatch(ids, lengths, mask, types, arrays.get(f"{case}_{_OPTIONAL_PART}"))
