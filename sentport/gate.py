"""The parity gate: an engine's vectors against the source model's, over the golden suite; limits by precision.

Nothing here knows torch or ONNX: it compares numbers, so export, ``verify`` and every later check use the same gate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentport.batch import TokenBatch
from sentport.errors import GateError
from sentport.suite import Suite
from sentport.tokenizer import Tokenizer

Run = Callable[[TokenBatch], NDArray[np.float32]]
Vectors = NDArray[np.float32]

_TINY_NORM = 1e-6
_TINY_ABS = 1e-6
_MIXED_ROWS = 8
_LONGER_TOKENS = 96
# Of a precision whose rounding can amplify a last digit, so many comparisons of alone with company may be below.
_AMPLIFIED = 0.01


@dataclass(frozen=True)
class Limits:
    """What a precision may differ by; a row that differs by more is refused.

    Attributes:
        relative_l2: Of a row's difference to the source.
        unit_abs: Of any number of a unit vector.
        company: Relative difference of a text alone to the same text in a batch.
        cosine: Of every row to the source.
        mean_cosine: Of all rows to the source.
        rank: Spearman correlation between the source's cosines of all pairs of texts and the engine's.
        company_cosine: Of a text alone to the same text in a batch, in 99 % of comparisons.
        worst_company_cosine: The same in all of them.
    """

    relative_l2: float = math.inf
    unit_abs: float = math.inf
    company: float = math.inf
    cosine: float = -1.0
    mean_cosine: float = -1.0
    rank: float = -1.0
    company_cosine: float = -1.0
    worst_company_cosine: float = -1.0


LIMITS = {
    "fp32": Limits(relative_l2=1e-5, unit_abs=1e-5, company=2e-6),
    "fp16": Limits(cosine=0.9999, worst_company_cosine=0.9999),
    "bf16": Limits(cosine=0.999, worst_company_cosine=0.999),
    "int8": Limits(cosine=0.95, mean_cosine=0.99, rank=0.99, company_cosine=0.9999, worst_company_cosine=0.999),
}


@dataclass(frozen=True)
class Parity:
    """How far an engine's vectors are from the source's; worst over all rows.

    Attributes:
        relative_l2: Of the difference to the source, rows of norm under 1e-6 left out.
        max_abs: Of the difference to the source.
        cosine: To the source, in float64.
        mean_cosine: Over all rows.
        worst: The row of the worst cosine: a text, or a row of a hand-made batch.
        rank: Spearman correlation of the cosines of all pairs of texts, or of the corpus's, with the source's.
        ranked: How many texts those are.
        company: Relative difference of a text alone to the same text in a batch.
        company_cosine: Cosine of the two.
        rows: Vectors compared with the source.
    """

    relative_l2: float
    max_abs: float
    cosine: float
    mean_cosine: float
    worst: str
    rank: float
    ranked: int
    company: float
    company_cosine: float
    rows: int

    def record(self, by: str) -> dict[str, Any]:
        """As bundle.json stores it, with what the figures were measured by."""
        return {"passed": True, "by": by, **asdict(self)}


def limits_of(precision: str, architecture: str, min_cosine: float | None = None) -> Limits:
    """The limits of a precision; DeBERTa's scores are sums of three products, so its fp32 may differ more.

    Args:
        precision: ``fp32``, ``fp16``, ``bf16`` or ``int8``.
        architecture: Model type.
        min_cosine: A stricter limit for the cosine of every row.
    """
    limits = LIMITS[precision]
    if precision == "fp32" and architecture.startswith("deberta"):
        limits = replace(limits, relative_l2=5e-5)
    return limits if min_cosine is None else replace(limits, cosine=max(limits.cosine, min_cosine))


def check(run: Run, suite: Suite, tokenizer: Tokenizer, limits: Limits = LIMITS["fp32"]) -> Parity:
    """Compare an engine with the suite.

    Args:
        run: The engine's ``run``.
        suite: Texts, batches and the source's vectors.
        tokenizer: The bundle's tokenizer.
        limits: Of its precision.

    Raises:
        GateError: On the first row that is over a limit, saying which, by how much.
    """
    figures = _Figures(limits)
    alone = compare_with_source(run, suite, tokenizer, figures)
    rows = suite.rows(tokenizer)
    order = np.random.default_rng(0).permutation(len(rows))
    # The few long texts meet in batches of their own: each would stretch a batch of short ones to its length.
    order = order[np.argsort([len(rows[n]) > _LONGER_TOKENS for n in order], kind="stable")]
    longer = max(rows, key=len)[:_LONGER_TOKENS]
    for start in range(0, len(order), _MIXED_ROWS):
        chosen = order[start : start + _MIXED_ROWS]
        beside = _run(run, suite.batch([rows[n] for n in chosen]), "texts beside others")
        figures.in_company("company: texts beside others", beside, alone[chosen])
        beside = _run(run, suite.batch([*(rows[n] for n in chosen), longer]), "texts beside a longer one")
        figures.in_company("company: texts beside a longer one", beside[:-1], alone[chosen])
    return figures.parity()


def closeness(run: Run, suite: Suite, tokenizer: Tokenizer) -> Parity:
    """The same figures without the texts in company, and nothing refused but what is not finite."""
    figures = _Figures(Limits())
    compare_with_source(run, suite, tokenizer, figures)
    return figures.parity()


def compare_with_source(run: Run, suite: Suite, tokenizer: Tokenizer, figures: _Figures) -> Vectors:
    """Hand-made batches and texts against the source; gives the vectors of the texts, each alone."""
    for case in suite.cases:
        found = _run(run, case.batch, case.name)
        if not np.isfinite(found).all():
            raise GateError(f"batch {case.name} gives values that are not finite")
        names = [f"row {row} of batch {case.name}" for row in np.flatnonzero(case.has_tokens)]
        figures.to_source(f"batch {case.name}", names, found[case.has_tokens], case.vectors[case.has_tokens])
    rows = suite.rows(tokenizer)
    alone = np.concatenate([_run(run, suite.batch([row]), f"text {n}") for n, row in enumerate(rows)])
    figures.to_source("texts alone", [f"text {text[:60]!r}" for text in suite.texts], alone, suite.text_vectors)
    if suite.corpus_vectors is None:
        figures.ranks(alone, suite.text_vectors)
    else:
        rows = suite.corpus_rows(tokenizer)
        corpus = [_run(run, suite.batch([row]), f"text {n} of the corpus") for n, row in enumerate(rows)]
        figures.ranks(np.concatenate(corpus), suite.corpus_vectors)
    return alone


def _run(run: Run, batch: TokenBatch, name: str) -> Vectors:
    try:
        found = run(batch)
    except Exception as error:  # a frozen axis surfaces as whatever the runtime raises
        raise GateError(f"{name} cannot be run: {type(error).__name__}: {error}") from error
    if found.shape[0] != len(batch.lengths):
        raise GateError(f"{name} gives {found.shape[0]} vectors for {len(batch.lengths)} rows")
    return found


class _Figures:
    """Running worst figures; a row over a limit is refused at once."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._relative = self._abs = self._company = 0.0
        self._rank, self._ranked = 1.0, 0
        self._worst = (1.0, "")
        self._cosines: list[float] = []
        self._company_cosines: list[float] = []

    def to_source(self, name: str, rows: list[str], found: Vectors, wanted: Vectors) -> None:
        """Vectors against the source's."""
        pair = _Pair(name, found, wanted)
        limits = self._limits
        _refuse(name, "relative L2 error", pair.relative, limits.relative_l2)
        unit = np.abs(pair.norms - 1.0) < 1e-3
        _refuse(name, "maximum difference of a unit vector", np.where(unit, pair.absolute, 0.0), limits.unit_abs)
        _refuse_under(name, "cosine to the source", pair.cosines, limits.cosine)
        self._relative = max(self._relative, float(pair.relative.max(initial=0.0)))
        self._abs = max(self._abs, float(pair.absolute.max(initial=0.0)))
        self._worst = min([self._worst, *zip(pair.cosines.tolist(), np.array(rows)[pair.kept], strict=True)])
        self._cosines += pair.cosines.tolist()

    def ranks(self, found: Vectors, wanted: Vectors) -> None:
        """Whether the texts are near to each other in the source's order."""
        pairs = np.triu_indices(len(wanted), 1)
        self._ranked = len(wanted)
        self._rank = _spearman(_all_cosines(found)[pairs], _all_cosines(wanted)[pairs])

    def in_company(self, name: str, beside: Vectors, alone: Vectors) -> None:
        """Texts in a batch against the same texts alone."""
        pair = _Pair(name, beside, alone)
        _refuse(name, "relative difference to the text alone", pair.relative, self._limits.company)
        _refuse_under(name, "cosine to the text alone", pair.cosines, self._limits.worst_company_cosine)
        self._company = max(self._company, float(pair.relative.max(initial=0.0)))
        self._company_cosines += pair.cosines.tolist()

    def parity(self) -> Parity:
        """The figures, once those over all rows are within their limits."""
        limits, mean = self._limits, float(np.mean(self._cosines or [1.0]))
        if mean < limits.mean_cosine:
            raise GateError(f"mean cosine to the source is {mean:.5f}, allowed {limits.mean_cosine}")
        if not self._rank >= limits.rank:
            raise GateError(
                f"pairs of {self._ranked} texts are ranked as the source ranks them to {self._rank:.4f}, "
                f"allowed {limits.rank}"
            )
        company = np.array(self._company_cosines or [1.0])
        amplified = float((company < limits.company_cosine).mean())
        if amplified > _AMPLIFIED:
            raise GateError(
                f"{amplified:.1%} of texts have a cosine under {limits.company_cosine} to themselves in company, "
                f"allowed {_AMPLIFIED:.0%}"
            )
        return Parity(
            relative_l2=self._relative,
            max_abs=self._abs,
            cosine=self._worst[0],
            mean_cosine=mean,
            worst=self._worst[1],
            rank=self._rank,
            ranked=self._ranked,
            company=self._company,
            company_cosine=float(company.min()),
            rows=len(self._cosines),
        )


