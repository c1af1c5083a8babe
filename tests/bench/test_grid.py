"""Grids: what a file may say, the blocks it makes, what is skipped, and one whole run of a tiny model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from bench_records import observation
from conftest import Cli

from bench.cases import Case, Workload
from bench.contestants import Conditions, Work
from bench.contestants.opening import Spec
from bench.corpus import Corpus
from bench.grid_file import complete, expand, read_grid
from bench.measure import earlier_records, finished_cases, wanted_cases
from bench.metrics import sections
from bench.probe import probe
from sentport.errors import SentportError

TINY = """
contestants = ["torch", "onnxruntime"]
policies = "smart"
precision = "fp32-portable"
texts = 40
equal = false
tokenisation = "inside"
repeats = 2
threads = 1
corpus = "docs"
[[model]]
checkpoint = "{checkpoint}"
bundle = "{bundle}"
"""


def written(folder: Path, text: str) -> Path:
    file = folder / "grids" / "mine.toml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    return file


def test_models_devices_and_threads_make_blocks(tmp_path: Path) -> None:
    text = 'device = ["cpu", "cuda"]\nthreads = [1, 2, 4]\n[[model]]\ncheckpoint = "a"\n[[model]]\ncheckpoint = "b"\n'
    values = complete(read_grid(written(tmp_path, text)), {"device": ["cpu"]})  # an option goes over the file
    blocks = list(expand(values))
    found = [(block.values["checkpoint"], block.values["device"], block.values["threads"]) for block in blocks]
    assert found == [(model, "cpu", threads) for model in "ab" for threads in (1, 2, 4)]
    assert len({block.signature for block in blocks}) == 6
    assert values["name"] == "mine"
    assert values["records"] == str(tmp_path / "records" / "mine")


def test_a_signature_tells_what_is_measured_not_where_it_lies() -> None:
    def signature(checkpoint: str, **more: object) -> str:
        (block,) = expand(complete({"model": [{"checkpoint": checkpoint}], "threads": [1], **more}))
        return block.signature

    assert signature("here/m") == signature("there/m") == signature("m", records="elsewhere")
    assert signature("m") != signature("n")
    assert signature("m") != signature("m", repeats=6)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("polices = 1", "grid: 'polices' is unknown; did you mean 'policies'?"),
        ("texts = 'many'", "grid: texts is 'many'; expected int"),
        ("quality = 1", "grid: quality is 1; expected bool"),
        ("sessions = -1", "--sessions is -1; expected 0 or more"),
        ("policies = 'sorted'", "batch policy 'sorted' is unknown; known: one-by-one"),
        ("texts = ", "cannot be read"),
        ("", "no model is named"),
        ("[[model]]\npath = 'x'", "a model has path; expected checkpoint"),
    ],
)
def test_what_a_grid_cannot_say_is_named(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(SentportError, match=reason.replace("?", r"\?").replace("[", r"\[")) as caught:
        list(expand(complete(read_grid(written(tmp_path, text)))))
    assert "\n" not in str(caught.value)


def test_a_grid_is_measured_once_and_its_table_comes_from_the_records(
    cli: Cli, tmp_path: Path, tiny_checkpoint: Path, tiny_bundle: Path
) -> None:
    grid = written(tmp_path, TINY.format(checkpoint=tiny_checkpoint, bundle=tiny_bundle))
    code, table, said = cli("bench", "run", str(grid))
    assert code == 0, said
    assert "sentport onnxruntime fp32 portable" in table
    folder = tmp_path / "records" / "mine"
    (raw,) = folder.glob("*.jsonl")
    records = earlier_records(folder)
    (part,) = sections(records)
    assert all(row.flops and row.ceiling and 0 < row.ceiling < 100 for row in part.rows)
    assert "GFLOP/s" in part.conditions["at most"]

    code, again, said = cli("bench", "run", str(grid))
    assert (code, again) == (0, table)
    assert "1 of 1 blocks have been measured before" in said
    assert list(folder.iterdir()) == [raw]


def test_a_case_that_is_new_brings_its_baseline() -> None:
    class Named:
        def __init__(self, name: str) -> None:
            self.name = name

        def conditions(self) -> Conditions:
            return Conditions("e", "m", "fp32", "padded", "cpu", 1, 1)

    corpora = [Workload(Corpus(name, "s", ("a",)), *[None] * 4) for name in ("x", "y")]  # type: ignore[arg-type]
    cases = [
        Case(Named(name), Work(None), workload, "cpu", 3 * row + column, name == "base", {"threads_asked": 1})  # type: ignore[arg-type]
        for row, workload in enumerate(corpora)
        for column, name in enumerate(("base", "old", "new"))
    ]
    done = [
        case.identity | {"kind": "observation", "grid": "g", "run": "r", "repeat": 0, "repeats": 1} for case in cases
    ]
    finished = finished_cases([*done[:2], *done[3:]], "g")
    wanted = [(case.workload.corpus.name, case.contestant.name) for case in wanted_cases(cases, finished)]
    assert wanted == [("x", "base"), ("x", "new")]


def test_a_process_of_its_own_shows_start_memory_and_single_texts(tiny_checkpoint: Path, tiny_bundle: Path) -> None:
    spec = Spec(
        "onnxruntime", str(tiny_checkpoint), 1, bundle=str(tiny_bundle), precision="fp32-portable", layout="padded"
    )
    found = probe(spec, [f"the cat {number}" for number in range(20)])
    assert 0.1 < found["startup_s"] < 120
    assert 20 < found["peak_mb"] < 2000
    assert len(found["single_ms"]) == 20
    assert min(found["single_ms"]) > 0
    with pytest.raises(SentportError, match=r"onnxruntime in a process of its own ended: .*no graph of layout packed"):
        probe(replace(spec, layout="packed"), ["a"])


def test_only_whole_cases_of_the_same_grid_are_finished(tmp_path: Path) -> None:
    records = [
        *(observation("whole", "own", 1.0, 0, repeat=number, grid="g") for number in range(3)),
        *(observation("cut", "own", 1.0, 1, repeat=0, turn=turn, grid="g") for turn in range(3)),
        *(observation("other", "own", 1.0, 2, repeat=number, grid="h") for number in range(3)),
    ]
    assert [dict(key)["contestant"] for key in finished_cases(records, "g")] == ["whole"]
    assert finished_cases(records, "") == set()
