"""What a raw record holds: a record that something wrote by hand, or cut in two, is told by its first wrong field."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

OBSERVATION, QUALITY = "observation", "quality"
KINDS = (OBSERVATION, QUALITY, "rejected", "not run")
FALLEN = ("rejected", "not run")
GPU_STATES = ("measured", *FALLEN)

_LARGE = 1e15
_Check = tuple[Callable[[Any], bool], str]


def _number(value: Any, least: float, most: float = _LARGE) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most  # no NaN either


def _integer(value: Any, least: int) -> bool:
    return isinstance(value, int) and _number(value, least)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


_TEXT: _Check = (lambda value: isinstance(value, str), "text")
_LIST: _Check = (_texts, "a list of texts")
_TABLE: _Check = (lambda value: isinstance(value, dict), "names with values")
_FLAG: _Check = (lambda value: isinstance(value, bool), "true or false")
_COUNT: _Check = (lambda value: _integer(value, 0), "a whole number, 0 or more")
_ONE_OR_MORE: _Check = (lambda value: _integer(value, 1), "a whole number, 1 or more")
_COSINE: _Check = (lambda value: _number(value, -1.01, 1.01), "a number from -1 to 1")
_SECONDS: _Check = (lambda value: _number(value, 1e-9), "a finite number above 0")
_CORRELATION: _Check = (lambda value: _number(value, -100.01, 100.01), "a number from -100 to 100")
_PERCENT: _Check = (lambda value: _number(value, 0, 100), "a number from 0 to 100")
_TOKENS: _Check = (lambda value: value is None or _integer(value, 1), "a whole number, 1 or more, or null")
_SPREAD: _Check = (
    lambda value: isinstance(value, dict) and all(_number(value.get(name), 1e-9) for name in ("median", "min", "max")),
    "median, min and max, each a finite number above 0",
)


def _all(check: _Check, names: str) -> dict[str, _Check]:
    return dict.fromkeys(names.split(), check)


_PLAN: _Check = (
    lambda value: isinstance(value, dict) and all(_integer(rows, 0) for rows in value.values()),
    "a number of rows for each corpus",
)


_SHARED = _all(_TEXT, "run date cpu contestant policy batch corpus corpus_source") | {
    **_all(_FLAG, "tokenisation_inside baseline"),
    "cpu_cores": _ONE_OR_MORE,
    "gpus": _LIST,
    "versions": _TABLE,
    "place": _COUNT,
    "texts": _ONE_OR_MORE,
}
_REASON = {"reason": _TEXT}
# All of them, or none where a row could not even be opened.
_DESCRIBED = {
    **_all(_TEXT, "model precision layout device device_name transport reference order"),
    **_all(_ONE_OR_MORE, "tokens longest warmup repeats"),
    **_all(_COUNT, "sessions threads"),
}
_TIMED = {"seconds": _SECONDS, "computed_tokens": _TOKENS, "worst_cosine": _COSINE}
_QUALITY = {
    **_all(_COSINE, "worst_cosine mean_cosine alone_cosine"),
    "sts": _TEXT,
    "spearman": _CORRELATION,
    "alone_texts": _ONE_OR_MORE,
}
_BY_KIND = {OBSERVATION: _TIMED, QUALITY: _QUALITY, **dict.fromkeys(FALLEN, _REASON)}

_GPU = {
    **_all(
        _TEXT,
        "date cpu implementation batch_policy batch status precision layout device device_name model corpus "
        "corpus_source",
    ),
    **_all(_ONE_OR_MORE, "sessions threads texts tokens"),
    "tokenisation_inside": _FLAG,
    "versions": _TABLE,
}
_GPU_TIMED = {
    "end_to_end_s": _SPREAD,
    "padding_waste_percent": _PERCENT,
    "worst_cosine": _COSINE,
    "warmup": _COUNT,
    "repeats": _ONE_OR_MORE,
    "order": _TEXT,
}


def fault(record: Mapping[str, Any]) -> str:
    """What is wrong with a record of ``sentport bench run``; empty where it is whole."""
    kind = record.get("kind")
    if kind not in KINDS:
        return f"kind {kind!r} is unknown; known: {', '.join(KINDS)}"
    checks = _SHARED | _BY_KIND[kind]
    if kind not in FALLEN or not _DESCRIBED.keys().isdisjoint(record):
        checks |= _DESCRIBED
    if "rows_planned" in record:  # earlier versions did not write it
        checks |= {"rows_planned": _PLAN}
    return _first_fault(record, checks) or _too_few_tokens(record)


def gpu_fault(record: Mapping[str, Any]) -> str:
    """What is wrong with a row of ``bench.gpu_check``; its other records are not read, and may hold anything."""
    if not isinstance(record.get("kind"), str):
        return "it has no kind"
    if record["kind"] != "row":
        return ""
    status = record.get("status")
    if status not in GPU_STATES:
        return f"status {status!r} is unknown; known: {', '.join(GPU_STATES)}"
    return _first_fault(record, _GPU | (_REASON if status in FALLEN else _GPU_TIMED))


def _first_fault(record: Mapping[str, Any], checks: Mapping[str, _Check]) -> str:
    for name, (holds, expected) in checks.items():
        if name not in record:
            return f"it has no {name!r}, expected {expected}"
        if not holds(record[name]):
            return f"{name!r} is {str(record[name])[:60]!r}, expected {expected}"
    return ""


def _too_few_tokens(record: Mapping[str, Any]) -> str:
    computed = record.get("computed_tokens")
    if record["kind"] != OBSERVATION or computed is None or computed >= record["tokens"]:
        return ""
    return f"'computed_tokens' is {computed}, expected at least the {record['tokens']} tokens of the texts"
