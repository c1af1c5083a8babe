"""Options that several commands have."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

# What the libraries below hold in a C int.
MOST = 2**31 - 1
MOST_THREADS = 1024

Container = argparse._ActionsContainer  # a parser or a group of its options; argparse gives it no public name


def add_layout_argument(parser: Container, *, of_two: bool = False) -> None:
    """Declare ``--layout`` as ``sentport.Encoder`` takes it; ``of_two`` encoders: one value each."""
    says = "padded, packed (nothing computed for padding), or auto (the faster one by measure)"
    if of_two:
        parser.add_argument("--layout", nargs=2, default=["auto", "auto"], metavar=("OF_A", "OF_B"), help=says)
    else:
        parser.add_argument("--layout", default="auto", help=says)


def add_precision_argument(parser: Container) -> None:
    """Declare ``--precision`` as ``sentport.Encoder`` takes it."""
    parser.add_argument(
        "--precision", default="auto", help="fp32, fp16, bf16, int8, or auto: fp32 where there is one (default: auto)"
    )


def whole(least: int, most: int = MOST) -> Callable[[str], int]:
    """An argparse type: a whole number within bounds."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} to {most}")
        return value

    return parse


def finite(text: str) -> float:
    """An argparse type: a number, and not NaN or infinite."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a finite number")
    return value
