"""``sentport bench``: measure, and show what was measured."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from sentport.cli.steps import add_step, add_steps, run_step

if TYPE_CHECKING:
    from sentport.scheduler import BatchPolicy

DESCRIPTION = "Measure sentences per second of every way to run a model, and report it with its conditions."
EXAMPLE = (
    "sentport bench run --checkpoint ./all-MiniLM-L6-v2 --bundle minilm.bundle --out bench-out\n"
    "  sentport bench report --raw bench-out/*.jsonl --out bench-out"
)
PEER_EXAMPLE = "sentport bench peer sentence-transformers-onnx"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the steps and their options."""
    steps = add_steps(parser, "run|report|peer")
    _add_run(add_step(steps, "run", "measure and write raw records, a new file for every run", EXAMPLE, measure_step))
    _add_report(add_step(steps, "report", "raw records to a table and a page", EXAMPLE, report_step))
    peer = add_step(steps, "peer", "make the environment of a peer, once", PEER_EXAMPLE, peer_step)
    peer.add_argument("name", help="such as sentence-transformers-onnx")
    _add_environments(peer)


def run(arguments: argparse.Namespace) -> int:
    """Do the step asked for."""
    return run_step(arguments)


def measure_step(arguments: argparse.Namespace) -> int:
    """Measure; the raw file's path goes to stdout."""
    from sentport.errors import SentportError
    from sentport.hardware import available_cores

    for name in ("texts", "clients", "texts_per_request", "threads", "warmup", "repeats"):
        check_counts(name, getattr(arguments, name))
    check_folder(arguments.out)
    threads = available_cores() if arguments.threads is None else arguments.threads
    # Rows are compared at equal threads, and the tokenizers of the baseline have a pool of their own.
    os.environ.setdefault("RAYON_NUM_THREADS", str(threads))
    from bench.corpus import load_corpus, stsb_pairs
    from bench.grid import RunOptions, ServerTarget, measure
    from bench.run import Settings

    servers = tuple(
        ServerTarget(url, arguments.triton_model, arguments.clients, size)
        for url in arguments.triton
        for size in arguments.texts_per_request
    )
    if servers and not arguments.triton_model:
        raise SentportError("--triton names a server but not its model; add --triton-model NAME")
    options = RunOptions(
        checkpoint=arguments.checkpoint,
        bundle=arguments.bundle,
        precisions=_words(arguments.precision),
        layouts=None if arguments.layout is None else _words(arguments.layout),
        corpus=load_corpus(arguments.corpus),
        contestants=_words(arguments.contestants),
        policies=tuple(_policy(name) for name in _words(arguments.policies)),
        apart=arguments.tokenisation == "both",
        flat=arguments.flat,
        servers=servers,
        settings=Settings(arguments.warmup, arguments.repeats, arguments.seed),
        threads=threads,
        device=arguments.device,
        texts=arguments.texts,
        pairs=stsb_pairs() if arguments.quality else None,
        environments=arguments.environments,
    )
    print(measure(options, arguments.out, _say(arguments), progress=not arguments.quiet))
    return 0


def report_step(arguments: argparse.Namespace) -> int:
    """Report; with ``--json`` the rows go to stdout, else the tables."""
    from bench.findings import findings
    from bench.metrics import sections
    from bench.records import read_records
    from bench.report import headlines, render_table, write_report

    check_folder(arguments.out)
    parts = sections(read_records([*arguments.raw, *arguments.merge]))
    markdown, page = write_report(parts, arguments.out)
    if arguments.json:
        print(json.dumps({"page": str(page), "table": str(markdown), "sections": [asdict(part) for part in parts]}))
        return 0
    for part in parts:
        print(f"{part.title}\n{render_table(part)}\n")
    for line in headlines(findings(parts)):
        print(line)
    print(f"page     {page}\ntable    {markdown}")
    return 0


def peer_step(arguments: argparse.Namespace) -> int:
    """Make or find a peer's environment; its Python goes to stdout."""
    from bench.peers import peer_python

    print(peer_python(arguments.name, arguments.environments))
    return 0


