"""Load tests: arrivals, percentiles, the server's page, and a sweep against the real server."""

from __future__ import annotations

import re
import threading
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, Cli

from bench import load, load_board
from bench.charts import render_chart
from bench.contestants import Work
from bench.contestants.opening import open_contestant
from bench.corpus import Corpus
from bench.grid import RunOptions, specs
from bench.load import Level, Load, arrivals, closed_loop, open_loop
from bench.load_board import percentile
from bench.records import Writer, read_records, run_conditions
from bench.server import served
from bench.server_metrics import parse_counters, read_counters, what_happened
from sentport.errors import SentportError
from sentport.scheduler import BatchPolicy

CORPUS = Corpus("c", "made", tuple(f"text {number}" for number in range(100)))


def test_arrivals_are_poisson() -> None:
    found = np.array(list(arrivals(200.0, 50.0, 10**6, 1)))
    gaps = np.diff(found)
    assert len(found) == pytest.approx(10_000, rel=0.05)
    assert found.max() <= 50
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05)  # as of an exponential
    assert len(list(arrivals(200.0, 50.0, 7, 1))) == 7


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([5.0], 0.99, 5.0),
        (range(1, 101), 0.5, 50),
        (range(1, 101), 0.95, 95),
        (range(1, 101), 0.99, 99),
        ([], 0.5, None),
    ],
)
def test_percentiles_are_nearest_ranks(values: list[float], share: float, expected: float | None) -> None:
    assert percentile(list(values)[::-1], share) == expected


PAGE = """
# HELP nv_inference_request_success Number of successful inference requests
nv_inference_request_success{model="m",version="1"} 12
nv_inference_exec_count{model="m",version="1"} 9
nv_inference_queue_duration_us{model="m",version="1"} 4500
nv_inference_queue_duration_us{model="m",version="2"} 500
nv_inference_queue_duration_us{model="other",version="1"} 7
nv_inference_compute_infer_duration_us{model="other",version="1"} 70
nv_inference_exec_count{model="other",version="1"} 2
nv_inference_request_success{model="other",version="1"} 5
sentport_requests_total{model="m",version="1"} 11.000000
sentport_executions_total{model="m",version="1"} 3.000000
sentport_queue_us_total{model="m",version="1"} 250.000000
sentport_compute_us_total{model="m",version="1"} 8000.000000
sentport_tokens_total{model="m",version="1"} 90.000000
nv_cpu_utilization 0.4
"""


def test_counters_are_those_of_the_model() -> None:
    found = parse_counters(PAGE, "m")
    assert found == {"requests": 11, "executions": 3, "queue_us": 5250, "compute_us": 8000, "tokens": 90}
    assert what_happened({"requests": 2, "tokens": 90}, found) == {**found, "requests": 9, "tokens": 0}
    # A model without counters of ours, as an ensemble is.
    assert parse_counters(PAGE, "other") == {"requests": 5, "executions": 2, "queue_us": 7, "compute_us": 70}
    with pytest.raises(SentportError, match=r"metrics page http://127.0.0.1:9/metrics cannot be read"):
        read_counters("http://127.0.0.1:9", "m")


class Server:
    """Stands for clients of a server that takes ten milliseconds a request, one at a time."""

    def __init__(self) -> None:
        self.lock, self.asked = threading.Lock(), 0

    def encode(self, texts: list[str]) -> None:
        with self.lock:
            time.sleep(0.01)
            self.asked += 1
            if self.asked % 10 == 0:
                raise SentportError("busy\nvery")


def of_nobody(seconds: float, requests: int = 10_000) -> Load:
    return Load("a:1", "m", CORPUS, seconds=seconds, requests=requests)


def test_a_closed_loop_keeps_its_clients_busy_and_stops() -> None:
    server = Server()
    level = closed_loop(of_nobody(0.5), [server] * 4, load.Requests(of_nobody(1)))  # type: ignore[list-item]
    assert level.sent == server.asked == len(level.latency_ms) + level.errors.total()
    assert 20 <= level.sent <= 60
    assert level.errors["busy very"] == server.asked // 10
    # Little: as many in line as clients.
    assert np.mean(level.latency_ms) * level.sent / 500 == pytest.approx(4, rel=0.3)
    assert closed_loop(of_nobody(9, 7), [server] * 2, load.Requests(of_nobody(1))).sent == 7  # type: ignore[list-item]


