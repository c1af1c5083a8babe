"""A bulk run over many machines: Ray Data hands the missing parts to actors that hold an encoder each.

The driver reads the input once, for its positions; an actor reads the rows of its part itself. Parts are those of a
run on one machine, written by the same code, and the driver alone keeps the journal. When a worker dies, Ray starts
another and gives it the part again.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from sentport.bulk.blocks import cut_blocks
from sentport.bulk.inputs import STDIN, Inputs, Mark
from sentport.bulk.job import (
    InputChanged,
    Options,
    describe_job,
    make_ready,
    run_job,
    unfinished,
    write_part,
)
from sentport.bulk.journal import Job, Journal, PartRecord
from sentport.bulk.manifest import Manifest, short
from sentport.bulk.output import Output
from sentport.encoder import Encoder, EncoderInfo
from sentport.errors import SentportError
from sentport.progress import Progress

LOCAL = "local"
# What travels through Ray is the names of parts and what became of them.
_OBJECT_STORE_BYTES = 100_000_000


@dataclass(frozen=True, slots=True)
class Opening:
    """How every worker opens its encoder; arguments of ``sentport.Encoder``."""

    source: str
    engine: str = "auto"
    layout: str = "auto"
    precision: str = "auto"
    threads: int | None = None
    device: str = "auto"

    def open(self) -> Encoder:
        """The encoder."""
        return Encoder(**asdict(self))


@dataclass(frozen=True, slots=True)
class Share:
    """What a worker gets: how many there are, and of what each."""

    workers: int
    cpus: int
    gpus: int


def encode_files_on_ray(
    opening: Opening,
    inputs: Inputs,
    output: Output,
    options: Options,
    *,
    address: str = LOCAL,
    workers: int | None = None,
    force: bool = False,
    progress: bool = False,
) -> tuple[Manifest, int]:
    """``sentport.bulk.job.encode_files`` by the workers of a Ray cluster, which all see the same paths.

    Args:
        opening: How a worker opens its encoder.
        inputs: The texts; no standard input.
        output: Where the vectors go.
        options: How.
        address: Of the cluster; ``local`` starts one on this machine, on loopback.
        workers: How many; None = one a machine, or one a GPU for device ``cuda``.
        force: Drop an unfinished run of another job, or over other texts.
        progress: Show a progress line.

    Returns:
        The manifest and the number of workers.

    Raises:
        SentportError: As ``encode_files`` does, and when Ray is not there or a worker fails.
    """
    if STDIN in inputs.files:
        raise SentportError("workers cannot read this process's standard input; name a file")
    with _cluster(address):
        share = _shares(opening, workers)
        asked = replace(opening, threads=share.cpus)
        info, source, graph = _probe(asked, share)
        job = describe_job(info, source, graph, inputs, output, options)

        def encode_parts(journal: Journal, bar: Progress) -> None:
            _encode_parts(journal, bar, asked, inputs, share, stop_on_bad=options.stop_on_bad)

        told_limit = info.max_tokens if options.on_truncate == "warn" else None
        manifest = run_job(job, inputs, output, encode_parts, told_limit, force=force, progress=progress)
    return manifest, share.workers


@contextmanager
def _cluster(address: str) -> Iterator[None]:
    here = address == LOCAL
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # nothing is sent anywhere
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # what fails is told by an exception too
    if here:
        # Ray's own switch for a cluster of one machine: its servers listen on loopback. Read when it is imported.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    try:
        import ray
        import ray.data
    except ModuleNotFoundError as error:
        raise SentportError("Ray is not installed; pip install 'sentport[scale]'") from error
    try:
        ray.init(
            address=address,
            object_store_memory=_OBJECT_STORE_BYTES if here else None,
            include_dashboard=False if here else None,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except Exception as error:  # Ray raises it bare where a node does not start in time
        way_out = "free some of this machine's cores" if here else "start it, or leave the address out"
        raise SentportError(f"no Ray cluster at {address} ({error}); {way_out}") from error
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        yield
    finally:
        ray.shutdown()


def _shares(opening: Opening, workers: int | None) -> Share:
    """One worker a machine with all its cores, or a GPU each, unless their number or threads are given."""
    import ray

    if workers is not None and workers < 1:
        raise SentportError(f"{workers} workers cannot be; expected 1 or more")
    resources = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    cores = [int(one["CPU"]) for one in resources if one.get("CPU", 0) >= 1]
    gpus = sum(int(one.get("GPU", 0)) for one in resources)
    if not cores:
        raise SentportError("the Ray cluster has no machine with a core to give")
    if opening.device == "cuda":
        if not gpus:
            raise SentportError("the Ray cluster has no GPU; use --device cpu")
        workers = min(workers or gpus, gpus)
    each = opening.threads or max(1, min(min(cores), sum(cores) // (workers or len(cores))))
    room = sum(count // each for count in cores)
    if not room:
        raise SentportError(f"no machine of the Ray cluster has {each} cores; give fewer --threads")
    return Share(min(workers or room, room), each, int(opening.device == "cuda"))


def _probe(opening: Opening, share: Share) -> tuple[EncoderInfo, str, str]:
    """What an encoder is, its source and graph, where the workers are: with other devices, maybe, than this process."""
    import ray

    def describe() -> tuple[EncoderInfo, str, str] | str:
        try:
            with opening.open() as encoder:
                return encoder.info, encoder.spec.source, encoder.graph
        except SentportError as error:
            return str(error)

    remote = ray.remote(num_cpus=share.cpus, num_gpus=share.gpus)(describe)
    found: tuple[EncoderInfo, str, str] | str = ray.get(remote.remote())
    if isinstance(found, str):
        raise SentportError(f"a worker cannot open the model: {found}")
    return found


def _encode_parts(
    journal: Journal, bar: Progress, opening: Opening, inputs: Inputs, share: Share, *, stop_on_bad: bool
) -> None:
    import ray.data

    tasks, expected = [], {}
    for number, blocks in groupby(unfinished(journal, inputs, bar), key=lambda block: block.part):
        first, *others = ((block.mark, block.sha256) for block in blocks)
        tasks.append({"task": json.dumps([number, *first[0]])})
        expected[number] = (others or [first])[-1][1]
    if not tasks:
        return
    done = ray.data.from_items(tasks, override_num_blocks=len(tasks)).map_batches(
        PartWorker,
        batch_size=1,
        batch_format="numpy",
        compute=ray.data.ActorPoolStrategy(size=min(share.workers, len(tasks))),
        num_cpus=share.cpus,
        num_gpus=share.gpus,
        fn_constructor_args=(opening, inputs, journal.job, str(journal.folder), os.getcwd(), stop_on_bad),
    )
    for row in done.iter_rows():
        if row["error"]:
            raise SentportError(f"a worker stopped: {row['error']}")
        record = PartRecord.from_json(row["record"])
        if record.input_sha256 != expected[record.part]:
            raise InputChanged(f"the input changed while it was read (part {record.part}); start again")
        if not journal.part_path(record.part).is_file():
            raise SentportError(f"{journal.folder} is not the same folder on all machines; name an output that is")
        journal.append(record)
        bar.advance(record.input_rows, record.tokens)


class PartWorker:
    """Encodes parts, one a call; Ray keeps one of them in each worker process.

    Args:
        opening: How to open the encoder.
        inputs: The texts.
        job: What is made.
        folder: The job's folder.
        home: The driver's working folder, which relative names refer to.
        stop_on_bad: Whether a bad row is an error.
    """

    def __init__(self, opening: Opening, inputs: Inputs, job: Job, folder: str, home: str, stop_on_bad: bool) -> None:
        os.chdir(home)
        self._encoder = opening.open()
        self._inputs, self._job, self._folder, self._stop_on_bad = inputs, job, Path(folder), stop_on_bad

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[str]]:
        """The record of one part, or what went wrong."""
        try:
            number, *mark = json.loads(str(batch["task"][0]))
            return {"record": [self._encode(number, Mark(*mark)).to_json()], "error": [""]}
        except (SentportError, OSError) as error:
            return {"record": [""], "error": [str(error)]}

    def _encode(self, number: int, mark: Mark) -> PartRecord:
        job, here = self._job, self._encoder.info
        found = {**asdict(here), "graph": self._encoder.graph, "threads": f"{here.sessions} x {here.threads}"}
        for aspect in ("fingerprint", "engine", "layout", "precision", "device", "graph", "threads"):
            ours, others = found[aspect], getattr(job, aspect)
            if ours != others:
                raise SentportError(
                    f"its {aspect} is {short(ours)}, that of others {short(others)}; name one that all have"
                )
        rows = islice(self._inputs.rows(mark), job.part_rows)
        blocks = cut_blocks(rows, job.part_rows, mark, number)
        ready = make_ready(blocks, self._encoder, self._inputs, job, stop_on_bad=self._stop_on_bad)
        return write_part(self._folder / job.part_name(number), ready, job, self._encoder, lambda _rows, _tokens: None)
