"""What a raw record holds: a record that something wrote by hand, or cut in two, is told by its first wrong field."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

OBSERVATION, QUALITY, PROBE, CEILING, BLOCK = "observation", "quality", "probe", "ceiling", "block"
KINDS = (OBSERVATION, QUALITY, "rejected", "not run", PROBE, CEILING, BLOCK)
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
_SHARE: _Check = (lambda value: _number(value, 0, 1), "a number from 0 to 1")
_FLOP: _Check = (lambda value: value is None or _number(value, 1, 1e30), "a number of operations, or null")
_NUMBERS: _Check = (
    lambda value: isinstance(value, list) and bool(value) and all(_number(item, 0) for item in value),
    "a list of numbers, 0 or more",
)
_NUMBERS_OR_NONE: _Check = (
    lambda value: isinstance(value, list) and all(_number(item, 0) for item in value),
    "a list of numbers, 0 or more, or an empty one",
)
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


_RUN = _all(_TEXT, "run date cpu") | {"cpu_cores": _ONE_OR_MORE, "gpus": _LIST, "versions": _TABLE}
_ROW = _all(_TEXT, "contestant policy batch corpus corpus_source") | {
    **_all(_FLAG, "tokenisation_inside baseline"),
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
_TIMED = {
    "seconds": _SECONDS,
    "computed_tokens": _TOKENS,
    "worst_cosine": _COSINE,
    **_all(_COUNT, "repeat turn"),
    "flop": _FLOP,
}
_QUALITY = {
    **_all(_COSINE, "worst_cosine mean_cosine alone_cosine"),
    "sts": _TEXT,
    "spearman": _CORRELATION,
    "alone_texts": _ONE_OR_MORE,
    "neighbours_kept": _SHARE,
}
_BY_KIND = {OBSERVATION: _TIMED, QUALITY: _QUALITY, **dict.fromkeys(FALLEN, _REASON)}
# Of a run as a whole, or of a contestant in a process of its own.
_APART = {
    CEILING: {"precision": _TEXT, "flops": _FLOP, "threads_asked": _COUNT},
    PROBE: {
        **_all(_TEXT, "contestant model precision"),
        **_all(_SECONDS, "startup_s peak_mb"),
        "single_ms": _NUMBERS,
        "probe_texts": _ONE_OR_MORE,
        "threads_asked": _COUNT,
    },
    BLOCK: {"signature": _TEXT},
}

# Of the benchmarks beside the grid, each record whole in itself: its kind, and its fields.
TABLE7, PAIR_SEARCH, GROWTH, LOAD = "table7", "pair-search", "growth", "load"
_PLACE = _all(_TEXT, "device device_name") | {"threads": _ONE_OR_MORE}
OTHERS: dict[str, tuple[str, dict[str, _Check]]] = {
    TABLE7: (
        "timing",
        {
            **_PLACE,
            **_all(_TEXT, "encoder policy corpus_source"),
            **_all(_ONE_OR_MORE, "texts tokens"),
            **_all(_COUNT, "repeat turn"),
            "seconds": _SECONDS,
            "computed_tokens": _TOKENS,
        },
    ),
    PAIR_SEARCH: (
        "step",
        {
            **_PLACE,
            **_all(_TEXT, "step what corpus_source"),
            **_all(_SECONDS, "seconds whole_seconds"),
            **_all(_ONE_OR_MORE, "measured whole"),
        },
    ),
    GROWTH: (
        "size",
        {
            **_PLACE,
            **_all(_TEXT, "model engine precision layout corpus_source"),
            "texts": _ONE_OR_MORE,
            **_all(_SECONDS, "seconds peak_mb"),
        },
    ),
    LOAD: (
        "level",
        {
            **_all(_TEXT, "model loop corpus_source address engine precision"),
            "texts_per_request": _ONE_OR_MORE,
            "sent": _COUNT,
            **_all(_SECONDS, "level seconds"),
            **_all(_NUMBERS_OR_NONE, "latency_ms"),
            "errors": _TABLE,
            "server": _TABLE,
        },
    ),
}

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
    if kind in _APART:
        return _first_fault(record, _RUN | _APART[kind])
    checks = _RUN | _ROW | _BY_KIND[kind]
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


def other_fault(record: Mapping[str, Any]) -> str:
    """What is wrong with a record of one of ``OTHERS``."""
    kind, checks = OTHERS[str(record["benchmark"])]
    if record.get("kind") != kind:
        return f"kind {record.get('kind')!r} is unknown; known: {kind}"
    return _first_fault(record, _RUN | checks)


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
