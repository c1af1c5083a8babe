"""Table 7 of the Sentence-BERT paper (Reimers and Gurevych 2019): sentences a second of the encoders it compares.

All of them encode the same sentences of the STS Benchmark in interleaved rounds, texts in and vectors out. SBERT-base
in arrival order is the reference of each round, so that what smart batching gains is a ratio of neighbours.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from bench.boards import Board, Cell, Column, Table, number, percent
from bench.cases import with_base
from bench.charts import Bar, Bars
from bench.corpus import Corpus
from bench.fields import TABLE7
from bench.intervals import Call, speedups, spread_of
from bench.records import Record, Writer, run_conditions, versions_and_date
from bench.run import Say
from sentport.errors import SentportError

if TYPE_CHECKING:
    from bench.table7_models import Encoder

GLOVE, INFERSENT, USE, DAN = "Avg. GloVe", "InferSent", "Universal Sentence Encoder", "USE, deep averaging"
SBERT, SMART = "SBERT-base", "SBERT-base, smart batching"
SYSTEMS = (GLOVE, INFERSENT, USE, DAN, SBERT, SMART)

# Sentences a second, by device; the paper does not time the deep averaging network.
PAPER: dict[str, dict[str, float | None]] = {
    GLOVE: {"cpu": 6469, "cuda": None},
    INFERSENT: {"cpu": 137, "cuda": 1876},
    USE: {"cpu": 67, "cuda": 1318},
    DAN: {"cpu": None, "cuda": None},
    SBERT: {"cpu": 44, "cuda": 1378},
    SMART: {"cpu": 83, "cuda": 2042},
}
PAPER_MACHINE = "Intel i7-5820K at 3.30 GHz; NVIDIA Tesla V100, CUDA 9.2"
TEXTS = {"cpu": 384, "cuda": 2551}


@dataclass(frozen=True, slots=True)
class Table7:
    """What is measured.

    Attributes:
        corpus: The sentences.
        tokenizer: ``tokenizer.json`` of an uncased BERT.
        device: ``cpu`` or ``cuda``.
        threads: Compute threads, on a CPU.
        repeats: Rounds.
        seconds: No new round begins after so many.
        systems: Of ``SYSTEMS``.
    """

    corpus: Corpus
    tokenizer: Path
    device: str
    threads: int
    repeats: int = 5
    seconds: float = 480.0
    systems: tuple[str, ...] = SYSTEMS


def measure(options: Table7, out: Path, say: Say) -> Path:
    """Time the systems and write raw records.

    Raises:
        SentportError: When the device is not there.
    """
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        raise SentportError("device cuda was asked for, but torch finds no CUDA; `sentport doctor` tells what lacks")
    torch.set_num_threads(options.threads)
    texts = options.corpus.texts
    encoders = _encoders(options)
    shared = run_conditions()
    shared |= _conditions(options, shared["cpu"])
    start, order = time.monotonic(), random.Random(5)
    for name, encode in encoders.items():
        say(f"warming up {name}")
        some = texts[: -(-len(texts) // 4)]
        if encode(some).shape[0] != len(some):
            raise SentportError(f"{name} lost texts; this is a bug")
    base = [name for name in encoders if name == SBERT]
    with Writer(out, shared, TABLE7) as writer:
        for repeat in range(options.repeats):
            if repeat and time.monotonic() - start > options.seconds:
                say(f"{options.seconds:.0f} s are over after {repeat} rounds")
                break
            say(f"round {repeat + 1} of {options.repeats}")
            turns = enumerate(with_base(base, [name for name in encoders if name != SBERT], order))
            for turn, name in turns:
                begin = time.perf_counter()
                encoders[name](texts)
                seconds = time.perf_counter() - begin
                seen = {"encoder": name, "repeat": repeat, "turn": turn, "seconds": seconds}
                how = {"policy": encoders[name].grouping, "computed_tokens": encoders[name].computed}
                writer.write("timing", {**seen, **how})
    return writer.path


def _encoders(options: Table7) -> dict[str, Encoder]:
    from bench import table7_models as models
    from sentport.scheduler import BatchPolicy

    device, texts = options.device, options.corpus.texts
    bert = models.bert_base().to(device)
    made: dict[str, Callable[[], Encoder]] = {
        GLOVE: lambda: models.AverageGlove(texts),
        INFERSENT: lambda: models.WordModel(models.InferSent(), device, BatchPolicy.SMART),
        USE: lambda: models.WordModel(models.UniversalTransformer(), device, BatchPolicy.ARRIVAL),
        DAN: lambda: models.PairModel(device),
        SBERT: lambda: models.BertBase(options.tokenizer, device, BatchPolicy.ARRIVAL, bert),
        SMART: lambda: models.BertBase(options.tokenizer, device, BatchPolicy.SMART, bert),
    }
    return {name: made[name]() for name in options.systems}


def _conditions(options: Table7, cpu: str) -> Record:
    import torch

    from sentport.tokenizer import Tokenizer

    tokens = Tokenizer.from_file(options.tokenizer, 512).encode(list(options.corpus.texts)).lengths
    name = torch.cuda.get_device_name() if options.device == "cuda" else ""
    return {
        "device": options.device,
        "device_name": name or cpu,
        "threads": options.threads,
        "texts": len(options.corpus.texts),
        "tokens": int(tokens.sum()),
        "corpus_source": options.corpus.source,
    }


def board(records: Sequence[Record]) -> Board | None:
    """The table of all runs, CPU and GPU side by side, beside the paper's."""
    found = [record for record in records if record["benchmark"] == TABLE7]
    if not found:
        return None
    machines = list(dict.fromkeys((record["device"], record["device_name"]) for record in found))
    by_machine = {
        machine: [record for record in found if (record["device"], record["device_name"]) == machine]
        for machine in machines
    }
    heads = [Column("encoder")]
    for device, name in machines:
        heads += [Column(f"sentences/s, {name}", True), Column(f"paper, {device}", True)]
    rows = tuple(_row(system, by_machine) for system in SYSTEMS if any(record["encoder"] == system for record in found))
    gains = tuple(_gain(machine, group) for machine, group in by_machine.items())
    bars = tuple(_bars(machine, group) for machine, group in by_machine.items())
    gain_heads = (Column("device"), *(Column(name, True) for name in ("smart over arrival order", "interval", "paper")))
    return Board(
        "Table 7 of Sentence-BERT: sentences a second",
        (Table(tuple(heads), rows), Table(gain_heads, gains, caption="What smart batching gains")),
        bars,
        _board_conditions(found),
    )


