"""Messages about bad input: numbers agree with their nouns and verbs."""

from __future__ import annotations

import numpy as np
import pytest

from sentport.errors import InputError
from sentport.inputs import truncation, valid_rows


@pytest.mark.parametrize(
    ("lengths", "said"),
    [
        ([9], "1 of 1 text is longer than 8 tokens (longest 9) and loses its end: rows 0 (lengths 9)"),
        ([3, 9], "1 of 2 texts is longer than 8 tokens (longest 9) and loses its end: rows 1 (lengths 9)"),
        (
            [10, 8, 9],
            "2 of 3 texts are longer than 8 tokens (longest 10) and lose their end: rows 0, 2 (lengths 10, 9)",
        ),
    ],
)
def test_truncation_in_words(lengths: list[int], said: str) -> None:
    told = truncation(np.array(lengths), 8)
    assert told is not None
    assert str(told) == said
    assert told.tokens == tuple(length for length in lengths if length > 8)
    assert truncation(np.array([8, 1]), 8) is None


@pytest.mark.parametrize(("rows", "said"), [([None], "1 of 1 row cannot"), (["a", 2], "1 of 2 rows cannot")])
def test_bad_rows_in_words(rows: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        valid_rows(rows)
