"""A model repository checked without a server: what this server would refuse, ignore, or answer wrongly.

A rule is a function over one model that yields what is wrong; the table in ``lint_rules`` names it and says how it was
proven. The server itself is the measure: ``tests/triton_repo/test_lint_proofs.py`` hands it a minimal broken repository
for each rule that has the proof ``server``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from sentport.errors import SentportError
from triton_repo.config import CONFIG_FILE
from triton_repo.releases import Release
from triton_repo.transport import load_library

# The server takes no notice of a folder whose name begins with 0.
_VERSION = re.compile("[1-9][0-9]*")
# Of larger ones protobuf's reader makes minutes.
_MOST_BYTES = 4 << 20
_MOST_TOLD = 400


class Proof:
    """How a rule was proven to matter."""

    SERVER = "server"  # the real server refuses a minimal broken repository, or answers wrongly with it
    ONNXRUNTIME = "onnxruntime"  # ONNX Runtime, in process, refuses what that server's backend would hand it
    UNPROVED = "unproved"  # from what was seen on a server with that backend; nothing here repeats it


class Problem(NamedTuple):
    """What a rule found in a model: the field, what is there and what was expected, the way out, the file."""

    field: str
    what: str
    fix: str
    file: str = CONFIG_FILE

    def finding(self, model: str, rule: str, proof: str) -> Finding:
        """The same, as something to tell."""
        file, field, what, fix = map(_one_line, (f"{model}/{self.file}", self.field, self.what, self.fix))
        return Finding(file, field, what, fix, rule, proof)


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem and where it is.

    Attributes:
        file: The file, relative to the repository.
        field: Its field, as a path through ``config.pbtxt`` or as the graph calls it; "" = the whole file.
        what: Found and expected.
        fix: The way out.
        rule: Name of the rule.
        proof: One of ``Proof``.
    """

    file: str
    field: str
    what: str
    fix: str
    rule: str
    proof: str


@dataclass(frozen=True)
class Target:
    """What the repository is to run on.

    Attributes:
        release: The Triton release.
        gpu: Whether it has a GPU; None = not said.
        environment: The python environment of the server's stub, with the stub where that lies in it; None = not said.
    """

    release: Release
    gpu: bool | None = None
    environment: Path | None = None


@dataclass(frozen=True)
class Model:
    """One folder of a repository.

    Attributes:
        folder: The folder.
        config: Its parsed ``config.pbtxt``.
        others: All models of the repository by folder name, this one included.
        target: What it is to run on.
    """

    folder: Path
    config: Any
    others: dict[str, Model]
    target: Target

    @property
    def backend(self) -> str:
        """``python``, ``onnxruntime``, ``ensemble`` ..., by whichever of the two fields says it."""
        platform = {"onnxruntime_onnx": "onnxruntime", "tensorrt_plan": "tensorrt"}
        return str(self.config.backend or platform.get(self.config.platform, self.config.platform))

    @property
    def versions(self) -> list[Path]:
        """Its version folders, the oldest first."""
        found = [path for path in self.folder.iterdir() if path.is_dir() and _VERSION.fullmatch(path.name)]
        return sorted(found, key=lambda path: int(path.name))

    @property
    def served(self) -> list[Path]:
        """The version folders that the version policy takes."""
        policy, versions = self.config.version_policy, self.versions
        if policy.WhichOneof("policy_choice") == "all":
            return versions
        if policy.WhichOneof("policy_choice") == "specific":
            return [path for path in versions if int(path.name) in policy.specific.versions]
        return versions[-(policy.latest.num_versions or 1) :]

    @property
    def parameters(self) -> dict[str, str]:
        """Its parameters."""
        return {key: value.string_value for key, value in self.config.parameters.items()}

    @cached_property
    def graph(self) -> Any:
        """The ONNX graph of its newest version, without weights that lie outside; None where there is none to read."""
        import onnx

        file = self.served[-1] / (self.config.default_model_filename or "model.onnx") if self.served else None
        if self.backend != "onnxruntime" or file is None or not file.is_file():
            return None
        try:
            graph = onnx.load(file, load_external_data=False)
        except Exception:  # protobuf's own errors; `graph-read` tells
            return None
        return graph if graph.HasField("graph") else None  # an empty file is an empty message


class Rule(NamedTuple):
    """A row of the table."""

    name: str
    proof: str
    check: Callable[[Model], Iterator[Problem]]


def lint(repository: Path, target: Target) -> list[Finding]:
    """What is wrong with a repository; nothing where all is well.

    Args:
        repository: The folder with one folder for each model.
        target: What it is to run on.

    Raises:
        SentportError: When there is no repository, or a library is missing.
    """
    _check_libraries()
    from triton_repo.lint_rules import RULES

    folders = sorted(path for path in _children(repository) if path.is_dir() and not path.name.startswith("."))
    if not folders:
        raise SentportError(f"{repository} is no model repository: it holds no folder of a model")
    models: dict[str, Model] = {}
    findings: list[Finding] = []
    for folder in folders:
        config = _read(folder / CONFIG_FILE)
        if isinstance(config, Problem):
            findings.append(config.finding(folder.name, "config-read", Proof.SERVER))
        else:
            models[folder.name] = Model(folder, config, models, target)
    for name, model in models.items():
        for rule in RULES:
            findings += [each.finding(name, rule.name, rule.proof) for each in rule.check(model)]
    return findings


def _one_line(text: str) -> str:
    """What strangers wrote as a line that a terminal shows: no control characters, and cut off where it has no end."""
    short = text if len(text) <= _MOST_TOLD else f"{text[:_MOST_TOLD]}…"
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in short)


def _check_libraries() -> None:
    for name in ("tritonclient.grpc", "google.protobuf", "onnx"):
        try:
            import_module(name)
        except ImportError as error:
            raise SentportError(
                f"`sentport lint` needs {name}, which cannot be imported ({error}): pip install 'sentport[lint]'"
            ) from None


def _children(repository: Path) -> list[Path]:
    if not repository.is_dir():
        raise SentportError(f"{repository} is not a folder; expected what `sentport repository` writes")
    return list(repository.iterdir())


def _read(file: Path) -> Any:
    from google.protobuf import text_format

    schema = load_library("grpc.model_config_pb2")
    if not file.is_file():
        return Problem("", "there is no config.pbtxt", "write one, or move the folder out of the repository")
    size = file.stat().st_size
    if size > _MOST_BYTES:
        return Problem("", f"has {size} bytes, and is not read: no config needs {_MOST_BYTES}", "make it smaller")
    try:
        return text_format.Parse(file.read_text(encoding="utf-8"), schema.ModelConfig())
    except UnicodeDecodeError as error:
        return Problem("", f"not UTF-8 at byte {error.start}", "save it as UTF-8")
    except text_format.ParseError as error:
        return Problem(
            "", f"cannot be parsed: {error}", "correct the line; field names are those of model_config.proto"
        )
