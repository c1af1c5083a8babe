"""A progress line on stderr: only on a terminal, only for work over two seconds."""

from __future__ import annotations

import sys
import time
from types import TracebackType

_PATIENCE_SECONDS = 2.0
_REDRAW_SECONDS = 0.2
_BAR = 20


class Progress:
    """Counts work done and shows it; a context manager that clears its line at the end.

    Args:
        label: What is being done.
        total: How much there is; None = not known, or not yet (``expect``).
        unit: What is counted.
        shown: Whether to show anything at all.
    """

    def __init__(self, label: str, total: float | None, unit: str, *, shown: bool = True) -> None:
        self._label, self._total, self._unit = label, total, unit
        self._shown = shown and sys.stderr.isatty()
        self._done = self._before = self._tokens = 0.0
        self._start = time.monotonic()
        self._drawn = 0.0

    def rename(self, label: str) -> None:
        """Say otherwise what is being done."""
        self._label = label

    def expect(self, total: float) -> None:
        """Set how much there is, by a count or an estimate."""
        self._total = total

    def skip(self, count: float) -> None:
        """Add work that an earlier run has done, which says nothing about the speed of this one."""
        self._before += count
        self._done += count

    def advance(self, count: float, tokens: float = 0) -> None:
        """Add finished work, and the tokens in it where they are of interest."""
        self._done += count
        self._tokens += tokens
        now = time.monotonic()
        if self._shown and now - self._start > _PATIENCE_SECONDS and now - self._drawn > _REDRAW_SECONDS:
            self._drawn = now
            sys.stderr.write(f"\r{self._line(now - self._start):<79}")
            sys.stderr.flush()

    def _line(self, seconds: float) -> str:
        rate = (self._done - self._before) / seconds
        speed = f"{rate:,.0f} {self._unit}/s"
        if self._tokens:
            speed += f"  {self._tokens / seconds:,.0f} tokens/s"
        if self._total is None:
            return f"{self._label} {self._done:,.0f}  {speed}"
        share = min(1.0, self._done / self._total) if self._total else 1.0
        left = max(0.0, self._total - self._done) / rate if rate else 0.0
        return f"{self._label} [{'#' * int(share * _BAR):<{_BAR}}] {share:4.0%}  {speed}  {_duration(left)} left"

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._drawn:
            sys.stderr.write(f"\r{'':<79}\r")
            sys.stderr.flush()


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
