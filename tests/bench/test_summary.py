"""The short table of a grid, and the README's, which has to be what the committed records give."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench_records import observation
from conftest import ROOT

from bench.metrics import sections
from bench.records import Record, read_records
from bench.summary import between_marks, summary, write_between_marks
from sentport.errors import SentportError

README, RECORDS = ROOT / "README.md", ROOT / "bench" / "records" / "readme"


def row(name: str, seconds: float, place: int, **more: object) -> list[Record]:
    return [observation(name, "own", seconds, place, **{"repeats": 1, "grid": "g", "cosine_gate": 0.95} | more)]


def of_peer(name: str, seconds: float, place: int, **more: object) -> list[Record]:
    return row(name, seconds, place, **{"peer": True} | more)


def served(texts: int, by: str) -> dict[str, str]:
    return {"transport": f"{by}, 16 clients, {texts} {'text' if texts == 1 else 'texts'} a request"}


@pytest.fixture
def records() -> list[Record]:
    """A baseline at 50/s, a peer by two sizes of batches, one in int8 that is wrong, ours, and servers."""
    quality = {"kind": "quality", "sts": "STS-B test", "spearman": 82.031, "mean_cosine": 0.99, "alone_texts": 9}
    quality |= {"alone_cosine": 0.97, "neighbours_kept": 0.93}
    small = of_peer("fast peer", 0.8, 4, worst_cosine=0.97)
    return [
        *row("ours packed", 1.0, 1),
        *row("ours int8", 0.5, 2, precision="int8"),
        *row("ours in halves", 0.9, 3, precision="bf16"),
        *small,
        *({**record, **quality} for record in small),
        *of_peer("fast peer", 0.4, 5, batch="64 rows", worst_cosine=0.98),
        *of_peer("peer int8", 0.1, 6, precision="int8", worst_cosine=0.94),
        *row("Triton, 16 texts a request", 0.5, 7, **served(16, "grpc")),
        *row("Triton, 1 text a request", 2.0, 8, **served(1, "grpc")),
        *of_peer("their server, 16 texts a request", 0.6, 9, **served(16, "http")),
        *of_peer("their server, 1 texts a request", 1.9, 10, **served(1, "http")),
        *row("the library", 2.0, 0),
        {**row("gone", 1.0, 11)[0], "kind": "not run", "reason": "needs a GPU"},
        {**of_peer("fast peer", 1.0, 12, batch="1 row")[0], "kind": "rejected", "reason": "it caches"},
    ]


def lines_of(text: str) -> list[list[str]]:
    rows = [line for line in text.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in rows]


def test_each_contestant_stands_once_the_baseline_then_peers_then_ours_then_servers(records: list[Record]) -> None:
    text = summary(sections(records))
    found = lines_of(text)
    assert [line[0] for line in found] == [
        "the library (baseline)",
        "fast peer (ahead of ours)",  # of fp32, and right
        "peer int8",  # ahead, but wrong
        "ours packed",
        "ours int8",
        "ours in halves, bf16",
        "their server, 16 texts a request",
        "Triton, 16 texts a request",
        "their server, 1 texts a request (ahead of ours)",
        "Triton, 1 text a request",
    ]
    assert found[1][1:] == ["own, 64 rows", "250 (250-250)", "5.00 (5.00-5.00)", "60.0 %", "0.9700000", "82.03"]
    assert found[2][5:] == ["0.9400000, wrong", "—"]
    assert "\n\n- gone: not run: needs a GPU\n- fast peer: rejected: it caches\n\n" in text
    for said in ("Some CPU, 2 cores", "python 3.11.9, torch 2.13.0; 2026-01-02.", "its sentences; 100 distinct texts"):
        assert said in " ".join(text.split())


def test_the_library_itself_can_be_ahead(records: list[Record]) -> None:
    slow = [record for record in records if record["contestant"] == "the library"]
    text = summary(sections([*slow, *row("ours", 3.0, 1)]))
    assert lines_of(text)[0][0] == "the library (baseline) (ahead of ours)"


def test_what_could_not_be_opened_is_no_longer_said_once_it_ran(records: list[Record]) -> None:
    old = {"run": "r0", "date": "2026-01-01T00:00:00+00:00", "kind": "not run", "reason": "not installed", "batch": ""}
    names = ("fast peer", "their server", "gone for good")
    lost = [{**of_peer(name, 1.0, 20)[0], **old} for name in names]
    for record in lost:
        for field in ("model", "precision", "layout", "device", "sessions", "threads", "transport"):
            del record[field]
    text = summary(sections([*lost, *records]))
    assert [name for name in names if f"- {name}: not run: not installed" in text] == ["gone for good"]


def test_a_table_is_put_between_its_marks_alone(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text("a\n<!-- table of g -->\nold\n<!-- end of the table of g -->\nz\n")
    write_between_marks(file, "g", "| new |")
    assert file.read_text() == "a\n<!-- table of g -->\n| new |\n<!-- end of the table of g -->\nz\n"
    assert between_marks(file, "g") == "| new |"
    for name, reason in (("other", "no place for the table; put the lines <!-- table of other --> and"),):
        with pytest.raises(SentportError, match=reason):
            write_between_marks(file, name, "")
    with pytest.raises(SentportError, match=r"none.md cannot be read"):
        between_marks(tmp_path / "none.md", "g")


@pytest.mark.skipif(not RECORDS.is_dir(), reason="bench/records/readme is not there")
def test_the_readmes_table_is_what_the_committed_records_give() -> None:
    assert between_marks(README, "readme") == summary(sections(read_records(sorted(RECORDS.glob("*.jsonl")))))
