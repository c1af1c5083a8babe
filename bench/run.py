"""Runs: every case is judged, those that pass are timed in interleaved rounds, raw records are written first of all."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median_low
from typing import TypeVar

from bench.cases import Case, Settings, check_device, in_turn
from bench.contestants import Vectors, Work
from bench.intervals import Call, speedups, spread_of
from bench.judge import COSINE_GATE, Rejected, compare, examine, examine_at_size, refuse_work_in_prepare, timed
from bench.quality import Questions, ask
from bench.records import NotWritten, Record, Writer, contestant_conditions
from sentport.errors import EngineError
from sentport.progress import Progress

Say = Callable[[str], None]
T = TypeVar("T")


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
        broken: Whether a contestant failed at work that it had taken on.
    """

    writer: Writer
    shared: Record
    settings: Settings
    say: Say
    progress: bool = True
    questions: Questions | None = None
    broken: bool = False
    _passed: dict[tuple[str, Work], float] = field(default_factory=dict)
    _planned: Counter[str] = field(default_factory=Counter)
    _times: dict[int, list[tuple[float, Call]]] = field(default_factory=dict)  # by place: prepare_s, and the call
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
        admitted = self._rounds(admitted)
        # The fastest on the whole corpus first: it stands for its contestant, and is the cheapest to run once more.
        for case in self._with_progress("last checks", sorted(admitted, key=self._size_and_speed)):
            self._attempt(case, self._judge_times)
        if self.questions:
            first = {case.contestant.name: case for case in reversed(admitted)}
            for case in self._with_progress("quality", list(first.values())):
                self._attempt(case, partial(self._ask, self.questions))

    def _rounds(self, admitted: list[Case]) -> list[Case]:
        """Time the cases until each is known well enough; those that never failed."""
        order = random.Random(self.settings.seed)
        repeats = self.settings.repeats
        for number in range(self.settings.most or repeats):
            wanted = [case for case in admitted if number < repeats or not self._is_known(case, admitted)]
            if all(case.baseline for case in wanted) and number >= repeats:
                break
            failed: set[int] = set()
            turns = list(enumerate(in_turn(wanted, order)))
            for turn, case in self._with_progress(f"round {number + 1}", turns):
                if case.place not in failed and not self._attempt(case, partial(self._observe, place=(number, turn))):
                    failed.add(case.place)
            admitted = [case for case in admitted if case.place not in failed]
        return admitted

    def _is_known(self, case: Case, cases: Sequence[Case]) -> bool:
        if case.baseline:
            return False
        base = next((each for each in cases if each.baseline and each.workload is case.workload), None)
        calls = [call for _, call in self._times[case.place]]
        found = speedups(calls, [call for _, call in self._times[base.place]]) if base else []
        return spread_of(found or [1 / call.seconds for call in calls]).width <= self.settings.tight

    def not_run(self, record: Record, reason: str) -> None:
        """Write and say that a row could not be run."""
        self.writer.write("not run", {**record, "reason": reason})
        self.say(f"not run: {record['contestant']}, {record['policy']}: {reason}")

    def _with_progress(self, label: str, items: Sequence[T]) -> Iterator[T]:
        with Progress(label, len(items), "rows", shown=self.progress) as bar:
            for item in items:
                yield item
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
        except (EngineError, NotWritten):
            raise
        except Exception as problem:  # a contestant that breaks must not take the others' figures with it
            reason = f"failed: {type(problem).__name__}: {' '.join(str(problem).split())[:200]}"
            self.broken = True
            self.not_run(record, reason)
            return False
        return True

    def _admit(self, case: Case) -> None:
        key = (case.contestant.name, case.work)
        if key not in self._passed:
            self._passed[key] = examine(case.contestant, case.work, case.workload.trials)
        for _ in range(self.settings.warmup):
            vectors, _, _ = timed(case.contestant, case.workload.corpus.texts, case.work)
            self._judge(case, vectors)

    def _observe(self, case: Case, place: tuple[int, int]) -> None:
        repeat, turn = place
        vectors, prepare_s, seconds = timed(case.contestant, case.workload.corpus.texts, case.work)
        computed = case.contestant.computed_tokens()
        worst = self._judge(case, vectors)  # of this very answer, outside the clock
        check_device(case)
        self._times.setdefault(case.place, []).append((prepare_s, Call(("", repeat), turn, seconds)))
        observed = {"seconds": seconds, "prepare_s": prepare_s, "computed_tokens": computed, "worst_cosine": worst}
        self.writer.write("observation", {**self._describe(case), "repeat": repeat, "turn": turn, **observed})

    def _judge_times(self, case: Case) -> None:
        prepare_s = median_low(prepared for prepared, _ in self._times[case.place])
        seconds = self._seconds(case)
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
        return -len(case.workload.corpus.texts), self._seconds(case)

    def _seconds(self, case: Case) -> float:
        return median_low(call.seconds for _, call in self._times[case.place])

    def _judge(self, case: Case, vectors: Vectors) -> float:
        return compare(vectors, case.workload.whole, case.contestant.conditions())

    def _describe(self, case: Case) -> Record:
        workload = case.workload
        conditions = case.contestant.conditions()
        return {
            **case.identity,
            "place": case.place,
            "baseline": case.baseline,
            **contestant_conditions(conditions, self.shared),
            "distinct_texts": len(set(workload.corpus.texts)) == len(workload.corpus.texts),
            "tokens": int(workload.lengths.sum()),
            "longest": int(workload.lengths.max()),
            "flop": workload.flop,
            "reference": workload.reference,
            "cosine_gate": COSINE_GATE[conditions.precision],
            "warmup": self.settings.warmup,
            "repeats": self.settings.repeats,
            "rows_planned": dict(self._planned),
            "order": (
                "the baseline first, last and between in every round, the others in random order, "
                f"seed {self.settings.seed}"
            ),
        }
