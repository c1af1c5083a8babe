"""A training that is killed, meets a full disk, or is shared by two processes: real runs, forked by a script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT


def forks(scenario: str, data: Path, folder: Path, *recipes: str) -> list[dict[str, Any]]:
    script = Path(__file__).with_name("forks.py")
    command = [sys.executable, str(script), scenario, str(data), str(folder), *recipes]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_renames_full_disk_and_two_processes(data: Path, tmp_path: Path, recipe_file: Callable[..., str]) -> None:
    recipes = [
        recipe_file("killed", more="[views]\ndropout = 0.1\n"),
        recipe_file("hard", "triplets"),
        recipe_file("classes", "nli", "classification"),
        recipe_file("cached", "pairs", training="cached = true\npass_tokens = 40"),
    ]
    killed, full, shared = forks("quick", data, tmp_path, *recipes)
    assert killed["killed"] > 4
    assert full["exit"] == 2
    assert "state.pt" in full["left"]
    assert not any("partial" in name for name in full["left"])
    assert shared["worst"] < 1e-5
    assert shared["processes"] == 2
    assert shared["weights"]


@pytest.mark.full
def test_killed_before_every_change(data: Path, tmp_path: Path, recipe_file: Callable[..., str]) -> None:
    (killed,) = forks("kills", data, tmp_path, recipe_file("killed"))
    assert killed["killed"] > 50
