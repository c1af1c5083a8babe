"""The process between us and ``tritonserver``: it outlives neither, and leaves nothing behind.

Run as a script (``python supervisor.py PARENT_PID PATIENCE_S COMMAND...``), standard library only. It exists because of
what the server does on its own:

- When a python stub dies, ``tritonserver`` neither restarts it nor says so: readiness stays 200 and every request fails
  from then on. Here that ends the server, with a line that names the model instance.
- When ``tritonserver`` dies (or finds a port taken), its stubs go on for a second and its shared memory may stay.
- When our own process is killed, nobody else would stop the server.

The parent is watched by its process id and not by ``PR_SET_PDEATHSIG``, which fires when the *thread* that started the
child ends. Towards ``tritonserver`` this process has one thread only, so there the kernel's signal is the right tool.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
REGION_KIND = "sentport-triton"
REPORT_PREFIX = "sentport: "
STUB = "triton_python_backend_stub"

EXIT_STUB_CRASHED = 70
EXIT_NOT_STARTED = 71

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_STOPPING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
_POLL_S = 0.2
_STUB_CHECK_S = 0.5
_REAP_S = 5.0


def owner_tag(pid: int) -> str:
    """Name a process so that nobody else can be mistaken for it: pid namespace, pid and start time.

    Process ids are reused, and ``/dev/shm`` may be shared by containers that each count from 1.
    """
    return f"{os.stat('/proc/self/ns/pid').st_ino}-{pid}-{_start_time(pid)}"


def sweep(folder: Path, kind: str) -> list[Path]:
    """The entries of a folder called ``<kind>-<owner tag>-...`` whose owner is dead.

    Those of another pid namespace are left alone: whether their owner lives cannot be seen from here.
    """
    namespace = os.stat("/proc/self/ns/pid").st_ino
    pattern = re.compile(rf"{re.escape(kind)}-{namespace}-(\d+)-(\d+)-")
    matches = ((path, pattern.match(path.name)) for path in folder.iterdir())
    return [path for path, match in matches if match and _start_time(int(match[1])) != int(match[2])]


def region_prefix(pid: int) -> str:
    """What the names of the shared memory regions of the supervisor ``pid`` begin with."""
    return f"{REGION_KIND}-{owner_tag(pid)}-"


def _start_time(pid: int) -> int | None:
    fields = _stat(pid)
    # A zombie holds its pid but nothing else: as an owner it is dead.
    return int(fields[19]) if fields and fields[0] != "Z" else None


def _stat(pid: int) -> list[str]:
    """The fields of ``/proc/PID/stat`` from the state on; empty when the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text[text.rindex(")") + 2 :].split()  # the name before it may hold blanks and brackets


class StubWatch:
    """Tells when a python stub of the server has died, which the server itself does not.

    A dead stub stays a zombie, for the server never waits for it. The one that is ended in good order (after the
    configuration was completed, or at the end) is a zombie for a moment too: hence two looks.
    """

    def __init__(self, server_pid: int) -> None:
        self._server_pid = server_pid
        self._instances: dict[int, str] = {}
        self._suspects: set[int] = set()

    def crashed(self, looks: int = 2) -> str | None:
        """One look at the stubs; a sentence about one that is found dead for the ``looks``-th time (1 or 2)."""
        dead: dict[int, int] = {}
        for pid in self._children():
            fields = _stat(pid)
            if fields and fields[0] == "Z":
                dead[pid] = int(fields[-1])
            else:
                self._remember(pid)
        certain = [pid for pid in dead if looks == 1 or pid in self._suspects]
        self._suspects = set(dead)
        if not certain:
            return None
        instance = self._instances.get(certain[0])  # not known where it died at once, while its model was loaded
        whose = f"model instance {instance}" if instance else "a model"
        return f"the python process of {whose} has ended {_how(dead[certain[0]])}"

    def _children(self) -> list[int]:
        pids: list[int] = []
        for task in self._tasks():  # each thread has the children that it forked
            try:
                pids += map(int, (task / "children").read_text(encoding="ascii").split())
            except OSError:  # the thread has ended meanwhile, and its children went to another
                continue
        return pids

    def _tasks(self) -> list[Path]:
        try:
            return list(Path(f"/proc/{self._server_pid}/task").iterdir())
        except OSError:  # the server itself has ended
            return []

    def _remember(self, pid: int) -> None:
        if pid in self._instances:
            return
        try:
            words = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace").split("\0")[:-1]
        except OSError:
            return
        if words and Path(words[0]).name == STUB:  # else it is between fork and exec
            self._instances[pid] = words[-2]


