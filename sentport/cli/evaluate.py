"""``sentport evaluate``."""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sentport.cli.options import add_layout_argument

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sentport.cli.evaluate_report import Evaluated
    from sentport.cli.systems import System
    from sentport.encoder import EncoderInfo, TextEncoder
    from sentport.evaluation.embeddings import Embeddings, VectorStore
    from sentport.evaluation.geometry import Geometry
    from sentport.evaluation.tasks import Score, Settings

DESCRIPTION = """\
Score encoders on semantic textual similarity and on SentEval's transfer tasks, several side by side.

A system is a bundle, a checkpoint folder, or a model on a running server: http://host:port/model or
grpc://host:port/model. Tasks: sts12 to sts16, stsb, sickr (group sts); mr, cr, subj, mpqa, sst2, trec, mrpc (group
transfer); wikisec, args, argscross (group other). The table goes to stdout, progress to stderr."""
EXAMPLE = "sentport evaluate minilm.bundle ./all-MiniLM-L6-v2 --tasks sts,transfer --data ./data"
DATA_VARIABLE = "SENTPORT_DATA"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("systems", metavar="SYSTEM", nargs="+", help="bundle, checkpoint folder, or server address")
    tasks = parser.add_argument_group("tasks")
    add = tasks.add_argument
    add("--tasks", default="sts", metavar="NAMES", help="tasks or groups, with commas between (%(default)s)")
    add("--data", metavar="DIR", help=f"folder of the data files (default: ${DATA_VARIABLE})")
    add("--texts", default="raw", choices=("raw", "senteval"), help="STS texts as released, or as SentEval has them")
    add("--split", default="test", choices=("train", "dev", "test"), help="of STS-B and SICK-R (%(default)s)")
    add("--aggregation", default="all", help="of a task's subsets: all (pooled), mean, wmean (%(default)s)")
    add("--similarity", default="cosine", help="cosine, dot, euclidean or manhattan (%(default)s)")
    add("--correlation", default="spearman", help="shown for STS: spearman or pearson (%(default)s)")
    add("--control", action="store_true", help="score STS against shuffled gold too: a row that must be near 0")
    encoding = parser.add_argument_group("encoding; one value for all systems, or one each with commas between")
    add = encoding.add_argument
    add("--engine", default="auto", metavar="NAMES", help="auto, native, onnxruntime, openvino or torch")
    add("--precision", default="auto", metavar="NAMES", help="auto = fp32 where there is one")
    add_layout_argument(encoding)
    add("--device", default="auto", metavar="NAMES", help="auto, cpu or cuda")
    add("--threads", type=int, metavar="N", help="compute threads in this process (default: the cores allowed)")
    add("--prompt", help='name of a saved prompt; "" = none (default: the default prompt)')
    add("--dim", type=int, metavar="N", help="cut vectors to their first N values")
    add(
        "--vectors",
        default="float32",
        metavar="TYPES",
        help="types that vectors are kept in, each scored: float32, float16, int8, binary, with commas between",
    )
    output = parser.add_argument_group("output")
    add = output.add_argument
    add("--cache", type=Path, metavar="DIR", help="keep vectors there between runs; a server is always asked anew")
    add("--plots", type=Path, metavar="DIR", help="draw the spaces, as STS-B shows them, into PNG files there")
    add("--json", action="store_true", help="print the report as JSON")


@dataclass(frozen=True, slots=True)
class _Run:
    """All that is decided and read before the first system is opened."""

    settings: Settings
    scores: Mapping[str, Score]
    prompt: str | None
    dim: int | None
    vectors: tuple[str, ...]
    cache: Path | None
    quiet: bool


def run(arguments: argparse.Namespace) -> int:
    """Read the data, evaluate one system after the other, report."""
    from sentport.cli.evaluate_report import as_json, as_text
    from sentport.cli.systems import try_to_open

    systems = _systems(arguments)
    prepared = _prepare(arguments)
    try_to_open(systems[1:])
    named = zip(_labels(systems), systems, strict=True)
    evaluated = [found for label, system in named for found in _evaluate(label, system, prepared)]
    print(as_json(evaluated, prepared.settings) if arguments.json else as_text(evaluated, prepared.settings))
    if arguments.plots:
        _plot(arguments, evaluated, prepared)
    return 0


def _systems(arguments: argparse.Namespace) -> list[System]:
    from sentport.cli.systems import System
    from sentport.errors import SentportError

    count = len(arguments.systems)
    options: dict[str, list[str]] = {}
    for name in ("engine", "precision", "layout", "device"):
        values = getattr(arguments, name).split(",")
        if len(values) not in (1, count):
            raise SentportError(f"--{name} has {len(values)} values for {count} systems; give one for all, or one each")
        options[name] = values * count if len(values) == 1 else values
    return [
        System(source, **{name: values[place] for name, values in options.items()}, threads=arguments.threads)
        for place, source in enumerate(arguments.systems)
    ]


