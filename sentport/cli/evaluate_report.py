"""What ``sentport evaluate`` prints: the papers' tables, or JSON, with the conditions of every figure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sentport import hardware
from sentport.encoder import EncoderInfo
from sentport.evaluation.geometry import Geometry
from sentport.evaluation.tasks import GROUPS, TASKS, Settings, TaskScore
from sentport.vectors import bytes_a_vector

_PACKAGES = (
    "numpy",
    "tokenizers",
    "onnxruntime",
    "onnxruntime-gpu",
    "openvino",
    "sentport-native",
    "torch",
    "transformers",
    "scikit-learn",
)
_AVERAGED = ("sts", "transfer")
_UNDEFINED = "undefined (nan), as the encoder gives all pairs the same similarity"


@dataclass(frozen=True, slots=True)
class Evaluated:
    """One system and what was found.

    Attributes:
        label: Its name in tables.
        source: Where it was opened.
        kind: ``bundle``, ``checkpoint`` or ``server``.
        info: What it is and what it ran on.
        prompt: Name of the prompt; None = its default.
        dim: Values of a vector that were compared.
        vectors: The type that they were kept in.
        scores: By task.
        space: What STS-B shows of its space, where that was a task.
        computed: Distinct texts that it encoded.
        reused: Distinct texts whose vectors were kept from an earlier run.
        seconds: All in all.
    """

    label: str
    source: str
    kind: str
    info: EncoderInfo
    prompt: str | None
    dim: int
    vectors: str
    scores: Mapping[str, TaskScore]
    space: Geometry | None
    computed: int
    reused: int
    seconds: float


def as_text(evaluated: Sequence[Evaluated], settings: Settings) -> str:
    """A table for each group of tasks, and the conditions."""
    blocks = [_group_table(group, evaluated, settings) for group in GROUPS if _of_group(evaluated[0], group)]
    if evaluated[0].space:
        blocks.append(_space_table(evaluated, settings))
    notes = [f"{found.label}, {heading}: {_UNDEFINED}" for found in evaluated for heading in _undefined(found)]
    if notes:
        blocks.append("\n".join(notes))
    versions = ", ".join(f"{name} {version}" for name, version in hardware.installed_versions(_PACKAGES).items())
    blocks.append("\n".join([*map(_conditions, evaluated), f"{hardware.cpu_model()}; {versions}"]))
    return "\n\n".join(blocks)


def as_json(evaluated: Sequence[Evaluated], settings: Settings) -> str:
    """The report as JSON; figures that are not defined are null."""
    report = {
        "conditions": {
            "tasks": list(evaluated[0].scores),
            "data": str(settings.data),
            "texts": settings.texts,
            "split": settings.split,
            "aggregation": settings.aggregation,
            "similarity": settings.similarity,
            "correlation": settings.correlation,
            "cpu": hardware.cpu_model(),
            "gpus": list(hardware.cuda_devices()),
            "versions": hardware.installed_versions(_PACKAGES),
        },
        "systems": [_system_as_json(found) for found in evaluated],
    }
    return json.dumps(_plain(report), allow_nan=False)


def _group_table(group: str, evaluated: Sequence[Evaluated], settings: Settings) -> str:
    rows: list[tuple[str, dict[str, float]]] = []
    for found in evaluated:
        scores = _of_group(found, group)
        rows.append((found.label, _row(group, {task: score.score for task, score in scores.items()})))
        controls = {task: score.control for task, score in scores.items() if score.control is not None}
        if controls:
            rows.append((f"{found.label}, gold shuffled", _row(group, controls)))
    return _table(_says(group, settings), rows)


def _space_table(evaluated: Sequence[Evaluated], settings: Settings) -> str:
    rows = [
        (found.label, {"alignment": found.space.alignment, "uniformity": found.space.uniformity})
        for found in evaluated
        if found.space
    ]
    return _table(f"Space, by STS-B {settings.split} (lower is better): pairs rated above 4, all sentences", rows)


def _says(group: str, settings: Settings) -> str:
    if group == "sts":
        pooled = {"all": "all pairs of a task", "mean": "mean of subsets", "wmean": "mean of subsets by pairs"}
        return (
            f"STS: {settings.correlation} x 100, {pooled[settings.aggregation]}, {settings.similarity}, "
            f"texts {settings.texts} (SICK-R as released), STS-B and SICK-R {settings.split}"
        )
    if group == "transfer":
        return "SentEval transfer: accuracy x 100 of a logistic regression"
    return f"WikiSec: accuracy x 100 of triplets; Args: mean F1 x 100; {settings.similarity}"


def _table(title: str, rows: Sequence[tuple[str, Mapping[str, float]]]) -> str:
    headings = list(rows[0][1])
    widths = [max(len(heading), 6) for heading in headings]
    first = max(len("system"), *(len(label) for label, _ in rows))
    lines = [title, "  ".join([f"{'system':<{first}}", *_right(headings, widths)])]
    for label, columns in rows:
        values = [f"{columns[heading]:.2f}" for heading in headings]
        lines.append("  ".join([f"{label:<{first}}", *_right(values, widths)]))
    return "\n".join(lines)


def _right(values: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [f"{value:>{width}}" for value, width in zip(values, widths, strict=True)]


def _of_group(found: Evaluated, group: str) -> dict[str, TaskScore]:
    return {task: score for task, score in found.scores.items() if TASKS[task].group == group}


def _row(group: str, scores: Mapping[str, float]) -> dict[str, float]:
    """Scores by heading, with ``Avg.`` where there is one."""
    average = _average(group, scores)
    row = {TASKS[task].heading: score for task, score in scores.items()}
    return row if average is None else {**row, "Avg.": average}


def _average(group: str, scores: Mapping[str, float]) -> float | None:
    """The mean, only where all tasks of the group are there: over some, it would pass for the papers' figure."""
    whole = len(scores) == sum(task.group == group for task in TASKS.values())
    return float(np.mean(list(scores.values()))) if whole and group in _AVERAGED else None


