"""Corpora by name: each a recipe over the evaluation data, stated in its source line and the same on every machine.

======== =========================================================================================================
any      the STS Benchmark where the data is there, else the documentation that CPython ships
stsb     both sentences of every pair of the STS Benchmark's test set
queries  questions of TREC with at most 8 words
web      pieces of Wikipedia sentences with log-normal lengths: median 40 words, one in fifty over 250
long     Wikipedia sentences joined to 300 to 380 words: near the limit of 512 tokens, beyond smaller ones
pool     all distinct sentences of the STS tasks, the captions, Wikipedia and the NLI sets
docs     the documentation that CPython ships
======== =========================================================================================================
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, cycle, islice
from pathlib import Path

from bench.corpus import DATA_VARIABLE, STSB_FILE, Corpus, load_corpus, make_corpus, python_corpus, stsb_corpus
from sentport.errors import SentportError

_WIKIPEDIA = Path("unlabelled", "wikipedia_sentences.txt")
_CAPTIONS = (Path("captions", "flickr8k_groups.tsv"), Path("captions", "flickr30k_groups.tsv"))
_QUERY_WORDS = 8
_WEB_MEDIAN, _WEB_SIGMA, _WEB_WORDS = 40, 0.9, (3, 400)
_LONG_WORDS = (300, 380)
_PIECES = {"web": 20_000, "long": 2_000}
_SEED = 11


def corpus_of(name: str) -> Corpus:
    """A corpus by its recipe's name, or the lines of a file.

    Raises:
        SentportError: When there is neither, or the recipe's data is not there.
    """
    if name == "any":
        return load_corpus()
    if name == "docs":
        return python_corpus()
    recipe = _RECIPES.get(name)
    if recipe is None:
        if not Path(name).is_file():
            known = ", ".join(("any", *_RECIPES, "docs"))
            raise SentportError(f"corpus {name} cannot be read: it is no file, and no recipe either; known: {known}")
        return load_corpus(Path(name))
    return recipe(data_folder(name))


def data_folder(what: str) -> Path:
    """The evaluation data.

    Raises:
        SentportError: When it is not there.
    """
    data = os.environ.get(DATA_VARIABLE)
    if not data or not Path(data).is_dir():
        raise SentportError(f"corpus {what} is made of the evaluation data; name its folder in {DATA_VARIABLE}")
    return Path(data)


def many_texts(count: int, data: Path) -> Iterator[str]:
    """So many texts, hardly one twice, and nothing but the pool held.

    Those of ``pool`` in random order come first, then first halves of some with second halves of others.
    """
    pool = random.Random(_SEED).sample(list(found := pool_sentences(data)), len(found))
    halves = [text.split() for text in pool]
    spliced = (
        " ".join([*first[: math.ceil(len(first) / 2)], *second[len(second) // 2 :]])
        for shift in range(1, len(pool))
        for first, second in zip(halves, chain(halves[shift:], halves[:shift]), strict=True)
    )
    yield from islice(chain(pool, spliced), count)


def pool_sentences(data: Path) -> dict[str, None]:
    """All distinct sentences of the evaluation data that are English prose, in the order of its files."""
    found: dict[str, None] = {}
    for file in sorted((data / "sts_raw").rglob("*.tsv")):
        if not file.name.endswith(".source.tsv"):
            found |= dict.fromkeys(_columns(file, 1))
    for name in _CAPTIONS:
        found |= dict.fromkeys(_columns(data / name, 0))
    found |= dict.fromkeys(_lines(data / _WIKIPEDIA))
    for file in sorted((data / "nli").rglob("*.tsv")):
        found |= dict.fromkeys(_columns(file, 1))
    found.pop("", None)
    return found


def _stsb(data: Path) -> Corpus:
    return stsb_corpus(data / STSB_FILE)


def _queries(data: Path) -> Corpus:
    questions = (text for file in ("train", "test") for text in _columns(data / "transfer" / "TREC" / f"{file}.tsv", 1))
    short = (text for text in questions if len(text.split()) <= _QUERY_WORDS)
    return make_corpus("queries", f"TREC questions of at most {_QUERY_WORDS} words", short)


def _web(data: Path) -> Corpus:
    draw = random.Random(_SEED)
    low, high = _WEB_WORDS
    sizes = (min(high, max(low, round(draw.lognormvariate(math.log(_WEB_MEDIAN), _WEB_SIGMA)))) for _ in cycle([0]))
    source = (
        f"Wikipedia sentences joined and cut to log-normal lengths (median {_WEB_MEDIAN} words, sigma {_WEB_SIGMA}, "
        f"from {low} to {high}), seed {_SEED}"
    )
    return make_corpus("web-like", source, _pieces(data, sizes, _PIECES["web"]))


def _long(data: Path) -> Corpus:
    draw = random.Random(_SEED)
    sizes = (draw.randint(*_LONG_WORDS) for _ in cycle([0]))
    source = f"Wikipedia sentences joined to {_LONG_WORDS[0]} to {_LONG_WORDS[1]} words, seed {_SEED}"
    return make_corpus("long documents", source, _pieces(data, sizes, _PIECES["long"]))


def _pool(data: Path) -> Corpus:
    return make_corpus("pool", "sentences of the STS tasks, captions, Wikipedia and NLI sets", pool_sentences(data))


def _pieces(data: Path, sizes: Iterator[int], count: int) -> Iterator[str]:
    """Runs of words over all sentences, one after the other, each of the next size."""
    words = (word for text in cycle(_lines(data / _WIKIPEDIA)) for word in text.split())
    for size in islice(sizes, count):
        yield " ".join(islice(words, size))


def _columns(file: Path, first: int) -> Iterator[str]:
    for line in _lines(file):
        yield from line.split("\t")[first : first + 2] if first else line.split("\t")


def _lines(file: Path) -> Iterable[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise SentportError(
            f"{file} cannot be read ({error}); {DATA_VARIABLE} has to name the evaluation data"
        ) from None


_RECIPES: dict[str, Callable[[Path], Corpus]] = {
    "stsb": _stsb,
    "queries": _queries,
    "web": _web,
    "long": _long,
    "pool": _pool,
}
