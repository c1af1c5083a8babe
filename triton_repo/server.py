"""One Triton server as a child of this process: start it, wait until it is ready, stop it without a trace.

```
this process ── supervisor.py ── tritonserver ── its python stubs
```

Each of the three ends when the one on its left does, whatever ended that: see ``supervisor``.
"""

from __future__ import annotations

import http.client
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from ipaddress import ip_address
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote, urlsplit

from sentport.errors import SentportError
from triton_repo import supervisor
from triton_repo.environment import ServerEnvironment
from triton_repo.flags import KEY_HEADER, ServerFlags, address_options

_PORTS = ("http", "grpc", "metrics")
# Below the range from which systems take ports for outgoing connections: the server binds seconds after we chose.
_FREE_PORTS = range(20000, 32000)
_LOG_LINES = 500
_GRACE_S = 5.0
_LOAD_S = 300.0
DEFAULT_FLAGS = ServerFlags()


class TritonServer:
    """A Triton server on one model repository; a context manager that starts and stops it."""

    def __init__(
        self,
        repository: Path,
        environment: ServerEnvironment,
        *,
        host: str = "127.0.0.1",
        http_port: int = 0,
        grpc_port: int = 0,
        metrics_port: int = 0,
        flags: ServerFlags = DEFAULT_FLAGS,
        exit_timeout: float = 30.0,
        on_log: Callable[[str], None] | None = None,
    ) -> None:
        """Describe the server; nothing runs yet.

        Args:
            repository: The folder with one folder for each model.
            environment: What ``prepare_environment`` returned.
            host: The address that all three services listen on.
            http_port: Port of HTTP; 0 takes a free one, here as below.
            grpc_port: Port of gRPC.
            metrics_port: Port of the metrics.
            flags: What else it is started with.
            exit_timeout: Seconds that requests in flight get to finish after ``stop``.
            on_log: Is called with each line of the server's log, in a thread of its own.
        """
        self.repository = repository
        self.environment = environment
        self.host = host
        self.flags = flags
        self.exit_timeout = exit_timeout
        self._ports = dict(zip(_PORTS, (http_port, grpc_port, metrics_port), strict=True))
        self._on_log = on_log
        self._log: deque[str] = deque(maxlen=_LOG_LINES)
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._prefix = ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def ports(self) -> dict[str, int]:
        """The ports by service, chosen once the server was started."""
        return dict(self._ports)

    @property
    def http_url(self) -> str:
        """``host:port`` for an HTTP client on this machine."""
        return f"{_reachable(self.host)}:{self._ports['http']}"

    @property
    def grpc_url(self) -> str:
        """``host:port`` for a gRPC client on this machine."""
        return f"{_reachable(self.host)}:{self._ports['grpc']}"

    @property
    def metrics_url(self) -> str:
        """The address of the metrics page."""
        return f"http://{_reachable(self.host)}:{self._ports['metrics']}/metrics"

    @property
    def models(self) -> list[str]:
        """The models of the repository."""
        return sorted(path.name for path in self.repository.iterdir() if path.is_dir() and path.name[0] != ".")

    @property
    def pid(self) -> int | None:
        """The process id of the supervisor, None where nothing was started."""
        return self._process.pid if self._process else None

    @property
    def region_prefix(self) -> str:
        """What the names of this server's shared memory regions begin with."""
        return self._prefix

    def start(self) -> None:
        """Start the server and return at once.

        Raises:
            SentportError: The repository holds no model, a port is taken, or the address is not one of this machine.
        """
        if self._process is not None:
            raise SentportError("this server was started before; make a new one")
        if not self.repository.is_dir() or not self.models:
            raise SentportError(f"{self.repository} is no model repository: it holds no folder of a model")
        address = _resolve(self.host)
        self._ports = _choose_ports(address, self._ports)
        self._process = subprocess.Popen(
            [*self._supervisor(), *self._command(address)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            env=self.environment.variables(),
            # The stub looks for modules in the current folder first: one with a `sentport` in it would be served.
            cwd="/",
            start_new_session=True,  # else Ctrl-C in a terminal would reach it before us
        )
        self._prefix = supervisor.region_prefix(self._process.pid)
        self._reader = threading.Thread(target=self._forward, name="triton-log", daemon=True)
        self._reader.start()

    def wait_ready(self, timeout: float = 120.0) -> None:
        """Return when the server and each of its models answer that they are ready.

        Raises:
            SentportError: The server ended instead, with its own reason, or it took longer than ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        paths = ["/v2/health/ready", *(f"/v2/models/{quote(name)}/ready" for name in self.models)]
        # The metrics page comes last, some 50 ms after the models are ready.
        waiting = [*(f"http://{self.http_url}{path}" for path in paths), self.metrics_url]
        while waiting:
            if self.poll() is not None:
                raise SentportError(f"the Triton server ended before it was ready: {self.failure()}")
            if time.monotonic() > deadline:
                raise SentportError(f"the Triton server was not ready within {timeout:g} s; last line: {self._last()}")
            if _answers(waiting[0]):
                waiting.pop(0)
            else:
                time.sleep(0.05)

    def load(self, model: str) -> None:
        """Load a model again from its changed folder; requests go on with the old version until the new one is ready.

        Raises:
            SentportError: When the server does not load it; it then goes on with what it has.
        """
        status, answer = _post(self.http_url, f"/v2/repository/models/{quote(model, safe='')}/load", self.flags.key)
        if status != http.client.OK:
            raise SentportError(f"the server did not load model {model} again: {' '.join(answer.split())}")

    def poll(self) -> int | None:
        """The exit code when the server has ended, None while it runs."""
        return self._started().poll()

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait until the server ends by itself; its exit code, or None when ``timeout`` seconds passed before."""
        try:
            return self._started().wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def failure(self) -> str:
        """Why the server ended, in its own words, as one line."""
        if self._reader is not None and self.poll() is not None:
            self._reader.join(_GRACE_S)  # the last lines may still be in the pipe
        code = self.poll()
        if code is not None and code < 0:  # the log does not tell: the kernel ended the server along with it
            return f"its supervisor (process {self.pid}) was ended by signal {-code}"
        reason = reason_in(list(self._log))
        return reason or f"exit code {self.poll()}, last line: {self._last()}"

    def stop(self) -> None:
        """End the server and everything that belongs to it; does nothing when it has ended before."""
        process = self._process
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(self.exit_timeout + 2 * _GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()  # the kernel then kills the server, and the stubs end by themselves
            process.wait()
        if self._reader is not None:
            self._reader.join(_GRACE_S)
        regions = [path for path in supervisor.SHARED_MEMORY.iterdir() if path.name.startswith(self._prefix)]
        supervisor.remove(regions)

    def _supervisor(self) -> list[str]:
        # -I -S: it needs the standard library only, and nothing of the current folder or of a user's site may be it.
        script = str(Path(supervisor.__file__).resolve())
        return [sys.executable, "-I", "-S", script, str(os.getpid()), str(self.exit_timeout)]

    def _command(self, address: str) -> list[str]:
        return [
            str(self.environment.executable),
            f"--model-repository={self.repository.resolve()}",
            f"--backend-directory={self.environment.tree / 'backends'}",
            f"--cache-directory={self.environment.tree / 'caches'}",
            "--exit-on-error=true",
            "--strict-readiness=true",
            *address_options(address, self._ports),
            *self.flags.options(),
        ]

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise SentportError("the server was not started")
        return self._process

    def _forward(self) -> None:
        output = self._started().stdout
        if output is None:
            return
        forward = self._on_log
        with output:
            for line in output:
                self._log.append(line.rstrip("\n"))
                try:
                    if forward is not None:
                        forward(line.rstrip("\n"))
                except Exception:  # e.g. a closed stderr; reading must go on, or the server blocks on a full pipe
                    forward = None

    def _last(self) -> str:
        return next((line for line in reversed(self._log) if line.strip(" +-|")), "none")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server that listens on ``host``."""
    return ip_address(_resolve(host)).is_loopback


def reason_in(log: Iterable[str]) -> str:
    """The reason for a failed start in the lines of a server's log: the models that failed, else the last error."""
    lines = list(log)
    reported = [line.removeprefix(supervisor.REPORT_PREFIX) for line in lines if _REPORTED.match(line)]
    if reported:
        return reported[-1]
    failed = _failed_models(lines)
    if failed:
        return "; ".join(f"model {name}: {status}" for name, status in failed.items())
    errors = [match[1] for line in lines if (match := _ERROR.match(line))]
    return " ".join(errors[-1].replace("\\n", " ").strip('" ').split()) if errors else ""


_ERROR = re.compile(r"(?:E\d{4} [\d:.]+ +\d+ \S+\] *|error: )(.*)")
_REPORTED = re.compile(rf"{supervisor.REPORT_PREFIX}(?!removed )")


def _failed_models(lines: list[str]) -> dict[str, str]:
    """The rows of the table ``| Model | Version | Status |`` that are not READY; a status can take several lines."""
    failed: dict[str, str] = {}
    head = next((n for n, line in enumerate(lines) if re.match(r"\| Model +\| Version +\| Status +\|", line)), None)
    if head is None or head + 2 >= len(lines):
        return failed
    name = ""
    for line in lines[head + 2 :]:
        cells = [cell.strip() for cell in line.strip().strip("|").split("|", 2)]
        if not line.startswith("|") or len(cells) != 3:
            break
        name = cells[0] or name
        if cells[0] and cells[2].startswith("READY"):
            name = ""
        elif name:
            failed[name] = f"{failed.get(name, '')} {cells[2]}".strip().removeprefix("UNAVAILABLE: ")
    return failed


def _answers(url: str) -> bool:
    parts = urlsplit(url)
    # Not urllib's opener: it would send this through a proxy where the environment names one.
    connection = http.client.HTTPConnection(parts.netloc, timeout=5.0)
    try:
        connection.request("GET", parts.path)
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _post(address: str, path: str, key: str | None) -> tuple[int, str]:
    connection = http.client.HTTPConnection(address, timeout=_LOAD_S)
    try:
        connection.request("POST", path, b"{}", {} if key is None else {KEY_HEADER: key})
        response = connection.getresponse()
        return response.status, response.read().decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as error:
        return 0, f"{type(error).__name__}: {error}"
    finally:
        connection.close()


def _resolve(host: str) -> str:
    try:
        return str(socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise SentportError(f"cannot listen on {host!r}: {error.strerror}; give an IPv4 address or a name") from None


def _reachable(host: str) -> str:
    address = _resolve(host)
    return "127.0.0.1" if address == "0.0.0.0" else address


def _choose_ports(address: str, ports: dict[str, int]) -> dict[str, int]:
    given = [port for port in ports.values() if port]
    if len(set(given)) != len(given):
        raise SentportError(f"the ports for {', '.join(_PORTS)} must differ, got {', '.join(map(str, given))}")
    for service, port in ports.items():
        if port:
            _check_port(address, port, service)
    candidates = (port for port in random.SystemRandom().sample(_FREE_PORTS, 100) if port not in given)
    free = (port for port in candidates if _is_free(address, port))
    try:
        return {service: port or next(free) for service, port in ports.items()}
    except StopIteration:
        raise SentportError(f"no free port found on {address}; give them by --http-port and the like") from None


def _check_port(address: str, port: int, service: str) -> None:
    try:
        with socket.socket() as probe:
            # As the server does: connections of an earlier server that linger are no hindrance.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address, port))
    except OSError as error:
        raise SentportError(
            f"cannot listen on {address}:{port} ({error.strerror}); give another --{service}-port, 0 takes a free one"
        ) from None
    except OverflowError:
        raise SentportError(f"--{service}-port must lie between 0 and 65535, got {port}") from None


def _is_free(address: str, port: int) -> bool:
    try:
        with socket.socket() as probe:
            probe.bind((address, port))
    except OSError:
        return False
    return True
