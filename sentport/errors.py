"""What can go wrong for a user, as one small tree of exceptions.

Every message is one line: what was found, what was expected, the way out. The command line prints it as it is.
"""

from __future__ import annotations


class SentportError(Exception):
    """A mistake or a condition that the user can mend; ``exit_code`` is what the command line ends with."""

    exit_code = 2


class BundleError(SentportError):
    """A bundle folder is damaged, incomplete, of another version, or not a bundle."""


class CheckpointError(SentportError):
    """A checkpoint folder cannot be read, or holds something that would have to be dropped."""


class EngineError(SentportError):
    """An engine, device or precision that was asked for is not delivered."""


class PrecisionError(EngineError):
    """A precision that an engine does not run on this machine."""


class GraphError(EngineError):
    """A bundle's graph is there and cannot be run."""


class InputError(SentportError):
    """Some of the texts or tokens handed in cannot be encoded; ``rows`` are their positions."""

    def __init__(self, message: str, rows: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.rows = rows


class TruncationError(InputError):
    """Texts are longer than the model's limit and truncation was declared an error; ``tokens`` are their lengths."""

    def __init__(self, message: str, rows: tuple[int, ...], tokens: tuple[int, ...]) -> None:
        super().__init__(message, rows)
        self.tokens = tokens


class GateError(SentportError):
    """Vectors differ from the source model's by more than the gate allows."""

    exit_code = 1


def list_rows(rows: list[int] | tuple[int, ...], shown: int = 8) -> str:
    """Row numbers for a message: the first few in full, the rest as a count."""
    head = ", ".join(str(row) for row in rows[:shown])
    return head if len(rows) <= shown else f"{head} and {len(rows) - shown} more"