def check_counts(option: str, value: int | list[int] | None) -> None:
    """Refuse a number of something that is 0 or less, before anything is loaded.

    Args:
        option: Its name, as an attribute.
        value: One or several; None = not given.

    Raises:
        SentportError: Naming the option.
    """
    from sentport.errors import SentportError

    for number in value if isinstance(value, list) else [value]:
        if number is not None and number < 1:
            raise SentportError(f"--{option.replace('_', '-')} is {number}; expected 1 or more")


def check_folder(out: Path) -> None:
    """Refuse a folder for results that is a file, or would lie in one.

    Raises:
        SentportError: Naming the file.
    """
    from sentport.errors import SentportError

    found = next((path for path in (out, *out.parents) if path.exists()), out)
    if found.exists() and not found.is_dir():
        raise SentportError(f"--out {out}: {found} is a file; expected a folder, which is made where it is missing")


def _add_run(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--checkpoint", metavar="DIR", type=Path, required=True, help="the source model, whose vectors are right")
    add("--bundle", metavar="BUNDLE", type=Path, help="its bundle, for the onnxruntime rows")
    add("--precision", metavar="NAMES", default="auto", help="fp32,int8-ort: its graphs, side by side (%(default)s)")
    add("--layout", metavar="NAMES", help="padded,packed: the bundle's graphs, side by side (default: those it has)")
    add(
        "--corpus", metavar="FILE", type=Path, help="one sentence a line (default: STS-B, else CPython's documentation)"
    )
    add("--texts", metavar="N", type=int, help="texts to draw from it (default: all)")
    add("--out", metavar="DIR", type=Path, required=True, help="folder for the raw file")
    add(
        "--contestants",
        default="sentence-transformers,torch,onnxruntime,triton",
        help="comma-separated (%(default)s); also openvino, sentence-transformers-onnx, sentence-transformers-qint8",
    )
    add("--quality", action="store_true", help="STS-B's Spearman too, and texts alone against texts in company")
    _add_environments(parser)
    add("--policies", default="one-by-one,arrival,smart,token-budget", help="comma-separated (%(default)s)")
    add("--tokenisation", choices=("inside", "both"), default="both", help="both adds rows without it (%(default)s)")
    add("--flat", action=argparse.BooleanOptionalAction, default=True, help="texts of one length too (yes)")
    add("--triton", metavar="URL", action="append", default=[], help="http://host:port, or host:port for gRPC; repeats")
    add("--triton-model", metavar="NAME", help="the model's name on that server")
    add("--clients", metavar="N", type=int, default=16, help="that send to it at the same time (%(default)s)")
    add("--texts-per-request", metavar="N", type=int, nargs="+", default=[16], help="a row each (16)")
    add("--device", choices=("cpu", "cuda"), default="cpu", help="a row that runs elsewhere is an error (%(default)s)")
    add("--threads", metavar="N", type=int, help="compute threads (default: the cores allowed)")
    add("--warmup", metavar="N", type=int, default=1, help="calls that do not count (%(default)s)")
    add("--repeats", metavar="N", type=int, default=5, help="timed calls a row (%(default)s)")
    add("--seed", metavar="N", type=int, default=5, help="of the order and the draw (%(default)s)")


def _add_environments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--environments",
        metavar="DIR",
        type=Path,
        default=Path("build/envs"),
        help="folder of the peers' environments (%(default)s)",
    )


def _add_report(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--raw", metavar="FILE", type=Path, nargs="+", required=True, help="raw files of `sentport bench run`")
    add("--merge", metavar="FILE", type=Path, nargs="+", default=[], help="records of bench.gpu_check, beside them")
    add("--out", metavar="DIR", type=Path, required=True, help="folder for report.html and report.md")
    add("--json", action="store_true", help="print the rows as JSON")


def _policy(name: str) -> BatchPolicy:
    from sentport.errors import SentportError
    from sentport.scheduler import BatchPolicy as Policies

    try:
        return Policies(name)
    except ValueError:
        known = ", ".join(policy.value for policy in Policies)
        raise SentportError(f"batch policy {name!r} is unknown; known: {known}") from None


def _words(value: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in value.split(",") if word.strip())


def _say(arguments: argparse.Namespace) -> Callable[[str], None]:
    def say(message: str) -> None:
        if not arguments.quiet:
            print(message, file=sys.stderr, flush=True)

    return say
