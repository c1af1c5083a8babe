"""What a model reads from its ``config.pbtxt``: the parameters that a repository wrote there."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sentport.bundle import ModelSpec
from sentport.errors import BundleError, SentportError
from triton_repo import wire
from triton_repo.config import Batching
from triton_repo.requests import Fixed
from triton_repo.waiting import Limits

BUNDLE_FOLDER = "bundle"
# Which class in a model.py answers.
FORM = "form"
# The model of a repository that this one is a step of.
PART_OF = "part_of"
# Token counts that the tokenizer of form ``plan`` pads requests to.
EDGES = "edges"
# What runs form ``text``.
ENGINE = "engine"
ENGINES = ("onnxruntime", "native")
# Limits of a python model's own line of requests; without them an execution ends when it is answered.
MAX_QUEUE, QUEUE_TIMEOUT_MS = "max_queue", "queue_timeout_ms"
# Every parameter that one of our python models reads.
KNOWN = frozenset(
    {
        *(FORM, PART_OF, EDGES, ENGINE, wire.ENCODER, "device", "layout", "precision", "threads"),
        *("fixed_prompt", "fixed_dim", "fixed_on_truncate", MAX_QUEUE, QUEUE_TIMEOUT_MS),
    }
)
_WHOLE = re.compile("[0-9]{1,10}")


def values(config: Mapping[str, Any]) -> dict[str, str]:
    """The parameters of a configuration, as Triton hands it over."""
    return {key: value["string_value"] for key, value in config["parameters"].items()}


def whole(name: str, value: str | None) -> int | None:
    """A parameter that is a whole number from 1, None where it is not there.

    Raises:
        SentportError: When it is something else.
    """
    if value is None:
        return None
    if not _WHOLE.fullmatch(value) or int(value) < 1:
        raise SentportError(f"parameter {name} of config.pbtxt is {value!r}; expected a whole number from 1")
    return int(value)


def line(batching: Batching) -> dict[str, str]:
    """The parameters of a model's own line."""
    return {MAX_QUEUE: str(batching.max_queue), QUEUE_TIMEOUT_MS: str(batching.timeout_ms)}


def limits(config: Mapping[str, Any]) -> Limits | None:
    """The limits of a model's own line, of a configuration as Triton hands it over; None where it has none.

    Raises:
        SentportError: When one is missing or not a whole number from 1.
    """
    given = values(config)
    if not given.keys() & {MAX_QUEUE, QUEUE_TIMEOUT_MS}:
        return None
    requests, timeout_ms = (whole(name, given.get(name)) for name in (MAX_QUEUE, QUEUE_TIMEOUT_MS))
    if requests is None or timeout_ms is None:
        raise SentportError(f"config.pbtxt has one of the parameters {MAX_QUEUE} and {QUEUE_TIMEOUT_MS}; give both")
    return Limits(requests, timeout_ms / 1000)


def engine(given: Mapping[str, str]) -> str:
    """What runs form ``text``; a config without it is of the time when that was ONNX Runtime alone.

    Raises:
        SentportError: When it is something else.
    """
    named = given.get(ENGINE, "onnxruntime")
    if named not in ENGINES:
        raise SentportError(f"parameter {ENGINE} of config.pbtxt is {named!r}; expected one of {', '.join(ENGINES)}")
    return named


def edges(value: str | None, longest: int) -> tuple[int, ...]:
    """The parameter ``edges``: whole numbers that ascend and reach the longest row; none where it is not there.

    Raises:
        SentportError: When they do not.
    """
    if value is None:
        return ()
    found = tuple(int(part) for part in value.split(",") if part.isdecimal())
    if len(found) != len(value.split(",")) or list(found) != sorted(found) or found[-1] < longest:
        raise SentportError(
            f"parameter {EDGES} of config.pbtxt is {value!r}; expected numbers that ascend to {longest}"
        )
    return found


def fixed(given: Mapping[str, str]) -> Fixed | None:
    """The cacheable variant's one way of answering; None where it is not that variant.

    Raises:
        SentportError: When a value cannot be read.
    """
    if "fixed_on_truncate" not in given:
        return None
    return Fixed(given.get("fixed_prompt"), whole("fixed_dim", given.get("fixed_dim")), given["fixed_on_truncate"])


def check_fingerprint(given: Mapping[str, str], spec: ModelSpec, folder: Path) -> None:
    """Refuse a config that belongs to another model than the one in its version folder.

    Raises:
        BundleError: When it does.
    """
    if spec.fingerprint != json.loads(given[wire.ENCODER])["fingerprint"]:
        raise BundleError(
            f"config.pbtxt describes another model than the one in {folder / BUNDLE_FOLDER}; "
            "write the repository again with `sentport repository`"
        )
