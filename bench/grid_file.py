"""A grid as it is asked for: defaults, then a TOML file, then the command line's options, each over the one before.

Every value of ``AXES`` may be a list. ``[[model]]`` tables name a checkpoint, its bundle, and how to export that.
Models, devices and threads make blocks; the other axes make the rows of each.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from bench.cases import Settings
from bench.corpus import stsb_pairs
from bench.grid import CONTESTANTS, RunOptions, ServerTarget
from bench.recipes import corpus_of
from sentport.errors import SentportError
from sentport.hardware import available_cores
from sentport.scheduler import BatchPolicy

Values = dict[str, Any]

AXES = (
    *("contestants", "precision", "layout", "policies", "corpus"),
    *("device", "sessions", "threads", "texts_per_request"),
)
_PLACES = ("records", "environments", "bundle")
_MODEL = ("checkpoint", "bundle", "export")
DEFAULTS: Values = {
    "name": "",
    "records": None,
    "model": [],
    "contestants": list(CONTESTANTS),
    "precision": ["auto"],
    "layout": [],
    "policies": [policy.value for policy in BatchPolicy],
    "corpus": ["any"],
    "device": ["cpu"],
    "sessions": [0],
    "threads": [],
    "texts": None,
    "equal": True,
    "tokenisation": "both",
    "quality": False,
    "probe": False,
    "ceilings": True,
    "triton": [],
    "triton_model": None,
    "clients": 16,
    "texts_per_request": [16],
    "warmup": 1,
    "repeats": 5,
    "most": None,
    "tight": 0.03,
    "seed": 5,
    "environments": "build/envs",
}
_COUNTS = ("sessions", "threads", "texts", "clients", "texts_per_request", "warmup", "repeats", "most")
_MAY_BE_NONE = {"texts": int, "most": int, "triton_model": str, "records": str}


@dataclass(frozen=True, slots=True)
class Block:
    """One model on one device with one number of threads.

    Attributes:
        values: What is asked for, as plain values.
    """

    values: Values

    @property
    def signature(self) -> str:
        """A hash over everything that decides what is measured, so not over where its files lie."""
        asked = {name: value for name, value in self.values.items() if name not in _PLACES}
        asked["checkpoint"] = Path(self.values["checkpoint"]).name
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]

    def options(self) -> RunOptions:
        """What it measures, its corpora loaded.

        Raises:
            SentportError: When a corpus cannot be had.
        """
        asked = self.values
        bundle = asked["bundle"]
        servers = [
            ServerTarget(url, asked["triton_model"], asked["clients"], size)
            for url in asked["triton"]
            for size in asked["texts_per_request"]
        ]
        return RunOptions(
            checkpoint=Path(asked["checkpoint"]),
            bundle=Path(bundle) if bundle else None,
            corpora=tuple(corpus_of(name) for name in asked["corpus"]),
            contestants=tuple(asked["contestants"]),
            policies=tuple(_policy(name) for name in asked["policies"]),
            precisions=tuple(asked["precision"]),
            layouts=tuple(asked["layout"]) or None,
            sessions=tuple(asked["sessions"]),
            apart=asked["tokenisation"] == "both",
            flat=asked["equal"],
            probe=asked["probe"],
            ceilings=asked["ceilings"],
            servers=tuple(servers),
            settings=Settings(asked["warmup"], asked["repeats"], asked["seed"], asked["most"], asked["tight"]),
            threads=asked["threads"],
            device=asked["device"],
            texts=asked["texts"],
            pairs=stsb_pairs() if asked["quality"] else None,
            environments=Path(asked["environments"]),
            grid=asked["name"],
            signature=self.signature if asked["name"] else "",
        )


def read_grid(path: Path) -> Values:
    """The values of a grid file.

    Raises:
        SentportError: When it cannot be read, or is no TOML.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SentportError(f"grid {path} cannot be read: {error}") from None
    return {"name": path.stem, "records": str(path.parent.parent / "records" / path.stem)} | values


def complete(*layers: Mapping[str, Any]) -> Values:
    """Defaults under layers of values, the last one on top, checked.

    Raises:
        SentportError: For a name that is unknown or a value that cannot be, by its name.
    """
    values = dict(DEFAULTS)
    for layer in layers:
        for name, value in layer.items():
            if name not in DEFAULTS:
                near = difflib.get_close_matches(name, DEFAULTS, 1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(DEFAULTS)}"
                raise SentportError(f"grid: {name!r} is unknown{hint}")
            values[name] = value if name not in AXES or isinstance(value, list) else [value]
    for name, value in values.items():
        _check(name, value)
    if values["triton"] and not values["triton_model"]:
        raise SentportError("--triton names a server but not its model; add --triton-model NAME")
    for policy in values["policies"]:
        _policy(policy)
    return values


def expand(values: Values) -> Iterator[Block]:
    """The blocks of a grid.

    Raises:
        SentportError: When it names no model.
    """
    if not values["model"]:
        raise SentportError("no model is named; give --checkpoint DIR, or a [[model]] in the grid")
    threads = values["threads"] or [available_cores()]
    for model, device, count in product(values["model"], values["device"], threads):
        unknown = sorted(set(model) - set(_MODEL))
        if unknown or "checkpoint" not in model:
            raise SentportError(
                f"grid: a model has {', '.join(model)}; expected checkpoint, and bundle and export or not"
            )
        rest = {name: value for name, value in values.items() if name != "model"}
        yield Block({"bundle": None, "export": None, **rest, **model, "device": device, "threads": count})


def _check(name: str, value: Any) -> None:
    default = DEFAULTS[name]
    if value is None and name in _MAY_BE_NONE:
        return
    wanted: Any = _MAY_BE_NONE.get(name, type(default))
    fits = isinstance(value, (int, float) if wanted is float else wanted)
    if not fits or (isinstance(value, bool) and wanted is not bool):
        raise SentportError(f"grid: {name} is {value!r}; expected {wanted.__name__}")
    if name == "tight" and not value > 0:
        raise SentportError(f"grid: tight is {value}; expected more than 0")
    if name in _COUNTS:
        least = 0 if name == "sessions" else 1
        for number in value if isinstance(value, list) else [value]:
            if not isinstance(number, int) or number < least:
                raise SentportError(f"--{name.replace('_', '-')} is {number}; expected {least} or more")


def _policy(name: str) -> BatchPolicy:
    try:
        return BatchPolicy(name)
    except ValueError:
        known = ", ".join(policy.value for policy in BatchPolicy)
        raise SentportError(f"batch policy {name!r} is unknown; known: {known}") from None
