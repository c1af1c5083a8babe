"""``sentport train``."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sentport.cli.evaluate import DATA_VARIABLE

if TYPE_CHECKING:
    from training.loop import Log

DESCRIPTION = """\
Train a sentence encoder by a recipe, to a checkpoint folder that sentence-transformers and `sentport export` load.

RECIPE is the name of a recipe that sentport brings along (--list), or a .toml file. A run that is killed goes on where
it was when the same command is given again, to the same result. Several devices:
accelerate launch -m sentport train RECIPE --out DIR"""
EXAMPLE = "sentport train sbert-stsb-small --data ./data --out minilm-stsb --seeds 3"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("recipe", metavar="RECIPE", nargs="?", help="name of a recipe, or a .toml file")
    parser.add_argument("--out", metavar="DIR", type=Path, help="checkpoint folder to make")
    parser.add_argument(
        "--data",
        metavar="DIR",
        type=Path,
        default=Path(os.environ.get(DATA_VARIABLE, "")),
        help=f"folder that data files lie under (default: ${DATA_VARIABLE}, or the one you are in)",
    )
    parser.add_argument(
        "--set", metavar="FIELD=VALUE", action="append", default=[], help="change a field: training.batch_size=32"
    )
    parser.add_argument("--seeds", type=int, default=1, help="train with so many seeds, and keep the best on dev")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--threads", type=int, help="compute threads of a process (default: the cores allowed)")
    parser.add_argument("--tensorboard", metavar="DIR", help="write curves for TensorBoard there")
    parser.add_argument("--force", action="store_true", help="replace an existing folder, drop another unfinished run")
    parser.add_argument("--list", action="store_true", help="list the recipes that sentport brings along")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Train and report."""
    from sentport.errors import SentportError
    from training.recipe import describe_recipes

    if arguments.list:
        print("\n".join(f"{name:<20} {about}" for name, about in describe_recipes()))
        return 0
    if arguments.recipe is None or arguments.out is None:
        raise SentportError("expected RECIPE and --out DIR; --list names the recipes")
    from training.card import summary
    from training.loop import Reporting
    from training.run import Options, train

    start = time.monotonic()

    def say(message: str) -> None:
        if not arguments.quiet:
            print(f"[{time.monotonic() - start:6.1f} s] {message}", file=sys.stderr, flush=True)

    options = Options(
        data=arguments.data,
        settings=tuple(arguments.set),
        seeds=arguments.seeds,
        device=arguments.device,
        threads=arguments.threads,
        force=arguments.force,
    )
    with _curves(arguments.tensorboard) as log:
        try:
            results = train(arguments.recipe, arguments.out, options, Reporting(say, log, not arguments.quiet))
        except KeyboardInterrupt:
            say("stopped; the same command goes on from the last checkpoint that it told of")
            raise
    if not results:  # the first of several processes speaks for all
        return 0
    scores = summary(results)
    if arguments.json:
        report = {name: {"mean": centre, "deviation": spread} for name, (centre, spread) in scores.items()}
        print(json.dumps({"path": str(arguments.out), "seeds": len(results), "scores": report}))
        return 0
    print(f"checkpoint    {arguments.out}")
    for name, (centre, spread) in scores.items():
        print(f"{name:<13} {centre:.2f}" + (f" ± {spread:.2f} over {len(results)} seeds" if len(results) > 1 else ""))
    print(f"next          sentport export {arguments.out} --out {arguments.out}.bundle")
    return 0


@contextmanager
def _curves(folder: str | None) -> Iterator[Log]:
    """Writes figures of steps where TensorBoard finds them, or nowhere."""
    if folder is None:
        yield lambda name, step, figures: None
        return
    from sentport.errors import SentportError

    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise SentportError(
            f"--tensorboard needs the package tensorboard, not installed here: pip install 'sentport[train]' ({error})"
        ) from error
    with ExitStack() as opened:
        writers: list[SummaryWriter] = []  # none before the first figure: a mistake leaves no empty file

        def log(name: str, step: int, figures: dict[str, float]) -> None:
            if not writers:
                writers.append(opened.enter_context(SummaryWriter(folder)))  # type: ignore[no-untyped-call]
            for figure, value in figures.items():
                writers[0].add_scalar(f"{name}/{figure}", value, step)  # type: ignore[no-untyped-call]

        yield log
