"""Options that several commands have."""

from __future__ import annotations

import argparse

Container = argparse._ActionsContainer  # a parser or a group of its options; argparse gives it no public name


def add_layout_argument(parser: Container, *, of_two: bool = False) -> None:
    """Declare ``--layout`` as ``sentport.Encoder`` takes it; ``of_two`` encoders: one value each."""
    says = "padded, packed (nothing computed for padding), or auto (the faster one by measure)"
    if of_two:
        parser.add_argument("--layout", nargs=2, default=["auto", "auto"], metavar=("OF_A", "OF_B"), help=says)
    else:
        parser.add_argument("--layout", default="auto", help=says)