def _how(status: int) -> str:
    number = status & 0x7F
    return f"by signal {number}" if number else f"with exit code {status >> 8}"


def _report(message: str) -> None:
    with contextlib.suppress(OSError):  # the reader is gone: there is nobody to tell
        os.write(sys.stdout.fileno(), f"{REPORT_PREFIX}{message}\n".encode())


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    library = ctypes.CDLL(None, use_errno=True)
    supervisor = os.getpid()
    # Orphaned stubs come to us, not to a process 1 that may never wait for them.
    library.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def tie_to_us() -> None:
        library.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != supervisor:  # we died before the line above took effect
            os._exit(EXIT_NOT_STARTED)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    return subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=tie_to_us)


def _watch(server: subprocess.Popen[bytes], parent: int, patience_s: float) -> int:
    """Wait for the end of the server, of a stub or of the parent, or for the signal to stop; return the exit code."""
    stubs = StubWatch(server.pid)
    next_check = 0.0
    while server.poll() is None:
        received = signal.sigtimedwait({*_STOPPING, signal.SIGCHLD}, _POLL_S)
        if os.getppid() != parent or (received is not None and received.si_signo in _STOPPING):
            return _stop(server, stubs, patience_s)
        if time.monotonic() < next_check:
            continue
        next_check = time.monotonic() + _STUB_CHECK_S
        crash = stubs.crashed()
        if crash is not None:
            # Not SIGTERM: with a dead stub the server waits for the whole of its exit timeout.
            _report(f"{crash}; the server cannot answer without it and is ended")
            return EXIT_STUB_CRASHED
    return _exit_code(server)


def _stop(server: subprocess.Popen[bytes], stubs: StubWatch, patience_s: float) -> int:
    if stubs.crashed(looks=1) is not None:
        server.kill()
        server.wait()
        return EXIT_STUB_CRASHED
    server.terminate()
    try:
        server.wait(patience_s)
    except subprocess.TimeoutExpired:
        _report(f"the server did not stop within {patience_s:g} s and is killed")
        server.kill()
        server.wait()
    return _exit_code(server)


def _exit_code(server: subprocess.Popen[bytes]) -> int:
    code = server.returncode
    return code if code >= 0 else 128 - code


def _clear(server: subprocess.Popen[bytes], prefix: str) -> None:
    """Kill what is left of the server's process group, wait for it, and remove its shared memory."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()
    deadline = time.monotonic() + _REAP_S
    while time.monotonic() < deadline:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.01)
        except ChildProcessError:
            break
    remove([path for path in SHARED_MEMORY.iterdir() if path.name.startswith(prefix)])


def remove(regions: list[Path]) -> None:
    """Unlink shared memory regions, passing over what another user owns or somebody else removed."""
    for region in regions:
        try:
            region.unlink()
        except (FileNotFoundError, PermissionError):
            continue


def main(argv: list[str]) -> int:
    """Start the command that follows the parent's pid and the patience in seconds, and stay until it is all over."""
    parent, patience_s, command = int(argv[0]), float(argv[1]), argv[2:]
    # Blocked, then taken by sigtimedwait: no signal can fall between a check and the wait.
    signal.pthread_sigmask(signal.SIG_BLOCK, {*_STOPPING, signal.SIGCHLD})
    leftovers = sweep(SHARED_MEMORY, REGION_KIND)
    remove(leftovers)
    if leftovers:
        _report(f"removed {len(leftovers)} shared memory regions of servers that were killed")
    prefix = region_prefix(os.getpid())
    timeout = f"--exit-timeout-secs={math.ceil(patience_s)}"
    try:
        server = _start([*command, timeout, f"--backend-config=python,shm-region-prefix-name={prefix}"])
    except OSError as error:
        _report(f"cannot start {command[0]}: {error.strerror}")
        return EXIT_NOT_STARTED
    try:
        # The server gives up by itself at its own timeout; ours is the one behind it.
        return _watch(server, parent, patience_s + 2.0)
    finally:
        _clear(server, prefix)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
