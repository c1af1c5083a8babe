"""Grids: what a file may say, the blocks it makes, what is skipped, and one whole run of a tiny model."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from bench_records import observation
from conftest import Cli

from bench.cases import Case, Workload
from bench.contestants import Conditions, Work
from bench.contestants.opening import Spec
from bench.corpus import Corpus
from bench.grid import RunOptions
from bench.grid_file import complete, expand, read_grid
from bench.measure import alone_in, earlier_records, finished_cases, wanted_cases
from bench.metrics import sections
from bench.probe import probe
from bench.summary import between_marks
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
        ("policies = 'sorted'", "policies 'sorted' is unknown; known: one-by-one"),
        ("contestants = ['onnxruntme']", "contestants 'onnxruntme' is unknown; did you mean 'onnxruntime'?"),
        ("contestants = [1]", "grid: contestants is 1; expected str"),
        ("precision = 'int8-orts'", "precision 'int8-orts' is unknown; did you mean 'int8-ort'?"),
        ("layout = 'flat'", "layout 'flat' is unknown; known: padded, packed"),
        ("device = 'gpu'", "device 'gpu' is unknown; known: cpu, cuda"),
        ("device = []", "grid: device is an empty list"),
        ("tokenisation = 'outside'", "tokenisation 'outside' is unknown; known: inside, both"),
        ("corpus = [['docs']]", "grid: corpus is ['docs']; expected str"),
        ("threads = [true]", "grid: threads is True; expected int"),
        ("threads = 9223372036854775807", "--threads is 9223372036854775807; expected 1 or more, 1024 at most"),
        ("tight = nan", "grid: tight is nan; expected more than 0"),
        ("most = 2", "at most 2 rounds, but 5 repeats"),
        ("serve = 'yes'", "grid: serve is 'yes'; expected bool"),
        ("clients = [1, 2]", "2 values of --clients for 1 of --texts-per-request"),
        ("triton_model = 'm'", "a server and its model's name go together"),
        ("model = ['m']", "a model has 'm'; expected checkpoint"),
        ("[[model]]\ncheckpoint = 3", "grid: a model's checkpoint is 3; expected text"),
        ("serve = true\n[[model]]\ncheckpoint = 'm'", "a server is asked for, but no bundle to serve"),
        (
            "[[model]]\ncheckpoint = 'a/m'\n[[model]]\ncheckpoint = 'b/m'",
            "two models are named 'm', which records cannot tell apart; rename one",
        ),
        ("texts = ", "cannot be read"),
        ("", "no model is named"),
        ("[[model]]\npath = 'x'", "a model has 'path', which is unknown; known: checkpoint, bundle, export"),
    ],
)
def test_what_a_grid_cannot_say_is_named(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(SentportError, match=re.escape(reason)) as caught:
        list(expand(complete(read_grid(written(tmp_path, text)))))
    assert "\n" not in str(caught.value)


def options_of(**values: object) -> RunOptions:
    (block,) = expand(
        complete({"model": [{"checkpoint": "m", "bundle": "b"}], "threads": 1, "corpus": "docs"} | values)
    )
    return block.options()


def test_servers_are_asked_by_as_many_clients_as_each_size_of_a_request_has() -> None:
    pairs = options_of(clients=[16, 64], texts_per_request=[16, 1], triton=["a:1", "b:1"], triton_model="m")
    assert pairs.loads == ((16, 16), (64, 1))
    found = [(server.url, server.clients, server.texts_per_request) for server in pairs.servers]
    assert found == [("a:1", 16, 16), ("a:1", 64, 1), ("b:1", 16, 16), ("b:1", 64, 1)]
    assert options_of(clients=8, texts_per_request=[16, 1]).loads == ((8, 16), (8, 1))
    assert options_of().loads == ((16, 16),)
    assert (options_of().serve, options_of(serve=True).serve) == (False, True)


def test_what_is_named_twice_is_measured_once(tmp_path: Path) -> None:
    files = [tmp_path / folder / "texts.txt" for folder in "ab"]
    for number, file in enumerate(files):
        file.parent.mkdir()
        file.write_text(f"a text\nthe {number}th\n")
    twice = options_of(corpus=[str(files[0])] * 2, precision=["auto", "auto"], policies=["smart", "smart"])
    assert (len(twice.corpora), twice.precisions, len(twice.policies)) == (1, ("auto",), 1)
    with pytest.raises(SentportError, match="two corpora are named 'texts', which records cannot tell apart"):
        options_of(corpus=[str(file) for file in files])


def test_one_run_at_a_time_is_at_work_in_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "raw"
    with alone_in(folder), pytest.raises(SentportError, match=r"another run is at work in .*/raw"), alone_in(folder):
        pass
    with alone_in(folder):
        pass


def test_an_empty_raw_file_is_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / "killed.jsonl").touch()
    assert earlier_records(tmp_path) == []


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

    page = tmp_path / "page.md"
    page.write_text("before\nafter\n")
    code, _, said = cli("bench", "run", str(grid), "--write", str(page))
    assert (code, "no place for the table; put the lines <!-- table of mine --> and" in said) == (2, True)
    page.write_text("before\n<!-- table of mine -->old<!-- end of the table of mine -->\nafter\n")
    code, again, said = cli("bench", "run", str(grid), "--write", str(page))
    assert (code, again) == (0, table)
    assert "1 of 1 blocks have been measured before" in said
    assert list(folder.iterdir()) == [raw]
    assert table.startswith(block := between_marks(page, "mine"))
    assert page.read_text() == (f"before\n<!-- table of mine -->\n{block}\n<!-- end of the table of mine -->\nafter\n")


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
