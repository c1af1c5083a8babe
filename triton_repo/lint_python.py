"""Rules on models of the python backend: the script, the environment of its stub, and our own bundle in it."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from sentport.bundle import read_bundle
from sentport.errors import SentportError
from triton_repo import form_text, settings, wire
from triton_repo.lint import Model, Problem
from triton_repo.lint_config import type_name

_CLASS = "TritonPythonModel"
_STUB = "triton_python_backend_stub"
_NUMPY_LIMIT = 2  # with this major version the stub dies on the first text


def script(model: Model) -> Iterator[Problem]:
    """The script is Python, and has the class that the backend looks for."""
    for file in (folder / "model.py" for folder in _served(model)):
        if not file.is_file():
            continue  # `model-file`
        where = f"{file.parent.name}/model.py"
        try:
            tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError) as error:
            yield Problem("", f"is no Python: {error}", "correct it", where)
            continue
        except (RecursionError, MemoryError):
            yield Problem("", "is no Python: nested too deeply to be parsed", "correct it", where)
            continue
        if _CLASS not in _defined(tree):
            yield Problem("", f"has no class {_CLASS}", "add it, with a method execute", where)


def _defined(tree: ast.Module) -> set[str]:
    """The names that a script's top level may define."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def environment_file(model: Model) -> Iterator[Problem]:
    """An environment that the model brings along is there."""
    path = model.parameters.get("EXECUTION_ENV_PATH") if model.backend == "python" else None
    if path and not Path(path.replace("$$TRITON_MODEL_DIRECTORY", str(model.folder))).exists():
        yield Problem(
            "parameters.EXECUTION_ENV_PATH", f"{path} is not there", "pack it again (conda-pack), or correct it"
        )


def numpy_version(model: Model) -> Iterator[Problem]:
    """The environment's numpy is one that the stub can hand texts to."""
    tensors = [*model.config.input, *model.config.output]
    if model.backend != "python" or not any(type_name(each.data_type) == "TYPE_STRING" for each in tensors):
        return
    for packages in _site_packages(model.target.environment):
        found = {each.metadata["Name"]: each.version for each in metadata.distributions(path=[str(packages)])}
        version = found.get("numpy")
        if version is not None and int(version.partition(".")[0]) >= _NUMPY_LIMIT:
            told = f"the server's Python has numpy {version}, with which the stub dies on the first text"
            yield Problem("input", told, "install numpy<2 there")


def stub_version(model: Model) -> Iterator[Problem]:
    """The stub embeds the Python whose packages it is given."""
    folder = model.target.environment
    if model.backend != "python" or folder is None:
        return
    pythons = {packages.parent.name.removeprefix("python") for packages in _site_packages(folder)}
    for stub in sorted(folder.glob(f"**/backends/python/{_STUB}")):
        embedded = {match.decode() for match in re.findall(rb"libpython(3\.\d+)\.so", stub.read_bytes())}
        if embedded and pythons and not embedded & pythons:
            told = (
                f"the stub embeds Python {', '.join(sorted(embedded))}, the environment is {', '.join(sorted(pythons))}"
            )
            yield Problem("backend", told, "take the stub of that Python, from python_backend_stubs of nvidia-pytriton")


def bundle(model: Model) -> Iterator[Problem]:
    """What lies in a model of ours is what its config says."""
    values = model.parameters
    if model.backend != "python" or settings.FORM not in values or wire.ENCODER not in values:
        return
    expected = _fingerprint(values[wire.ENCODER])
    if expected is None:
        told = "does not describe a model of ours"
        yield Problem(f"parameters.{wire.ENCODER}", told, "write the repository again with `sentport repository`")
        return
    for version in model.served:
        folder = version / settings.BUNDLE_FOLDER
        try:
            opened = read_bundle(folder)
            opened.tokenizer_file()
            if values[settings.FORM] == "text":
                asked = (values["layout"], values["precision"], values["device"])
                opened.graph_file(form_text.graph_of(opened, settings.engine(values), *asked))
        except (SentportError, KeyError) as error:
            yield Problem("", str(error), "write the repository again", f"{version.name}/{settings.BUNDLE_FOLDER}")
            continue
        if opened.spec.fingerprint != expected:
            told = f"describes fingerprint {expected[:12]}…, {version.name} has {opened.spec.fingerprint[:12]}…"
            yield Problem(f"parameters.{wire.ENCODER}", told, "write the repository again with `sentport repository`")


def _fingerprint(described: str) -> str | None:
    try:
        return str(json.loads(described)["fingerprint"])
    except (ValueError, TypeError, LookupError, RecursionError):
        return None


def _served(model: Model) -> list[Path]:
    return model.served if model.backend == "python" else []


def _site_packages(environment: Path | None) -> list[Path]:
    return [] if environment is None else sorted(environment.glob("lib/python3.*/site-packages"))
