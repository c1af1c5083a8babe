"""Which layers int8 costs most, and how few of them stay in fp32 so that the vectors are good enough."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from export.int8 import FORMS, quantise
from export.linear import Ranges, input_ranges, linears, open_model
from sentport.batch import TokenBatch
from sentport.engines.feeds import make_feed
from sentport.errors import GateError, SentportError
from sentport.gate import Limits, Parity, Run, closeness
from sentport.suite import Suite
from sentport.tokenizer import Tokenizer

_BATCH_ROWS = 16


@dataclass(frozen=True)
class Calibration:
    """What int8 is made and judged with.

    Attributes:
        rows: Token ids of the calibration texts.
        suite: Texts and batches with the source's vectors.
        tokenizer: The bundle's tokenizer.
        limits: Of the gate.
        source: Where the texts are from.
    """

    rows: Sequence[NDArray[np.int64]]
    suite: Suite
    tokenizer: Tokenizer
    limits: Limits
    source: str


@dataclass(frozen=True)
class Int8Plan:
    """How one flavour of a model becomes int8.

    Attributes:
        form: ``static`` or ``per token``.
        kept: Layers that stay in fp32, the most sensitive first.
        effects: Of each group of layers with one input: 1 - mean cosine with that group alone in int8; empty where
            none had to stay in fp32.
        trade: Worst and mean cosine to the source by how many groups stay in fp32.
        calibration: Number and source of the calibration texts.
        ranges: What goes into each layer at most, from which a graph's scales are made.
    """

    form: str
    kept: tuple[str, ...]
    effects: Mapping[str, float]
    trade: tuple[Mapping[str, float], ...]
    calibration: str
    ranges: Ranges = field(default_factory=dict)

    def record(self, layers: Sequence[str], sha256: str) -> dict[str, Any]:
        """As bundle.json stores it, with the layers that a graph really has in int8, and the hash of their numbers."""
        return {
            "form": self.form,
            "layers": list(layers),
            "sha256": sha256,
            "kept": list(self.kept),
            "effects": dict(self.effects),
            "trade": list(self.trade),
            "calibration": self.calibration,
        }


def plan_int8(padded: ir.Model, flavour: str, calibration: Calibration, say: Callable[[str], None]) -> Int8Plan:
    """Measure each group of layers once, and keep the fewest in fp32 with which the limits hold.

    Args:
        padded: A graph of layout ``padded``, fused attention taken apart.
        flavour: ``portable`` or ``ort``.
        calibration: What to measure with.
        say: Told what is being done.

    Raises:
        SentportError: When the graph has no linear layer.
        GateError: When they do not hold with half of the layers in fp32.
    """
    groups = _groups(padded)
    if not groups:
        raise SentportError("this model has no linear layer on its tokens, so nothing of it can be int8; export fp32")
    ranges = input_ranges(padded, calibration.rows)

    def runner(layers: Collection[str]) -> Run:
        return _runner(quantise(padded, flavour, {name: ranges[name] for name in layers}))

    return replace(fewest_kept(groups, runner, FORMS[flavour], calibration, say), ranges=ranges)


def fewest_kept(
    groups: Sequence[tuple[str, ...]],
    runner: Callable[[Collection[str]], Run],
    form: str,
    calibration: Calibration,
    say: Callable[[str], None],
) -> Int8Plan:
    """Measure each group of layers once, and keep the fewest in fp32 with which the limits hold.

    Args:
        groups: Names of layers, those with one input together.
        runner: Gives what runs the model with the named layers in int8.
        form: ``static`` or ``per token``.
        calibration: What to measure with.
        say: Told what is being done.

    Raises:
        GateError: When they do not hold with half of the layers in fp32.
    """
    order: list[tuple[str, ...]] = []
    effects: dict[str, float] = {}
    trade = []
    for count in range(len(groups) // 2 + 1):
        if count == 1:  # not before it is known that some group has to stay
            say(f"measuring what int8 ({form}) of each of {len(groups)} groups of linear layers costs")
            effects = {group[0]: _effect(runner(group), calibration) for group in groups}
            order = sorted(groups, key=lambda group: -effects[group[0]])
        kept = tuple(name for group in order[:count] for name in group)
        layers = [name for group in groups for name in group if name not in kept]
        found = closeness(runner(layers), calibration.suite, calibration.tokenizer)
        trade.append({"kept": count, "cosine": found.cosine, "mean_cosine": found.mean_cosine, "rank": found.rank})
        if _holds(found, calibration.limits):
            words = f"{len(calibration.rows)} texts of {calibration.source}"
            return Int8Plan(form, kept, effects, tuple(trade), words)
    limits = calibration.limits
    raise GateError(
        f"int8 ({form}) with half of the layers in fp32 reaches a worst cosine of {found.cosine:.4f} (expected "
        f"{limits.cosine}), a mean of {found.mean_cosine:.4f} ({limits.mean_cosine}) and a rank agreement of "
        f"{found.rank:.4f} ({limits.rank}); give texts like yours with --calibration FILE, ask for less where "
        "--min-cosine asks, or export another flavour or precision"
    )


def _groups(model: ir.Model) -> list[tuple[str, ...]]:
    """Names of the linear layers, those with one input together."""
    groups: dict[ir.Value | None, dict[str, None]] = {}
    for layer in linears(model.graph):
        groups.setdefault(layer.node.inputs[0], {})[layer.name] = None
    return list(dict.fromkeys(tuple(group) for group in groups.values()))


def _runner(model: ir.Model) -> Run:
    session = open_model(model)
    given = [value.name for value in session.get_inputs()]

    def run(batch: TokenBatch) -> NDArray[np.float32]:
        vectors: NDArray[np.float32] = session.run(None, make_feed("padded", given, batch))[0]
        return vectors

    return run


def _effect(run: Run, calibration: Calibration) -> float:
    """1 - mean cosine of the suite's texts to the source, with one group alone in int8."""
    rows, wanted = calibration.suite.rows(calibration.tokenizer), calibration.suite.text_vectors
    order = np.argsort([len(row) for row in rows], kind="stable")
    found = np.empty_like(wanted)
    for start in range(0, len(order), _BATCH_ROWS):
        chosen = order[start : start + _BATCH_ROWS]
        found[chosen] = run(calibration.suite.batch([rows[n] for n in chosen]))
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return float(1.0 - np.mean((a * b).sum(axis=1) / np.maximum(norms, 1e-300)))


def _holds(found: Parity, limits: Limits) -> bool:
    return found.cosine >= limits.cosine and found.mean_cosine >= limits.mean_cosine and found.rank >= limits.rank
