"""Child processes of a benchmark: they end with it, however it ends, and their last words are kept."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from typing import IO

_PR_SET_PDEATHSIG = 1


def tie_to_parent() -> Callable[[], None] | None:
    """What a child does before its command: on Linux it is told to stop when the thread that started it ends."""
    if sys.platform != "linux":
        return None
    library, parent = ctypes.CDLL(None), os.getpid()  # nothing is loaded between fork and exec

    def tie() -> None:
        library.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:  # it ended before the line above took effect
            os._exit(1)

    return tie


def last_words(log: IO[bytes]) -> str:
    """The last line that a child wrote to its log."""
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "without a word"
