"""What the commands of the benchmark check before they load anything, and how they speak."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path

from sentport.errors import SentportError

# Clients of a server: each is a thread and a connection here.
MOST_CLIENTS = 1024


def check_counts(option: str, value: int | list[int] | None, least: int = 1) -> None:
    """Refuse a number of something that is too small, or a list of none, before anything is loaded.

    Args:
        option: Its name, as an attribute.
        value: One or several; None = not given.
        least: What is enough.

    Raises:
        SentportError: Naming the option.
    """
    for number in value or [0] if isinstance(value, list) else [value]:
        if number is not None and number < least:
            raise SentportError(f"--{option.replace('_', '-')} is {number}; expected {least} or more")


def check_finite(option: str, value: float | list[float] | None) -> None:
    """Refuse a measure that is 0, less, or no finite number.

    Args:
        option: Its name, as an attribute.
        value: One or several; None = not given.

    Raises:
        SentportError: Naming the option.
    """
    for number in value if isinstance(value, list) else [value]:
        if number is not None and not 0 < number < math.inf:
            raise SentportError(f"--{option.replace('_', '-')} is {number}; expected a finite number above 0")


def check_folder(out: Path) -> None:
    """Refuse a folder for results that is a file, or would lie in one.

    Raises:
        SentportError: Naming the file.
    """
    found = next((path for path in (out, *out.parents) if path.exists()), out)
    if found.exists() and not found.is_dir():
        raise SentportError(f"--out {out}: {found} is a file; expected a folder, which is made where it is missing")


def words(value: str) -> list[str]:
    """The words of a comma-separated list."""
    return [word.strip() for word in value.split(",") if word.strip()]


def numbers(value: str) -> list[int]:
    """The whole numbers of a comma-separated list, for argparse.

    Raises:
        ArgumentTypeError: When there is something else.
    """
    try:
        return [int(word) for word in words(value)]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{value!r} is no list of whole numbers; expected N,N") from None


def say_of(arguments: argparse.Namespace) -> Callable[[str], None]:
    """What takes progress lines: stderr, or nothing where the user wants quiet."""

    def say(message: str) -> None:
        if not arguments.quiet:
            print(message, file=sys.stderr, flush=True)

    return say
