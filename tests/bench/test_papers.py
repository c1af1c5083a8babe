"""The papers' tables: shapes of the encoders, tables against records made by hand, and small runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from bench_records import SHARED
from conftest import Cli

from bench import growth, pair_board, table7
from bench.boards import Board
from bench.charts import render_chart
from bench.records import Record, read_records
from bench.report import render_board
from bench.table7 import SBERT, SMART, SYSTEMS
from bench.table7_models import AverageGlove, InferSent, PairModel, UniversalTransformer, WordModel, hash_of
from sentport.scheduler import BatchPolicy

TEXTS = ("A man is eating food.", "Hello", "", "two birds sit in the tall tree", "Hello")


def stored(folder: Path, records: list[Record]) -> list[Record]:
    """What a reader gets of them."""
    file = folder / "raw.jsonl"
    file.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return read_records([file])


def test_glove_is_the_mean_of_its_words() -> None:
    encode = AverageGlove(TEXTS)
    found = encode(TEXTS)
    assert found.shape == (5, 300)
    np.testing.assert_array_equal(found[1], encode.vectors["hello"])
    np.testing.assert_allclose(
        found[0], np.mean([encode.vectors[word] for word in ["a", "man", "is", "eating", "food", "."]], 0)
    )
    assert not found[2].any()


def test_encoders_have_the_papers_shapes_and_no_text_changes_another() -> None:
    import torch

    torch.manual_seed(1)
    for model, dim in ((InferSent(), 4096), (UniversalTransformer(), 512)):
        for policy in (BatchPolicy.ARRIVAL, BatchPolicy.SMART):
            encode = WordModel(model, "cpu", policy)
            found = encode(TEXTS)
            assert found.shape == (5, dim)
            np.testing.assert_allclose(found[1:2], encode(TEXTS[1:2]), atol=1e-4)
            np.testing.assert_array_equal(found[1], found[4])
    pairs = PairModel("cpu")
    found = pairs(TEXTS)
    assert found.shape == (5, 512)
    np.testing.assert_allclose(found[3:4], pairs(TEXTS[3:4]), atol=1e-5)
    assert 1 <= hash_of("word") < 100_000


def timing(encoder: str, seconds: float, repeat: int, turn: int, device: str = "cpu") -> Record:
    """One pass over 100 texts."""
    return {
        **SHARED,
        "benchmark": "table7",
        "kind": "timing",
        "encoder": encoder,
        "policy": "p",
        "corpus_source": "s",
        "texts": 100,
        "tokens": 900,
        "repeat": repeat,
        "turn": turn,
        "seconds": seconds,
        "computed_tokens": None,
        "device": device,
        "device_name": "Some CPU" if device == "cpu" else "Some GPU",
        "threads": 2,
        "run": device,
    }


def test_table7_puts_machines_and_the_paper_side_by_side(tmp_path: Path) -> None:
    records = [timing(SBERT, 2.0, repeat, turn) for repeat in range(3) for turn in (0, 2)]
    records += [timing(SMART, seconds, repeat, 1) for repeat, seconds in enumerate((1.0, 0.8, 1.6))]
    records += [timing(SBERT, 0.02, 0, 0, "cuda"), timing(SMART, 0.01, 0, 1, "cuda")]
    board = table7.board(stored(tmp_path, records))
    assert board is not None
    text = render_board(board)
    assert (
        "| encoder                    | sentences/s, Some CPU | paper, cpu | sentences/s, Some GPU | paper, cuda |"
        in text
    )
    rows = {row[0].text: [cell.value for cell in row[1:]] for row in board.tables[0].rows}
    assert rows == {SBERT: [50.0, 44, 5000.0, 1378], SMART: [100.0, 83, 10_000.0, 2042]}
    gains = [[cell.text for cell in row] for row in board.tables[1].rows]
    assert gains == [
        ["Some CPU", "+100 %", "+25 to +150 %", "+89 %"],
        ["Some GPU", "+100 %", "+100 to +100 %", "+48 %"],
    ]
    assert table7.board([]) is None


def test_pairs_say_what_was_extrapolated(tmp_path: Path) -> None:
    shared = {**SHARED, "benchmark": "pair-search", "kind": "step", "device": "cpu", "device_name": "Some CPU"}
    shared |= {"threads": 2, "corpus_source": "s", "what": "w"}
    steps = [
        {"step": "cross-encoder", "seconds": 9.0, "measured": 100, "whole": 49_995_000, "whole_seconds": 9 * 499_950},
        {"step": "clusters", "seconds": 8.0, "measured": 10_000, "whole": 10_000, "whole_seconds": 8.0},
    ]
    board = pair_board.board(stored(tmp_path, [shared | step for step in steps]))
    assert board is not None
    cross, clusters = ([cell.text for cell in row] for row in board.tables[0].rows)
    assert cross[-3:] == ["1,250 hours", "extrapolated", "65 hours, BERT on a V100"]
    assert clusters[-3:] == ["8.00 s", "timed whole", ""]


def test_growth_is_measured_in_processes_of_their_own(
    cli: Cli, tmp_path: Path, tiny_bundle: Path, small_data: Path
) -> None:
    code, out, said = cli(
        *("bench", "growth", "--bundle", str(tiny_bundle), "--sizes", "16,200,9999999999", "--seconds", "60"),
        *("--out", str(tmp_path / "raw"), "--threads", "1"),
    )
    assert code == 0, said
    assert "9,999,999,999 texts would take" in said
    records = read_records(list((tmp_path / "raw").glob("*.jsonl")))
    assert [record["texts"] for record in records] == [16, 200]
    assert all(record["peak_mb"] > 20 for record in records)
    board = growth.board(records)
    assert isinstance(board, Board)
    assert [len(chart.series[0].points) for chart in board.charts] == [2, 2]  # type: ignore[union-attr]
    assert 'class="tick side"' in (memory := render_chart(board.charts[1]))
    assert ">0</text>" in memory  # or a few percent would climb from floor to ceiling
    assert "From 16 to 1,000,000 texts" in out


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("pair-search --texts 1", "--texts is 1; expected 2 or more"),
        ("pair-search --encoded 1", "--encoded is 1; expected 2 or more"),
        ("pair-search --pairs 0", "--pairs is 0; expected 1 or more"),
        ("pair-search --corpus one.txt", "corpus one has 1 text, of which no pair can be made"),
        ("table7 --repeats 0", "--repeats is 0; expected 1 or more"),
        ("table7 --corpus none.txt", "corpus none.txt cannot be read"),
        ("growth --bundle none --sizes ,", "--sizes is 0; expected 1 or more"),
        ("growth --bundle none --sizes 16,abc", "'16,abc' is no list of whole numbers; expected N,N"),
        ("growth --bundle none --seconds nan", "--seconds is nan; expected a finite number above 0"),
    ],
)
def test_what_the_papers_commands_cannot_do_is_one_line(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("one.txt").write_text("a line\n")
    code, _, said = cli("bench", *command.split(), "--out", "raw")
    assert (code, said.count("\n")) == (2, 1)
    assert reason in said


@pytest.mark.full
def test_the_papers_commands_run(cli: Cli, tmp_path: Path, small_data: Path) -> None:
    code, out, said = cli(
        "bench", "table7", "--texts", "16", "--repeats", "1", "--corpus", "queries", "--out", str(tmp_path)
    )
    assert code == 0, said
    assert all(system in out for system in SYSTEMS)
    code, out, said = cli("bench", "pair-search", "--texts", "64", "--pairs", "8", "--out", str(tmp_path))
    assert code == 0, said
    assert "extrapolated" in out
