"""What is encoded: distinct sentences from a file, the STS Benchmark, or the documentation that CPython ships."""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sentport.errors import SentportError

if TYPE_CHECKING:
    from sentport.evaluation.sts import StsPairs

DATA_VARIABLE = "SENTPORT_DATA"
STSB_FILE = Path("sts_raw", "STSBenchmark", "test.tsv")
# Under this many texts of one length there is nothing to batch, so the flat case would say nothing.
FEWEST_EQUAL = 32

_FEWEST_WORDS = 3
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"“])")
_SENTENCE = re.compile(r"[A-Z\"“*].*[.!?:]", re.DOTALL)  # what else is left of a snippet or a signature is not one
_MARKUP = re.compile(r"::=|^\s*[|+>*=~^-]{2}|>>>|^\s*\|")


@dataclass(frozen=True, slots=True)
class Corpus:
    """Distinct texts in arrival order.

    Attributes:
        name: As recorded.
        source: Where the texts come from, in a few words.
        texts: N texts, none twice.
        flat: Whether all have the same number of tokens.
    """

    name: str
    source: str
    texts: tuple[str, ...]
    flat: bool = False

    def sample(self, count: int, seed: int) -> Corpus:
        """``count`` of the texts in random order, so that neighbours in the source are no neighbours in a batch.

        Args:
            count: How many; all of them, still shuffled, when there are no more.
            seed: Of the draw.
        """
        drawn = random.Random(seed).sample(self.texts, min(count, len(self.texts)))
        source = f"{self.source}; {len(drawn)} of {len(self.texts)} drawn with seed {seed}"
        return replace(self, source=source, texts=tuple(drawn))


def load_corpus(file: Path | None = None) -> Corpus:
    """The corpus to measure on: ``file``, else the STS Benchmark, else CPython's documentation.

    Args:
        file: UTF-8 text, one sentence a line; blank lines and repeated ones are left out.

    Raises:
        SentportError: When the file cannot be read or holds no text, or nothing is to be had at all.
    """
    if file is not None:
        from sentport.inputs import read_lines

        return make_corpus(file.stem, f"file {file.name}", read_lines(str(file)))
    data = os.environ.get(DATA_VARIABLE)
    if data and (path := Path(data) / STSB_FILE).is_file():
        return stsb_corpus(path)
    return python_corpus()


def stsb_corpus(path: Path) -> Corpus:
    """Both sentences of every pair of the STS Benchmark's test set."""
    from sentport.evaluation.sts import read_sts

    pairs = read_sts(path)
    texts = [text for pair in zip(pairs.sentences1, pairs.sentences2, strict=True) for text in pair]
    return make_corpus("STS-B", "STS Benchmark test sentences", texts)


def stsb_pairs() -> StsPairs:
    """The STS Benchmark's test set, of the evaluation data.

    Raises:
        SentportError: When it is not there.
    """
    from sentport.evaluation.sts import read_sts

    data = os.environ.get(DATA_VARIABLE)
    if not data:
        raise SentportError(
            f"quality is measured on the STS Benchmark; name the folder of {STSB_FILE} in {DATA_VARIABLE}"
        )
    return read_sts(Path(data) / STSB_FILE)


def python_corpus() -> Corpus:
    """Sentences of the documentation that CPython ships: real English of very mixed length on every machine.

    Raises:
        SentportError: When this Python comes without it.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise SentportError(
            "this Python ships no pydoc_data, and no other corpus was given; name a file with --corpus, "
            f"or the folder that holds {STSB_FILE.parts[0]}/ in {DATA_VARIABLE}"
        ) from None
    texts = [sentence for name in sorted(topics) for sentence in split_sentences(topics[name])]
    return make_corpus("Python docs", "sentences of CPython's documentation topics", texts)


def split_sentences(document: str) -> list[str]:
    """Sentences of a plain-text document; code, grammar and tables, which are no English, are left out."""
    sentences = []
    for paragraph in re.split(r"\n\s*\n", document):
        if _is_markup(paragraph):
            continue
        text = " ".join(paragraph.split()).removeprefix("* ")
        parts = _SENTENCE_END.split(text)
        sentences += [part for part in parts if len(part.split()) >= _FEWEST_WORDS and _SENTENCE.fullmatch(part)]
    return sentences


def equal_lengths(corpus: Corpus, count_tokens: Callable[[Sequence[str]], NDArray[np.int64]]) -> Corpus | None:
    """Those texts whose token count is the commonest one: the flat case, in which sorting cannot help.

    Args:
        corpus: Where the texts come from.
        count_tokens: Token counts ``[N]`` of texts.

    Returns:
        None where fewer than ``FEWEST_EQUAL`` texts have that count.
    """
    lengths = count_tokens(corpus.texts).tolist()
    length, count = Counter(lengths).most_common(1)[0]
    if count < FEWEST_EQUAL:
        return None
    texts = tuple(text for text, tokens in zip(corpus.texts, lengths, strict=True) if tokens == length)
    return Corpus(
        f"{corpus.name}, equal lengths", f"{corpus.source}, those of exactly {length} tokens", texts, flat=True
    )


def _is_markup(paragraph: str) -> bool:
    lines = paragraph.splitlines()
    # Four columns in front of every line is code; lists and notes stand at two or three.
    indented = all(line.startswith("    ") for line in lines if line.strip())
    return indented or any(_MARKUP.search(line) for line in lines)


def make_corpus(name: str, source: str, texts: Iterable[str]) -> Corpus:
    """The distinct texts among some.

    Raises:
        SentportError: When none has a letter in it.
    """
    distinct = tuple(dict.fromkeys(text for text in texts if text.strip()))
    if not distinct:
        raise SentportError(f"corpus {name} ({source}) has no text in it; give a file with one sentence a line")
    return Corpus(name, source, distinct)
