"""TensorRT plans beside a bundle's graphs: ``engines/<name>.plan`` and the JSON that says what it is."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from sentport.bundle import Bundle, GraphRecord, sha256_of
from sentport.errors import BundleError
from sentport.files import file_written_aside

FOLDER = "engines"
BUILDERS = {"trt": "TensorRT", "rtx": "TensorRT for RTX"}
LATER = "8.0+"  # compute capability of devices from Ampere on
UNVERIFIED, PASSED, REFUSED = "unverified", "passed", "refused"
_CHECKED = ("sha256", "device", "version")  # what a check is of
_TOLD = {UNVERIFIED: (), REFUSED: (*_CHECKED, "reason"), PASSED: (*_CHECKED, "layers", "cosine", "rows")}
_MOST = 2**31 - 1  # of one axis, as TensorRT counts


class Extent(NamedTuple):
    """Least, best and most of one axis; tactics are chosen for the best."""

    least: int
    best: int
    most: int


class Profile(NamedTuple):
    """The shapes that one set of tactics serves.

    Attributes:
        rows: Rows of a batch.
        tokens: Of layout ``padded`` tokens of a row, of ``packed`` tokens of all rows.
    """

    rows: Extent
    tokens: Extent


@dataclass(frozen=True)
class Plan:
    """One plan and what is known of it.

    Attributes:
        name: Its files are ``engines/<name>.plan`` and ``engines/<name>.json``.
        graph: File of the graph that it was built of.
        graph_sha256: Hash of that graph.
        layout: Of the graph.
        precision: Of the graph, found again in the parsed network.
        sha256: Hash of the plan.
        builder: ``trt`` or ``rtx``.
        version: Of the builder.
        runs_on: Compute capabilities of the devices that run it: ``8.9``, or ``8.0+`` for that and later ones.
        newer_versions: Whether later versions of the same major version load it.
        profiles: Ascending by tokens.
        types: Linear layers of the parsed network by the type in which they multiply.
        seconds: What the build took.
        log: What the builder warned of.
        parity: ``state``, and of a check on a GPU the plan's hash, device, version and figures.
    """

    name: str
    graph: str
    graph_sha256: str
    layout: str
    precision: str
    sha256: str
    builder: str
    version: str
    runs_on: tuple[str, ...]
    newer_versions: bool
    profiles: tuple[Profile, ...]
    types: Mapping[str, int]
    seconds: float
    log: tuple[str, ...] = ()
    parity: Mapping[str, Any] = field(default_factory=lambda: {"state": UNVERIFIED})

    @property
    def file(self) -> str:
        """Path of the plan inside the bundle."""
        return f"{FOLDER}/{self.name}.plan"

    @property
    def token_budget(self) -> int:
        """Computed tokens of its largest batch."""
        if self.layout == "packed":
            return self.profiles[-1].tokens.most
        return max(profile.rows.most * profile.tokens.most for profile in self.profiles)

    def rebuild(self, bundle: Bundle, *, same_devices: bool = True) -> str:
        """The command that makes it anew, in its place, or for the machine where it is given."""
        edges = ",".join(str(profile.tokens.most) for profile in self.profiles)
        words = [
            *("sentport build", shlex.quote(str(bundle.path)), "--builder", self.builder, "--layout", self.layout),
            *("--precision", self.precision, "--edges", edges, "--token-budget", str(self.token_budget)),
        ]
        if self.layout == "packed":
            words += ["--corpus", "FILE"]  # by which its rows are planned
        if same_devices and self.builder == "trt" and self.runs_on == (LATER,):
            words.append("--other-devices")
        if same_devices and self.builder == "rtx" and self.runs_on != (LATER,):
            words += ["--compute-capability", ",".join(self.runs_on)]
        if self.newer_versions:
            words.append("--newer-versions")
        return " ".join([*words, "--force"])

    def runs_on_device(self, capability: tuple[int, int]) -> bool:
        """Whether a device of this compute capability runs it."""
        return any(
            capability >= _version(text[:-1]) if text.endswith("+") else capability == _version(text)
            for text in self.runs_on
        )


def read_plans(bundle: Bundle) -> list[Plan]:
    """The bundle's plans by name; each has to belong to a graph as it is now.

    Raises:
        BundleError: When one is damaged, or was built of another graph.
    """
    plans = [_read(path) for path in sorted((bundle.path / FOLDER).glob("*.json"))]
    graphs = {graph.file: graph for graph in bundle.graphs}
    for plan in plans:
        graph = graphs.get(plan.graph)
        found = (plan.graph_sha256, plan.layout, plan.precision)
        if graph is None or found != (graph.sha256, graph.layout, graph.precision):
            raise BundleError(
                f"{bundle.path / plan.file} was built of another {plan.graph}; remove it and its JSON, or make it "
                f"again with `{plan.rebuild(bundle)}`"
            )
    return plans


def plan_file(bundle: Bundle, plan: Plan) -> Path:
    """Path of a plan, after its hash was checked.

    Raises:
        BundleError: When it is missing, outside of the bundle, or not what its JSON describes.
    """
    path = bundle.path / plan.file
    if not path.resolve().is_relative_to(bundle.path.resolve()):
        fault = f"lies outside of {bundle.path}, at {path.resolve()}"
    elif not path.is_file():
        fault = "is missing"
    elif (found := sha256_of(path)) != plan.sha256:
        fault = f"has changed: its SHA-256 is {found[:12]}…, its JSON says {plan.sha256[:12]}…"
    else:
        return path
    raise BundleError(f"{path} {fault}; make it again with `{plan.rebuild(bundle)}`")


def refuse_unwritable(bundle: Bundle) -> None:
    """Raises BundleError when no plan can be written into the bundle, which is better known before a long build."""
    folder = bundle.path / FOLDER
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise BundleError(f"{folder} is no folder of the bundle itself, where plans go; move it away")
    place = folder if folder.is_dir() else bundle.path
    if not os.access(place, os.W_OK | os.X_OK):
        raise BundleError(
            f"{place} cannot be written, where plans go; make it writable, or build in a copy of the bundle"
        )


def graph_of(bundle: Bundle, plan: Plan) -> GraphRecord:
    """The record of the graph that a plan was built of."""
    return next(graph for graph in bundle.graphs if graph.file == plan.graph)


def write_plan(bundle: Bundle, plan: Plan, content: bytes | memoryview) -> Plan:
    """Write a plan and its JSON, each aside and then renamed, the JSON last; gives the plan with its hash.

    Raises:
        BundleError: When they cannot be written.
    """
    try:
        (bundle.path / FOLDER).mkdir(exist_ok=True)
        with file_written_aside(bundle.path / plan.file) as file:
            file.write_bytes(content)
            plan = replace(plan, sha256=sha256_of(file))
        write_record(bundle, plan)
    except OSError as error:
        raise BundleError(
            f"{bundle.path / plan.file} of {len(content) / 1e6:.0f} MB cannot be written ({error.strerror}); make room "
            "there, or build in a copy of the bundle elsewhere"
        ) from error
    return plan


def write_record(bundle: Bundle, plan: Plan) -> None:
    """Write a plan's JSON."""
    text = json.dumps(asdict(plan), indent=2, ensure_ascii=False)
    with file_written_aside((bundle.path / plan.file).with_suffix(".json")) as file:
        file.write_text(text + "\n", encoding="utf-8")


