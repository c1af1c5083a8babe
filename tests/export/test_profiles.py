"""The profile planner: exact, on small cases by trying all edges, on STS-B's lengths by its figures."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

from export.profiles import (
    Histogram,
    best_edges,
    check_corpus,
    check_coverage,
    corpus_lengths,
    equal_edges,
    expected,
    packed_profiles,
    packed_totals,
    padded_profiles,
    with_rest,
)
from sentport.bundle import read_bundle
from sentport.errors import SentportError
from sentport.plans import Extent
from sentport.tokenizer import Tokenizer


def cost(sizes: list[int], edges: tuple[int, ...]) -> int:
    return sum(next(edge for edge in edges if edge >= size) for size in sizes)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=30), st.integers(1, 5))
def test_planned_edges_cost_no_more_than_any_others(sizes: list[int], profiles: int) -> None:
    found = best_edges(Histogram.of(sizes), profiles)
    assert len(found) <= profiles
    assert found[-1] == max(sizes)
    others = [
        (*inner, max(sizes))
        for count in range(profiles)
        for inner in combinations(sorted({*sizes} - {max(sizes)}), count)
    ]
    assert cost(sizes, found) == min(cost(sizes, edges) for edges in others)
    assert expected(Histogram.of(sizes), found).waste == pytest.approx(1 - sum(sizes) / cost(sizes, found))


def test_four_profiles_waste_less_than_a_third_of_one_on_stsb() -> None:
    lengths = json.loads((ROOT / "bench" / "gpu_check" / "lengths.json").read_text())["stsb"]["lengths"]
    histogram = Histogram.of(lengths)
    four, one = (expected(histogram, best_edges(histogram, profiles)) for profiles in (4, 1))
    assert (round(four.waste, 3), round(one.waste, 3)) == (0.197, 0.692)
    assert four.waste <= 0.30 * one.waste
    assert four.edges == (11, 16, 27, 46)
    assert four.waste < expected(histogram, equal_edges(histogram, 4)).waste


def test_equal_edges_reach_the_largest_size() -> None:
    histogram = Histogram.of([1, 10])
    assert equal_edges(histogram, 3) == (4, 7, 10)
    assert equal_edges(histogram, 1) == (10,)


def test_lengths_that_no_text_has_are_covered_too() -> None:
    assert with_rest((8, 16), 64) == (8, 16, 64)
    assert with_rest((8, 64), 64) == (8, 64)


@pytest.mark.parametrize(
    ("edges", "says"),
    [
        ((16, 32), "no profile covers 33 to 64 tokens"),
        ((32, 16, 64), "must be whole numbers that ascend"),
        ((0, 64), "must be whole numbers that ascend"),
        ((), "must be whole numbers that ascend"),
    ],
)
def test_a_plan_that_leaves_a_length_out_is_refused(edges: tuple[int, ...], says: str) -> None:
    with pytest.raises(SentportError, match=says):
        check_coverage(edges, 64)


def test_padded_profiles_meet_without_a_gap_and_fill_the_budget() -> None:
    short, long = padded_profiles((16, 512), token_budget=4096, max_rows=100)
    assert (short.tokens, long.tokens) == (Extent(1, 16, 16), Extent(17, 512, 512))
    assert (short.rows, long.rows) == (Extent(1, 100, 100), Extent(1, 8, 8))
    assert padded_profiles((8192,), token_budget=4096, max_rows=100)[0].rows == Extent(1, 1, 1)


def test_packed_profiles_have_as_many_rows_as_the_shortest_texts_make() -> None:
    few, many = packed_profiles((30, 300), Histogram.of([5, 10, 15]), max_rows=40)
    assert (few.tokens, few.rows) == (Extent(1, 30, 30), Extent(1, 3, 6))
    assert (many.tokens, many.rows) == (Extent(31, 300, 300), Extent(1, 30, 40))


def test_packed_totals_are_those_of_the_schedulers_batches() -> None:
    lengths = np.array([5, 7, 9], np.int64)
    assert sorted(packed_totals(lengths, 100).tolist()) == [5, 7, 9, 21, 21]  # alone, and all in one call of 8 and 64


@pytest.mark.parametrize(("content", "says"), [("", "holds no line"), (None, "cannot be read")])
def test_a_corpus_without_texts_is_refused(content: str | None, says: str, tmp_path: Path) -> None:
    file = tmp_path / "corpus.txt"
    if content is not None:
        file.write_text(content)
    with pytest.raises(SentportError, match=says):
        check_corpus(file)
    with pytest.raises(SentportError, match="no text to plan"):
        Histogram.of([])


def test_a_corpus_is_taken_block_by_block(tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = read_bundle(tiny_bundle)
    tokenizer = Tokenizer.from_file(bundle.tokenizer_file(), bundle.spec.max_tokens)
    texts = ["cat " * (n % 20) for n in range(2500)]
    file = tmp_path / "corpus.txt"
    file.write_text("\n".join(texts))
    assert corpus_lengths(bundle.spec, tokenizer, file).tolist() == tokenizer.encode(texts).lengths.tolist()
