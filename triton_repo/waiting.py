"""Requests that a model has taken and not answered yet: a line of its own, with limits.

Triton's own queue could have them. But then its batcher looks for a free instance when a request comes, and otherwise
twice a second: what came while the one instance was at work lies there for up to half a second after that was done. So
the instance is not at work for long: it takes requests into this line, and is free for the next.
"""

from __future__ import annotations

import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Asked = TypeVar("Asked")


@dataclass(frozen=True, slots=True)
class Limits:
    """How many may wait, and for how long.

    Attributes:
        requests: Requests that may wait.
        seconds: How long a request may wait, unless it asks for less.
    """

    requests: int
    seconds: float

    def until(self, came: float, timeout_us: int) -> float:
        """When a request is too late that came at ``came`` and asks for a timeout, microseconds or 0 for none."""
        return came + min(self.seconds, timeout_us / 1e6 or self.seconds)


@dataclass(frozen=True, slots=True)
class Waiting(Generic[Asked]):
    """A request in the line.

    Attributes:
        asked: The request.
        rows: Its texts.
        came: When it came, seconds of a clock that does not jump.
        until: When it has waited too long.
    """

    asked: Asked
    rows: int
    came: float
    until: float


class Line(Generic[Asked]):
    """Has requests answered by a thread of its own in the order in which they came, all that wait in one go.

    Args:
        answer: Answers requests.
        most_rows: Texts that are answered in one go, at most, unless a single request has more.
        limits: Of the line; None = it has none, and ``take`` waits for the answers: Triton's own queue does it all.
    """

    def __init__(
        self, answer: Callable[[Sequence[Waiting[Asked]]], None], most_rows: int, limits: Limits | None
    ) -> None:
        self._answer, self._most_rows, self._limits = answer, most_rows, limits
        self._waiting: deque[Waiting[Asked]] = deque()
        self._at_work = self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="answers", daemon=True)
        self._thread.start()

    def take(self, requests: Sequence[Waiting[Asked]]) -> list[Waiting[Asked]]:
        """Put requests at the end of the line.

        Returns:
            The requests that found it full, which are not in it.
        """
        with self._changed:
            room = len(requests) if self._limits is None else max(0, self._limits.requests - len(self._waiting))
            self._waiting.extend(requests[:room])
            self._changed.notify_all()
            if self._limits is None:
                self._changed.wait_for(lambda: not (self._waiting or self._at_work))
            return list(requests[room:])

    def close(self) -> None:
        """Have all answered that wait, and stop."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _work(self) -> None:
        while requests := self._next():
            try:
                self._answer(requests)
            except Exception:  # the thread has to live on: all that come later wait for it
                traceback.print_exc()
            with self._changed:
                self._at_work = False
                self._changed.notify_all()

    def _next(self) -> list[Waiting[Asked]]:
        """The next requests, as many as go together; none when there will be no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            found: list[Waiting[Asked]] = []
            rows = 0
            while self._waiting and (not found or rows + self._waiting[0].rows <= self._most_rows):
                found.append(self._waiting.popleft())
                rows += found[-1].rows
            self._at_work = bool(found)
            return found
