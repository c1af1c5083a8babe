"""The server's parts that need no server: ports, addresses, the reason in a log, what a killed server left."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import threading
from dataclasses import replace
from pathlib import Path
from typing import Self

import pytest

from sentport.bundle import read_bundle, write_description
from sentport.errors import SentportError
from sentport.files import replace_folder
from triton_repo import serve_cli, supervisor
from triton_repo import server as server_module
from triton_repo.environment import ServerEnvironment
from triton_repo.flags import ServerFlags, address_options, read_key
from triton_repo.repository import write_repository
from triton_repo.server import TritonServer, is_loopback, reason_in
from triton_repo.serving import Follower, keep_serving
from triton_repo.wanted import Wanted

NAMESPACE = os.stat("/proc/self/ns/pid").st_ino


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A repository with the folder of a model, which nothing here looks into."""
    (tmp_path / "models" / "lengths").mkdir(parents=True)
    return tmp_path / "models"


def test_nothing_to_serve(tmp_path: Path) -> None:
    nowhere = ServerEnvironment(tmp_path, tmp_path, tmp_path, ())
    with pytest.raises(SentportError, match="holds no folder of a model"):
        TritonServer(tmp_path, nowhere).start()


def test_missing_executable_is_one_line(models: Path, tmp_path: Path) -> None:
    environment = ServerEnvironment(tmp_path, tmp_path, tmp_path, ())
    expected = pytest.raises(SentportError, match=r"cannot start .*bin/tritonserver: No such file")
    with TritonServer(models, environment) as server, expected:
        server.wait_ready(10)


def test_reader_that_fails_does_not_stop_the_log(models: Path, tmp_path: Path) -> None:
    script = tmp_path / "bin" / "tritonserver"
    script.parent.mkdir()
    script.write_text(
        f"#!{shutil.which('sh')}\nfor i in 1 2 3 4 5; do echo line; done\necho 'error: the last'\nexit 1\n"
    )
    script.chmod(0o755)

    def closed(line: str) -> None:
        raise BrokenPipeError

    with TritonServer(models, ServerEnvironment(tmp_path, tmp_path, tmp_path, ()), on_log=closed) as server:
        assert server.wait(10) == 1
        assert server.failure() == "the last"


def test_supervisor_that_was_killed_is_named(models: Path, tmp_path: Path) -> None:
    script = tmp_path / "bin" / "tritonserver"
    script.parent.mkdir()
    script.write_text(f"#!{shutil.which('sh')}\necho 'error: not the reason'\nexec sleep 60\n")
    script.chmod(0o755)
    said = threading.Event()
    environment = ServerEnvironment(tmp_path, tmp_path, tmp_path, ())
    with TritonServer(models, environment, on_log=lambda line: said.set()) as server:
        assert said.wait(10)
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        assert server.wait(10) == -signal.SIGKILL
        assert server.failure() == f"its supervisor (process {server.pid}) was ended by signal 9"


def test_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with serve_cli._interrupted_by_termination():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_ports_that_collide_or_do_not_exist(models: Path, tmp_path: Path) -> None:
    nowhere = ServerEnvironment(tmp_path, tmp_path, tmp_path, ())
    with pytest.raises(SentportError, match="must differ, got 21000, 21000"):
        TritonServer(models, nowhere, http_port=21000, metrics_port=21000).start()
    with pytest.raises(SentportError, match="--http-port must lie between"):
        TritonServer(models, nowhere, http_port=70000).start()


def test_chosen_ports_are_free_and_differ() -> None:
    ports = server_module._choose_ports("127.0.0.1", {"http": 0, "grpc": 0, "metrics": 0})
    assert len(set(ports.values())) == 3
    for port in ports.values():
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))


@pytest.mark.parametrize(("host", "answer"), [("127.0.0.1", True), ("localhost", True), ("0.0.0.0", False)])
def test_what_counts_as_this_machine(host: str, answer: bool) -> None:
    assert is_loopback(host) is answer


def test_unknown_host_is_one_line() -> None:
    with pytest.raises(SentportError, match="cannot listen on 'no such host'"):
        is_loopback("no such host")


LOG_OF_TWO_MODELS = """
I1129 20:32:34.586961 5891 server.cc:674]
+--------+---------+------------------------------------------+
| Model  | Version | Status                                   |
+--------+---------+------------------------------------------+
| first  | 1       | UNAVAILABLE: Internal: ValueError: wrong |
|        |         |                                          |
|        |         | At:                                      |
|        |         |   model.py(7): initialize                |
| second | 1       | READY                                    |
| third  | 2       | UNAVAILABLE: Invalid argument: a | b     |
+--------+---------+------------------------------------------+
error: creating server: Internal - failed to load all models
""".splitlines()


