"""Where the texts come from, and how they are chosen."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from bench.corpus import Corpus, equal_lengths, load_corpus, python_corpus, split_sentences
from sentport.errors import SentportError


def count_words(texts: Sequence[str]) -> np.ndarray:
    return np.array([len(text.split()) for text in texts], np.int64)


def test_a_file_goes_first_and_gives_distinct_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("one\n\ntwo\none\n   \nthrée\n", encoding="utf-8")
    monkeypatch.setenv("SENTPORT_DATA", str(tmp_path))
    corpus = load_corpus(file)
    assert corpus.texts == ("one", "two", "thrée")
    assert corpus.name == "mine"


@pytest.mark.parametrize("content", [None, b"", b"\n \n", b"caf\xe9\n"])
def test_a_file_without_text_is_one_clear_line(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "mine.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SentportError, match=r"mine") as caught:
        load_corpus(file)
    assert "\n" not in str(caught.value)


def test_the_benchmark_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "sts_raw" / "STSBenchmark" / "test.tsv"
    file.parent.mkdir(parents=True)
    file.write_text("1.0\ta\tb\n2.0\tc\ta\n")
    monkeypatch.setenv("SENTPORT_DATA", str(tmp_path))
    corpus = load_corpus()
    assert (corpus.name, corpus.texts) == ("STS-B", ("a", "b", "c"))


@pytest.mark.parametrize("data", [None, "", "/nowhere"])
def test_else_the_documentation_of_python(monkeypatch: pytest.MonkeyPatch, data: str | None) -> None:
    if data is None:
        monkeypatch.delenv("SENTPORT_DATA", raising=False)
    else:
        monkeypatch.setenv("SENTPORT_DATA", data)
    corpus = load_corpus()
    assert corpus.name == "Python docs"
    assert len(corpus.texts) > 1000
    assert len(set(corpus.texts)) == len(corpus.texts)
    lengths = count_words(corpus.texts)
    assert lengths.min() < 6
    assert lengths.max() > 40  # very mixed, as it says


def test_without_documentation_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def refuse(name: str, *rest: object) -> object:
        if name.startswith("pydoc_data"):
            raise ImportError(name)
        return original(name, *rest)  # type: ignore[arg-type]

    monkeypatch.delitem(sys.modules, "pydoc_data.topics", raising=False)
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(SentportError, match="--corpus"):
        python_corpus()


def test_sentences_without_code_grammar_and_tables() -> None:
    document = (
        "Assignment statements\n*********************\n\n"
        "An assignment evaluates\nthe list. It assigns the result! Does it?\n\n"
        "   stmt ::= target\n\n    code = here(now) and then.\n\n"
        "+------+\n| A b c. |\n+------+\n\n>>> Some prompt here.\n\n* A point of a list."
    )
    assert split_sentences(document) == [
        "An assignment evaluates the list.",
        "It assigns the result!",
        "A point of a list.",
    ]


def test_a_sample_is_distinct_repeatable_and_says_what_it_is() -> None:
    corpus = Corpus("c", "source", tuple(str(number) for number in range(100)))
    drawn = corpus.sample(30, 1)
    assert len(set(drawn.texts)) == 30
    assert drawn == corpus.sample(30, 1)
    assert drawn.texts != corpus.sample(30, 2).texts
    assert drawn.source == "source; 30 of 100 drawn with seed 1"
    assert sorted(corpus.sample(500, 1).texts) == sorted(corpus.texts)


def test_equal_lengths_are_equal_and_the_commonest() -> None:
    texts = [f"a b {number}" for number in range(40)] + [f"a {number}" for number in range(39)]
    flat = equal_lengths(Corpus("c", "source", tuple(texts)), count_words)
    assert flat is not None
    assert flat.texts == tuple(texts[:40])
    assert "exactly 3 tokens" in flat.source


def test_too_few_of_one_length_are_no_flat_case() -> None:
    texts = tuple("word " * (number // 31 + 1) + str(number) for number in range(62))
    assert equal_lengths(Corpus("c", "source", texts), count_words) is None
