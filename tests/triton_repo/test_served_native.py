"""Engine ``native`` behind the real server, as `sentport serve` starts it and as a repository names it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, Cli

pytest.importorskip("sentport_native", reason="needs a C++ compiler: make native")

from sentport import Encoder
from sentport.bundle import read_bundle, write_description
from sentport.files import replace_folder
from triton_repo import environment
from triton_repo.client import Client
from triton_repo.environment import ServerEnvironment
from triton_repo.lint import Target, lint
from triton_repo.releases import RELEASES
from triton_repo.repository import write_repository
from triton_repo.wanted import Wanted

TEXTS = [f"the {'red cat ' * (row % 11)}sat on {'a mat ' * (row % 7)}{row}" for row in range(60)]


class Serving:
    """A running `sentport serve`: where it listens, and what it says."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        assert process.stdout is not None
        self._log = log
        rows = [process.stdout.readline().split() for _ in range(5)]
        assert all(rows), self.told()
        self.where = dict(rows)

    def told(self) -> list[str]:
        """What our own command said, without the server's log."""
        return [line for line in self._log.read_text().splitlines() if line.startswith("sentport: ")]

    def wait_for(self, words: str, within: float = 20.0) -> None:
        deadline = time.monotonic() + within
        while not any(words in line for line in self.told()):
            assert time.monotonic() < deadline, self.told()
            time.sleep(0.05)

    def client(self, protocol: str = "grpc") -> Client:
        return Client(self.where[protocol], model=self.where["model"], protocol=protocol, on_truncate="allow")


@contextmanager
def serving(bundle: Path, environment: ServerEnvironment, *options: str) -> Iterator[Serving]:
    command = [sys.executable, "-m", "sentport", "serve", str(bundle), "--server-env", str(environment.folder)]
    command += [word for service in ("http", "grpc", "metrics") for word in (f"--{service}-port", "0")]
    log = bundle.with_suffix(".log")
    with (
        log.open("w") as errors,
        subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT) as process,
    ):
        try:
            yield Serving(process, log)
        finally:
            process.terminate()


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_bundle, tmp_path / "tiny.bundle"))


def without_native(bundle: Path, folder: Path) -> Path:
    """A copy as export makes it where the kernels are not installed."""
    copied = read_bundle(shutil.copytree(bundle, folder))
    write_description(replace(copied, native=()))
    shutil.rmtree(folder / "native")
    return folder


def test_served_vectors_are_those_in_process_bit_for_bit(
    bundle: Path, server_environment: ServerEnvironment, tmp_path: Path
) -> None:
    """Alone and in company, with either protocol; and the bundle may be exchanged meanwhile."""
    with Encoder(bundle, engine="native", on_truncate="allow") as encoder:
        expected, info = encoder.encode(TEXTS), encoder.info
    with serving(bundle, server_environment, "--follow") as server:
        assert server.where["engine"] == "native"
        for protocol in ("grpc", "http"):
            with server.client(protocol) as client:
                assert client.info == info
                assert np.array_equal(client.encode(TEXTS), expected)
                assert np.array_equal(np.concatenate([client.encode([text]) for text in TEXTS[:6]]), expected[:6])
                with ThreadPoolExecutor(16) as pool:  # requests that share executions
                    found = pool.map(lambda text, client=client: client.encode([text]), TEXTS)
                assert np.array_equal(np.concatenate(list(found)), expected)
        bundle.rename(tmp_path / "elsewhere")
        server.wait_for(f"{bundle} is gone")
        with server.client() as client:
            assert np.array_equal(client.encode(TEXTS), expected)
        without_native(tmp_path / "elsewhere", bundle)
        server.wait_for("the new bundle is not served: ")
        replace_folder(Path(shutil.copytree(tmp_path / "elsewhere", tmp_path / "new")), bundle)
        server.wait_for(f"version 2 of {server.where['model']} is served")
        with server.client() as client:
            assert client.info == info
            assert np.array_equal(client.encode(TEXTS), expected)
    assert [line for line in server.told() if "gone" in line or "served" in line] == [
        f"sentport: {bundle} is gone; the server goes on with what was in it, until there is a new one",
        f"sentport: the new bundle is not served: {bundle} has no file for engine native; export it again where "
        "sentport-native is installed (`sentport export` says where the engine does not have the architecture)",
        "sentport: version 2 of tiny is served",
    ]


def test_without_its_file_auto_is_onnxruntime_and_native_is_refused(
    bundle: Path, server_environment: ServerEnvironment, tmp_path: Path, cli: Cli
) -> None:
    plain = without_native(bundle, tmp_path / "plain.bundle")
    with serving(plain, server_environment) as server, Encoder(plain, threads=1, on_truncate="allow") as encoder:
        assert server.where["engine"] == encoder.info.engine == "onnxruntime"
        with server.client() as client:
            assert client.info.engine == "onnxruntime"
            assert np.abs(client.encode(TEXTS) - encoder.encode(TEXTS)).max() <= 2e-6
    code, out, err = cli("serve", str(plain), "--engine", "native")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"{plain} has no file for engine native" in err


@pytest.mark.usefixtures("server_environment")
def test_server_without_kernels(bundle: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "native_files", lambda suffix: {})
    code, out, err = cli("serve", str(bundle), "--engine", "native")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "engine native was asked for, but no kernels are installed here for the server's Python 3." in err


def test_linter_looks_at_the_file_of_the_engine(bundle: Path, tmp_path: Path) -> None:
    repository = write_repository(Wanted(bundle, engine="native"), tmp_path / "models")
    assert lint(repository, Target(RELEASES["24.10"])) == []
    (file,) = (repository / "tiny" / "1" / "bundle" / "native").iterdir()
    file.unlink()
    (missing,) = lint(repository, Target(RELEASES["24.10"]))
    assert (missing.rule, "native/fp32.safetensors is missing" in missing.what) == ("bundle", True)
    config = repository / "tiny" / "config.pbtxt"
    config.write_text(config.read_text().replace('string_value: "native"', 'string_value: "naive"'))
    (unknown,) = lint(repository, Target(RELEASES["24.10"]))
    assert "parameter engine of config.pbtxt is 'naive'; expected one of onnxruntime, native" in unknown.what
