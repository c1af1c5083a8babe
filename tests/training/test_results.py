"""What lies under training/results: each record is of a recipe as it is now, and the table there says what it holds."""

from __future__ import annotations

import json
import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import training
from training.card import summary
from training.recipe import load_recipe

RESULTS = Path(training.__file__).parent / "results"
TRAINED = sorted(file for file in RESULTS.glob("*.json") if "seeds" in json.loads(file.read_text(encoding="utf-8")))
_ROW = re.compile(
    r"\| \[(?P<name>[\w.-]+)\]\((?P=name)\.json\) \| `sentport train (?P<command>[^`]+)` \| (?P<figures>.+) \|"
)


def rows() -> dict[str, re.Match[str]]:
    """The lines of the table, by file."""
    lines = (RESULTS / "README.md").read_text(encoding="utf-8").splitlines()
    return {found["name"]: found for found in map(_ROW.fullmatch, lines) if found}


def figures(record: dict[str, Any]) -> str:
    """The cells of a record: its seeds, scores as mean ± deviation, and minutes of one seed."""
    seeds = record["seeds"]
    several = len(seeds) > 1
    scores = [
        f"{centre:.2f} ± {spread:.2f}" if several else f"{centre:.2f}" for centre, spread in summary(seeds).values()
    ]
    minutes = sum(seed["seconds"] for seed in seeds) / len(seeds) / 60
    return " | ".join([", ".join(str(seed["seed"]) for seed in seeds), *scores, f"{minutes:.1f}"])


def test_the_table_has_every_record() -> None:
    assert TRAINED
    assert list(rows()) == sorted(file.stem for file in TRAINED)


@pytest.mark.parametrize("file", TRAINED, ids=lambda file: file.stem)
def test_recorded(file: Path) -> None:
    record, row = json.loads(file.read_text(encoding="utf-8")), rows()[file.stem]
    assert row["figures"] == figures(record)
    name, *options = shlex.split(row["command"])
    assert name == file.stem.partition(".")[0]
    settings = [after for option, after in pairwise(options) if option == "--set"]
    recipe = load_recipe(name, settings)
    assert record["run"]["recipe"] == recipe.plain()
    for seed in record["seeds"]:
        assert seed["recipe"] == recipe.with_seed(seed["seed"]).plain()
        assert seed["curve"][-1]["step"] >= seed["best_step"] > 0
        assert max(point["dev"] for point in seed["curve"]) == seed["scores"]["dev"]