def _undefined(found: Evaluated) -> list[str]:
    return [TASKS[task].heading for task, score in found.scores.items() if math.isnan(score.score)]


def _conditions(found: Evaluated) -> str:
    info = found.info
    prompt = {None: "default prompt", "": "no prompt"}.get(found.prompt, f"prompt {found.prompt}")
    width = f"{found.dim} dimensions as {found.vectors} ({bytes_a_vector(found.vectors, found.dim)} bytes)"
    return (
        f"{found.label}: {found.kind} {found.source}, engine {info.engine}, {info.precision}, {info.layout}, "
        f"{info.device}, {info.sessions} x {info.threads} threads, {width}, at most {info.max_tokens} tokens, "
        f"{prompt}, fingerprint {info.fingerprint[:12]}; {found.computed} texts computed, {found.reused} from the "
        f"cache, {found.seconds:.1f} s"
    )


def _system_as_json(found: Evaluated) -> dict[str, Any]:
    averages = {
        group: _average(group, {task: score.score for task, score in _of_group(found, group).items()})
        for group in _AVERAGED
    }
    return {
        "label": found.label,
        "source": found.source,
        "kind": found.kind,
        **asdict(found.info),
        "dim": found.dim,
        "vectors": found.vectors,
        "bytes_a_vector": bytes_a_vector(found.vectors, found.dim),
        "prompt": found.prompt,
        "scores": {task: {"score": score.score, **score.figures} for task, score in found.scores.items()},
        "averages": averages,
        "control": {task: score.control for task, score in found.scores.items() if score.control is not None},
        "notes": [f"{heading}: {_UNDEFINED}" for heading in _undefined(found)],
        "space": found.space and _space_as_json(found.space),
        "texts_computed": found.computed,
        "texts_reused": found.reused,
        "seconds": found.seconds,
    }


def _space_as_json(space: Geometry) -> dict[str, Any]:
    return {
        "alignment": space.alignment,
        "uniformity": space.uniformity,
        "singular_values": space.singular_values.tolist(),
        "cosine_edges": space.edges.tolist(),
        "cosines_by_rating": {f"{low}-{high}": counts.tolist() for (low, high), counts in space.histograms.items()},
    }


def _plain(value: Any) -> Any:
    """JSON has no nan."""
    if isinstance(value, Mapping):
        return {key: _plain(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(held) for held in value]
    return None if isinstance(value, float) and math.isnan(value) else value
