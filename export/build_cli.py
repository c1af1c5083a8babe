"""``sentport build``."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from sentport.cli.options import Container, whole

if TYPE_CHECKING:
    from export.build import BuildOptions, Outline
    from sentport.bundle import Bundle
    from sentport.plans import Plan

DESCRIPTION = "Build TensorRT plans of a bundle's portable graphs, with profiles planned on your texts."
EXAMPLE = "sentport build minilm.bundle --builder rtx --corpus texts.txt"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("bundle", metavar="BUNDLE", type=Path, help="bundle folder; plans go into its engines/")
    parser.add_argument("--layout", help="comma-separated: padded, packed (default: all portable graphs)")
    parser.add_argument("--precision", help="comma-separated: fp32, fp16, bf16, int8 (default: all portable graphs)")
    parser.add_argument(
        "--corpus", metavar="FILE", type=Path, help="texts like yours, one a line (default: the bundle's)"
    )
    add_plan_arguments(parser)
    parser.add_argument("--force", action="store_true", help="replace a plan of the same name")
    parser.add_argument("--json", action="store_true", help="print the plans' JSON")


def add_plan_arguments(parser: Container) -> None:
    """Declare how plans are built, which ``sentport export --tensorrt`` takes too."""
    parser.add_argument("--builder", choices=("trt", "rtx"), help="TensorRT, or TensorRT for RTX, which needs no GPU")
    parser.add_argument("--profiles", type=whole(1, 64), default=4, metavar="K", help="how many to plan (4)")
    parser.add_argument(
        "--edges", type=_edges, default=(), metavar="N,N,…", help="tokens that profiles end at, by hand"
    )
    parser.add_argument("--token-budget", type=whole(1), metavar="N", help="computed tokens of a batch (16384)")
    parser.add_argument("--max-rows", type=whole(1), default=1024, metavar="N", help="rows of a batch at most (1024)")
    parser.add_argument("--workspace", type=whole(1), metavar="MIB", help="scratch memory of a layer at most")
    parser.add_argument("--timing-cache", metavar="FILE", type=Path, help="trt: timings of this machine, kept there")
    parser.add_argument("--other-devices", action="store_true", help="trt: run on all devices from Ampere on")
    parser.add_argument("--newer-versions", action="store_true", help="trt: load in later versions of TensorRT too")
    parser.add_argument(
        "--compute-capability", default="", metavar="X.Y,…", help="rtx: devices to build for (default: 8.0 and later)"
    )


def _edges(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers, as 16,32,64") from None


def run(arguments: argparse.Namespace) -> int:
    """Build and report."""
    from export.build import build_plans
    from sentport.bundle import read_bundle

    layouts, precisions = names(arguments.layout), names(arguments.precision)
    options = options_of(arguments, layouts, precisions)
    bundle = read_bundle(arguments.bundle)
    report(bundle, build_plans(bundle, options, steps_to_stderr(arguments)), as_json=arguments.json)
    return 0


def options_of(
    arguments: argparse.Namespace, layouts: tuple[str, ...] | None, precisions: tuple[str, ...] | None
) -> BuildOptions:
    """The options as declared above.

    Raises:
        SentportError: When no builder is named, or an option is not for it.
    """
    from export.build import BuildOptions
    from export.tensorrt import Target
    from sentport.engines import TOKEN_BUDGETS
    from sentport.errors import SentportError

    if arguments.builder is None:
        raise SentportError("name a builder: --builder trt (on the GPU that is to run it) or rtx (needs no GPU)")
    target = Target(
        builder=arguments.builder,
        compute_capabilities=names(arguments.compute_capability) or (),
        other_devices=arguments.other_devices,
        newer_versions=arguments.newer_versions,
        workspace_mib=arguments.workspace,
        timing_cache=arguments.timing_cache,
    )
    return BuildOptions(
        target=target,
        layouts=layouts,
        precisions=precisions,
        corpus=arguments.corpus,
        profiles=arguments.profiles,
        edges=arguments.edges,
        token_budget=arguments.token_budget or TOKEN_BUDGETS["cuda"],
        max_rows=arguments.max_rows,
        force=arguments.force,
    )


def report(bundle: Bundle, built: list[tuple[Plan, Outline]], *, as_json: bool) -> None:
    """Print what was built."""
    if as_json:
        print(json.dumps([asdict(plan) for plan, _ in built]))
        return
    from sentport.cli.plans import plan_lines

    for plan, outline in built:
        print("\n".join(plan_lines(bundle, plan)))
        if outline.planned and outline.one and outline.equal:
            what = "of computed tokens are pads" if plan.layout == "padded" else "of profiles' tokens are not used"
            print(
                f"{'expected':<15} {outline.planned.waste:.1%} {what}; with one profile for all "
                f"{outline.one.waste:.1%}, with {len(outline.equal.edges)} of equal width {outline.equal.waste:.1%}"
            )


def steps_to_stderr(arguments: argparse.Namespace) -> Callable[[str], None]:
    """Says each step with its time, unless ``--quiet``."""
    start = time.monotonic()

    def say(message: str) -> None:
        if not arguments.quiet:
            print(f"[{time.monotonic() - start:5.1f} s] {message}", file=sys.stderr, flush=True)

    return say


def refuse_plan_options(arguments: argparse.Namespace) -> None:
    """Raises SentportError when options of a build were given to an export that builds nothing."""
    from sentport.errors import SentportError

    parser = argparse.ArgumentParser()
    add_plan_arguments(parser)
    given = [name for name, default in vars(parser.parse_args([])).items() if getattr(arguments, name) != default]
    if given:
        raise SentportError(f"--{given[0].replace('_', '-')} is for --tensorrt, which was not given")


def names(text: str | None) -> tuple[str, ...] | None:
    """A comma-separated option; None where it was not given."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(","))) if text else None
