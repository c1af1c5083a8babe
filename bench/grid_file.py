"""A grid as it is asked for: defaults, then a TOML file, then the command line's options, each over the one before.

Every value of ``AXES`` may be a list. ``[[model]]`` tables name a checkpoint, its bundle, and how to export that.
Models, devices and threads make blocks; the other axes make the rows of each.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from pathlib import Path
from typing import Any

from bench.cases import Settings
from bench.cli_checks import MOST_CLIENTS
from bench.contestants.opening import KINDS
from bench.corpus import stsb_pairs
from bench.grid import CONTESTANTS, RunOptions, ServerTarget
from bench.recipes import corpus_of
from sentport.bundle import LAYOUTS, PRECISIONS
from sentport.engines import FLAVOURS
from sentport.errors import SentportError
from sentport.hardware import available_cores
from sentport.scheduler import BatchPolicy

Values = dict[str, Any]

AXES = (
    *("contestants", "precision", "layout", "policies", "corpus"),
    *("device", "sessions", "threads", "clients", "texts_per_request"),
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
    "serve": False,
    "clients": [16],
    "texts_per_request": [16],
    "warmup": 1,
    "repeats": 5,
    "most": None,
    "tight": 0.03,
    "seed": 5,
    "environments": "build/envs",
}
_COUNTS = ("sessions", "threads", "texts", "clients", "texts_per_request", "warmup", "repeats", "most")
# More of them than any machine has is a slip of the finger.
_MOST = {"sessions": 1024, "threads": 1024, "clients": MOST_CLIENTS}
# An empty list of the others would measure nothing.
_MAY_BE_EMPTY = ("model", "layout", "threads", "triton")
_FEW = 4  # names that are better all told than guessed at
_PRECISIONS = ("auto", *PRECISIONS)
_FLAVOURS = dict.fromkeys(chain(*FLAVOURS.values()))
_CHOICES: Mapping[str, Sequence[str]] = {
    "contestants": KINDS,
    "precision": (*_PRECISIONS, *(f"{each}-{flavour}" for each in _PRECISIONS for flavour in _FLAVOURS)),
    "layout": LAYOUTS,
    "policies": tuple(policy.value for policy in BatchPolicy),
    "device": ("cpu", "cuda"),
    "tokenisation": ("inside", "both"),
}
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
        corpora = tuple({corpus_of(name): None for name in asked["corpus"]})
        _refuse_namesakes("corpora", [corpus.name for corpus in corpora])
        loads = _loads(asked["clients"], asked["texts_per_request"])
        servers = [ServerTarget(url, asked["triton_model"], *load) for url in asked["triton"] for load in loads]
        return RunOptions(
            checkpoint=Path(asked["checkpoint"]),
            bundle=Path(bundle) if bundle else None,
            corpora=corpora,
            contestants=tuple(asked["contestants"]),
            policies=tuple(BatchPolicy(name) for name in asked["policies"]),
            precisions=tuple(asked["precision"]),
            layouts=tuple(asked["layout"]) or None,
            sessions=tuple(asked["sessions"]),
            apart=asked["tokenisation"] == "both",
            flat=asked["equal"],
            probe=asked["probe"],
            ceilings=asked["ceilings"],
            servers=tuple(servers),
            serve=asked["serve"],
            loads=loads,
            settings=_settings(asked),
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
                raise SentportError(f"grid: {name!r} is unknown{_hint(name, DEFAULTS)}")
            values[name] = value if name not in AXES or isinstance(value, list) else [value]
    for name, value in values.items():
        _check(name, value)
    for name in set(AXES) - {"clients", "texts_per_request"}:  # which go together, pair by pair
        values[name] = list(dict.fromkeys(values[name]))
    if bool(values["triton"]) != bool(values["triton_model"]):
        raise SentportError("a server and its model's name go together; give --triton URL and --triton-model NAME")
    _loads(values["clients"], values["texts_per_request"])
    _settings(values)
    return values


def expand(values: Values) -> Iterator[Block]:
    """The blocks of a grid.

    Raises:
        SentportError: When it names no model.
    """
    if not values["model"]:
        raise SentportError("no model is named; give --checkpoint DIR, or a [[model]] in the grid")
    for model in values["model"]:
        _check_model(model, serve=values["serve"])
    _refuse_namesakes("models", [Path(model["checkpoint"]).name for model in values["model"]])
    threads = values["threads"] or [available_cores()]
    for model, device, count in product(values["model"], values["device"], threads):
        rest = {name: value for name, value in values.items() if name != "model"}
        yield Block({"bundle": None, "export": None, **rest, **model, "device": device, "threads": count})


def _check_model(model: Any, *, serve: bool) -> None:
    for name in model if isinstance(model, dict) else ():
        if name not in _MODEL:
            raise SentportError(f"grid: a model has {name!r}, which is unknown; known: {', '.join(_MODEL)}")
    if not isinstance(model, dict) or "checkpoint" not in model:
        found = ", ".join(model) if isinstance(model, dict) else repr(model)
        raise SentportError(f"grid: a model has {found}; expected checkpoint, and bundle and export or not")
    for name, value in model.items():
        if not isinstance(value, str) or not value:
            raise SentportError(f"grid: a model's {name} is {value!r}; expected text")
    if serve and "bundle" not in model:
        raise SentportError("a server is asked for, but no bundle to serve; add --bundle BUNDLE, or --no-serve")


def _refuse_namesakes(what: str, names: Sequence[str]) -> None:
    """Records tell models, and corpora, apart by their names."""
    for name in names:
        if names.count(name) > 1:
            raise SentportError(f"two {what} are named {name!r}, which records cannot tell apart; rename one")


def _check(name: str, value: Any) -> None:
    if value is None and name in _MAY_BE_NONE:
        return
    wanted: Any = _MAY_BE_NONE.get(name, type(DEFAULTS[name]))
    _check_type(name, value, wanted)
    if name == "tight" and not value > 0:
        raise SentportError(f"grid: tight is {value}; expected more than 0")
    if value == [] and name not in _MAY_BE_EMPTY:
        raise SentportError(f"grid: {name} is an empty list; expected one or more")
    for item in value if isinstance(value, list) else [value]:
        if name in AXES or name == "triton":
            _check_type(name, item, int if name in _COUNTS else str)
        if name in _COUNTS and not (least := 0 if name == "sessions" else 1) <= item <= _MOST.get(name, item):
            at_most = f", {_MOST[name]} at most" if name in _MOST else ""
            raise SentportError(f"--{name.replace('_', '-')} is {item}; expected {least} or more{at_most}")
        if name in _CHOICES and item not in _CHOICES[name]:
            raise SentportError(f"{name} {item!r} is unknown{_hint(item, _CHOICES[name])}")


def _check_type(name: str, value: Any, wanted: Any) -> None:
    fits = isinstance(value, (int, float) if wanted is float else wanted)
    if not fits or (isinstance(value, bool) and wanted is not bool):
        raise SentportError(f"grid: {name} is {value!r}; expected {wanted.__name__}")


def _hint(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, known, 1) if len(known) > _FEW else []
    return f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"


def _settings(values: Values) -> Settings:
    return Settings(*(values[name] for name in ("warmup", "repeats", "seed", "most", "tight")))


def _loads(clients: list[int], texts_per_request: list[int]) -> tuple[tuple[int, int], ...]:
    """What a server is asked: as many clients as each size of a request has, or the same for all."""
    many = clients * len(texts_per_request) if len(clients) == 1 else clients
    if len(many) != len(texts_per_request):
        raise SentportError(
            f"{len(clients)} values of --clients for {len(texts_per_request)} of --texts-per-request; expected one, or "
            "one for each"
        )
    return tuple(zip(many, texts_per_request, strict=True))
