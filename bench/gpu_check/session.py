"""One workload: every contestant is judged, those that pass are timed in interleaved rounds."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from bench.gpu_check.bert import FLOP_FORMULA, encode_with_transformers, shape_of
from bench.gpu_check.contestants import ROWS, Contestant
from bench.gpu_check.graphs import Absent
from bench.gpu_check.measure import COSINE_GATE, Budget, device_seconds, judge, spread, wall_seconds
from bench.gpu_check.policies import Batch, Policy, arrival
from bench.gpu_check.records import Record, Writer
from bench.gpu_check.runners import Model, PaddedRunner, Runner, end_to_end, restore
from bench.gpu_check.workload import Corpus, Floats, Ints

NO_TIME = "time: the budget of the whole check is spent"
# Fewer readings than this have no spread worth the name.
_FEWEST_REPEATS = 3


@dataclass(frozen=True, slots=True)
class Settings:
    """How a workload is measured.

    Attributes:
        warmup: rounds before the ones that count.
        repeats: rounds that count.
        seed: of the order within each round.
    """

    warmup: int
    repeats: int
    seed: int


@dataclass(frozen=True, slots=True)
class Workload:
    """A model, a corpus and the vectors that are right.

    Attributes:
        model: what computes.
        corpus: what is computed.
        expected: ``[B, dim]``.
        reference: where ``expected`` comes from, for the record.
    """

    model: Model
    corpus: Corpus
    expected: Floats
    reference: str


@dataclass(slots=True)
class Entry:
    """A contestant that passed the gate, and its readings so far."""

    contestant: Contestant
    record: Record
    runner: Runner[Any]
    plan: list[Batch]
    inputs: list[Any]
    pass_s: float
    device_s: list[float] = field(default_factory=list)
    end_to_end_s: list[float] = field(default_factory=list)
    failure: str | None = None


class Rejected(Exception):
    """A contestant's vectors are wrong."""


def reference_vectors(model: Model, corpus: Corpus) -> Floats:
    """Computes the reference of a model without golden vectors: transformers in fp32, arrival order, ``[B, dim]``."""
    runner = PaddedRunner(partial(encode_with_transformers, model.module("fp32")), model.device, {})
    with torch.no_grad():
        return end_to_end(runner, corpus, arrival(ROWS))


@dataclass(frozen=True, slots=True)
class Session:
    """What all workloads of a run share.

    Attributes:
        writer: where records go.
        ceilings: best matrix-product rate by precision, FLOP/s.
        settings: how often, in which order.
        budget: of the whole run.
    """

    writer: Writer
    ceilings: dict[str, float]
    settings: Settings
    budget: Budget

    def run(self, workload: Workload, contestants: Sequence[Contestant]) -> None:
        """Judges the contestants in order, then times those that passed and fit; writes a row for each."""
        with torch.no_grad():
            entries: list[Entry] = []
            for contestant in contestants:
                entry = self._admit(workload, contestant, sum(self._cost_s(other.pass_s) for other in entries))
                if entry is not None:
                    entries.append(entry)
            self._rounds(workload, entries)
        for entry in entries:
            self._summarise(workload, entry)

    def skip(self, model: str, corpus: Corpus, contestants: Sequence[Contestant], reason: str) -> None:
        """Writes a row that was not run for every contestant."""
        for contestant in contestants:
            self._write(describe(contestant, model, corpus), "not run", reason)

    def _admit(self, workload: Workload, contestant: Contestant, promised_s: float) -> Entry | None:
        """Builds and judges a contestant; writes its row and returns None where it will not be timed."""
        record = describe(contestant, workload.model.name, workload.corpus)
        if contestant.needs_cuda and workload.model.device.type != "cuda":
            self._write(record, "not run", "needs CUDA")
            return None
        left_s = self.budget.left_s - promised_s
        fastest_s = self.fastest_s(workload.model, workload.corpus, contestant.policy, contestant.precision)
        if self._cost_s(fastest_s) > left_s:
            self._write(record, "not run", NO_TIME)
            return None
        try:
            entry = judged_entry(workload, contestant, record)
        except Rejected as problem:
            self._write(record, "rejected", str(problem))
            return None
        except Absent as problem:
            self._write(record, "not run", str(problem))
            return None
        except Exception as problem:  # a contestant that one torch or GPU cannot run must not end the check
            self._write(record, "not run", _failure(problem))
            return None
        if self._cost_s(entry.pass_s) > self.budget.left_s - promised_s:
            self._write(record, "not run", NO_TIME)
            return None
        return entry

    def fastest_s(self, model: Model, corpus: Corpus, policy: Policy, precision: str = "fp32") -> float:
        """Returns seconds of one pass at the ceiling: what has no time for that need not be tried."""
        return computed_flop(model, corpus, policy.plan(corpus.lengths)) / self.ceilings[precision]

    def _cost_s(self, pass_s: float) -> float:
        return 2 * pass_s * (self.settings.warmup + self.settings.repeats)

    def _rounds(self, workload: Workload, entries: list[Entry]) -> None:
        """Times the entries in random order per round, so that drift of the machine hits all alike."""
        order = random.Random(self.settings.seed)
        for number in range(self.settings.warmup + self.settings.repeats):
            for entry in order.sample(entries, len(entries)):
                if self.budget.left_s < 0 or entry.failure:
                    continue
                try:
                    device_s, end_to_end_s = self._pass(workload, entry)
                except Exception as problem:  # as in _admit
                    entry.failure = _failure(problem)
                    continue
                if number < self.settings.warmup:
                    continue
                entry.device_s.append(device_s)
                entry.end_to_end_s.append(end_to_end_s)
                seen = {"round": number - self.settings.warmup, "device_s": device_s, "end_to_end_s": end_to_end_s}
                self.writer.write("observation", {**entry.record, **seen})

    def _pass(self, workload: Workload, entry: Entry) -> tuple[float, float]:
        """Returns seconds of one pass on the device and of one from host to host."""
        device = workload.model.device
        device_s, _ = device_seconds(device, lambda: [entry.runner.forward(inputs) for inputs in entry.inputs])
        end_to_end_s, _ = wall_seconds(
            device, lambda: end_to_end(entry.runner, workload.corpus, entry.contestant.policy)
        )
        return device_s, end_to_end_s

    def _summarise(self, workload: Workload, entry: Entry) -> None:
        if entry.failure:
            self._write(entry.record, "not run", entry.failure)
        elif len(entry.device_s) < min(_FEWEST_REPEATS, self.settings.repeats):
            self._write(entry.record, "not run", NO_TIME)
        else:
            ceiling = self.ceilings[entry.contestant.precision]
            self._write({**entry.record, **metrics(workload, entry, ceiling, self.settings)}, "measured", None)

    def _write(self, record: Record, status: str, reason: str | None) -> None:
        self.writer.write("row", {**record, "status": status, "reason": reason})


