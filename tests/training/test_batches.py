"""Batches by number: every example once an epoch, alike in length, the same whenever they are asked for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from sentport.scheduler import computed_tokens
from sentport.tokenizer import Tokens
from training.batches import Batches, augment
from training.data import Example
from training.settings import ViewSettings
from training.tables import RecipeError


def tokenize(texts: Sequence[str]) -> Tokens:
    rows = [np.frombuffer(text.encode(), np.uint8).astype(np.int64) for text in texts]
    return Tokens(rows, np.array([len(row) for row in rows]))


def sentences(count: int) -> list[Example]:
    draw = np.random.default_rng(0)
    return [Example((f"{number:04d}" + "x" * int(draw.integers(60)),), float(number)) for number in range(count)]


def make(examples: Sequence[Example], size: int = 8, seed: int = 1, **options: object) -> Batches:
    settings = {"two_views": False, **options}
    views = settings.pop("views", ViewSettings())
    return Batches(examples, tokenize, size, seed, views, **settings)  # type: ignore[arg-type]


def numbers(batches: Batches, number: int) -> list[int]:
    targets = batches[number].targets
    assert targets is not None
    return [int(target) for target in targets]


def test_an_epoch_has_every_example_at_most_once() -> None:
    batches = make(sentences(100))
    assert batches.per_epoch == 12
    epochs = [[row for n in range(e * 12, e * 12 + 12) for row in numbers(batches, n)] for e in range(2)]
    assert all(len(epoch) == len(set(epoch)) == 96 for epoch in epochs)
    assert epochs[0] != epochs[1]
    assert set(epochs[0]) != set(epochs[1]), "the same examples are left over every time"


def test_a_batch_depends_on_seed_and_number_alone() -> None:
    forward = make(sentences(100))
    in_order = [numbers(forward, n) for n in range(30)]
    backward = make(sentences(100))
    assert [numbers(backward, n) for n in reversed(range(30))] == in_order[::-1]
    assert [numbers(make(sentences(100), seed=2), n) for n in range(12)] != in_order[:12]


def test_batches_are_alike_in_length() -> None:
    """Sorted windows waste far less than random batches, and what is left out is not the short end."""
    examples = sentences(1003)
    lengths = tokenize([example.texts[0] for example in examples]).lengths
    batches = make(examples, 16)
    rows = [np.array(numbers(batches, n)) for n in range(batches.per_epoch)]
    waste = computed_tokens(lengths, rows) / lengths[np.concatenate(rows)].sum()
    assert waste < 1.1
    means = [float(lengths[one].mean()) for one in rows]
    assert abs(np.corrcoef(means, range(len(means)))[0, 1]) < 0.3, "lengths follow the order of training"


def test_processes_share_a_batch() -> None:
    whole = make(sentences(100))
    parts = [make(sentences(100), process=process, processes=2) for process in range(2)]
    for number in (0, 5, 13):
        shared = [numbers(part, number) for part in parts]
        assert sorted(shared[0] + shared[1]) == sorted(numbers(whole, number))
        assert len(shared[0]) == len(shared[1]) == 4


def test_two_views() -> None:
    same = make(sentences(20), two_views=True)[3]
    assert len(same.views) == 2
    assert all((a == b).all() for a, b in zip(same.views[0].rows, same.views[1].rows, strict=True))
    texts = [Example((f"a b c d e f g h i {number}",)) for number in range(20)]
    cropped = make(texts, two_views=True, views=ViewSettings(crop=0.5))
    assert all(len(row) < len(whole) for whole, row in zip(*(view.rows for view in cropped[3].views), strict=True))
    assert (cropped[3].views[1].rows[0] == cropped[3].views[1].rows[0]).all(), "drawn anew each time"


@pytest.mark.parametrize(("crop", "delete", "words"), [(0.2, 0, 8), (0, 0.3, 7), (0.5, 0.4, 3), (0.99, 0.99, 1)])
def test_augment(crop: float, delete: float, words: int) -> None:
    text = "a b c d e f g h i j"
    draw = np.random.default_rng(0)
    found = [augment(text, crop, delete, draw).split() for _ in range(50)]
    assert {len(one) for one in found} == {words}
    assert all(one == sorted(one) for one in found), "words are out of order"
    assert len({tuple(one) for one in found}) > 1
    if not delete:
        assert all(" ".join(one) in text for one in found), "a crop has a hole"


def test_refusals() -> None:
    with pytest.raises(RecipeError, match="batch_size is 8, but the data has 7 examples"):
        make(sentences(7))
    with pytest.raises(RecipeError, match="batch_size is 8, which 3 processes cannot share evenly"):
        make(sentences(9), processes=3)
