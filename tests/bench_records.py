"""Raw records as `sentport bench run` writes them, made by hand."""

from __future__ import annotations

from typing import Any

from bench.records import Record

SHARED = {
    "format": 1,
    "benchmark": "encoders",
    "run": "r1",
    "date": "2026-01-02T03:04:05+00:00",
    "cpu": "Some CPU",
    "cpu_cores": 2,
    "gpus": [],
    "versions": {"python": "3.11.9", "torch": "2.13.0"},
}


def observation(contestant: str, policy: str, seconds: float, place: int, **more: Any) -> Record:
    """One timed call over 100 texts of 1,000 tokens."""
    return {
        "kind": "observation",
        "contestant": contestant,
        "policy": policy,
        "batch": "32 rows",
        "tokenisation_inside": True,
        "place": place,
        "baseline": place == 0,
        "model": "m",
        "precision": "fp32",
        "layout": "padded",
        "device": "cpu",
        "device_name": "Some CPU",
        "sessions": 1,
        "threads": 2,
        "transport": "in process",
        "corpus": "STS-B",
        "corpus_source": "its sentences",
        "texts": 100,
        "tokens": 1000,
        "longest": 40,
        "reference": "the source",
        "warmup": 1,
        "repeats": 3,
        "order": "interleaved",
        "seconds": seconds,
        "repeat": 0,
        "turn": place,
        "flop": 5e9,
        "computed_tokens": 2500,
        "worst_cosine": 0.9999999,
        **SHARED,
        **more,
    }