def _read(path: Path) -> Plan:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        held: dict[str, Any] = {each.name: values[each.name] for each in fields(Plan)}
        held["profiles"] = tuple(Profile(Extent(*rows), Extent(*tokens)) for rows, tokens in held["profiles"])
        for name in ("runs_on", "log"):
            held[name] = tuple(held[name])
        plan = Plan(**held)
        if plan.name != path.stem or not (_has_types(plan) and _has_shapes(plan) and _has_parity(plan)):
            raise ValueError("values that no build writes")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BundleError(
            f"{path} is damaged ({type(error).__name__}: {error}); remove it and its plan, and build again"
        ) from None
    return plan


def _has_types(plan: Plan) -> bool:
    texts = (plan.graph, plan.graph_sha256, plan.layout, plan.precision, plan.sha256, *plan.log)
    return (
        all(isinstance(text, str) for text in texts)
        and plan.builder in BUILDERS
        and re.match(r"\d+\.", plan.version) is not None
        and bool(plan.runs_on)
        and all(re.fullmatch(r"\d+\.\d+\+?", text) for text in plan.runs_on)
        and isinstance(plan.newer_versions, bool)
        and all(_is_whole(count) for count in plan.types.values())
        and isinstance(plan.seconds, int | float)
    )


def _has_shapes(plan: Plan) -> bool:
    """Profiles follow one another from 1 on, each within what an axis may have."""
    extents = [extent for profile in plan.profiles for extent in profile]
    if not extents or not all(_is_whole(size) for extent in extents for size in extent):
        return False
    starts = [1, *(profile.tokens.most + 1 for profile in plan.profiles)]
    return all(1 <= extent.least <= extent.best <= extent.most <= _MOST for extent in extents) and all(
        profile.tokens.least == start for profile, start in zip(plan.profiles, starts, strict=False)
    )


def _has_parity(plan: Plan) -> bool:
    """The check is of this very plan, and tells what a check tells: its state alone is no proof."""
    parity = plan.parity
    told = _TOLD.get(parity["state"])
    if told is None or not parity.keys() >= {*told}:
        return False
    if not told:
        return True
    numbers = [parity["cosine"], parity["rows"], *parity["layers"].values()] if parity["state"] == PASSED else []
    return (
        parity["sha256"] == plan.sha256
        and all(isinstance(parity[name], str) for name in _CHECKED)
        and all(isinstance(number, int | float) for number in numbers)
    )


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))