def _rates(records: Sequence[Record], system: str) -> list[float]:
    return [record["texts"] / record["seconds"] for record in records if record["encoder"] == system]


def _row(system: str, by_machine: Mapping[tuple[str, str], Sequence[Record]]) -> tuple[Cell, ...]:
    cells = [Cell(system)]
    for (device, _), records in by_machine.items():
        rates = _rates(records, system)
        cells += [number(median(rates) if rates else None), number(PAPER[system][device])]
    return tuple(cells)


def _gain(machine: tuple[str, str], records: Sequence[Record]) -> tuple[Cell, ...]:
    device, name = machine
    calls = {
        system: [
            Call((record["run"], record["repeat"]), record["turn"], record["seconds"])
            for record in records
            if record["encoder"] == system
        ]
        for system in (SBERT, SMART)
    }
    ratios = speedups(calls[SMART], calls[SBERT])
    smart, plain = PAPER[SMART][device], PAPER[SBERT][device]
    paper = percent(100 * (smart / plain - 1) if smart and plain else None, "+.0f", missing="")
    if not ratios:
        return (Cell(name), Cell(""), Cell(""), paper)
    spread = spread_of(ratios)
    low, high = (f"{100 * (end - 1):+.0f}" for end in (spread.low, spread.high))
    gain = percent(100 * (spread.middle - 1), "+.0f")
    return (Cell(name), gain, Cell(f"{low} to {high} %"), paper)


def _bars(machine: tuple[str, str], records: Sequence[Record]) -> Bars:
    device, name = machine
    bars = []
    for hue, system in enumerate(SYSTEMS):
        rates = _rates(records, system)
        if rates and system != GLOVE:  # next to which no other bar would be seen
            bars.append(Bar(system, "here", median(rates), min(rates), max(rates), hue))
            paper = PAPER[system][device]
            bars += [Bar(system, "in the paper", paper, hue=hue)] if paper else []
    return Bars(f"sentences/s on {name}, and the paper's ({PAPER_MACHINE})", tuple(bars))


def _board_conditions(found: Sequence[Record]) -> dict[str, str]:
    runs = {record["run"]: record for record in found}
    lines = {}
    for record in runs.values():
        rounds = len({each["repeat"] for each in found if each["run"] == record["run"]})
        size = f"{record['texts']} texts, {record['tokens']} tokens"
        lines[record["device"]] = (
            f"{record['device_name']}, {record['threads']} threads; {size}; {rounds} rounds, SBERT-base first, last "
            f"and between; {record['date']}"
        )
    last = list(runs.values())[-1]
    return {
        **lines,
        "paper": PAPER_MACHINE,
        "corpus": last["corpus_source"],
        "weights": "random, in the shapes of the papers: they decide no speed. All in fp32, tokenisation inside",
        **versions_and_date(last),
    }
