"""Recipes of corpora, on data of the same form."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.recipes import corpus_of, many_texts, pool_sentences
from sentport.errors import SentportError


def test_each_recipe_gives_texts_of_its_lengths(small_data: Path) -> None:
    assert corpus_of("stsb").texts == corpus_of("any").texts == ("a man eats", "a man is eating")
    assert corpus_of("queries").texts == ("Who was it ?", "How many ?")
    long = [len(text.split()) for text in corpus_of("long").texts]
    assert (min(long) >= 300, max(long) <= 380) == (True, True)
    web = sorted(len(text.split()) for text in corpus_of("web").texts)
    assert (web[0] >= 3, web[-1] <= 400) == (True, True)
    assert 36 <= web[len(web) // 2] <= 44
    assert re.search("sigma 0.9", corpus_of("web").source)
    assert corpus_of("web").texts == corpus_of("web").texts  # the same on every call


def test_many_texts_are_as_many_as_asked_and_distinct_as_long_as_they_can_be(small_data: Path) -> None:
    pool = pool_sentences(small_data)
    assert len(pool) == 2 + 4 + 3000 + 1
    assert "genre" not in pool
    texts = list(many_texts(5000, small_data))
    assert len(texts) == 5000
    assert set(texts[: len(pool)]) == set(pool)
    assert len(set(texts)) > 4900


def test_what_is_no_corpus_is_named(monkeypatch: pytest.MonkeyPatch, small_data: Path) -> None:
    with pytest.raises(
        SentportError, match="corpus nothing cannot be read: it is no file, and no recipe either; known: any"
    ):
        corpus_of("nothing")
    (small_data / "unlabelled" / "wikipedia_sentences.txt").unlink()
    with pytest.raises(SentportError, match=r"wikipedia_sentences.txt cannot be read"):
        corpus_of("long")
    monkeypatch.delenv("SENTPORT_DATA")
    with pytest.raises(SentportError, match="corpus web is made of the evaluation data"):
        corpus_of("web")
