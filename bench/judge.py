"""The same-work rule: nobody is timed before the harness has seen right answers to questions it chose itself.

An answer counts only when it is right for texts in another order (no answers by position), for texts never seen before
(no answers from a memory), for texts of every length (none skipped, none cut short), and when texts seen before cost as
much as new ones (no cache at all, neither in calls of a few texts nor in those of the corpus's size).
Dimension letters: N texts, dim the width of a vector.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bench.contestants import Conditions, Contestant, Vectors, Work
from sentport.errors import list_rows
from sentport.evaluation.metrics import cosine_pairs

COSINE_GATE = {"fp32": 0.99999, "fp16": 0.9999, "bf16": 0.999, "int8": 0.95}
# A cosine is blind to a vector's length; quantised models without normalisation move it by some percent.
NORM_GATE = {"fp32": 1e-4, "fp16": 1e-2, "bf16": 1e-2, "int8": 0.2}
# A peer promised none of them, so it is timed and shown as wrong, as one is that cuts long texts (0.64); but what
# answers other texts is far below this.
PEER_GATE = 0.5

SAMPLE_ROWS = 32
_SEED = 17
_TINY_NORM = 1e-6
# Honest engines stay near 1 even on a noisy machine, since the best of several calls counts; a cache is far above.
_MEMORY_FACTOR = 4.0
_WORK_IN_PREPARE_FACTOR = 2.0
_ROTATIONS = 3
# At the corpus's size: the timed calls are a median of many, so a smaller factor tells a cache from noise.
_CORPUS_MEMORY_FACTOR = 2.0
_CORPUS_TRIES = 3
_PREPARE_SHARE = 0.1
_CLOCK_S = 0.005  # what a busy machine adds to any call


class Rejected(Exception):
    """A contestant did not do the work; the message says how that was seen."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Texts and the vectors that are right for them.

    Attributes:
        what: What is tried, for the reason of a rejection.
        texts: N texts.
        expected: ``[N, dim]``.
    """

    what: str
    texts: tuple[str, ...]
    expected: Vectors


@dataclass(frozen=True, slots=True)
class Trials:
    """What a contestant has to pass before the clock starts.

    Attributes:
        answers: Tried in this order.
        seen: Texts that the contestant knows after ``answers``.
        unseen: Texts of the same lengths as ``seen`` that it has never met, one set a try.
        sampled: Rows of the corpus that ``altered`` is about.
        altered: These rows of the corpus once it is altered.
    """

    answers: tuple[Trial, ...]
    seen: tuple[str, ...]
    unseen: tuple[tuple[str, ...], ...]
    sampled: tuple[int, ...]
    altered: Trial


def make_trials(texts: Sequence[str], max_tokens: int, reference: Callable[[Sequence[str]], Vectors]) -> Trials:
    """Draw the trials from a corpus.

    Args:
        texts: The corpus; its longest texts are always in the sample.
        max_tokens: The model's length limit: one text is made longer than it, another stays a little below.
        reference: Right vectors of any texts.
    """
    rows = _sample(texts)
    sample = tuple(texts[row] for row in rows)
    shuffled = tuple(random.Random(_SEED).sample(sample, len(sample)))
    words = " ".join(sample).split()
    # A word is a token or more: the first stays under the limit at up to 1.6 tokens a word, the second is over it.
    long = [" ".join(_cycle(words, count)) for count in (int(0.6 * max_tokens), 2 * max_tokens)]
    awkward = ("", "a", "naïve façade — 東京 😀", *long)
    named = {
        "a sample of the corpus": sample,
        "the same texts in another order": shuffled,
        "the same texts with their ends exchanged": _splice(sample),
        "an empty text, multi-byte text and texts around the length limit": awkward,
    }
    answers = tuple(Trial(what, chosen, reference(chosen)) for what, chosen in named.items())
    unseen = tuple(tuple(_rotate(text, by) for text in sample) for by in range(1, _ROTATIONS + 1))
    reversed_sample = _altered(sample, 0)
    altered = Trial("the corpus with its words in another order", reversed_sample, reference(reversed_sample))
    return Trials(answers, sample, unseen, rows, altered)


def examine(contestant: Contestant, work: Work, trials: Trials) -> float:
    """Put a contestant through all trials.

    Returns:
        The worst cosine met.

    Raises:
        Rejected: At the first trial it does not pass.
    """
    conditions = contestant.conditions()
    cosines = []
    for trial in trials.answers:
        contestant.prepare(trial.texts, work)
        cosines.append(compare(contestant.run(work), trial, conditions))
    _refuse_memory(contestant, work, trials)
    return min(cosines)


def compare(found: Vectors, trial: Trial, conditions: Conditions) -> float:
    """The worst cosine of an answer to the right vectors, rows that are zero there left out.

    Raises:
        Rejected: When the shape is wrong, a value is not finite, or a row is too far off.
    """
    expected = trial.expected
    if found.shape != expected.shape:
        raise Rejected(f"on {trial.what} it gave {list(found.shape)} values, expected {list(expected.shape)}")
    if not np.isfinite(found).all():
        rows = np.flatnonzero(~np.isfinite(found).all(axis=1)).tolist()
        raise Rejected(f"on {trial.what} rows {list_rows(rows)} are not finite")
    norms = np.linalg.norm(expected.astype(np.float64), axis=1)  # [N]
    counted = norms >= _TINY_NORM
    if not counted.any():
        return 1.0
    cosines = cosine_pairs(found[counted], expected[counted])
    precision = conditions.precision
    gate = PEER_GATE if conditions.peer else COSINE_GATE[precision]
    if cosines.min() < gate:
        rows = np.flatnonzero(counted)[cosines < gate].tolist()
        raise Rejected(
            f"on {trial.what} the worst cosine to the reference is {cosines.min():.7f}, under the "
            f"{'peers' if conditions.peer else precision} gate of {gate}, in rows {list_rows(rows)} of {len(found)}"
        )
    lengths = np.linalg.norm(found[counted].astype(np.float64), axis=1)
    off = float(np.abs(lengths / norms[counted] - 1).max())
    if off > NORM_GATE[precision]:
        raise Rejected(f"on {trial.what} a vector's length is off by {off:.1%}, allowed {NORM_GATE[precision]:.2%}")
    return float(cosines.min())


def timed(contestant: Contestant, texts: Sequence[str], work: Work) -> tuple[Vectors, float, float]:
    """One call under the clock: vectors ``[N, dim]``, seconds to prepare, seconds to run."""
    start = time.perf_counter()
    contestant.prepare(texts, work)
    prepared = time.perf_counter()
    vectors = contestant.run(work)
    return vectors, prepared - start, time.perf_counter() - prepared


def examine_at_size(contestant: Contestant, work: Work, texts: Sequence[str], trials: Trials, seconds: float) -> None:
    """Compare the timed calls with a call on an altered corpus: the same words, so the same lengths and batches.

    Args:
        contestant: Who has been timed.
        work: On which work.
        texts: The corpus.
        trials: Drawn from it.
        seconds: What a timed call took, the median.

    Raises:
        Rejected: When the corpus itself ran far faster, or the altered one is not answered rightly.
    """
    taken = []
    for number in range(_CORPUS_TRIES):  # a second try, on new texts again, only where the first one looks bad
        vectors, _, run = timed(contestant, _altered(texts, number), work)
        if number == 0:
            if len(vectors) != len(texts):
                raise Rejected(f"on {trials.altered.what} it gave {len(vectors)} rows, expected {len(texts)}")
            compare(vectors[list(trials.sampled)], trials.altered, contestant.conditions())
        taken.append(run)
        if min(taken) <= max(_CORPUS_MEMORY_FACTOR * seconds, seconds + _CLOCK_S):
            return
        # A machine that got busier slows the corpus too; a memory it does not.
        seconds = max(seconds, timed(contestant, texts, work)[2])
    raise Rejected(
        f"the corpus came {min(taken) / max(seconds, 1e-9):.0f} times faster than new texts of the same lengths: "
        "it caches"
    )


def refuse_work_in_prepare(prepare_s: float, seconds: float) -> None:
    """Check the medians of a row that has its tokenisation inside the timed call, so nothing to do before it.

    Raises:
        Rejected: When accepting the texts took a share of the time.
    """
    if prepare_s > max(_CLOCK_S, _PREPARE_SHARE * seconds):
        raise Rejected(
            f"it took {prepare_s:.3g} s to accept the corpus and {seconds:.3g} s to encode it: it works before the "
            "clock starts"
        )


def _refuse_memory(contestant: Contestant, work: Work, trials: Trials) -> None:
    """Compare texts seen before with new ones of the same lengths, so of the same batches and shapes."""
    prepare_s, unseen_s, seen_s = [], [], []
    for texts in trials.unseen:
        _, taken, run = timed(contestant, texts, work)
        prepare_s.append(taken)
        unseen_s.append(run)
        seen_s.append(timed(contestant, trials.seen, work)[2])
    if min(seen_s) * _MEMORY_FACTOR < min(unseen_s):
        ratio = min(unseen_s) / max(min(seen_s), 1e-9)
        raise Rejected(f"texts seen before came {ratio:.0f} times faster than new ones of the same lengths: it caches")
    if not work.tokenised and min(prepare_s) > _WORK_IN_PREPARE_FACTOR * min(unseen_s):
        raise Rejected("it takes longer to accept texts than to encode them: it works before the clock starts")


def _sample(texts: Sequence[str]) -> tuple[int, ...]:
    """Some rows of the corpus in its order, the longest among them; a text of one word cannot be varied."""
    rows = [row for row, text in enumerate(texts) if len(text.split()) > _ROTATIONS] or list(range(len(texts)))
    longest = sorted(rows, key=lambda row: -len(texts[row]))[: SAMPLE_ROWS // 4]
    others = [row for row in rows if row not in set(longest)]
    drawn = random.Random(_SEED).sample(others, min(len(others), SAMPLE_ROWS - len(longest)))
    return tuple(sorted([*longest, *drawn]))


def _splice(texts: Sequence[str]) -> tuple[str, ...]:
    """Each text's first half with the next text's second half: same beginnings, other meanings."""
    pairs = zip(texts, [*texts[1:], texts[0]], strict=True)
    return tuple(f"{_half(text, first=True)} {_half(other, first=False)}" for text, other in pairs)


def _half(text: str, *, first: bool) -> str:
    words = text.split()
    middle = (len(words) + 1) // 2
    return " ".join(words[:middle] if first else words[middle:] or words)


def _rotate(text: str, by: int) -> str:
    """The same words, so the same number of tokens, in an order not met before."""
    words = text.split()
    shift = by % len(words) if words else 0
    return " ".join(words[shift:] + words[:shift])


def _altered(texts: Sequence[str], number: int) -> tuple[str, ...]:
    """The same words in an order that no other trial has."""
    return tuple(_rotate(" ".join(reversed(text.split())), number) for text in texts)


def _cycle(words: list[str], count: int) -> list[str]:
    return [words[place % len(words)] for place in range(count)]
