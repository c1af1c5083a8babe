"""Vectors in fewer bits: codes depend on their row alone, and similarities are those of the restored vectors."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from sentport.errors import InputError, SentportError
from sentport.vectors import VECTOR_TYPES, bytes_a_vector, nearest, quantize, similarities


def random_vectors(rows: int, dim: int, *, unit: bool = True, seed: int = 0) -> NDArray[np.float32]:
    vectors = np.random.default_rng(seed).normal(size=(rows, dim)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True) if unit else 30 * vectors


def cosines(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float64]:
    left, right = a.astype(np.float64), b.astype(np.float64)
    return left @ right.T / np.linalg.norm(left, axis=1)[:, None] / np.linalg.norm(right, axis=1)


@pytest.mark.parametrize("kind", VECTOR_TYPES)
@pytest.mark.parametrize("unit", [True, False], ids=["unit", "long"])
def test_what_is_lost(kind: str, unit: bool) -> None:
    vectors = random_vectors(50, 391, unit=unit)
    kept = quantize(vectors, kind)
    restored = kept.restore()
    assert (restored.shape, restored.dtype, len(kept)) == (vectors.shape, np.float32, 50)
    scales = 0 if kept.scales is None else kept.scales.nbytes
    assert kept.values.nbytes + scales == 50 * bytes_a_vector(kind, 391)
    if kind == "binary":
        np.testing.assert_array_equal(restored > 0, vectors > 0)
        np.testing.assert_allclose(np.linalg.norm(restored, axis=1), 1, rtol=1e-5)
        return
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    allowed = {"float32": 0, "float16": 2**-11, "int8": 0.5001 / 127}[kind]
    assert (np.abs(restored - vectors) <= allowed * largest).all()
    assert np.diag(cosines(vectors, restored)).min() > 0.9999


@pytest.mark.parametrize("kind", VECTOR_TYPES)
def test_codes_do_not_depend_on_the_batch(kind: str) -> None:
    """As they would with ranges of the batch at hand, of which one long row would take most steps."""
    vectors = random_vectors(20, 64)
    vectors[7] *= 100
    together = quantize(vectors, kind)
    for row in range(20):
        alone = quantize(vectors[row : row + 1], kind)
        np.testing.assert_array_equal(alone.values[0], together.values[row])
        np.testing.assert_array_equal(alone.restore(), together.rows(slice(row, row + 1)).restore())


def test_bits_stand_most_significant_first() -> None:
    vector = np.array([[1, -1, 1, 1, 0, -2, 0.5, 3, -1, 1]], np.float32)
    assert quantize(vector, "binary").values.tolist() == [[0b10110011, 0b01000000]]


def test_zeros_stay_zeros() -> None:
    zeros = np.zeros((2, 9), np.float32)
    for kind in ("float32", "float16", "int8"):
        kept = quantize(zeros, kind)
        assert not kept.restore().any()
        assert not similarities(random_vectors(3, 9), kept).any()
        assert not similarities(kept, kept, "dot").any()


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("kind", VECTOR_TYPES)
def test_similarities_are_those_of_the_restored_vectors(kind: str, similarity: str) -> None:
    queries, documents = random_vectors(7, 2500, unit=False), random_vectors(30, 2500, unit=False, seed=1)
    kept = quantize(documents, kind)
    for given in (queries, quantize(queries, kind)):
        restored = queries if given is queries else given.restore()
        found = similarities(given, kept, similarity)
        assert (found.shape, found.dtype) == ((7, 30), np.float32)
        if similarity == "cosine":
            np.testing.assert_allclose(found, cosines(restored, kept.restore()), atol=2e-6)
        else:
            lengths = np.linalg.norm(restored, axis=1)[:, None] * np.linalg.norm(kept.restore(), axis=1)
            wanted = restored.astype(np.float64) @ kept.restore().astype(np.float64).T
            np.testing.assert_allclose(found / lengths, wanted / lengths, atol=2e-6)


def test_binary_cosine_is_the_share_of_equal_bits() -> None:
    a, b = random_vectors(5, 70), random_vectors(6, 70, seed=1)
    found = similarities(quantize(a, "binary"), quantize(b, "binary"))
    differ = ((a > 0)[:, None] != (b > 0)).sum(axis=2)
    np.testing.assert_allclose(found, 1 - 2 * differ / 70, atol=1e-6)


def test_products_of_int8_codes_are_exact() -> None:
    """The largest codes at a width where float32 alone would round; and a pair is the same in every batch."""
    full = np.ones((1, 4096), np.float32)
    full[0, 0] = -1
    kept = quantize(full, "int8")
    assert kept.scales is not None
    exact = 127**2 * 4096 * float(kept.scales[0]) ** 2
    assert float(similarities(kept, kept, "dot")[0, 0]) == np.float32(exact)
    assert similarities(kept, kept)[0, 0] == 1
    many = quantize(random_vectors(9000, 48), "int8")
    table = similarities(many.rows(slice(0, 40)), many)
    for row, column in ((0, 1), (3, 4095), (39, 4096), (20, 8999)):
        pair = similarities(many.rows(slice(row, row + 1)), many.rows(slice(column, column + 1)))
        assert pair[0, 0] == table[row, column]


@pytest.mark.parametrize("kind", VECTOR_TYPES)
def test_nearest_puts_candidates_in_the_order_of_float32_queries(kind: str) -> None:
    documents = random_vectors(400, 96)
    queries = documents[::40] + 0.02 * random_vectors(10, 96, unit=False, seed=2) / 30
    finer = quantize(documents, "int8")
    rows, found = nearest(queries, quantize(documents, kind), 5, finer=finer, oversample=10)
    assert rows.shape == found.shape == (10, 5)
    assert rows[:, 0].tolist() == list(range(0, 400, 40))
    assert (np.diff(found, axis=1) <= 0).all()
    np.testing.assert_allclose(found, np.take_along_axis(cosines(queries, finer.restore()), rows, axis=1), atol=2e-6)
    everything, _ = nearest(queries, quantize(documents[:3], kind), 5)
    assert [sorted(one) for one in everything.tolist()] == [[0, 1, 2]] * 10


@pytest.mark.parametrize("kind", VECTOR_TYPES)
def test_float64_is_kept_as_float32_is(kind: str) -> None:
    vectors = random_vectors(5, 24)
    wide, usual = quantize(vectors.astype(np.float64), kind), quantize(vectors, kind)  # type: ignore[arg-type]
    assert wide.values.dtype == usual.values.dtype
    np.testing.assert_array_equal(wide.restore(), usual.restore())


def test_what_is_refused() -> None:
    with pytest.raises(SentportError, match=r"vectors are \[8\]; expected \[rows, values\]"):
        quantize(np.zeros(8, np.float32), "int8")
    vectors = random_vectors(4, 8)
    vectors[2, 1] = np.nan
    with pytest.raises(InputError, match="vectors in rows 2 are not finite"):
        quantize(vectors, "int8")
    with pytest.raises(SentportError, match="7e\\+04 does not fit float16"):
        quantize(np.full((1, 3), 70000, np.float32), "float16")
    with pytest.raises(SentportError, match="type 'int4' are unknown; known: float32, float16, int8, binary"):
        quantize(random_vectors(1, 8), "int4")
    kept = quantize(random_vectors(2, 8), "int8")
    with pytest.raises(SentportError, match="is cosine or dot, not 'euclidean'"):
        similarities(kept, kept, "euclidean")
    for other in (quantize(random_vectors(2, 8), "binary"), quantize(random_vectors(2, 9), "int8")):
        with pytest.raises(SentportError, match="expected the same width, and float32 or the documents' type"):
            similarities(other, kept)
