"""The linter's rules with proof ``server``: what the real server does with a repository that breaks one of them."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import broken_models
import numpy as np
import pytest
import tritonclient.grpc as grpc_library
from broken_models import TEXT_CONFIG, Broken
from conftest import environment

from sentport.hardware import available_cores
from triton_repo.environment import ServerEnvironment
from triton_repo.flags import ServerFlags
from triton_repo.lint import Proof, Target, lint
from triton_repo.lint_rules import RULES
from triton_repo.releases import RELEASES
from triton_repo.repository import write_repository
from triton_repo.server import TritonServer, _answers, _choose_ports, _post
from triton_repo.wanted import Wanted

CORE = ("tokenizers==0.23.3", "onnxruntime==1.31.1")


@dataclass(frozen=True)
class Running:
    """A server that goes on without the models that do not load, and which are not."""

    server: TritonServer
    states: dict[str, str]
    log: str


@contextmanager
def lenient(repository: Path, where: ServerEnvironment, log: Path, flags: ServerFlags) -> Iterator[Running]:
    """Run such a server, which a supervisor would end with the first of its python processes."""
    server = TritonServer(repository, where, flags=flags)
    server._ports = _choose_ports("127.0.0.1", server.ports)
    command = [*server._command("127.0.0.1"), "--exit-on-error=false", "--exit-timeout-secs=5"]
    with log.open("w") as file:
        process = subprocess.Popen(command, env=where.variables(), stdout=file, stderr=subprocess.STDOUT, cwd="/")
    try:
        deadline = time.monotonic() + 120
        while not _answers(f"http://{server.http_url}/v2/health/live"):
            assert process.poll() is None, log.read_text()[-2000:]
            assert time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(0.1)
        status, answer = _post(server.http_url, "/v2/repository/index", None)
        assert status == 200
        states = {model["name"]: model.get("state", "") for model in json.loads(answer)}
        yield Running(server, states, log.read_text())
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory, tiny_bundle: Path) -> tuple[Path, dict[str, str]]:
    """The broken models, the rule of each, and beside them two of ours that load and answer wrongly."""
    models = tmp_path_factory.mktemp("broken") / "models"
    rules = broken_models.write_all(models)
    ours = {
        "cached": ("enable: false", "enable: true"),
        "ignored": ('parameters { key: "threads"', 'parameters { key: "thread"'),
        "parameter-value": ('"threads" value: { string_value: "1"', '"threads" value: { string_value: "two"'),
        "bundle": ('\\"fingerprint\\": \\"', '\\"fingerprint\\": \\"0'),
    }
    for name, (old, new) in ours.items():
        written = write_repository(Wanted(tiny_bundle, name=name, threads=1), models.parent / name)
        config = written / name / "config.pbtxt"
        assert old in config.read_text()
        config.write_text(config.read_text().replace(old, new, 1))
        (written / name).rename(models / name)
    return models, {**rules, "parameter-value": "parameter-value", "bundle": "bundle"}


@pytest.fixture(scope="module")
def running(
    wanted: tuple[Path, dict[str, str]], server_environment: ServerEnvironment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    log = tmp_path_factory.mktemp("log") / "server.log"
    with lenient(wanted[0], server_environment, log, ServerFlags(cache_bytes=1 << 20)) as running:
        yield running


@pytest.mark.full
def test_server_refuses_each(running: Running, wanted: tuple[Path, dict[str, str]]) -> None:
    assert running.states["echo"] == running.states["cached"] == running.states["ignored"] == "READY"
    for name in wanted[1]:
        assert running.states.get(name) != "READY", name
        assert re.search(rf"^E.*\b{name}\b", running.log, re.MULTILINE), f"the server says nothing about {name}"
    proven = {rule.name for rule in RULES if rule.proof == Proof.SERVER} | {"config-read"}
    elsewhere = {"cache", "unknown-parameter", "numpy", "model-file"}
    assert set(wanted[1].values()) | elsewhere == proven


def ask(running: Running, model: str, **parameters: Any) -> Any:
    given = grpc_library.InferInput("TEXT", [1, 1], "BYTES")
    given.set_data_from_numpy(np.array([[b"sat on the mat"]], dtype=object))
    with grpc_library.InferenceServerClient(running.server.grpc_url) as client:
        return client.infer(model, [given], parameters=parameters)


@pytest.mark.full
def test_cache_gives_the_answer_to_another_question(running: Running) -> None:
    first = ask(running, "cached", prompt="query").as_numpy("EMBEDDING")
    second = ask(running, "cached", prompt="passage").as_numpy("EMBEDDING")
    right = ask(running, "ignored", prompt="passage").as_numpy("EMBEDDING")
    assert np.array_equal(first, second)
    assert np.abs(second - right).max() > 0.01


@pytest.mark.full
def test_unknown_parameter_is_ignored(running: Running) -> None:
    info = json.loads(ask(running, "ignored", info=True).as_numpy("INFO")[0, 0])
    if available_cores() == 1:
        pytest.skip("one core: asked for or not, one thread is all there is")
    assert info["sessions"] * info["threads"] > 1, "the one thread that `thread` asked for"


@pytest.mark.full
def test_model_without_its_file_keeps_the_server_waiting(server_environment: ServerEnvironment, tmp_path: Path) -> None:
    """Not even refused: the server waits for a process that has ended. One good model shows that it is this one."""
    Broken(script=None, files={"1/.keep": b""}).write(tmp_path / "model-file")
    assert [each.rule for each in lint(tmp_path, Target(RELEASES["24.10"]))] == ["model-file"]
    with TritonServer(tmp_path, server_environment, exit_timeout=0.5) as server:
        for _ in range(30):
            assert not _answers(f"http://{server.http_url}/v2/health/ready")
            time.sleep(0.1)


@pytest.mark.full
def test_numpy_2_kills_the_stub_on_the_first_text(server_environment: ServerEnvironment, tmp_path: Path) -> None:
    python = environment("core-numpy-2.4.6", "numpy==2.4.6", *CORE)
    models = tmp_path / "models"
    models.mkdir()
    Broken(config=TEXT_CONFIG).write(models / "text")
    where = replace(server_environment, bin=python.parent)
    (finding,) = lint(models, Target(RELEASES["24.10"], environment=python.parents[1]))
    assert finding.rule == "numpy"
    with TritonServer(models, where, exit_timeout=0.5) as server:
        server.wait_ready(60)
        given = grpc_library.InferInput("A", [1, 1], "BYTES")
        given.set_data_from_numpy(np.array([[b"sat"]], dtype=object))
        with (
            grpc_library.InferenceServerClient(server.grpc_url) as client,
            pytest.raises(grpc_library.InferenceServerException),
        ):
            client.infer("text", [given], client_timeout=10)
