"""What a contestant's vectors are worth: a human's judgement, the source's vectors, and a text's company.

Dimension letters: N texts, dim the width of a vector.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.contestants import Contestant, Vectors, Work
from bench.records import Record
from sentport.evaluation.metrics import cosine_pairs
from sentport.evaluation.neighbours import neighbour_churn
from sentport.evaluation.scoring import correlate, rate
from sentport.evaluation.sts import StsPairs

ALONE_TEXTS = 64


@dataclass(frozen=True, slots=True)
class Questions:
    """What is asked of every contestant, outside the clock.

    Attributes:
        name: Of the pairs.
        pairs: Sentences with a human's score of how near they are.
        expected: ``[N, dim]`` of the pairs' sentences, the first halves before the second ones.
        alone: Those of the N texts that are encoded alone as well.
    """

    name: str
    pairs: StsPairs
    expected: Vectors
    alone: tuple[int, ...]


def make_questions(name: str, pairs: StsPairs, reference: Callable[[Sequence[str]], Vectors], seed: int) -> Questions:
    """The questions with the reference's answers.

    Args:
        name: Of the pairs.
        pairs: What to rate.
        reference: Right vectors of any texts.
        seed: Of the draw of texts that are encoded alone.
    """
    texts = _texts(pairs)
    alone = random.Random(seed).sample(range(len(texts)), min(ALONE_TEXTS, len(texts)))
    return Questions(name, pairs, reference(texts), tuple(alone))


def ask(contestant: Contestant, work: Work, questions: Questions) -> Record:
    """Put the questions to a contestant.

    Returns:
        ``sts`` the pairs' name, ``spearman`` with the human scores, x 100; ``worst_cosine`` and ``mean_cosine`` to the
        reference; ``alone_cosine``, the worst of a text's vector alone with its vector in company;
        ``neighbours_kept``, the mean share of each text's ten nearest by the reference that stay among its ten nearest.
    """

    def embed(texts: Sequence[str]) -> Vectors:
        contestant.prepare(texts, work)
        return contestant.run(work)

    texts = _texts(questions.pairs)
    together = embed(texts)  # [N, dim]
    cosines = cosine_pairs(together, questions.expected)  # [N]
    distinct = list({text: row for row, text in enumerate(texts)}.values())
    alone = [float(cosine_pairs(embed([texts[row]]), together[row : row + 1])[0]) for row in questions.alone]
    return {
        "sts": questions.name,
        "spearman": correlate(rate({questions.name: questions.pairs}, lambda _: together)),
        "worst_cosine": float(cosines.min()),
        "mean_cosine": float(cosines.mean()),
        "neighbours_kept": neighbour_churn(questions.expected[distinct], together[distinct]).kept,
        "alone_cosine": min(alone),
        "alone_texts": len(alone),
    }


def _texts(pairs: StsPairs) -> list[str]:
    return [*pairs.sentences1, *pairs.sentences2]
