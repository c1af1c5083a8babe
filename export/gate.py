"""The parity gate for fp32: an engine's vectors against the source model's, over the golden suite.

Nothing here knows torch or ONNX: it compares numbers, so export, ``verify`` and every later check use the same gate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.suite import Suite
from sentport.batch import TokenBatch
from sentport.errors import GateError
from sentport.tokenizer import Tokenizer

Run = Callable[[TokenBatch], NDArray[np.float32]]

_TINY_NORM = 1e-6
_TINY_ABS = 1e-6
_UNIT_ABS = 1e-5
_COMPANY = 2e-6
_MIXED_ROWS = 8
_LONGER_TOKENS = 96


@dataclass(frozen=True)
class Parity:
    """How far an engine's vectors are from the source's; worst over all rows.

    Attributes:
        relative_l2: Of the difference to the source, rows of norm under 1e-6 left out.
        max_abs: Of the difference to the source.
        cosine: To the source, in float64.
        company: Relative difference of a text alone to the same text in a batch.
        rows: Vectors compared with the source.
    """

    relative_l2: float
    max_abs: float
    cosine: float
    company: float
    rows: int

    def record(self) -> dict[str, Any]:
        """As bundle.json stores it."""
        return {"passed": True, **asdict(self)}


def allowed_relative_l2(architecture: str) -> float:
    """Allowed relative L2 error of a row in fp32; DeBERTa's scores are sums of three products."""
    return 5e-5 if architecture.startswith("deberta") else 1e-5


def check(run: Run, suite: Suite, tokenizer: Tokenizer, *, relative_l2: float = 1e-5) -> Parity:
    """Compare an engine with the suite.

    Args:
        run: The engine's ``run``.
        suite: Texts, batches and the source's vectors.
        tokenizer: The bundle's tokenizer.
        relative_l2: Allowed relative L2 error of every row.

    Raises:
        GateError: On the first row that is over a limit, saying which, by how much.
    """
    worst = _Worst(relative_l2)
    for name, found, source in _comparisons(run, suite, tokenizer):
        worst.compare(name, found, source)
    return worst.parity()


def _comparisons(
    run: Run, suite: Suite, tokenizer: Tokenizer
) -> Iterator[tuple[str, NDArray[np.float32], NDArray[np.float32]]]:
    """Names and vectors to compare: hand-made batches with the source, then texts alone and in company."""
    for case in suite.cases:
        found = _run(run, case.batch, case.name)
        if not np.isfinite(found).all():
            raise GateError(f"batch {case.name} gives values that are not finite")
        yield f"batch {case.name}", found[case.has_tokens], case.vectors[case.has_tokens]
    rows = suite.rows(tokenizer)
    alone = np.concatenate([_run(run, suite.batch([row]), f"text {n}") for n, row in enumerate(rows)])
    yield "texts alone", alone, suite.text_vectors
    order = np.random.default_rng(0).permutation(len(rows))
    # The few long texts meet in batches of their own: each would stretch a batch of short ones to its length.
    order = order[np.argsort([len(rows[n]) > _LONGER_TOKENS for n in order], kind="stable")]
    longer = max(rows, key=len)[:_LONGER_TOKENS]
    for start in range(0, len(order), _MIXED_ROWS):
        chosen = order[start : start + _MIXED_ROWS]
        beside = _run(run, suite.batch([rows[n] for n in chosen]), "texts beside others")
        yield "company: texts beside others", beside, alone[chosen]
        beside = _run(run, suite.batch([*(rows[n] for n in chosen), longer]), "texts beside a longer one")
        yield "company: texts beside a longer one", beside[:-1], alone[chosen]


def _run(run: Run, batch: TokenBatch, name: str) -> NDArray[np.float32]:
    try:
        found = run(batch)
    except Exception as error:  # a frozen axis surfaces as whatever the runtime raises
        raise GateError(f"{name} cannot be run: {type(error).__name__}: {error}") from error
    if found.shape[0] != len(batch.lengths):
        raise GateError(f"{name} gives {found.shape[0]} vectors for {len(batch.lengths)} rows")
    return found


class _Worst:
    """Running worst figures, and the limits."""

    def __init__(self, relative_l2: float) -> None:
        self._limit = relative_l2
        self._relative = self._abs = self._company = 0.0
        self._cosine = 1.0
        self._rows = 0

    def compare(self, name: str, found: NDArray[np.float32], wanted: NDArray[np.float32]) -> None:
        if found.shape != wanted.shape:
            raise GateError(f"{name}: vectors are {list(found.shape)}, the source's {list(wanted.shape)}")
        if not np.isfinite(found).all() or not np.isfinite(wanted).all():
            raise GateError(f"{name}: values that are not finite")
        a, b = found.astype(np.float64), wanted.astype(np.float64)
        norms = np.linalg.norm(b, axis=1)
        tiny = norms < _TINY_NORM
        absolute = np.abs(a - b).max(axis=1, initial=0.0)
        self._refuse(name, "maximum difference of a row of norm under 1e-6", np.where(tiny, absolute, 0.0), _TINY_ABS)
        a, b, norms, absolute = a[~tiny], b[~tiny], norms[~tiny], absolute[~tiny]
        relative = np.linalg.norm(a - b, axis=1) / norms
        if name.startswith("company"):
            self._refuse(name, "relative difference to the text alone", relative, _COMPANY)
            self._company = max(self._company, float(relative.max(initial=0.0)))
            return
        self._refuse(name, "relative L2 error", relative, self._limit)
        unit = np.abs(norms - 1.0) < 1e-3
        self._refuse(name, "maximum difference of a unit vector", np.where(unit, absolute, 0.0), _UNIT_ABS)
        cosine = (a * b).sum(axis=1) / np.maximum(np.linalg.norm(a, axis=1) * norms, 1e-300)
        self._relative = max(self._relative, float(relative.max(initial=0.0)))
        self._abs = max(self._abs, float(absolute.max(initial=0.0)))
        self._cosine = min(self._cosine, float(cosine.min(initial=1.0)))
        self._rows += len(a)

    def parity(self) -> Parity:
        return Parity(self._relative, self._abs, self._cosine, self._company, self._rows)

    @staticmethod
    def _refuse(name: str, what: str, values: NDArray[np.float64], limit: float) -> None:
        if len(values) and values.max() > limit:
            raise GateError(f"{name}: {what} is {values.max():.2e} (row {int(values.argmax())}), allowed {limit:.0e}")
