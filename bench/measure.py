"""Runs a grid block by block: opens, skips what has been measured before, times, probes, and writes raw records."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

from bench.cases import Case, Workload
from bench.fields import BLOCK, OBSERVATION
from bench.grid import Opened, RunOptions, make_cases, make_workloads, open_contestants, placeholder, questions_of
from bench.grid_file import Block
from bench.models import provide_model
from bench.probe import can_probe, probe
from bench.records import BENCHMARK, Record, Writer, read_file, run_conditions
from bench.roofline import measure_ceilings
from bench.run import Say, Session
from bench.server import served
from sentport.errors import SentportError

Identity = tuple[tuple[str, object], ...]

# What a case is found again by.
_IDENTITY = (
    *("model_asked", "threads_asked", "device_asked", "corpus", "corpus_source", "texts"),
    *("contestant", "policy", "batch", "tokenisation_inside"),
)


def measure(blocks: Sequence[RunOptions], out: Path, say: Say, *, progress: bool = True) -> Path | None:
    """Measure all cases of a grid that its folder has no whole record of.

    Args:
        blocks: What to measure, of one grid; none is nothing to do.
        out: Folder of the raw files.
        say: Takes progress lines.
        progress: Show bars on stderr when that is a terminal.

    Returns:
        The raw file, new for this run; None where everything had been measured.

    Raises:
        SentportError: When a contestant cannot be opened, ran on another device than the one asked for, or another run
            is at work there.
    """
    if not blocks:
        return None
    shared = run_conditions() | ({"grid": blocks[0].grid} if blocks[0].grid else {})
    with alone_in(out):
        finished = finished_cases(earlier_records(out), blocks[0].grid)
        with Writer(out, shared) as writer:
            for block in blocks:
                with served(block, out / "server.log", say) as options:
                    _measure_block(options, writer, shared, finished, say, progress)
    return writer.path if writer.path.exists() else None


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """The only run at work in a folder: another would measure the same rows, and disturb this one's times.

    Raises:
        SentportError: When there is another.
    """
    folder.mkdir(parents=True, exist_ok=True)
    place = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SentportError(f"another run is at work in {folder}; wait for it, or name another folder") from None
        yield
    finally:
        os.close(place)


def _measure_block(
    options: RunOptions, writer: Writer, shared: Record, finished: set[Identity], say: Say, progress: bool
) -> None:
    missing = list(options.missing)
    with ExitStack() as closing:
        opened = open_contestants(options, missing)
        contestants = [each.contestant for each in opened]
        for contestant in contestants:
            closing.callback(contestant.close)
        workloads = make_workloads(options, contestants[0], say)
        asked = options.texts or 0
        for corpus in (workload.corpus for workload in workloads):
            if len(corpus.texts) < asked:
                say(f"{corpus.name} has {len(corpus.texts)} texts, {asked} were asked for")
        every = make_cases(options, contestants, workloads)
        cases = wanted_cases(every, finished)
        if len(cases) < len(every):
            say(f"{len(every) - len(cases)} of {len(every)} rows have been measured before")
        session = Session(writer, shared, options.settings, say, progress, questions_of(options, contestants[0]))
        for place, (name, reason) in enumerate(missing, start=len(every)):
            session.not_run(placeholder(name, place, options, workloads[0]), reason)
        if cases and options.ceilings:
            _write_ceilings(writer, options)
        say(f"measuring {len(cases)} rows, {options.settings.repeats} interleaved rounds or more")
        session.run(cases)
        if options.probe:
            names = {case.contestant.name for case in cases}
            _probe(writer, options, [each for each in opened if each.contestant.name in names], workloads[0], say)
        if options.signature and not session.broken:  # what broke is tried again by the next run
            writer.write(BLOCK, {"signature": options.signature})


def unfinished(blocks: Sequence[Block], out: Path, say: Say) -> list[RunOptions]:
    """The blocks of a grid that were not measured to their end, their models made where they are missing."""
    done = finished_blocks(earlier_records(out)) if any(block.values["name"] for block in blocks) else set()
    wanted = [block for block in blocks if block.signature not in done]
    if len(wanted) < len(blocks):
        say(
            f"{len(blocks) - len(wanted)} of {len(blocks)} blocks have been measured before; their records lie in {out}"
        )
    for block in wanted:
        bundle = block.values["bundle"]
        provide_model(Path(block.values["checkpoint"]), Path(bundle) if bundle else None, block.values["export"])
    return [block.options() for block in wanted]


def wanted_cases(cases: Sequence[Case], finished: set[Identity]) -> list[Case]:
    """The cases that have not been measured before, with the baseline of their corpus, which ratios need."""
    new = {case.place: case.workload.corpus.name for case in cases if _key(case.identity) not in finished}
    corpora = set(new.values())
    return [case for case in cases if case.place in new or (case.baseline and case.workload.corpus.name in corpora)]


def finished_cases(records: Iterable[Record], grid: str) -> set[Identity]:
    """Identities of the cases of a grid that have as many timed rounds as they were to have; none without a name."""
    rounds: dict[Identity, set[object]] = {}
    planned: dict[Identity, int] = {}
    for record in records:
        if grid and record["kind"] == OBSERVATION and record.get("grid") == grid:
            key = _key(record)
            rounds.setdefault(key, set()).add((record["run"], record["repeat"]))
            planned[key] = record["repeats"]
    return {key for key, found in rounds.items() if len(found) >= planned[key]}


def finished_blocks(records: Iterable[Record]) -> set[str]:
    """Signatures of the blocks that were measured to their end."""
    return {record["signature"] for record in records if record["kind"] == BLOCK}


def earlier_records(out: Path) -> list[Record]:
    """What a folder of raw files holds of this benchmark."""
    records = (record for file in sorted(out.glob("*.jsonl")) for record in read_file(file))
    return [record for record in records if record["benchmark"] == BENCHMARK]


def _key(values: Record) -> Identity:
    return tuple((name, values.get(name)) for name in _IDENTITY)


def _write_ceilings(writer: Writer, options: RunOptions) -> None:
    for precision, flops in measure_ceilings(options.total_threads, options.device).items():
        found = {"precision": precision, "flops": flops, "device_asked": options.device}
        writer.write("ceiling", {**found, **options.block})


def _probe(writer: Writer, options: RunOptions, opened: Sequence[Opened], workload: Workload, say: Say) -> None:
    for each in opened:
        if not can_probe(each.spec):
            continue
        contestant = each.contestant
        say(f"start-up, memory and single texts of {contestant.name}")
        try:
            found = probe(each.spec, workload.corpus.texts)
        except SentportError as problem:
            say(f"not seen: {problem}")
            continue
        seen = {"contestant": contestant.name, **asdict(contestant.conditions()), **found}
        writer.write("probe", {**seen, **options.block, "device_asked": options.device})
