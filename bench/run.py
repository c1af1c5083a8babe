"""Runs: every case is judged, those that pass are timed in interleaved rounds, raw records are written first of all."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median_low

import numpy as np
from numpy.typing import NDArray

from bench.contestants import Contestant, Vectors, Work, batch_size
from bench.corpus import Corpus
from bench.judge import (
    COSINE_GATE,
    Rejected,
    Trial,
    Trials,
    compare,
    examine,
    examine_at_size,
    make_trials,
    refuse_work_in_prepare,
    timed,
)
from bench.quality import Questions, ask
from bench.records import Record, Writer, contestant_conditions
from sentport.errors import EngineError, SentportError
from sentport.progress import Progress

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """How often and in which order.

    Attributes:
        warmup: Calls over the whole corpus before those that count; the first is judged, so at least one.
        repeats: Rounds that count.
        seed: Of the order within each round.
    """

    warmup: int = 1
    repeats: int = 5
    seed: int = 5

    def __post_init__(self) -> None:
        if self.warmup < 1 or self.repeats < 1:
            raise SentportError(f"warm-up {self.warmup} and repeats {self.repeats}: both must be 1 or more")


@dataclass(frozen=True, slots=True)
class Workload:
    """A corpus and what is right for it.

    Attributes:
        corpus: N texts.
        lengths: ``[N]`` tokens of each, after the model's limit.
        whole: The corpus with the reference's vectors.
        trials: What a contestant passes before it meets the corpus.
        reference: Whose vectors are right, for the record.
    """

    corpus: Corpus
    lengths: NDArray[np.int64]
    whole: Trial
    trials: Trials
    reference: str


@dataclass(frozen=True, slots=True)
class Case:
    """One row to be.

    Attributes:
        contestant: Who.
        work: Its way of batching.
        workload: The corpus.
        device: The device asked for.
        place: Among the rows of the table, unique within a run.
        baseline: Whether the others' ratios refer to it.
    """

    contestant: Contestant
    work: Work
    workload: Workload
    device: str
    place: int = 0
    baseline: bool = False


@dataclass(slots=True)
class Session:
    """One run.

    Attributes:
        writer: Where raw records go.
        shared: What ``run_conditions`` found.
        settings: How often and in which order.
        say: Takes lines about rows that fall out.
        progress: Show a bar on stderr when that is a terminal.
        questions: What is asked about quality once of every contestant, or None.
    """

    writer: Writer
    shared: Record
    settings: Settings
    say: Say
    progress: bool = True
    questions: Questions | None = None
    _passed: dict[tuple[str, Work], float] = field(default_factory=dict)
    _planned: Counter[str] = field(default_factory=Counter)
    _times: dict[int, list[tuple[float, float]]] = field(default_factory=dict)  # by place: (prepare_s, seconds)
    _memory: dict[str, str] = field(default_factory=dict)  # by contestant: how it was seen, or nothing

    def run(self, cases: Sequence[Case]) -> None:
        """Judge all cases, time those that passed, and judge them by their times.

        Raises:
            EngineError: When a contestant ran on another device than the one asked for.
        """
        self._planned = Counter(case.workload.corpus.name for case in cases)
        for case in cases:
            check_device(case)
        admitted = [case for case in self._with_progress("judging", cases) if self._attempt(case, self._admit)]
        order = random.Random(self.settings.seed)
        for number in range(self.settings.repeats):
            # A random order in every round, so that the machine's drift hits all rows alike.
            shuffled = order.sample(admitted, len(admitted))
            label = f"round {number + 1} of {self.settings.repeats}"
            failed = [
                case
                for case in self._with_progress(label, shuffled)
                if not self._attempt(case, partial(self._observe, repeat=number))
            ]
            admitted = [case for case in admitted if not any(case is other for other in failed)]
        # The fastest on the whole corpus first: it stands for its contestant, and is the cheapest to run once more.
        for case in self._with_progress("last checks", sorted(admitted, key=self._size_and_speed)):
            self._attempt(case, self._judge_times)
        if self.questions:
            first = {case.contestant.name: case for case in reversed(admitted)}
            for case in self._with_progress("quality", list(first.values())):
                self._attempt(case, partial(self._ask, self.questions))

    def not_run(self, record: Record, reason: str) -> None:
        """Write a row that could not be run."""
        self.writer.write("not run", {**record, "reason": reason})

    def _with_progress(self, label: str, cases: Sequence[Case]) -> Iterator[Case]:
        with Progress(label, len(cases), "rows", shown=self.progress) as bar:
            for case in cases:
                yield case
                bar.advance(1)

    def _attempt(self, case: Case, step: Callable[[Case], None]) -> bool:
        """Do one step of a case; where it fails, write why and tell that the case is out."""
        record = self._describe(case)
        try:
            step(case)
        except Rejected as problem:
            self.writer.write("rejected", {**record, "reason": str(problem)})
            self.say(f"rejected: {record['contestant']}, {record['policy']}: {problem}")
            return False
        except EngineError:
            raise
        except Exception as problem:  # a contestant that breaks must not take the others' figures with it
            reason = f"failed: {type(problem).__name__}: {' '.join(str(problem).split())[:200]}"
            self.not_run(record, reason)
            self.say(f"not run: {record['contestant']}, {record['policy']}: {reason}")
            return False
        return True

    def _admit(self, case: Case) -> None:
        key = (case.contestant.name, case.work)
        if key not in self._passed:
            self._passed[key] = examine(case.contestant, case.work, case.workload.trials)
        for _ in range(self.settings.warmup):
            vectors, _, _ = timed(case.contestant, case.workload.corpus.texts, case.work)
            self._judge(case, vectors)

    def _observe(self, case: Case, repeat: int) -> None:
        vectors, prepare_s, seconds = timed(case.contestant, case.workload.corpus.texts, case.work)
        computed = case.contestant.computed_tokens()
        worst = self._judge(case, vectors)  # of this very answer, outside the clock
        check_device(case)
        self._times.setdefault(case.place, []).append((prepare_s, seconds))
        observed = {"seconds": seconds, "prepare_s": prepare_s, "computed_tokens": computed, "worst_cosine": worst}
        self.writer.write("observation", {**self._describe(case), "repeat": repeat, **observed})

    def _judge_times(self, case: Case) -> None:
        prepare_s, seconds = (median_low(column) for column in zip(*self._times[case.place], strict=True))
        if not case.work.tokenised:
            refuse_work_in_prepare(prepare_s, seconds)
        name, workload = case.contestant.name, case.workload
        if name not in self._memory:
            self._memory[name] = ""
            try:
                examine_at_size(case.contestant, case.work, workload.corpus.texts, workload.trials, seconds)
            except Rejected as problem:
                self._memory[name] = str(problem)
        if self._memory[name]:
            raise Rejected(self._memory[name])

    def _ask(self, questions: Questions, case: Case) -> None:
        self.writer.write("quality", {**self._describe(case), **ask(case.contestant, case.work, questions)})

    def _size_and_speed(self, case: Case) -> tuple[int, float]:
        return -len(case.workload.corpus.texts), median_low(seconds for _, seconds in self._times[case.place])

    def _judge(self, case: Case, vectors: Vectors) -> float:
        return compare(vectors, case.workload.whole, case.contestant.conditions())

    def _describe(self, case: Case) -> Record:
        work, workload = case.work, case.workload
        conditions = case.contestant.conditions()
        return {
            "contestant": case.contestant.name,
            "policy": work.policy_name,
            "batch": batch_size(work, conditions),
            "tokenisation_inside": not work.tokenised,
            "place": case.place,
            "baseline": case.baseline,
            **contestant_conditions(conditions, self.shared),
            "device_asked": case.device,
            "corpus": workload.corpus.name,
            "corpus_source": workload.corpus.source,
            "texts": len(workload.corpus.texts),
            "distinct_texts": len(set(workload.corpus.texts)) == len(workload.corpus.texts),
            "tokens": int(workload.lengths.sum()),
            "longest": int(workload.lengths.max()),
            "reference": workload.reference,
            "cosine_gate": COSINE_GATE[conditions.precision],
            "warmup": self.settings.warmup,
            "repeats": self.settings.repeats,
            "rows_planned": dict(self._planned),
            "order": f"interleaved, random in each round, seed {self.settings.seed}",
        }


def check_device(case: Case) -> None:
    """Refuse a row that did not run where it was asked to.

    Raises:
        EngineError: Naming both devices.
    """
    found = case.contestant.conditions().device
    if found != case.device:
        raise EngineError(
            f"{case.contestant.name} ran on {found}, but {case.device} was asked for; ask for the device that is "
            "there, or let `sentport doctor` say what is missing"
        )


def make_workload(
    corpus: Corpus,
    lengths: NDArray[np.int64],
    max_tokens: int,
    reference: Callable[[Sequence[str]], Vectors],
    reference_name: str,
) -> Workload:
    """A corpus with the reference's vectors and the trials drawn from it.

    Args:
        corpus: N texts.
        lengths: ``[N]`` tokens of each.
        max_tokens: The model's length limit.
        reference: Right vectors of any texts.
        reference_name: Whose they are.
    """
    whole = Trial("the whole corpus", corpus.texts, reference(corpus.texts))
    return Workload(corpus, lengths, whole, make_trials(corpus.texts, max_tokens, reference), reference_name)
