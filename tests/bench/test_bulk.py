"""The bulk measurement, at a size that says nothing about speed but runs every line of it."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest
from conftest import data_folder

from bench import bulk


def test_sentences_are_distinct_beyond_the_sources() -> None:
    source = [f"word{n} a b{n} c" for n in range(1000)]
    made = list(islice(bulk.endless_sentences(source), 3500))
    assert made[:1000] == source
    assert len(set(made)) == 3500
    assert made[1000].split()[0] == "word0"


def test_a_small_run_gives_a_whole_record(tiny_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--rows", "3000", "--slices", "2", "--slice-rows", "300", "--threads", "1"]
    assert bulk.main(["--model", str(tiny_bundle), "--data", str(data_folder()), *sizes]) == 0
    record = json.loads(capsys.readouterr().out)
    assert len(record["bulk_sentences_per_second"]) == len(record["in_memory_sentences_per_second"]) == 2
    assert record["median_ratio"] > 0
    assert record["rows"] == 3000
    assert record["samples"] > 0
    assert record["encoder"]["dim"] == 24
