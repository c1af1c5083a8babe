"""Commands of several steps, such as ``sentport search build|query``."""

from __future__ import annotations

import argparse
from collections.abc import Callable

Steps = argparse._SubParsersAction  # argparse gives it no public name


def add_steps(parser: argparse.ArgumentParser, names: str) -> Steps[argparse.ArgumentParser]:
    """Declare that a command takes one of some steps, ``a|b`` in its usage line."""
    return parser.add_subparsers(dest="step", metavar=names, required=True)


def add_step(
    steps: Steps[argparse.ArgumentParser],
    name: str,
    help_line: str,
    example: str,
    do: Callable[[argparse.Namespace], int],
) -> argparse.ArgumentParser:
    """Declare one step, with the options that every command has."""
    parser = steps.add_parser(
        name,
        help=help_line,
        description=f"{help_line[0].upper()}{help_line[1:]}.",
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(do=do)
    # Without a default of its own, so that -q in front of the step's name is not undone.
    for short, long, text in (("-v", "--verbose", "say more"), ("-q", "--quiet", "say only what failed")):
        parser.add_argument(short, long, action="store_true", default=argparse.SUPPRESS, help=text)
    return parser


def run_step(arguments: argparse.Namespace) -> int:
    """Do the step asked for."""
    step: Callable[[argparse.Namespace], int] = arguments.do
    return step(arguments)