def test_an_open_loop_shows_a_server_that_falls_behind() -> None:
    """Three times as much as it can do: latency grows to the end, and what is never begun is an error."""
    level: Level = open_loop(of_nobody(0.5), 300.0, [Server()] * 8, load.Requests(of_nobody(1)))  # type: ignore[list-item]
    assert 100 < level.sent < 200
    assert level.errors["still in line when as much time again was over"] > 10
    assert level.latency_ms[-1] > 300 > level.latency_ms[0]
    assert level.sent == len(level.latency_ms) + level.errors.total()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("--seconds 0", "--seconds is 0.0; expected a finite number above 0"),
        ("--seconds inf", "--seconds is inf; expected a finite number above 0"),
        ("--rates 5,0", "--rates is 0.0; expected a finite number above 0"),
        ("--rates nan", "--rates is nan; expected a finite number above 0"),
        ("--rates 5 --loop closed", "--loop asks for the closed one alone"),
        ("--concurrency ,", "--concurrency is 0; expected 1 or more"),
        ("--concurrency 5000", "--concurrency is 5000; expected 1024 at most"),
        ("--loop open", "add --rates"),
        ("--concurrency 0,1", "--concurrency is 0; expected 1 or more"),
        ("--corpus none", "corpus none cannot be read"),
        (f"--out {__file__}", "is a file"),
    ],
)
def test_what_cannot_be_sent_is_one_line(cli: Cli, options: str, reason: str) -> None:
    asked = ["load-test", "127.0.0.1:9", "--model", "m", "--corpus", "docs", *options.split()]
    code, _, said = cli(*asked)
    assert (code, said.count("\n")) == (2, 1)
    assert reason in said


def test_a_level_in_which_nothing_fell_due_is_a_row_too(tmp_path: Path) -> None:
    about = {"model": "m", "address": "a:1", "engine": "e", "precision": "fp32", "corpus_source": "s"}
    none = {"loop": "open", "level": 0.01, "sent": 0, "latency_ms": [], "errors": {}, "server": {}, "seconds": 1.0}
    with Writer(tmp_path, run_conditions(), "load") as writer:
        writer.write("level", {**about, "texts_per_request": 1, **none})
    board = load_board.board(read_records([writer.path]))
    assert board is not None
    assert [cell.text for cell in board.tables[0].rows[0]][2:9] == ["0", "0", "—", "—", "—", "0", "0"]
    assert render_chart(board.charts[0]) == ""


def test_the_real_server_under_load(cli: Cli, tmp_path: Path, tiny_checkpoint: Path, tiny_bundle: Path) -> None:
    """The server that a block of a grid asks for: its row gives the right vectors, and a load test its levels."""
    from triton_repo.environment import find_interpreter

    try:
        find_interpreter()
    except SentportError as error:
        pytest.skip(f"no Triton server here: {error}")
    texts = tmp_path / "texts.txt"
    texts.write_text("".join(f"the cat {number} sat on the mat\n" for number in range(400)))
    kinds = ("onnxruntime", "triton")
    asked = RunOptions(tiny_checkpoint, tiny_bundle, (), kinds, serve=True, loads=((2, 4),), threads=1)
    said: list[str] = []
    with served(asked, tmp_path / "log", said.append, ROOT / "build" / "envs" / "server") as options:
        assert options.servers, said
        vectors = []
        for spec in specs(options):
            with closing(open_contestant(spec)) as contestant:
                work = Work(None if None in contestant.policies else BatchPolicy.SMART)
                contestant.prepare(CORPUS.texts, work)
                vectors.append(contestant.run(work))
        np.testing.assert_allclose(*vectors, atol=1e-5)
        assert contestant.name == "Triton, 4 texts a request"
        grpc, metrics = (said[0].partition(f"{name} ")[2].partition(",")[0] for name in ("grpc", "metrics"))
        code, out, progress = cli(
            *("load-test", grpc, "--model", "tiny", "--corpus", str(texts), "--out", str(tmp_path / "out")),
            *("--metrics", metrics, "--concurrency", "1,4", "--rates", "40", "--seconds", "1"),
        )
    assert code == 0, progress
    (raw,) = (tmp_path / "out").glob("*.jsonl")
    records = read_records([raw])
    assert [(record["loop"], record["level"]) for record in records] == [("closed", 1), ("closed", 4), ("open", 40.0)]
    for record in records:
        assert not record["errors"]
        assert record["server"]["requests"] == len(record["latency_ms"]) == record["sent"] > 10
        assert record["server"]["tokens"] >= 5 * record["sent"]
    assert re.search(r"\| open +\| 40 requests/s due \|", out)
    board = load_board.board(records)
    assert board is not None
    assert len(board.charts[0].series) == 4  # type: ignore[union-attr]
