"""Operations of a model by hand, and ceilings that a machine can have."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bench.roofline import measure_ceilings, model_flop

LENGTHS = np.array([3, 5])
MINILM = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6}


def counted(folder: Path, config: dict[str, object], name: str = "config.json") -> float | None:
    file = folder / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(config))
    return model_flop(folder, LENGTHS)


def test_two_operations_for_each_weight_and_token(tmp_path: Path) -> None:
    small = {"hidden_size": 2, "intermediate_size": 3, "num_hidden_layers": 5}
    weights = 5 * (4 * 2 * 2 + 2 * 2 * 3)
    attention = 5 * 2 * (2 * 2) * (3 * 3 + 5 * 5)  # scores and values: 2 operations for each of 2 numbers
    assert counted(tmp_path, small) == 2 * weights * 8 + attention
    gated = counted(tmp_path, {**small, "model_type": "modernbert"})
    assert gated is not None
    assert gated - (counted(tmp_path, small) or 0) == 2 * 5 * 2 * 3 * 8


def test_names_of_other_architectures_and_older_folders(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).mkdir()
    expected = counted(tmp_path / "a", MINILM)
    distil = {"dim": 384, "hidden_dim": 1536, "n_layers": 6}
    assert counted(tmp_path / "b", distil, "0_Transformer/config.json") == expected
    assert model_flop(tmp_path / "c", LENGTHS) is None
    assert counted(tmp_path / "c", {"hidden_size": 1}) is None


def test_ceilings_are_those_of_some_machine() -> None:
    found = measure_ceilings(1)
    assert set(found) == {"fp32", "bf16", "int8"}
    assert all(1e8 < flops < 1e14 for flops in found.values()), found


def test_minilm_needs_what_the_survey_says(tmp_path: Path) -> None:
    """0.30 GFLOP a sentence of 14.15 tokens, embeddings and attention aside."""
    (tmp_path / "config.json").write_text(json.dumps(MINILM))
    assert model_flop(tmp_path, np.full(100, 14)) == pytest.approx(100 * 14 * 2 * 10.6e6, rel=0.03)
