"""``sentport bench run`` and ``sentport bench peer``."""

from __future__ import annotations

import argparse
import os
from functools import partial
from pathlib import Path

from bench.cli_checks import check_folder, numbers, say_of, words
from sentport.cli.steps import Steps, add_step

_RUN_EXAMPLE = (
    "sentport bench run --checkpoint ./all-MiniLM-L6-v2 --bundle minilm.bundle --out bench-out\n"
    "  sentport bench run bench/grids/readme.toml"
)
_PEER_EXAMPLE = "sentport bench peer sentence-transformers-onnx"


def add(steps: Steps[argparse.ArgumentParser]) -> None:
    """Declare both steps."""
    _add_run(add_step(steps, "run", "measure what is not yet measured, into raw records", _RUN_EXAMPLE, _measure))
    peer = add_step(steps, "peer", "make the environment of a peer, once", _PEER_EXAMPLE, _peer)
    peer.add_argument("name", help="such as sentence-transformers-onnx")
    peer.add_argument(
        "--environments", metavar="DIR", default="build/envs", help="folder of the peers' environments (%(default)s)"
    )


def _add_run(parser: argparse.ArgumentParser) -> None:
    """Options without defaults: those of the grid, and where it says nothing, ours (``bench/grid_file.py``)."""
    parser.add_argument(
        "grid", metavar="GRID", type=Path, nargs="?", help="TOML file of what to measure; options go over it"
    )

    add = partial(parser.add_argument, default=argparse.SUPPRESS)
    add("--checkpoint", help="the source model, whose vectors are right", metavar="DIR")
    add("--bundle", help="its bundle, for the rows of our engines", metavar="BUNDLE")
    add("--out", help="folder for raw files; what is finished in it of GRID is skipped", metavar="DIR", dest="records")
    add(
        "--contestants",
        help="sentence-transformers,torch,onnxruntime,native,triton; also openvino and peers",
        type=words,
    )
    add("--precision", help="fp32,int8-ort: the bundle's graphs, side by side (auto)", type=words)
    add("--layout", help="padded,packed: likewise (those it has)", type=words)
    add("--sessions", help="engine calls in flight, side by side; 0 = the engine's choice (0)", type=numbers)
    add("--threads", help="compute threads in all, a table each (the cores allowed)", type=numbers)
    add("--device", help="cpu or cuda, a table each; a row that runs elsewhere is an error (cpu)", type=words)
    add("--corpus", help="any,stsb,queries,web,long,pool,docs or files of lines, a table each (any)", type=words)
    add("--texts", help="texts to draw from each corpus (all)", metavar="N", type=int)
    add("--equal", help="texts of one length too (yes)", action=argparse.BooleanOptionalAction)
    add("--policies", help="one-by-one,arrival,smart,token-budget", type=words)
    add("--tokenisation", help="both adds rows without it (both)", choices=("inside", "both"))
    add(
        "--quality",
        help="STS-B's Spearman too, neighbours kept, and texts alone against in company",
        action="store_true",
    )
    add("--probe", help="start-up, memory and single texts too, in processes of their own", action="store_true")
    add("--triton", help="http://host:port, or host:port for gRPC; repeats", metavar="URL", action="append")
    add("--triton-model", help="the model's name on that server", metavar="NAME")
    add("--serve", help="start our own Triton server, for its rows", action=argparse.BooleanOptionalAction)
    add("--clients", help="that send to a server at the same time (16); one number, or one a row", type=numbers)
    add("--texts-per-request", help="a row each (16)", type=numbers)
    add("--warmup", help="calls that do not count (1)", metavar="N", type=int)
    add("--repeats", help="timed rounds, at least (5)", metavar="N", type=int)
    add("--most", help="timed rounds, at most (as many)", metavar="N", type=int)
    add("--tight", help="a row is known once its ratio is within this share on either side (0.03)", type=float)
    add("--seed", help="of the order and the draw (5)", metavar="N", type=int)
    add("--environments", help="folder of the peers' environments (build/envs)", metavar="DIR")
    parser.add_argument("--write", metavar="FILE", type=Path, help="put GRID's table between its marks in that file")


def _measure(arguments: argparse.Namespace) -> int:
    """Measure; the raw file's path goes to stdout, or the table of the whole grid."""
    from bench.grid_file import DEFAULTS, complete, expand, read_grid
    from sentport.errors import SentportError
    from sentport.hardware import available_cores

    given = {name: value for name, value in vars(arguments).items() if name in DEFAULTS}
    model = {name: getattr(arguments, name) for name in ("checkpoint", "bundle") if hasattr(arguments, name)}
    if model:
        given["model"] = [model]
    values = complete(*([read_grid(arguments.grid)] if arguments.grid else []), given)
    if values["records"] is None:
        raise SentportError("no folder for raw files is named; give --out DIR")
    out = Path(values["records"])
    check_folder(out)
    if arguments.write:
        from bench.summary import between_marks

        if not arguments.grid:
            raise SentportError("--write puts a grid's table into a file, and no grid is given; name a TOML file")
        between_marks(arguments.write, values["name"])  # else the run would be for nothing
    # Rows are compared at equal threads, and the tokenizers of the baseline have a pool of their own.
    os.environ.setdefault("RAYON_NUM_THREADS", str(max(values["threads"] or [available_cores()])))
    from bench.measure import measure, unfinished

    say = say_of(arguments)
    raw = measure(unfinished(list(expand(values)), out, say), out, say, progress=not arguments.quiet)
    if arguments.grid:
        _show(out, values["name"], arguments.write)
    else:
        print(raw or f"everything had been measured; its records lie in {out}")
    return 0


def _show(out: Path, name: str, file: Path | None) -> None:
    """Print the short table of a grid's records, and put it where it is wanted."""
    from bench.metrics import sections
    from bench.records import read_records
    from bench.summary import summary, write_between_marks

    table = summary(sections(read_records(sorted(out.glob("*.jsonl")))))
    print(f"{table}\n\nall of it: sentport bench report --raw {out} --out {out.name}-report")
    if file:
        write_between_marks(file, name, table)


def _peer(arguments: argparse.Namespace) -> int:
    """Make or find a peer's environment; its Python goes to stdout."""
    from bench.peers import environment_of, requirements
    from bench.peers.environments import peer_python

    name = environment_of(arguments.name)
    print(peer_python(name, requirements()[name], Path(arguments.environments)))
    return 0
