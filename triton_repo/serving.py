"""A server that is kept going: started again after a crash, and given a new bundle while it runs."""

from __future__ import annotations

import shutil
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from sentport.bundle import is_bundle
from sentport.errors import SentportError
from triton_repo import supervisor
from triton_repo.config import CONFIG_FILE
from triton_repo.server import TritonServer
from triton_repo.versions import add_version

_LOOK_S = 1.0
# A stub that dies again and again is not mended by starting it.
_RESTARTS = 3
_RESTARTS_WITHIN_S = 600.0


class Follower:
    """Notices that a bundle was replaced, and has it served without dropping a request.

    Args:
        bundle: The bundle that is watched.
        name: The model that serves it.
        other_space: Whether a bundle of another fingerprint may take the name.
        say: Is told what happened, a line at a time.
    """

    def __init__(self, bundle: Path, name: str, other_space: bool, say: Callable[[str], None]) -> None:
        self._bundle = bundle
        self._name = name
        self._other_space = other_space
        self._say = say
        self._seen = self._last = self._stamp()

    def look(self, server: TritonServer) -> None:
        """Serve the bundle if it is another one, and was the same at the last two looks: copying one takes a while.

        A refusal is told, and so is a bundle that is gone; neither changes what is served.
        """
        stamp = self._stamp()
        settled, self._last = stamp == self._last, stamp
        if not settled or stamp == self._seen:
            return
        self._seen = stamp
        if not stamp:
            self._say(f"{self._bundle} is gone; the server goes on with what was in it, until there is a new one")
            return
        config = server.repository / self._name / CONFIG_FILE
        before = config.read_text(encoding="utf-8")
        try:
            added = add_version(self._bundle, server.repository, self._name, other_space=self._other_space)
        except (SentportError, OSError) as error:  # also a bundle that is replaced again meanwhile, or a full disk
            self._say(f"the new bundle is not served: {error}")
            return
        folder = server.repository / added.model
        try:
            server.load(added.model)
        except SentportError as error:
            shutil.rmtree(folder / str(added.version))
            config.write_text(before, encoding="utf-8")  # a server that is started again reads it
            self._say(f"the new bundle is not served: {error}")
            return
        for old in folder.iterdir():
            if old.name.isdecimal() and int(old.name) < added.version - 1:  # requests may still be in the last one
                shutil.rmtree(old)
        self._say(f"version {added.version} of {self._name} is served")

    def _stamp(self) -> list[tuple[Path, int, int, int]]:
        """What tells states of the folder apart; nothing where it is no bundle."""
        try:
            found = [(path, path.lstat()) for path in sorted(self._bundle.rglob("*"))]
        except OSError:  # a file that went meanwhile
            found = []
        if not is_bundle(self._bundle):
            return []
        return [(path, status.st_ino, status.st_size, status.st_mtime_ns) for path, status in found]


def keep_serving(
    make: Callable[[dict[str, int]], TritonServer],
    ready: Callable[[TritonServer], None],
    follower: Follower | None,
    say: Callable[[str], None],
) -> None:
    """Run a server until Ctrl-C; after a crash of its python process, another one on the same ports.

    Args:
        make: Makes a server on these ports by service, its own choice where there are none.
        ready: Is told of the first server when it answers.
        follower: Looks for a new bundle.
        say: Is told what happened, a line at a time.

    Raises:
        SentportError: When a server ends for another reason, or crashes too often.
        KeyboardInterrupt: When Ctrl-C comes before the first server is ready.
    """
    crashes: deque[float] = deque(maxlen=_RESTARTS)
    ports: dict[str, int] = {}
    try:
        while True:
            with make(ports) as server:
                server.wait_ready()
                first, ports = not ports, server.ports
                if first:
                    ready(server)
                while (code := server.wait(_LOOK_S)) is None:
                    if follower is not None:
                        follower.look(server)
            reason = server.failure()
            often = len(crashes) == _RESTARTS and time.monotonic() - crashes[0] < _RESTARTS_WITHIN_S
            if code != supervisor.EXIT_STUB_CRASHED or often:
                raise SentportError(f"the Triton server ended: {reason}")
            crashes.append(time.monotonic())
            say(f"{reason}; starting it again")
    except KeyboardInterrupt:
        if not ports:  # it was never ready
            raise
