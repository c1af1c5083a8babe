"""TokenBatch: its checks, and how it is laid out: as rectangles, or end to end."""

from __future__ import annotations

import numpy as np
import pytest

from sentport.batch import TokenBatch
from sentport.errors import InputError


def test_padded_lays_rows_side_by_side() -> None:
    batch = TokenBatch.from_rows([[5, 6, 7], [8], []])
    ids, mask, types, pooling = batch.padded(pad_id=9)
    assert ids.tolist() == [[5, 6, 7], [8, 9, 9], [9, 9, 9]]
    assert mask.tolist() == [[1, 1, 1], [1, 0, 0], [0, 0, 0]]
    assert types.tolist() == [[0, 0, 0]] * 3
    assert pooling.tolist() == mask.tolist()
    assert {table.dtype for table in (ids, mask, types, pooling)} == {np.dtype(np.int64)}


def test_given_masks_and_types_are_spread_like_the_ids() -> None:
    batch = TokenBatch(
        ids=np.array([1, 2, 3, 4, 5]),
        lengths=np.array([3, 2], np.int32),
        attention_mask=np.array([1, 1, 0, 1, 1]),
        token_type_ids=np.array([0, 1, 1, 0, 1]),
        pooling_mask=np.array([0, 1, 0, 1, 1]),
    )
    _, mask, types, pooling = batch.padded()
    assert mask.tolist() == [[1, 1, 0], [1, 1, 0]]
    assert types.tolist() == [[0, 1, 1], [0, 1, 0]]
    assert pooling.tolist() == [[0, 1, 0], [1, 1, 0]]


def test_no_rows_and_only_empty_rows_still_have_one_column() -> None:
    assert TokenBatch.from_rows([]).padded()[0].shape == (0, 1)
    assert TokenBatch.from_rows([[], []]).padded()[0].shape == (2, 1)


def test_packed_lays_rows_end_to_end() -> None:
    ids, mask, lengths, pooling = TokenBatch.from_rows([[5, 6, 7], [], [8]], np.array([1, 0, 0])).packed()
    assert (ids.tolist(), lengths.tolist()) == ([5, 6, 7, 8], [3, 0, 1])
    assert (mask.tolist(), pooling.tolist()) == ([1, 1, 1, 1], [0, 1, 1, 1])
    assert (ids.dtype, mask.dtype, lengths.dtype, pooling.dtype) == (np.int64, np.int64, np.int32, np.int64)
    padded_inside = TokenBatch(np.arange(4), np.array([2, 2], np.int32), attention_mask=np.array([1, 0, 1, 1]))
    assert [part.tolist() for part in padded_inside.packed()[1::2]] == [[1, 0, 1, 1]] * 2


def test_a_packed_batch_without_a_token_gets_a_pad_in_its_first_row() -> None:
    packed = TokenBatch.from_rows([[], [], []]).packed(pad_id=9)
    assert [part.tolist() for part in packed] == [[9], [0], [1, 0, 0], [0]]
    assert [part.dtype for part in packed] == [np.int64, np.int64, np.int32, np.int64]


def test_pad_before_a_token_is_refused_by_row() -> None:
    with pytest.raises(InputError, match="rows 1 have a pad before a token") as caught:
        TokenBatch(np.arange(5), np.array([2, 3], np.int32), attention_mask=np.array([1, 0, 0, 1, 1]))
    assert caught.value.rows == (1,)


def test_pad_at_a_row_end_before_the_next_row_is_fine() -> None:
    TokenBatch(np.arange(4), np.array([2, 2], np.int32), attention_mask=np.array([1, 0, 1, 0]))


@pytest.mark.parametrize(
    ("ids", "lengths"), [(np.arange(4), [3]), (np.arange(3, dtype=np.int32), [3]), (np.zeros((1, 3), np.int64), [3])]
)
def test_ids_must_fit_the_lengths(ids: np.ndarray, lengths: list[int]) -> None:
    with pytest.raises(InputError, match=r"lengths ask for int64\[3\]"):
        TokenBatch(ids, np.array(lengths, np.int32))


def test_masks_must_be_as_long_as_the_ids() -> None:
    with pytest.raises(InputError, match="token_type_ids is int64\\[2\\]"):
        TokenBatch(np.arange(3), np.array([3], np.int32), token_type_ids=np.zeros(2, np.int64))


@pytest.mark.parametrize("name", ["attention_mask", "pooling_mask"])
@pytest.mark.parametrize("value", [2, -1])
def test_masks_hold_nothing_but_ones_and_zeros(name: str, value: int) -> None:
    """Graphs multiply with them."""
    with pytest.raises(InputError, match=f"{name} holds values other than 0 and 1"):
        TokenBatch(np.arange(3), np.array([3], np.int32), **{name: np.array([value, 0, 0])})


def test_nothing_is_pooled_that_is_not_attended_to() -> None:
    with pytest.raises(InputError, match="the pooling mask takes tokens that the attention mask leaves out"):
        TokenBatch(
            np.arange(3), np.array([3], np.int32), attention_mask=np.array([1, 0, 0]), pooling_mask=np.array([0, 1, 0])
        )
