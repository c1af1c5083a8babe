"""The measurement of training, at a size that says nothing about speed but runs every line of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import data_folder

from bench import training


@pytest.mark.full
def test_a_small_run_gives_a_whole_record(tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = ["--batch-size", "4", "--steps", "2", "--rounds", "2", "--threads", "1"]
    assert training.main(["--base", str(tiny_checkpoint), "--data", str(data_folder()), *size]) == 0
    record = json.loads(capsys.readouterr().out)
    names = {training.OURS, training.DEFAULT, training.GROUPED}
    assert set(record["seconds"]) == set(record["dev_spearman"]) == names
    assert all(len(taken) == 2 and min(taken) > 0 for taken in record["seconds"].values())
    assert set(record["speed_of_ours"]) == names - {training.OURS}
    spearman = record["dev_spearman"].values()
    assert max(spearman) - min(spearman) < 5, "from one base, after two small steps"


def test_a_base_that_is_not_there_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert training.main(["--base", "nowhere/at/all", "--data", str(data_folder())]) != 0
    assert "nowhere/at/all" in capsys.readouterr().err
