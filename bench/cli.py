"""``sentport bench``: measure, and show what was measured."""

from __future__ import annotations

import argparse

from bench import papers_cli, report_cli, run_cli
from sentport.cli.steps import add_steps, run_step

DESCRIPTION = "Measure sentences per second of every way to run a model, and report it with its conditions."
EXAMPLE = (
    "sentport bench run --checkpoint ./all-MiniLM-L6-v2 --bundle minilm.bundle --out bench-out\n"
    "  sentport bench report --raw bench-out/*.jsonl --out bench-out"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the steps and their options."""
    steps = add_steps(parser, "run|report|compare|table7|pair-search|growth|peer")
    run_cli.add(steps)
    papers_cli.add(steps)
    report_cli.add(steps)


def run(arguments: argparse.Namespace) -> int:
    """Do the step asked for."""
    return run_step(arguments)
