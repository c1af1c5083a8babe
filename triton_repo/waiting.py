"""Requests that a model has taken and not answered yet: a line of its own, with limits.

Triton's own queue could have them. But then its batcher looks for a free instance when a request comes, and otherwise
twice a second: what came while the one instance was at work lies there for up to half a second after that was done. So
the instance is not at work for long: it takes requests into this line, and is free for the next.
"""

from __future__ import annotations

import math
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sentport.errors import SentportError
from triton_repo.requests import TextRequest


@dataclass(frozen=True, slots=True)
class Limits:
    """How many may wait, and for how long.

    Attributes:
        requests: Requests that may wait.
        seconds: How long a request may wait, unless it asks for less.
    """

    requests: int
    seconds: float


@dataclass(slots=True)
class Waiting:
    """A request in the line.

    Attributes:
        sender: What its answer goes to, Triton's ``InferenceResponseSender``.
        read: The request; an error is its answer.
        came: When it came, seconds of a clock that does not jump.
        until: When it has waited too long.
    """

    sender: Any
    read: TextRequest | SentportError
    came: float
    until: float = math.inf

    @property
    def rows(self) -> int:
        """Its texts."""
        return len(self.read.texts) if isinstance(self.read, TextRequest) else 1


class Line:
    """Has requests answered by a thread of its own in the order in which they came, as many in one go as fit.

    Args:
        answer: Answers requests.
        most_rows: Texts that are answered in one go, at most, unless a single request has more.
        limits: Of the line.
        patient: So many requests, the first ones, wait as long as it takes: a warm-up that is refused ends the model.
    """

    def __init__(
        self, answer: Callable[[Sequence[Waiting]], None], most_rows: int, limits: Limits, patient: int = 0
    ) -> None:
        self._answer, self._most_rows, self._limits, self._patient = answer, most_rows, limits, patient
        self._waiting: deque[Waiting] = deque()
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="answers", daemon=True)
        self._thread.start()

    def take(self, requests: Sequence[Waiting]) -> list[Waiting]:
        """Put requests at the end of the line.

        Returns:
            The requests that found it full, which are not in it.
        """
        with self._changed:
            room = max(0, self._limits.requests - len(self._waiting))
            for one in requests[self._patient : room]:
                one.until = one.came + self._patience(one)
            self._patient = max(0, self._patient - len(requests))
            self._waiting.extend(requests[:room])
            self._changed.notify()
            return list(requests[room:])

    def close(self) -> None:
        """Have all answered that wait, and stop."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _patience(self, one: Waiting) -> float:
        asked = one.read.timeout_us / 1e6 if isinstance(one.read, TextRequest) else 0.0
        return min(self._limits.seconds, asked or math.inf)

    def _work(self) -> None:
        while self._answer_next():
            pass

    def _answer_next(self) -> bool:
        """Answer the next requests, as many as go together; False when there will be no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            found: list[Waiting] = []
            rows = 0
            while self._waiting and (not found or rows + self._waiting[0].rows <= self._most_rows):
                found.append(self._waiting.popleft())
                rows += found[-1].rows
        if found:
            try:
                self._answer(found)
            except Exception:  # the thread has to live on: all that come later wait for it
                traceback.print_exc()
        return bool(found)
