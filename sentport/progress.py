"""A progress bar on stderr: only on a terminal, only for work over two seconds."""

from __future__ import annotations

import sys
import time
from types import TracebackType

_PATIENCE_SECONDS = 2.0
_REDRAW_SECONDS = 0.2
_WIDTH = 30


class Progress:
    """Counts work done and shows it; a context manager that clears its line at the end.

    Args:
        label: What is being done.
        total: How much there is.
        unit: What is counted.
        shown: Whether to show anything at all.
    """

    def __init__(self, label: str, total: int, unit: str, *, shown: bool = True) -> None:
        self._label, self._total, self._unit = label, total, unit
        self._shown = shown and sys.stderr.isatty()
        self._done = 0
        self._start = time.monotonic()
        self._drawn = 0.0

    def advance(self, count: int) -> None:
        """Add finished work."""
        self._done += count
        now = time.monotonic()
        if self._shown and now - self._start > _PATIENCE_SECONDS and now - self._drawn > _REDRAW_SECONDS:
            self._drawn = now
            self._draw(now - self._start)

    def _draw(self, seconds: float) -> None:
        share = self._done / self._total if self._total else 1.0
        bar = "#" * int(share * _WIDTH)
        rate = self._done / seconds
        left = (self._total - self._done) / rate if rate else 0.0
        line = f"{self._label} [{bar:<{_WIDTH}}] {share:4.0%}  {rate:,.0f} {self._unit}/s  {left:,.0f} s left"
        sys.stderr.write(f"\r{line:<79}")
        sys.stderr.flush()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._drawn:
            sys.stderr.write(f"\r{'':<79}\r")
            sys.stderr.flush()
