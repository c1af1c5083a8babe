"""The server's life against the real one: start, answer, and leave nothing behind whatever ends it.

The model is hand-written and small: it gives the byte length of each text, and where its sentport comes from.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from sentport.errors import SentportError
from triton_repo import server as server_module
from triton_repo import supervisor
from triton_repo.environment import ServerEnvironment
from triton_repo.server import TritonServer

ROOT = Path(__file__).resolve().parents[2]
NAMESPACE = os.stat("/proc/self/ns/pid").st_ino

CONFIG = """
name: "lengths"
backend: "python"
max_batch_size: 8
input [ { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "LENGTH" data_type: TYPE_INT32 dims: [ 1 ] }, { name: "HOME" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""

MODEL = """
import numpy as np
import sentport
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        pass

    def execute(self, requests):
        return [pb_utils.InferenceResponse(self.answer(request)) for request in requests]

    def answer(self, request):
        texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
        lengths = np.array([[len(row[0])] for row in texts], dtype=np.int32)
        homes = np.array([[sentport.__file__.encode()]] * len(texts), dtype=object)
        return [pb_utils.Tensor("LENGTH", lengths), pb_utils.Tensor("HOME", homes)]
"""

# A parent of its own for a server, to be killed: it says what to look for once the server is ready.
PARENT = """
import sys
from pathlib import Path
from triton_repo.environment import prepare_environment
from triton_repo.server import TritonServer
with TritonServer(Path(sys.argv[1]), prepare_environment(Path(sys.argv[2]))) as server:
    server.wait_ready()
    print(server.region_prefix, server.pid, flush=True)
    server.wait()
"""

# The command with the tiny model in place of a bundle's repository.
SERVE = """
import argparse, shutil, signal
from triton_repo import repository, serve_cli
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
def write_repository(wanted, out):
    shutil.copytree(wanted.bundle, out)
    return out
repository.write_repository = write_repository
parser = argparse.ArgumentParser()
parser.set_defaults(quiet=False, verbose=False)
serve_cli.add_arguments(parser)
raise SystemExit(serve_cli.run(parser.parse_args()))
"""


def write_models(folder: Path, config: str = CONFIG, model: str = MODEL) -> Path:
    """A model repository with the one tiny model."""
    version = folder / "lengths" / "1"
    version.mkdir(parents=True)
    (folder / "lengths" / "config.pbtxt").write_text(config)
    (version / "model.py").write_text(model)
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model's repository."""
    return write_models(tmp_path_factory.mktemp("models"))


def processes_of(prefix: str) -> dict[int, str]:
    """The living processes that were given this name of shared memory: the server and its stubs."""
    found: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(prefix.encode() in word for word in words):
                found[int(folder.name)] = Path(words[0].decode()).name
    return found


def stub_of(prefix: str) -> int:
    """The process id of the one python stub."""
    (pid,) = (pid for pid, name in processes_of(prefix).items() if name == supervisor.STUB)
    return pid


def left_behind(prefix: str, pid: int) -> list[str]:
    """What is left of a server: processes and shared memory, in words."""
    left = [f"{name} {number}" for number, name in processes_of(prefix).items()]
    left += [path.name for path in supervisor.SHARED_MEMORY.iterdir() if path.name.startswith(prefix)]
    alive = supervisor._stat(pid)
    return left + ([f"supervisor {pid}"] if alive and alive[0] != "Z" else [])


def assert_gone(prefix: str, pid: int, within: float = 0.0) -> None:
    """Fail unless nothing is left of a server, at the latest after ``within`` seconds."""
    deadline = time.monotonic() + within
    while (left := left_behind(prefix, pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []


def ask(server: TritonServer, texts: list[str]) -> list[int]:
    """Send texts over gRPC and return the lengths."""
    return ask_at(server.grpc_url, texts)


def ask_at(address: str, texts: list[str]) -> list[int]:
    """Send texts to an address."""
    import tritonclient.grpc as grpc

    with grpc.InferenceServerClient(address) as client:
        given = grpc.InferInput("TEXT", [len(texts), 1], "BYTES")
        given.set_data_from_numpy(np.array([[text.encode()] for text in texts], dtype=object))
        answer = client.infer("lengths", [given], client_timeout=10.0).as_numpy("LENGTH")
    assert answer is not None
    return [int(row[0]) for row in answer]


@dataclass
class Shared:
    """One running server and what was seen while it started."""

    server: TritonServer
    dead_region: Path
    living_region: Path
    log: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def shared(models: Path, server_environment: ServerEnvironment) -> Iterator[Shared]:
    """A server for the tests that only ask; beforehand two regions lie there, of a dead and of a living owner."""
    dead = supervisor.SHARED_MEMORY / f"{supervisor.REGION_KIND}-{NAMESPACE}-{os.getpid()}-1-left"
    living = supervisor.SHARED_MEMORY / f"{supervisor.region_prefix(os.getpid())}used"
    dead.touch()
    living.touch()
    log: list[str] = []
    try:
        with TritonServer(models, server_environment, on_log=log.append) as server:
            server.wait_ready(60)
            yield Shared(server, dead, living, log)
        assert server.poll() == 0
        assert_gone(server.region_prefix, server.pid or 0)
    finally:
        dead.unlink(missing_ok=True)
        living.unlink(missing_ok=True)


def test_answers_over_grpc(shared: Shared) -> None:
    assert ask(shared.server, ["abc", "", "héé 試"]) == [3, 0, 9]


def test_answers_over_http_from_its_own_sentport(shared: Shared, server_environment: ServerEnvironment) -> None:
    import tritonclient.http as http

    given = http.InferInput("TEXT", [1, 1], "BYTES")
    given.set_data_from_numpy(np.array([[b"x"]], dtype=object))
    with http.InferenceServerClient(shared.server.http_url) as client:
        answer = client.infer("lengths", [given])
        assert answer.as_numpy("LENGTH").tolist() == [[1]]
        home = answer.as_numpy("HOME")[0, 0].decode()
    assert Path(home).is_relative_to(server_environment.folder / "code")


def test_listens_on_loopback_only(shared: Shared) -> None:
    urls = (shared.server.http_url, shared.server.grpc_url, shared.server.metrics_url.removesuffix("/metrics"))
    ports = {int(url.rpartition(":")[2]) for url in urls}
    rows = [line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()]
    listening = [row[1].split(":") for row in rows if row[3] == "0A"]
    addresses = [address for address, port in listening if int(port, 16) in ports]
    # 127.0.0.1 as the kernel writes it; gRPC has it as an IPv6 address, ::ffff:127.0.0.1.
    assert sorted(addresses) == ["0000000000000000FFFF00000100007F", "0100007F", "0100007F"]


def test_log_is_forwarded(shared: Shared) -> None:
    assert any("Started GRPCInferenceService" in line for line in shared.log)
    assert "sentport: removed 1 shared memory regions of servers that were killed" in shared.log


def test_leftover_regions_are_swept_at_start(shared: Shared) -> None:
    assert not shared.dead_region.exists()
    assert shared.living_region.exists()


def test_taken_port_is_said_before_the_start(
    models: Path, server_environment: ServerEnvironment, shared: Shared
) -> None:
    taken = int(shared.server.http_url.rpartition(":")[2])
    with pytest.raises(SentportError, match=rf"127\.0\.0\.1:{taken} \(Address already in use\).*--grpc-port"):
        TritonServer(models, server_environment, grpc_port=taken).start()


def test_port_taken_during_the_start(
    models: Path, server_environment: ServerEnvironment, shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_check_port", lambda address, port, service: None)
    taken = int(shared.server.grpc_url.rpartition(":")[2])
    with TritonServer(models, server_environment, grpc_port=taken) as server:
        with pytest.raises(SentportError, match=f"ended before it was ready: .*'127.0.0.1:{taken}' already in use"):
            server.wait_ready(60)
        assert_gone(server.region_prefix, server.pid or 0)


def test_load_failure_gives_the_models_own_reason(tmp_path: Path, server_environment: ServerEnvironment) -> None:
    broken = write_models(tmp_path / "broken", model=MODEL.replace("pass", "raise ValueError('no bundle | here')"))
    with TritonServer(broken, server_environment) as server:
        with pytest.raises(SentportError, match=r"model lengths: Internal: ValueError: no bundle \| here") as caught:
            server.wait_ready(60)
        assert "\n" not in str(caught.value)
        assert_gone(server.region_prefix, server.pid or 0)


def test_stub_crash_ends_the_server_and_is_said(models: Path, server_environment: ServerEnvironment) -> None:
    with TritonServer(models, server_environment) as server:
        server.wait_ready(60)
        time.sleep(2 * supervisor._STUB_CHECK_S)  # a stub's name is learnt at a look while it lives
        os.kill(stub_of(server.region_prefix), signal.SIGKILL)
        assert server.wait(10) == supervisor.EXIT_STUB_CRASHED
        assert "model instance lengths_0_0 has ended by signal 9" in server.failure()
        assert_gone(server.region_prefix, server.pid or 0)
        server.stop()


def test_stop_right_after_a_stub_crash_is_quick(models: Path, server_environment: ServerEnvironment) -> None:
    with TritonServer(models, server_environment) as server:
        server.wait_ready(60)
        os.kill(stub_of(server.region_prefix), signal.SIGKILL)
        began = time.monotonic()
    assert time.monotonic() - began < 5, "waited for the server's exit timeout"
    assert_gone(server.region_prefix, server.pid or 0)


def test_hanging_server_is_killed(models: Path, server_environment: ServerEnvironment) -> None:
    with TritonServer(models, server_environment, exit_timeout=0.5) as server:
        server.wait_ready(60)
        for pid in processes_of(server.region_prefix):
            os.kill(pid, signal.SIGSTOP)
    assert server.poll() == 128 + signal.SIGKILL
    assert_gone(server.region_prefix, server.pid or 0)


@pytest.mark.parametrize("victim", ["parent", "supervisor"])
def test_kill_leaves_nothing(victim: str, models: Path, server_environment: ServerEnvironment) -> None:
    command = [sys.executable, "-c", PARENT, str(models), str(server_environment.folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        assert parent.stdout is not None
        prefix, pid = parent.stdout.readline().split()
        assert len(processes_of(prefix)) == 2
        if victim == "parent":
            parent.kill()
            assert_gone(prefix, int(pid), within=10)
        else:
            os.kill(int(pid), signal.SIGKILL)
            assert parent.wait(10) == 0
            deadline = time.monotonic() + 10
            while processes_of(prefix) and time.monotonic() < deadline:
                time.sleep(0.05)
            assert processes_of(prefix) == {}
            supervisor.remove(supervisor.sweep(supervisor.SHARED_MEMORY, supervisor.REGION_KIND))
            assert_gone(prefix, int(pid))


def test_serve_stops_cleanly_on_every_signal(models: Path, server_environment: ServerEnvironment) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    options = ["--server-env", str(server_environment.folder), "--engine", "onnxruntime"]
    options += [word for service in ("http", "grpc", "metrics") for word in (f"--{service}-port", "0")]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", SERVE, str(models), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for _ in numbers
    ]
    try:
        for process, number in zip(started, numbers, strict=True):
            assert process.stdout is not None
            addresses = [process.stdout.readline().split() for _ in range(5)]
            assert all(addresses), process.communicate(timeout=30)
            assert [row[0] for row in addresses] == ["model", "engine", "http", "grpc", "metrics"]
            assert [row[1] for row in addresses[:2]] == ["lengths", "onnxruntime"]
            process.send_signal(number)
        for process in started:
            _, log = process.communicate(timeout=90)
            assert process.returncode == 0, log
            assert "Started HTTPService" in log
            assert "Traceback" not in log
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert supervisor.sweep(supervisor.SHARED_MEMORY, supervisor.REGION_KIND) == []


def test_serve_starts_again_after_a_crash(models: Path, server_environment: ServerEnvironment) -> None:
    """On the same ports, with a line that says so; a client that tries again sees a pause and no wrong answer."""
    options = ["--server-env", str(server_environment.folder), "--engine", "onnxruntime"]
    options += [word for service in ("http", "grpc", "metrics") for word in (f"--{service}-port", "0")]
    command = [sys.executable, "-c", SERVE, str(models), *options]
    log: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        reader = threading.Thread(target=log.extend, args=(process.stderr,))
        reader.start()
        try:
            address = [process.stdout.readline().split() for _ in range(5)][3][1]
            told = [ask_until(address, pause) for pause in (0.0, 1.2)]  # a stub's name is learnt while it lives
            (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            prefix = supervisor.region_prefix(int(child))
            os.kill(stub_of(prefix), signal.SIGKILL)
            told.append(ask_until(address, 0.5))
            assert told == [[3]] * 3
        finally:
            process.terminate()
            reader.join(30)
        assert process.wait(30) == 0, log
    assert any(
        "model instance lengths_0_0 has ended by signal 9" in line and line.endswith("starting it again\n")
        for line in log
    ), log


def ask_until(address: str, pause: float, within: float = 30.0) -> list[int]:
    """The lengths, after a pause, from the first server that answers at an address."""
    import tritonclient.grpc as grpc

    time.sleep(pause)
    deadline = time.monotonic() + within
    while True:
        try:
            return ask_at(address, ["abc"])
        except grpc.InferenceServerException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
