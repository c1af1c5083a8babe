"""Ids, limits and counts of the tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentport.errors import BundleError
from sentport.tokenizer import Tokenizer


@pytest.fixture
def definition(tiny_bundle: Path) -> str:
    return (tiny_bundle / "tokenizer.json").read_text(encoding="utf-8")


def test_limit_cuts_the_text_and_keeps_the_special_tokens(definition: str) -> None:
    tokens = Tokenizer(definition, 5).encode(["the cat sat on a mat", "cat", ""])
    assert [row.tolist() for row in tokens.rows] == [[2, 6, 7, 9, 3], [2, 7, 3], [2, 3]]
    assert tokens.full_lengths.tolist() == [8, 3, 2]
    assert tokens.lengths.tolist() == [5, 3, 2]


@pytest.mark.parametrize("limit", [3, 4, 7, 48])
def test_cut_equals_the_package_s_own_truncation(definition: str, limit: int) -> None:
    from tokenizers import Tokenizer as Fast

    texts = ["the cat sat on a red mat " * 5, "dog", "", "in the park a blue dog ran ."]
    fast = Fast.from_str(definition)
    fast.enable_truncation(limit)
    assert [row.tolist() for row in Tokenizer(definition, limit).encode(texts).rows] == [
        fast.encode(text).ids for text in texts
    ]


def test_threads_change_nothing(definition: str) -> None:
    texts = [f"the cat {'sat ' * (n % 7)}" for n in range(500)]
    one, four = (Tokenizer(definition, 6, threads).encode(texts) for threads in (1, 4))
    assert [row.tolist() for row in one.rows] == [row.tolist() for row in four.rows]
    assert one.full_lengths.tolist() == four.full_lengths.tolist()


def test_unusable_definitions_and_limits_are_refused(definition: str, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="cannot be read"):
        Tokenizer("{", 8)
    with pytest.raises(BundleError, match="adds 2 special tokens"):
        Tokenizer(definition, 2)
    with pytest.raises(BundleError, match="is missing"):
        Tokenizer.from_file(tmp_path / "tokenizer.json", 8)
