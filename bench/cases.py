"""What a run is made of: settings, workloads, cases, and the order in which a round takes them.

In every round the baseline runs first, last, and again after every few others, which come in a random order: so each
call has the baseline just before and just after, and the machine's drift cancels in their ratio.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from bench.contestants import Contestant, Vectors, Work, batch_size
from bench.corpus import Corpus
from bench.judge import Trial, Trials, make_trials
from bench.records import Record
from sentport.errors import EngineError, SentportError

T = TypeVar("T")

# Others between two calls of the reference, at most; each round has two such stretches or more.
BETWEEN = 6


@dataclass(frozen=True, slots=True)
class Settings:
    """How often and in which order.

    Attributes:
        warmup: Calls over the whole corpus before those that count; the first is judged, so at least one.
        repeats: Rounds that count, at least.
        seed: Of the order within each round.
        most: Rounds at most; None = ``repeats``.
        tight: A row needs no more rounds once the interval of its ratio is within this share of it on either side.
    """

    warmup: int = 1
    repeats: int = 5
    seed: int = 5
    most: int | None = None
    tight: float = 0.03

    def __post_init__(self) -> None:
        if self.warmup < 1 or self.repeats < 1:
            raise SentportError(f"warm-up {self.warmup} and repeats {self.repeats}: both must be 1 or more")
        if self.most is not None and self.most < self.repeats:
            raise SentportError(f"at most {self.most} rounds, but {self.repeats} repeats; give as many or more")


@dataclass(frozen=True, slots=True)
class Workload:
    """A corpus and what is right for it.

    Attributes:
        corpus: N texts.
        lengths: ``[N]`` tokens of each, after the model's limit.
        whole: The corpus with the reference's vectors.
        trials: What a contestant passes before it meets the corpus.
        reference: Whose vectors are right, for the record.
        flop: Floating-point operations that the model needs for it, None where they are not known.
    """

    corpus: Corpus
    lengths: NDArray[np.int64]
    whole: Trial
    trials: Trials
    reference: str
    flop: float | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """One row to be.

    Attributes:
        contestant: Who.
        work: Its way of batching.
        workload: The corpus.
        device: The device asked for.
        place: Among the rows of the table, unique within a run.
        baseline: Whether it is the reference that the others' ratios refer to.
        block: Model and threads in all, as asked for.
    """

    contestant: Contestant
    work: Work
    workload: Workload
    device: str
    place: int = 0
    baseline: bool = False
    block: Record = field(default_factory=dict)

    @property
    def identity(self) -> Record:
        """What tells it from every other case, as recorded: a case with the same has been measured before."""
        return {
            **self.block,
            "contestant": self.contestant.name,
            "policy": self.work.policy_name,
            "batch": batch_size(self.work, self.contestant.conditions()),
            "tokenisation_inside": not self.work.tokenised,
            "device_asked": self.device,
            "corpus": self.workload.corpus.name,
            "corpus_source": self.workload.corpus.source,
            "texts": len(self.workload.corpus.texts),
        }


def in_turn(cases: Sequence[Case], order: random.Random) -> Iterator[Case]:
    """One round: workload by workload, the baseline first, after every few others, and last."""
    by_workload: dict[str, list[Case]] = {}
    for case in cases:
        by_workload.setdefault(case.workload.corpus.name, []).append(case)
    for group in by_workload.values():
        base = [case for case in group if case.baseline]
        yield from with_base(base, [case for case in group if not case.baseline], order)


def with_base(base: Sequence[T], others: Sequence[T], order: random.Random) -> Iterator[T]:
    """Others in random order, the base first, last, and after every few of them."""
    shuffled = order.sample(others, len(others))
    size = min(BETWEEN, ceil(len(others) / 2)) or 1
    for start in range(0, len(others), size):
        yield from base
        yield from shuffled[start : start + size]
    yield from base


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
    flop: float | None = None,
) -> Workload:
    """A corpus with the reference's vectors and the trials drawn from it.

    Args:
        corpus: N texts.
        lengths: ``[N]`` tokens of each.
        max_tokens: The model's length limit.
        reference: Right vectors of any texts.
        reference_name: Whose they are.
        flop: Floating-point operations that the model needs for the texts.
    """
    whole = Trial("the whole corpus", corpus.texts, reference(corpus.texts))
    return Workload(corpus, lengths, whole, make_trials(corpus.texts, max_tokens, reference), reference_name, flop)
