from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx_ir")
from export.rounding import fitted_levels


@pytest.mark.parametrize(("outputs", "inputs"), [(5, 1), (3, 13), (40, 64), (96, 300)])
def test_outputs_change_less_than_by_rounding_to_the_nearest(outputs: int, inputs: int) -> None:
    rng = np.random.default_rng(inputs)
    weight = rng.uniform(-1, 1, size=(outputs, inputs)).astype(np.float32)
    weight[:, 0] = 3  # so that four others fit 16 bits
    mixed = rng.normal(size=(inputs, inputs)) * rng.exponential(size=inputs)
    seen, later = (np.float32(rng.normal(size=(2000, inputs)) @ mixed) for _ in range(2))  # [tokens, in], correlated
    levels, scale = fitted_levels(weight, seen.T @ seen)
    assert (levels.dtype, levels.shape, scale.shape) == (np.int8, weight.shape, (outputs,))
    assert np.abs(levels.astype(int)).max() <= 63
    np.testing.assert_allclose(scale, np.abs(weight).max(axis=1) / 63, rtol=1e-6)

    def lost(found: np.ndarray) -> float:
        return float(np.square(later @ (found * scale[:, None] - weight).T).mean())

    nearest = lost(np.rint(weight / scale[:, None]))
    assert lost(levels) <= (nearest if inputs == 1 else 0.9 * nearest)


def test_weights_of_one_sign_leave_room_for_16_bits() -> None:
    """Of each eight inputs the products at 0, 1, 4, 5 are added in 16 bits, and those at 2, 3, 6, 7: 255 x 128 fits."""
    weight = np.repeat(np.array([[1], [-1], [0.5]], np.float32), 21, axis=1)
    weight[2, ::2] *= -1
    levels, _ = fitted_levels(weight, np.eye(21, dtype=np.float32))
    full = [32] * 16 + [43, 43, 63, 63, 42]  # four share 128, and three
    assert levels[0].tolist() == full
    assert (-levels[1]).tolist() == full
    assert levels[2].tolist() == [-63, 63] * 10 + [-63]
    rng = np.random.default_rng(0)
    mixed = rng.normal(size=(200, 45)).astype(np.float32) @ rng.normal(size=(45, 45)).astype(np.float32)
    levels, _ = fitted_levels(rng.uniform(0.5, 1, size=(30, 45)).astype(np.float32), mixed.T @ mixed)
    padded = np.pad(levels.astype(int), ((0, 0), (0, 3))).reshape(30, 6, 8)
    for four in ([0, 1, 4, 5], [2, 3, 6, 7]):
        assert 100 < np.maximum(padded[:, :, four], 0).sum(axis=2).max() <= 128
        assert np.maximum(-padded[:, :, four], 0).sum(axis=2).max() <= 128


def test_texts_that_never_reach_an_input_leave_its_weights_to_the_nearest() -> None:
    weight = np.array([[1.0, 0.52, -0.26]], np.float32)
    levels, scale = fitted_levels(weight, np.zeros((3, 3), np.float32))
    assert levels.tolist() == [[63, 33, -16]]
    assert scale == pytest.approx([1 / 63])
