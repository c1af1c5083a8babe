"""Metrics against values computed by hand, and the report that is made of them."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from bench_records import SHARED, observation

from bench.charts import Bars
from bench.encoder_board import HEADINGS, board_of, cells, encoder_boards
from bench.findings import findings
from bench.metrics import sections
from bench.records import Record, read_records
from bench.report import render_board, render_markdown, write_report
from sentport.errors import SentportError


@pytest.fixture
def records() -> list[Record]:
    """Four rows: a baseline at 50/s, arrival at 100/s, smart at 200/s and a server at 160/s; one more was rejected."""
    smart = {"computed_tokens": 1250, "worst_cosine": 0.99998}
    served = {
        "repeats": 1,
        "computed_tokens": None,
        "transport": "grpc, 16 clients, 16 texts a request",
        "batch": "the server's",
    }
    out = {"kind": "rejected", "contestant": "cheat <b>", "place": 4, "reason": "it caches & more", "baseline": False}
    base = [
        observation("baseline lib", "own", seconds, 0, repeat=number, turn=turn)
        for number, seconds in enumerate((2.0, 1.0, 4.0))
        for turn in (0, 9)
    ]
    return [
        observation("onnxruntime", "smart", 0.4, 2, **smart),
        *base,
        observation("onnxruntime", "smart", 0.5, 2, repeat=1, **smart),
        *(observation("onnxruntime", "arrival", 1.0, 1, repeat=number) for number in range(3)),
        observation("onnxruntime", "smart", 1.0, 2, repeat=2, **{**smart, "worst_cosine": 0.99999}),
        observation("Triton", "own", 0.625, 3, **served),
        {**observation("cheat <b>", "own", 0.0001, 4), **out},
    ]


def test_rows_hold_median_spread_ratio_waste_and_worst_cosine(records: list[Record]) -> None:
    (part,) = sections(records)
    base, arrival, smart, served, cheat = part.rows
    assert (base.rate, base.slowest, base.fastest, base.ratio) == (50.0, 25.0, 100.0, 1.0)
    assert (arrival.rate, arrival.waste) == (100.0, pytest.approx(60.0))  # 1,000 of 2,500 tokens
    # The baseline around it took 2, 1 and 4 seconds.
    assert (arrival.ratio, arrival.ratio_low, arrival.ratio_high) == (2.0, 1.0, 4.0)
    assert (smart.rate, smart.slowest, smart.fastest, smart.ratio) == (200.0, 100.0, 250.0, 4.0)
    assert (smart.ratio_low, smart.ratio_high) == (2.0, 5.0)
    assert (smart.flops, smart.ceiling) == (pytest.approx(1e10), None)
    assert smart.waste == pytest.approx(20.0)  # 1,000 of 1,250 tokens
    assert smart.worst_cosine == 0.99998
    assert smart.repeats == 3
    assert (served.rate, served.waste) == (160.0, None)
    assert (cheat.status, cheat.reason, cheat.rate) == ("rejected", "it caches & more", None)


def test_the_median_of_an_even_number_is_the_mean_of_the_middle_two() -> None:
    (part,) = sections([observation("a", "own", seconds, 0) for seconds in (1.0, 2.0, 4.0, 5.0)])
    assert part.rows[0].rate == pytest.approx((50.0 + 25.0) / 2)


def test_ratios_stay_inside_a_run_and_a_corpus(records: list[Record]) -> None:
    other_run = [observation("baseline lib", "own", 10.0, 0, run="r2"), observation("x", "own", 1.0, 1, run="r2")]
    other_corpus = [observation("x", "own", 1.0, 1, corpus="flat")]  # without a baseline
    parts = sections([*records, *other_run, *other_corpus])
    assert [part.rows[-1].ratio for part in parts] == [None, None, pytest.approx(10.0)]
    assert parts[0].rows[2].ratio == 4.0


def test_the_corpus_comes_before_the_flat_case_whatever_was_timed_first(records: list[Record]) -> None:
    flat = [observation("onnxruntime", "smart", 1.0, 5, corpus="flat")]
    assert [part.corpus for part in sections([*flat, *records])] == ["STS-B", "flat"]


def test_findings_are_computed_from_their_rows(records: list[Record]) -> None:
    flat = [observation("onnxruntime", policy, 1.0, 1, corpus="flat", repeats=1) for policy in ("arrival", "smart")]
    found = [(finding.label, finding.value) for finding in findings(sections([*records, *flat]))]
    assert found == [
        ("fastest over the baseline", "4.00×"),
        ("smart over arrival order", "2.00×"),
        ("smart over arrival order", "1.00×"),
        ("through Triton", "80 %"),
        ("worst cosine to the source", "0.9999800"),
    ]


def test_packed_rows_are_set_beside_the_padded_ones_of_their_engine() -> None:
    seconds = {"arrival": (1.0, 0.5), "smart": (0.5, 0.5), "token-budget": (0.4, 0.5)}
    records = [
        observation(f"engine{mark}", policy, taken, 2 * place + number, layout=mark.strip() or "padded", repeats=1)
        for place, (policy, both) in enumerate(reversed(seconds.items()))
        for number, (mark, taken) in enumerate(zip(("", " packed"), both, strict=True))
    ]
    alone = observation("other packed", "arrival", 0.1, 6, layout="packed", repeats=1)
    found = {finding.label: (finding.value, finding.note) for finding in findings(sections([*records, alone]))}
    assert found["packed over padded, arrival"] == (
        "2.00×",
        "engine packed, token-budget 0.80×, smart 1.00×, on STS-B",
    )


def test_lower_precisions_and_peers_are_set_beside_ours(tmp_path: Path) -> None:
    theirs = {"transport": "in a process of its own", "peer": True, "peer_versions": "lib 5", "cosine_gate": 0.95}
    asked = {"sts": "STS-B test", "spearman": 81.5, "mean_cosine": 0.99, "alone_cosine": 0.97, "alone_texts": 64}
    asked["neighbours_kept"] = 0.93
    records = [
        observation("base", "own", 2.0, 0, repeats=1),
        observation("ours", "token-budget", 1.0, 1, repeats=1),
        observation("ours int8", "token-budget", 0.4, 2, repeats=1, precision="int8", worst_cosine=0.98),
        observation("peer int8", "own", 1.0, 3, repeats=1, precision="int8", worst_cosine=0.96, **theirs),
    ]
    records.append({**records[3], "kind": "quality", "worst_cosine": 0.94, **asked})
    raw = tmp_path / "raw.jsonl"
    raw.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    (part,) = sections(read_records([raw]))
    peer = part.rows[3]
    assert (peer.rate, peer.repeats, peer.worst_cosine, peer.wrong) == (100.0, 1, 0.94, True)
    assert (peer.spearman, peer.alone_cosine, part.rows[1].spearman) == (81.5, 0.97, None)
    assert part.conditions["peer int8"] == "lib 5"
    assert "0.9400000, wrong" in render_board(board_of(part))
    speed = board_of(part).charts[0]
    assert isinstance(speed, Bars)
    assert [bar.detail.endswith("int8 · wrong vectors") for bar in speed.bars] == [False, False, False, True]
    assert "ahead of ours" not in render_board(board_of(part))
    fast = replace(peer, wrong=False, ratio=9.0)
    rows = (*(replace(row, ratio=2.0) for row in part.rows[:3]), fast)
    assert "peer int8 (ahead of ours)" in render_board(board_of(replace(part, rows=rows)))
    found = {finding.label: finding.value for finding in findings([part])}
    assert (found["int8 over fp32"], found["int8 over the peers'"]) == ("2.50×", "2.50×")
    assert found["worst cosine to the source"] == "0.9999999"
    assert "through Triton" not in found

    raw.write_text(json.dumps({**records[4], "spearman": 300}) + "\n")
    with pytest.raises(SentportError, match="'spearman' is '300', expected a number from -100 to 100"):
        read_records([raw])


def test_what_a_run_cut_short_lacks_is_said(tmp_path: Path) -> None:
    plan = {"repeats": 2, "rows_planned": {"STS-B": 3, "flat": 1}}
    whole = [observation("a", "own", 1.0, 0, repeat=number, **plan) for number in range(2)]
    raw = tmp_path / "raw.jsonl"
    lines = [json.dumps(record) for record in [*whole, observation("b|c\nd", "own", 1.0, 1, **plan)]]
    raw.write_text("\n".join([*lines, lines[-1][:-30]]))  # killed while it wrote
    (part,) = sections(read_records([raw, raw]))
    assert part.remarks == (
        "incomplete: b|c\nd, own, 32 rows: 1 of 2 timed calls",
        "incomplete: 2 of 3 rows",
        "incomplete: no row on flat",
        "incomplete: the raw file ends within a line, which was dropped",
    )
    assert (findings([part])[0].label, findings([part])[0].value) == ("this report", "incomplete")
    table = render_board(board_of(part)).splitlines()
    assert re.search(r"\| b\\\|c d .*\| +1 of 2 \|", table[3])
    assert table[-1] == f"- {part.remarks[-1]}"
    page = write_report([board_of(part)], [], tmp_path / "out").page
    assert "<li>incomplete: no row on flat</li>" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kind": "guess"}, "kind 'guess' is unknown"),
        ({"seconds": 0.0}, "'seconds' is '0.0', expected a finite number above 0"),
        ({"seconds": float("nan")}, "'seconds' is 'nan'"),
        ({"seconds": float("inf")}, "'seconds' is 'inf'"),
        ({"seconds": "1"}, "'seconds' is '1'"),
        ({"computed_tokens": 999}, "'computed_tokens' is 999, expected at least the 1000 tokens"),
        ({"place": "first"}, "'place' is 'first', expected a whole number"),
        ({"place": -1}, "'place' is '-1'"),
        ({"texts": 0}, "'texts' is '0'"),
        ({"contestant": ["a"]}, "'contestant' is"),
        ({"rows_planned": [1]}, "'rows_planned' is"),
        ({"kind": "rejected"}, "it has no 'reason'"),
    ],
)
def test_a_garbled_record_is_named_by_its_line_and_field(tmp_path: Path, change: Record, reason: str) -> None:
    raw = tmp_path / "raw.jsonl"
    good = observation("a", "own", 1.0, 0)
    raw.write_text("".join(json.dumps(record) + "\n" for record in (good, {**good, **change})))
    with pytest.raises(SentportError, match=re.escape(f"raw.jsonl, line 2: {reason}")):
        read_records([raw])


def test_no_field_may_be_missing_that_is_read(tmp_path: Path) -> None:
    raw, good = tmp_path / "raw.jsonl", observation("a", "own", 1.0, 0)
    for name in good:
        raw.write_text(json.dumps({key: value for key, value in good.items() if key != name}) + "\n")
        with pytest.raises(SentportError, match="line 1"):
            read_records([raw])


class Page(HTMLParser):
    """Collects tags, attributes that fetch something, and the text of table cells."""

    VOID = ("meta", "rect", "path", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.cells: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data")]
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and (self.open[-1] == "td" or self.open[-2:] == ["th", "button"]):
            self.cells[-1] += data


def test_the_page_needs_nothing_but_itself_and_shows_every_row(records: list[Record], tmp_path: Path) -> None:
    parts = sections(records)
    boards = encoder_boards(parts)
    old = write_report([*boards, *(replace(board, title="old") for board in boards)], [], tmp_path / "new").tables
    written = write_report(boards, findings(parts), tmp_path / "new")
    assert set((tmp_path / "new" / "csv").iterdir()) == set(written.tables) < set(old)
    text = written.page.read_text(encoding="utf-8")
    assert not re.search(r"https?://|url\(|@import|<script [^>]|<link", text)
    parsed = Page()
    parsed.feed(text)
    assert parsed.links == []
    assert parsed.open == []
    assert parsed.cells == [*HEADINGS, *(cell.text for row in parts[0].rows for cell in cells(row))]
    assert text.count("<svg") == 4 + 3  # a bar each for speed, and for waste where it is known
    assert "cheat &lt;b&gt;" in text
    assert "it caches &amp; more" in text
    for value in parts[0].conditions.values():
        assert value in text
    assert "prefers-color-scheme: dark" in text
    assert written.markdown.read_text(encoding="utf-8") == render_markdown(boards, findings(parts))
    (table,) = [list(csv.DictReader(file.open(encoding="utf-8"))) for file in written.tables]
    assert [(line["contestant"], line["sentences/s"]) for line in table[2:4]] == [
        ("onnxruntime", "200.0"),
        ("Triton", "160.0"),
    ]
    smart = table[2]
    found = [float(smart[f"{name}, {end}"]) for name in ("sentences/s", "× baseline") for end in ("from", "to")]
    assert found == [100.0, 250.0, 2.0, 5.0]
    assert 0 < float(smart["padding waste, %"]) < 100


def test_whiskers_and_bars_stand_where_the_rates_are(records: list[Record], tmp_path: Path) -> None:
    page = write_report(encoder_boards(sections(records)), [], tmp_path).page
    smart = page.read_text(encoding="utf-8").split("<li class=")[3]
    # The largest rate, 250/s, is at 995 of 1,000; median 200, slowest 100, baseline 50.
    assert 'width="796.0"' in smart
    assert "M398.0 10.0H995.0" in smart
    assert "M199.0 0V" in smart


def test_the_table_is_aligned_and_names_reasons(records: list[Record]) -> None:
    lines = render_board(board_of(sections(records)[0])).splitlines()
    assert len({len(line) for line in lines[:7]}) == 1
    assert "| baseline lib (baseline) | own, 32 rows" in lines[2]
    assert re.search(r"\| +200 \(100-250\) \| 4.00 \(2.00-5.00\) \| +10 \| +— \| +20.0 % \| +0.9999800 \|", lines[4])
    assert lines[-1] == "- cheat <b>, own: rejected: it caches & more"


def test_cost_against_length_joins_the_corpora_of_one_run() -> None:
    def run(name: str) -> list[Record]:
        sizes = (("STS-B", 1000), ("long", 20_000))
        return [
            observation("x", "own", tokens / 1000, 0, run=name, corpus=corpus, tokens=tokens)
            for corpus, tokens in sizes
        ]

    boards = [board for board in encoder_boards(sections([*run("r1"), *run("r2")])) if board.title.startswith("Cost")]
    assert [len(board.tables[0].columns) for board in boards] == [3, 3]  # who, and two corpora


def gpu_row(implementation: str, precision: str, seconds: float | None) -> Record:
    """A summary as ``bench.gpu_check`` writes it."""
    status = {"status": "measured", "reason": None} if seconds else {"status": "not run", "reason": "needs CUDA"}
    record = {
        **SHARED,
        **status,
        "benchmark": "gpu_check",
        "kind": "row",
        "contestant": f"{implementation} {precision}, smart of 32 rows",
        "implementation": implementation,
        "precision": precision,
        "layout": "padded",
        "batch_policy": "smart",
        "batch": "32 rows",
        "model": "m",
        "corpus": "stsb",
        "corpus_source": "ids",
        "texts": 100,
        "tokens": 1000,
        "worst_cosine": 0.9999,
        "device": "cuda",
        "device_name": "Some GPU",
        "sessions": 1,
        "threads": 2,
        "tokenisation_inside": False,
    }
    if seconds:
        record |= {
            "end_to_end_s": {"median": seconds, "min": seconds / 2, "max": seconds * 2},
            "warmup": 1,
            "repeats": 7,
        }
        record |= {"padding_waste_percent": 12.5, "order": "interleaved"}
    return record


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"kind": "ceiling", "format": 1, "benchmark": "gpu_check"}, "has no row"),
        ({**gpu_row("torch", "bf16", 0.1), "end_to_end_s": {"median": 0}}, "line 1: 'end_to_end_s' is"),
        ({**gpu_row("torch", "bf16", None), "status": "lost"}, "line 1: status 'lost' is unknown"),
    ],
)
def test_gpu_records_without_a_whole_row_are_refused(tmp_path: Path, record: Record, reason: str) -> None:
    raw = tmp_path / "gpu.jsonl"
    raw.write_text(json.dumps(record) + "\n")
    with pytest.raises(SentportError, match=reason):
        read_records([raw])


def test_gpu_records_become_a_section_of_their_own(records: list[Record], tmp_path: Path) -> None:
    raw, gpu = tmp_path / "raw.jsonl", tmp_path / "gpu.jsonl"
    rows = [gpu_row("transformers", "fp32", 0.1), gpu_row("torch", "bf16", 0.02), gpu_row("CUDA graphs", "bf16", None)]
    noise: list[Record] = [{"kind": "ceiling", "format": 1, "benchmark": "gpu_check"}]
    raw.write_text("".join(json.dumps(record) + "\n" for record in records))
    gpu.write_text("".join(json.dumps(record) + "\n" for record in [*noise, *rows]))
    ours, theirs = sections(read_records([raw, gpu]))
    assert len(ours.rows) == 5
    base, half, graphs = theirs.rows
    assert theirs.title == "stsb, m, Some GPU"
    assert (base.rate, base.baseline, half.baseline) == (pytest.approx(1000.0), True, False)
    assert (half.rate, half.slowest, half.fastest) == (
        pytest.approx(5000.0),
        pytest.approx(2500.0),
        pytest.approx(10000.0),
    )
    assert (half.ratio, half.waste, half.device) == (pytest.approx(5.0), 12.5, "cuda")
    assert (graphs.status, graphs.reason) == ("not run", "needs CUDA")
    assert "Some GPU" in render_markdown(encoder_boards([ours, theirs]), [])
