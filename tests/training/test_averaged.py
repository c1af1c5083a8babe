"""The mean of word vectors, and the picture of curves."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from sentport.errors import SentportError
from training import averaged, curves


@pytest.fixture
def words(tmp_path: Path) -> Path:
    file = tmp_path / "words.txt"
    file.write_text("a 1 0\nred 0 2\n. 4 4\n", encoding="utf-8")
    return file


def test_words_are_averaged(words: Path) -> None:
    encoder = averaged.AveragedWords(words)
    vectors = encoder.encode(["A red.", "a unknown a", "unknown"])
    assert np.allclose(vectors, [[5 / 3, 2], [1, 0], [0, 0]])
    assert np.allclose(encoder.encode(["A red."], dim=1), [[5 / 3]])
    assert encoder.info.dim == vectors.shape[1]


def test_no_file_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert averaged.main([str(tmp_path / "none.txt"), "--data", str(tmp_path)]) == SentportError.exit_code
    assert "none.txt does not exist" in capsys.readouterr().err


def test_curves_are_medians_over_seeds_and_drawn(tmp_path: Path) -> None:
    def seed(*points: tuple[int, float, float, float]) -> dict[str, object]:
        return {
            "curve": [dict(zip(("step", "dev", "alignment", "uniformity"), point, strict=True)) for point in points]
        }

    seeds = [seed((5, dev, 0.5, -1.0), (10, dev + 1, 0.4, -2.0)) for dev in (50.0, 70.0, 60.0)]
    assert curves.median_curve({"seeds": seeds})["dev"] == [60.0, 61.0]
    (tmp_path / "one.json").write_text(json.dumps({"seeds": seeds}), encoding="utf-8")
    assert curves.main([str(tmp_path / "one.json"), "--out", str(tmp_path / "one.svg")]) == 0
    assert "<svg" in (tmp_path / "one.svg").read_text(encoding="utf-8")