def judged_entry(workload: Workload, contestant: Contestant, record: Record) -> Entry:
    """Builds the runner and compares both ways of running it with the expected vectors.

    ``record`` gains what was found, so that a rejected row says it too.

    Raises:
        Rejected: a vector is wrong.
    """
    device, corpus, precision = workload.model.device, workload.corpus, contestant.precision

    def build_and_run() -> tuple[Runner[Any], Floats]:
        runner = contestant.build(workload.model, precision)
        return runner, end_to_end(runner, corpus, contestant.policy)

    # The first pass holds all that happens once: weights, capture, compilation.
    setup_s, (runner, found) = wall_seconds(device, build_and_run)
    record.update(setup_s=setup_s, **runner.details())
    _check(found, workload, record)
    plan = contestant.policy.plan(corpus.lengths)
    inputs = [runner.upload(corpus, batch) for batch in plan]
    pass_s, pieces = wall_seconds(device, lambda: [runner.forward(item) for item in inputs])
    _check(restore(pieces, plan), workload, record)
    return Entry(contestant, record, runner, plan, inputs, pass_s)


def _check(found: Floats, workload: Workload, record: Record) -> None:
    cosine, problem = judge(found, workload.expected, record["precision"])
    record["worst_cosine"] = cosine if record["worst_cosine"] is None else min(cosine, record["worst_cosine"])
    record["cosine_reference"] = workload.reference
    if problem:
        raise Rejected(problem)


def describe(contestant: Contestant, model: str, corpus: Corpus) -> Record:
    """Returns what is known of a row before it runs."""
    return {
        "contestant": contestant.name,
        "implementation": contestant.implementation,
        "precision": contestant.precision,
        "layout": contestant.layout,
        "batch_policy": contestant.policy.name,
        "batch": contestant.policy.size,
        "model": model,
        "corpus": corpus.name,
        "corpus_source": corpus.source,
        "texts": len(corpus.lengths),
        "tokens": int(corpus.lengths.sum()),
        "worst_cosine": None,
        "cosine_gate": COSINE_GATE[contestant.precision],
    }


def computed_tokens(plan: list[Batch], lengths: Ints) -> tuple[int, int]:
    """Returns tokens computed, pads included, and the sum of the squared lengths that attention computes."""
    tokens = squared = 0
    for batch in plan:
        computed = lengths[batch.rows] if batch.padded_tokens == 0 else np.full(batch.padded_rows, batch.padded_tokens)
        tokens += int(computed.sum())
        squared += int((computed**2).sum())
    return tokens, squared


def computed_flop(model: Model, corpus: Corpus, plan: list[Batch]) -> int:
    """Returns floating-point operations of a plan, pads included."""
    return shape_of(model.source.config).flop(*computed_tokens(plan, corpus.lengths))


def metrics(workload: Workload, entry: Entry, ceiling: float, settings: Settings) -> Record:
    """Derives a row's figures from its readings; rates come from medians, TFLOP/s from device time."""
    lengths = workload.corpus.lengths
    tokens = int(lengths.sum())
    computed, _ = computed_tokens(entry.plan, lengths)
    useful_flop = shape_of(workload.model.source.config).flop(tokens, int((lengths**2).sum()))
    device, both = spread(entry.device_s), spread(entry.end_to_end_s)
    done_flop = computed_flop(workload.model, workload.corpus, entry.plan)
    return {
        "device_s": device,
        "end_to_end_s": both,
        "device_clock": "CUDA events" if workload.model.device.type == "cuda" else "wall",
        "sentences_per_s": {"device": len(lengths) / device["median"], "end_to_end": len(lengths) / both["median"]},
        "tokens_per_s": {"device": tokens / device["median"], "end_to_end": tokens / both["median"]},
        "batches": len(entry.plan),
        "padding_waste_percent": 100 * (1 - tokens / computed),
        "useful_flop": useful_flop,
        "computed_flop": done_flop,
        "flop_formula": FLOP_FORMULA,
        "useful_tflops": useful_flop / device["median"] / 1e12,
        "computed_tflops": done_flop / device["median"] / 1e12,
        "ceiling_tflops": ceiling / 1e12,
        "percent_of_ceiling": 100 * useful_flop / device["median"] / ceiling,
        "percent_of_ceiling_with_pads": 100 * done_flop / device["median"] / ceiling,
        "warmup": settings.warmup,
        "repeats": len(entry.device_s),
        "order": f"interleaved, random per round, seed {settings.seed}",
    }


def _failure(problem: Exception) -> str:
    text = str(problem).strip().splitlines()
    return f"failed: {type(problem).__name__}: {text[0][:200] if text else 'no message'}"
