"""How cost and memory grow with the number of texts: cost should be linear, memory flat.

Each size is encoded as a stream in a process of its own, so that its peak memory is its own:
``python -m bench.growth SETTINGS`` is that process; SETTINGS is JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from bench.boards import Board, Cell, Column, Table, number
from bench.charts import Plot, Series
from bench.fields import GROWTH
from bench.recipes import data_folder, many_texts
from bench.records import Record, Writer, run_conditions, versions_and_date
from bench.run import Say
from sentport.errors import SentportError

SIZES = (16, 100, 1_000, 10_000, 100_000, 1_000_000)
_SOURCE = "distinct sentences of STS, captions, Wikipedia and NLI in random order, then halves of them spliced"


@dataclass(frozen=True, slots=True)
class Growth:
    """What is measured.

    Attributes:
        bundle: The encoder's.
        threads: Compute threads.
        precision: Of its graph.
        layout: Of its graph.
        sizes: Numbers of texts, rising.
        seconds: A size that would take longer, going by the one before, is left out and said so.
    """

    bundle: Path
    threads: int
    precision: str = "auto"
    layout: str = "auto"
    sizes: tuple[int, ...] = SIZES
    seconds: float = 600.0


def measure(options: Growth, out: Path, say: Say) -> Path:
    """Encode every size that the time allows, and write raw records.

    Raises:
        SentportError: When the evaluation data is not there, or a process fails.
    """
    data = data_folder("of any size")
    shared = run_conditions()
    shared |= {"device": "cpu", "device_name": shared["cpu"], "threads": options.threads, "corpus_source": _SOURCE}
    rate = 0.0
    with Writer(out, shared, GROWTH) as writer:
        for size in sorted(options.sizes):
            if rate and size / rate > options.seconds:
                say(f"{size:,} texts would take {size / rate:,.0f} s, over the {options.seconds:.0f} allowed: left out")
                break
            settings = {
                "bundle": str(options.bundle),
                "threads": options.threads,
                "precision": options.precision,
                "layout": options.layout,
                "size": size,
                "data": str(data),
            }
            found = _in_a_process(settings)
            rate = size / found["seconds"]
            say(f"{size:,} texts: {found['seconds']:.2f} s, {rate:,.0f} a second, {found['peak_mb']:.0f} MB at most")
            writer.write("size", found)
    return writer.path


def _in_a_process(settings: Record) -> Record:
    command = [sys.executable, "-m", "bench.growth", json.dumps(settings)]
    root = Path(__file__).parents[1]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise SentportError(f"{settings['size']} texts: {said[-1]}")
    found: Record = json.loads(done.stdout)
    return found


def encode_size(settings: Record) -> Record:
    """Encode a stream of so many texts; in a process of its own."""
    from sentport.encoder import Encoder

    # One more than wanted: at their end the pool is given back, which takes as long as 100 texts.
    texts = many_texts(settings["size"] + 1, Path(settings["data"]))
    with Encoder(
        settings["bundle"],
        threads=settings["threads"],
        precision=settings["precision"],
        layout=settings["layout"],
        on_truncate="allow",
    ) as encoder:
        first = next(texts)  # the pool is read here, outside the clock
        encoder.encode([first])
        start = time.perf_counter()
        rows = sum(len(block) for block in encoder.encode_stream(chain([first], islice(texts, settings["size"] - 1))))
        seconds = time.perf_counter() - start
        info = encoder.info
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    return {
        "model": Path(settings["bundle"]).stem,
        "engine": info.engine,
        "precision": info.precision,
        "layout": info.layout,
        "texts": rows,
        "seconds": seconds,
        "peak_mb": peak / 1024,
    }


def board(records: Sequence[Record]) -> Board | None:
    """Seconds and peak memory over the number of texts, of every run."""
    found = [record for record in records if record["benchmark"] == GROWTH]
    if not found:
        return None
    groups: dict[str, list[Record]] = {}
    for record in sorted(found, key=lambda one: int(one["texts"])):
        runs = " ".join(record[field] for field in ("model", "engine", "precision", "layout"))
        name = f"{runs}, {record['threads']} threads"
        groups.setdefault(name, []).append(record)
    cost, memory = (
        tuple(Series(name, tuple((record["texts"], record[y]) for record in group)) for name, group in groups.items())
        for y in ("seconds", "peak_mb")
    )
    heads = (Column("encoder"), *(Column(name, True) for name in ("texts", "seconds", "texts/s", "peak memory MB")))
    rows = tuple(
        (
            Cell(name),
            number(record["texts"], ","),
            number(record["seconds"]),
            number(record["texts"] / record["seconds"]),
            number(record["peak_mb"], ",.0f"),
        )
        for name, group in groups.items()
        for record in group
    )
    charts = (
        Plot("cost against size: a straight line is linear growth", "texts", "seconds", cost, log_x=True, log_y=True),
        Plot("peak memory against size: a level line is flat", "texts", "MB", memory, log_x=True, from_zero=True),
    )
    last = found[-1]
    conditions = {"machine": last["device_name"], "corpus": last["corpus_source"], **versions_and_date(last)}
    return Board("From 16 to 1,000,000 texts", (Table(heads, rows),), charts, conditions)


if __name__ == "__main__":
    try:
        print(json.dumps(encode_size(json.loads(sys.argv[1]))))
    except SentportError as problem:
        sys.exit(str(problem))
