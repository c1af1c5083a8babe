"""Two runs compared: planted changes are found, noise is not, and the exit code says so."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from bench_records import SHARED, observation
from conftest import Cli

from bench.records import Record


def run_of(folder: Path, name: str, slowdown: float = 1.0, seed: int = 0, drop: bool = False) -> Path:
    """Twelve rounds of a baseline and two rows with noise of 3 % on a machine that drifts by a third."""
    draw = np.random.default_rng(seed)
    noise = lambda: float(draw.normal(1, 0.03))  # noqa: E731
    records: list[Record] = []
    for repeat in range(12):
        drift = 1 + 0.3 * np.sin(repeat + seed)
        for turn, (who, seconds) in enumerate(
            (("base", 2.0), ("steady", 1.0), ("base", 2.0), ("changed", 0.5 * slowdown), ("base", 2.0))
        ):
            place = ("base", "steady", "changed").index(who)
            if not (drop and who == "changed"):
                more = {"repeat": repeat, "turn": turn, "run": name, "repeats": 12}
                records.append(observation(who, "own", seconds * drift * noise(), place, **more))
    file = folder / f"{name}.jsonl"
    file.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return file


def verdicts(out: str) -> dict[str, str]:
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in out.splitlines() if line.startswith("| STS-B")]
    return {row[1]: row[-1] for row in rows}


@pytest.mark.parametrize("seed", range(4))
def test_a_planted_slowdown_is_found_and_a_small_one_is_no_change(cli: Cli, tmp_path: Path, seed: int) -> None:
    before = run_of(tmp_path, "before", seed=10 * seed)
    code, out, _ = cli("bench", "compare", str(before), str(run_of(tmp_path, "slow", 1.20, seed=10 * seed + 1)))
    assert (code, verdicts(out)) == (1, {"changed": "slower", "steady": "no change"})
    assert "2 rows compared, 1 slower or lost" in out
    code, out, _ = cli("bench", "compare", str(before), str(run_of(tmp_path, "little", 1.02, seed=10 * seed + 2)))
    assert (code, verdicts(out)) == (0, {"changed": "no change", "steady": "no change"})
    code, out, _ = cli("bench", "compare", str(before), str(run_of(tmp_path, "fast", 1 / 1.3, seed=10 * seed + 3)))
    assert (code, verdicts(out)) == (0, {"changed": "faster", "steady": "no change"})


def test_a_lost_row_is_a_regression_and_other_grids_are_refused(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    before = run_of(tmp_path / "folder", "before")
    code, out, _ = cli("bench", "compare", str(before.parent), str(run_of(tmp_path, "lost", drop=True)))
    assert (code, verdicts(out)["changed"]) == (1, "lost")
    web = before.read_text().replace('"corpus": "STS-B"', '"corpus": "web"')
    two = tmp_path / "two.jsonl"
    two.write_text(before.read_text() + web)
    code, out, _ = cli("bench", "compare", str(two), str(before))
    assert (code, "4 rows compared, 2 slower or lost" in out) == (1, True)  # a whole corpus is lost as well
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps(observation("base", "own", 1.0, 0)) + "\n")
    code, _, said = cli("bench", "compare", str(before), str(other))
    assert (code, "no row with a baseline in common" in said) == (2, True)


def test_runs_of_two_machines_are_called_that(cli: Cli, tmp_path: Path) -> None:
    before = run_of(tmp_path, "before")
    other = tmp_path / "other.jsonl"
    other.write_text(before.read_text().replace(f'"cpu": "{SHARED["cpu"]}"', '"cpu": "Other CPU"'))
    _, out, _ = cli("bench", "compare", str(before), str(other))
    assert out.startswith(f"not the same machine: {SHARED['cpu']}")
    assert "Other CPU" in out.splitlines()[0]
    assert "not the same machine" not in cli("bench", "compare", str(before), str(before))[1]
