"""A Triton server for the time of a benchmark: ``sentport serve`` as a child process, and its end."""

from __future__ import annotations

import re
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import IO

from bench.children import tie_to_parent
from bench.grid import RunOptions, ServerTarget
from sentport.errors import SentportError

# The first start builds the server's environment, most of which is a download.
READY_SECONDS = 900.0
STOP_SECONDS = 60.0

_LAST_LINE = "metrics"


class NoServer(SentportError):
    """No server can be had here; the message is the reason that the server's own command gave."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a server listens.

    Attributes:
        model: The model's name.
        http: ``http://host:port``.
        grpc: ``host:port``.
        metrics: ``http://host:port``.
    """

    model: str
    http: str
    grpc: str
    metrics: str


@contextmanager
def served(
    options: RunOptions, log: Path, say: Callable[[str], None], server_env: Path | None = None
) -> Iterator[RunOptions]:
    """A block with the server that it asks for, while that runs; where none can be had, with the reason.

    Args:
        options: The block.
        log: File that gets what the server says.
        say: Takes its addresses, or why there is none.
        server_env: The server's Python environment; None = the user's cache folder.
    """
    if not options.serve or options.bundle is None or "triton" not in options.contestants:
        yield options
        return
    with ServerProcess(serve_command(options.bundle, options.total_threads, server_env), log) as server:
        try:
            addresses = server.start()
        except NoServer as problem:
            say(f"no server: {problem}")
            found = replace(options, serve=False, missing=(*options.missing, ("Triton", str(problem))))
        else:
            say(f"{addresses.model} at {addresses.http}, grpc {addresses.grpc}, metrics {addresses.metrics}")
            targets = tuple(ServerTarget(addresses.grpc, addresses.model, *load) for load in options.loads)
            found = replace(options, serve=False, servers=(*options.servers, *targets))
        yield found


class ServerProcess:
    """Starts a command that serves, waits for its addresses, and stops it again; a context manager.

    Args:
        command: The command line.
        log: File that gets what the command says.
        ready_s: How long it may take until it is ready.
    """

    def __init__(self, command: Sequence[str], log: Path, ready_s: float = READY_SECONDS) -> None:
        self._command, self._log, self._ready_s = list(command), log, ready_s
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Addresses:
        """Start it, from a thread that lives as long as it: on Linux the end of that thread ends it.

        Returns:
            Where it listens, once it is ready.

        Raises:
            NoServer: When it ends or stays silent instead.
        """
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as log:
            # In a session of its own: a Ctrl-C reaches this process alone, which then stops the server in order.
            self._process = subprocess.Popen(
                self._command,
                bufsize=0,  # lines held in a buffer would be invisible to the selector
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                preexec_fn=tie_to_parent(),
            )
        lines = self._read_until_ready()
        try:
            return Addresses(*(_field(lines, name) for name in ("model", "http", "grpc", "metrics")))
        except NoServer:
            self.stop()
            raise

    def stop(self) -> None:
        """Tell it to stop and wait; kill it when it does not end. A second call does nothing."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.terminate()  # a background job of a shell would not see SIGINT
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout:
            process.stdout.close()

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _read_until_ready(self) -> list[str]:
        assert self._process is not None
        assert self._process.stdout is not None
        lines: list[str] = []
        until = time.monotonic() + self._ready_s
        with selectors.DefaultSelector() as ready:
            ready.register(self._process.stdout, selectors.EVENT_READ)
            while not (lines and lines[-1].startswith(_LAST_LINE)):
                if not ready.select(max(0.0, until - time.monotonic())):
                    self.stop()
                    raise NoServer(f"the server was not ready within {self._ready_s:.0f} s; its log is {self._log}")
                line = _read_line(self._process.stdout)
                if line is None:
                    self.stop()
                    raise NoServer(_reason(self._log))
                lines.append(line)
        return lines


def serve_command(bundle: Path, threads: int, server_env: Path | None = None) -> list[str]:
    """``sentport serve`` on free ports, from this very Python."""
    command = [sys.executable, "-m", "sentport", "serve", str(bundle), "--threads", str(threads)]
    command += [part for name in ("http", "grpc", "metrics") for part in (f"--{name}-port", "0")]
    return [*command, "--server-env", str(server_env)] if server_env else command


def _read_line(stream: IO[bytes]) -> str | None:
    line = stream.readline()
    return line.decode(errors="replace").rstrip("\n") if line else None


def _field(lines: Sequence[str], name: str) -> str:
    for line in lines:
        if match := re.match(rf"{name}\s+(\S+)", line):
            return match[1]
    raise NoServer(f"the server's command printed no line {name!r}, but {' / '.join(lines) or 'nothing'}")


def _reason(log: Path) -> str:
    """The command's own last word: its line of error."""
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    said = [line.removeprefix("sentport: ") for line in lines if line.startswith("sentport: ")]
    return (said or lines or ["it ended without a word"])[-1]