def test_reason_is_the_table_of_models() -> None:
    assert reason_in(LOG_OF_TWO_MODELS) == (
        "model first: Internal: ValueError: wrong At: model.py(7): initialize; model third: Invalid argument: a | b"
    )


def test_reason_is_the_last_error_elsewhere() -> None:
    log = ['E1129 20:32:32.515166 5891 server.cc:241] "No driver."', 'I1129 20:32:33.1 5891 main.cc:1] "fine"']
    assert reason_in(log) == "No driver."
    assert reason_in([*log, "error: creating server: Internal - failed to stat file /x"]).endswith("stat file /x")
    assert reason_in(["sentport: the python process has ended", *log]) == "the python process has ended"
    assert reason_in([]) == ""


def test_sweep_knows_the_living_from_the_dead(tmp_path: Path) -> None:
    names = {
        "living": f"kind-{supervisor.owner_tag(os.getpid())}-a",
        "reused pid": f"kind-{NAMESPACE}-{os.getpid()}-1-a",
        "dead": f"kind-{NAMESPACE}-999999999-1-a",
        "another namespace": f"kind-{NAMESPACE + 1}-999999999-1-a",
        "another kind": f"other-{NAMESPACE}-999999999-1-a",
    }
    for name in names.values():
        (tmp_path / name).touch()
    assert {path.name for path in supervisor.sweep(tmp_path, "kind")} == {names["reused pid"], names["dead"]}


def test_quiet_serve_tells_errors_and_not_that_there_is_no_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    for line in (
        "I1130 00:51:45.1 23856 server.cc:24] started",
        'E1130 00:51:45.2 23856 server.cc:241] "CudaDriverHelper has not been initialized."',
        "Error: Failed to initialize NVML",
        "E1130 00:51:45.3 23856 model.cc:24] the model is broken",
    ):
        serve_cli._forward_errors(line)
    assert capsys.readouterr().err == "E1130 00:51:45.3 23856 model.cc:24] the model is broken\n"


def test_cuda_without_a_device_is_refused_before_anything_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve_cli, "cuda_devices", lambda: [])
    parser = argparse.ArgumentParser()
    serve_cli.add_arguments(parser)
    with pytest.raises(SentportError, match="device cuda was asked for, but no CUDA device"):
        serve_cli.run(parser.parse_args([str(tmp_path), "--device", "cuda", "--server-env", str(tmp_path / "env")]))
    assert not (tmp_path / "env").exists()


@pytest.mark.parametrize(
    ("text", "mode", "message"),
    [
        ("k" * 32, 0o644, r"is open to other users; run `chmod 600 "),
        ("short", 0o600, "holds no key: expected one line of 16 or more letters"),
        ("k" * 32 + "\n" + "k" * 32, 0o600, "holds no key"),
        ("k" * 32 + ",health:a=b", 0o600, "holds no key"),
        ("ключ" * 8, 0o600, "holds no key"),
        (None, 0o600, r"cannot be read \(No such file or directory\)"),
    ],
)
def test_file_that_is_no_key(tmp_path: Path, text: str | None, mode: int, message: str) -> None:
    file = tmp_path / "key"
    if text is not None:
        file.write_text(text, encoding="utf-8")
        file.chmod(mode)
    with pytest.raises(SentportError, match=message):
        read_key(file)


def test_key_file_that_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(SentportError, match="is not a file"):
        read_key(tmp_path)