def _prepare(arguments: argparse.Namespace) -> _Run:
    """Check the choices and read every task's data, so that a mistake costs seconds and not a run."""
    from sentport.errors import SentportError
    from sentport.evaluation.tasks import TASKS, Settings, choose_tasks
    from sentport.vectors import VECTOR_TYPES

    vectors = tuple(dict.fromkeys(arguments.vectors.split(",")))
    if unknown := [kind for kind in vectors if kind not in VECTOR_TYPES]:
        raise SentportError(f"--vectors {', '.join(unknown)} is unknown; known: {', '.join(VECTOR_TYPES)}")
    names = choose_tasks(arguments.tasks.split(","))
    data = arguments.data or os.environ.get(DATA_VARIABLE)
    if not data:
        raise SentportError(f"no data folder; add --data DIR, or set ${DATA_VARIABLE}")
    if arguments.plots:
        if "stsb" not in names:
            raise SentportError("--plots draws what STS-B shows; add stsb to --tasks")
        if arguments.plots.exists() and not arguments.plots.is_dir():
            raise SentportError(f"--plots {arguments.plots} is not a folder; name one, or one to make")
        import sentport.evaluation.plots  # noqa: F401 - what is missing is told now
    if arguments.control and not any(TASKS[name].group == "sts" for name in names):
        raise SentportError("--control shuffles the gold scores of STS tasks; add one to --tasks")
    settings = Settings(
        data=Path(data),
        texts=arguments.texts,
        split=arguments.split,
        aggregation=arguments.aggregation,
        similarity=arguments.similarity,
        correlation=arguments.correlation,
        control=arguments.control,
        threads=arguments.threads,
        progress=not arguments.quiet,
    )
    scores = {name: TASKS[name].prepare(settings) for name in names}
    return _Run(settings, scores, arguments.prompt, arguments.dim, vectors, arguments.cache, arguments.quiet)


def _labels(systems: list[System]) -> list[str]:
    """A name for each system: the end of its source, with more where that is not enough to tell them apart."""
    sources = [system.source for system in systems]
    names = [source.rstrip("/").rpartition("/")[2] for source in sources]
    if len(set(names)) < len(set(sources)):
        names = sources
    for option in ("precision", "engine", "layout", "device"):
        values = [getattr(system, option) for system in systems]
        if len(set(names)) < len(names) and len(set(values)) > 1:
            names = [f"{name} {value}" for name, value in zip(names, values, strict=True)]
    return [f"{name} #{place}" if names.count(name) > 1 else name for place, name in enumerate(names, 1)]


def _evaluate(label: str, system: System, prepared: _Run) -> list[Evaluated]:
    """What was found, for each type of vectors; texts are computed for the first, and rounded for each."""
    from sentport.evaluation.embeddings import Embeddings

    with system.open() as encoder:
        store = _store(system, encoder, prepared)
        shown = not prepared.quiet
        embed = Embeddings(encoder, prompt=prepared.prompt, dim=prepared.dim, store=store, progress=shown)
        several = len(prepared.vectors) > 1
        return [
            _score(f"{label} {kind}" if several else label, system, encoder.info, embed, kind, prepared)
            for kind in prepared.vectors
        ]


def _score(label: str, system: System, info: EncoderInfo, embed: Embeddings, kind: str, prepared: _Run) -> Evaluated:
    from sentport.cli.evaluate_report import Evaluated
    from sentport.evaluation.embeddings import kept_as
    from sentport.evaluation.geometry import geometry
    from sentport.evaluation.tasks import TASKS, stsb_pairs

    start, computed = time.perf_counter(), embed.computed
    kept = kept_as(kind, embed)
    found = {}
    for name, score in prepared.scores.items():
        before, begun = embed.computed, time.perf_counter()
        found[name] = score(kept)
        if not prepared.quiet:
            work = f"{embed.computed - before} texts computed, {time.perf_counter() - begun:.1f} s"
            print(f"{label}: {TASKS[name].heading} {found[name].score:.2f} ({work})", file=sys.stderr, flush=True)
    space = geometry(stsb_pairs(prepared.settings), kept) if "stsb" in found else None
    return Evaluated(
        label=label,
        source=system.source,
        kind=system.kind,
        info=info,
        prompt=prepared.prompt,
        dim=prepared.dim or info.dim,
        vectors=kind,
        scores=found,
        space=space,
        computed=embed.computed - computed,
        reused=embed.reused,
        seconds=time.perf_counter() - start,
    )


def _store(system: System, encoder: TextEncoder, prepared: _Run) -> VectorStore | None:
    """Where the vectors are kept, under all that decides them; of a bundle that is also which graphs it holds."""
    from sentport.bundle import DESCRIPTION_FILE, sha256_of
    from sentport.evaluation.embeddings import VectorStore
    from sentport.inputs import prompt_text

    if prepared.cache is None or system.kind == "server":
        return None
    info = encoder.info
    graphs = sha256_of(Path(system.source, DESCRIPTION_FILE)) if system.kind == "bundle" else ""
    prefix = prompt_text(info.prompts, info.default_prompt, prepared.prompt)
    dim = str(prepared.dim or info.dim)
    identity = (info.fingerprint, info.precision, info.engine, info.layout, info.device, graphs, prefix, dim)
    return VectorStore(prepared.cache, identity)


def _plot(arguments: argparse.Namespace, evaluated: list[Evaluated], prepared: _Run) -> None:
    from sentport.evaluation.plots import write_plots

    spaces: dict[str, Geometry] = {found.label: found.space for found in evaluated if found.space}
    files = write_plots(arguments.plots, spaces, f"STS-B {prepared.settings.split}")
    if not arguments.quiet:
        print(f"drawn: {', '.join(map(str, files))}", file=sys.stderr)