class _Pair:
    """Two sets of vectors row by row, those of norm under 1e-6 compared by themselves and left out.

    Attributes:
        kept: Which rows are left.
        norms: Of the wanted vectors.
        absolute: Largest difference of a number.
        relative: Norm of the difference over the wanted norm.
        cosines: In float64.
    """

    def __init__(self, name: str, found: Vectors, wanted: Vectors) -> None:
        if found.shape != wanted.shape:
            raise GateError(f"{name}: vectors are {list(found.shape)}, the source's {list(wanted.shape)}")
        if not np.isfinite(found).all() or not np.isfinite(wanted).all():
            raise GateError(f"{name}: values that are not finite")
        a, b = found.astype(np.float64), wanted.astype(np.float64)
        norms = np.linalg.norm(b, axis=1)
        absolute = np.abs(a - b).max(axis=1, initial=0.0)
        tiny = norms < _TINY_NORM
        _refuse(name, "maximum difference of a row of norm under 1e-6", np.where(tiny, absolute, 0.0), _TINY_ABS)
        self.kept = ~tiny
        a, b, self.norms, self.absolute = a[self.kept], b[self.kept], norms[self.kept], absolute[self.kept]
        self.relative = np.linalg.norm(a - b, axis=1) / self.norms
        self.cosines = (a * b).sum(axis=1) / np.maximum(np.linalg.norm(a, axis=1) * self.norms, 1e-300)


def _refuse(name: str, what: str, values: NDArray[np.float64], limit: float) -> None:
    if len(values) and values.max() > limit:
        raise GateError(f"{name}: {what} is {values.max():.2e} (row {int(values.argmax())}), allowed {limit:.0e}")


def _refuse_under(name: str, what: str, values: NDArray[np.float64], limit: float) -> None:
    if len(values) and not values.min() >= limit:
        raise GateError(f"{name}: {what} is {values.min():.7f} (row {int(values.argmin())}), allowed from {limit}")


def _all_cosines(vectors: Vectors) -> NDArray[np.float64]:
    """``[n, dim]`` to ``[n, n]``."""
    rows = vectors.astype(np.float64)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)
    return rows @ rows.T


def _spearman(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Correlation of ranks; of equal values the order of the array decides, which computed cosines hardly have."""
    if len(a) < 2:
        return 1.0
    ranks = np.stack([np.argsort(np.argsort(values, kind="stable")) for values in (a, b)]).astype(np.float64)
    return float(np.asarray(np.corrcoef(ranks))[0, 1])