def test_options_of_the_server(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("k" * 32 + "\n")
    file.chmod(0o600)
    restricted = f"model-repository,shared-memory,trace,logging:sentport-key={'k' * 32}"
    assert ServerFlags().options() == []
    assert ServerFlags(rate_limit=True, controlled=True, key=read_key(file), cache_bytes=7).options() == [
        "--rate-limit=execution_count",
        "--model-control-mode=explicit",
        "--load-model=*",
        f"--http-restricted-api={restricted}",
        f"--grpc-restricted-protocol={restricted}",
        "--cache-config=local,size=7",
    ]
    assert address_options("h", {"http": 1, "grpc": 2}) == [
        "--http-address=h",
        "--http-port=1",
        "--grpc-address=h",
        "--grpc-port=2",
    ]


class Dying(TritonServer):
    """A server whose python dies as soon as it is ready."""

    started = 0

    def __enter__(self) -> Self:
        type(self).started += 1
        return self

    def __exit__(self, *error: object) -> None: ...

    def wait_ready(self, timeout: float = 0.0) -> None: ...

    def wait(self, timeout: float | None = None) -> int:
        return supervisor.EXIT_STUB_CRASHED

    def failure(self) -> str:
        return "it died"


NOWHERE = ServerEnvironment(Path(), Path(), Path(), ())


def test_crashes_are_mended_three_times() -> None:
    """A server whose python dies again and again is given up, with its reason."""

    class Counted(Dying): ...

    said: list[str] = []
    with pytest.raises(SentportError, match="the Triton server ended: it died"):
        keep_serving(lambda ports: Counted(Path(), NOWHERE), lambda server: said.append("ready"), None, said.append)
    assert said == ["ready", *["it died; starting it again"] * 3]
    assert Counted.started == 4


@pytest.mark.parametrize("start", [1, 2])
def test_a_stop_while_a_server_starts(start: int) -> None:
    """Of the first, nobody was told that it is ready; of one that follows a crash, it is a stop like any other."""

    class Stopped(Dying):
        def wait_ready(self, timeout: float = 0.0) -> None:
            if self.started == start:
                raise KeyboardInterrupt

    said: list[str] = []

    def serve() -> None:
        keep_serving(lambda ports: Stopped(Path(), NOWHERE), lambda server: said.append("ready"), None, said.append)

    if start == 1:
        with pytest.raises(KeyboardInterrupt):
            serve()
        assert said == []
    else:
        serve()
        assert said == ["ready", "it died; starting it again"]


def look(follower: Follower, server: TritonServer, times: int = 2) -> None:
    for _ in range(times):
        follower.look(server)


def test_bundle_that_is_gone_is_told_once_and_its_successor_served(tiny_bundle: Path, tmp_path: Path) -> None:
    """The successor is copied file by file, and served when it is all there."""

    class Loading(TritonServer):
        def load(self, model: str) -> None:
            said.append(f"loaded {model}")

    said: list[str] = []
    watched = Path(shutil.copytree(tiny_bundle, tmp_path / "watched.bundle"))
    models = write_repository(Wanted(watched, name="tiny"), tmp_path / "models")
    server = Loading(models, ServerEnvironment(tmp_path, tmp_path, tmp_path, ()))
    follower = Follower(watched, "tiny", False, said.append)
    gone = f"{watched} is gone; the server goes on with what was in it, until there is a new one"
    look(follower, server)
    shutil.rmtree(watched)
    follower.look(server)
    assert said == [], "this may be the moment between two renames"
    look(follower, server, 5)
    assert said == [gone]
    for name in sorted(path.relative_to(tiny_bundle) for path in tiny_bundle.rglob("*") if path.is_file()):
        (watched / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(tiny_bundle / name, watched / name)
        follower.look(server)
    assert said == [gone], "it is still being copied"
    look(follower, server, 5)
    assert said == [gone, "loaded tiny", "version 2 of tiny is served"]
    watched.rename(tmp_path / "elsewhere")
    look(follower, server, 5)
    assert said[3:] == [gone], "it is told every time"


def test_bundle_that_is_not_loaded_leaves_the_repository_as_it_was(tiny_bundle: Path, tmp_path: Path) -> None:
    """Its config above all: a server that is started again would read a model that is not there."""
    watched = Path(shutil.copytree(tiny_bundle, tmp_path / "watched.bundle"))
    models = write_repository(Wanted(watched, name="tiny"), tmp_path / "models")
    server = TritonServer(models, ServerEnvironment(tmp_path, tmp_path, tmp_path, ()))  # not started: loads nothing
    said: list[str] = []
    follower = Follower(watched, "tiny", True, said.append)
    other = read_bundle(shutil.copytree(watched, tmp_path / "other.bundle"))
    write_description(replace(other, spec=replace(other.spec, weights_sha256="0" * 64)))
    replace_folder(other.path, watched)
    before = (models / "tiny" / "config.pbtxt").read_text()
    look(follower, server)
    assert [line for line in said if "did not load model tiny again" in line] == said != []
    assert (models / "tiny" / "config.pbtxt").read_text() == before
    assert sorted(path.name for path in (models / "tiny").iterdir()) == ["1", "config.pbtxt", "warmup"]


def test_bundle_that_cannot_be_copied_ends_nothing(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Path(shutil.copytree(tiny_bundle, tmp_path / "watched.bundle"))
    models = write_repository(Wanted(watched, name="tiny"), tmp_path / "models")
    server = TritonServer(models, ServerEnvironment(tmp_path, tmp_path, tmp_path, ()))
    said: list[str] = []
    follower = Follower(watched, "tiny", False, said.append)
    replace_folder(Path(shutil.copytree(watched, tmp_path / "new")), watched)

    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "disk full")

    monkeypatch.setattr(shutil, "copytree", full)
    look(follower, server)
    assert said == ["the new bundle is not served: [Errno 28] disk full"]
    assert not (models / "tiny" / "2").exists()
