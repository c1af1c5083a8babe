"""Peer environments: a Python of its own for each, made by one command and reused.

``sentport bench peer sentence-transformers-onnx`` makes one ahead of a run; a run that needs it makes it as well.
"""

from __future__ import annotations

import json
import logging
import platform
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from sentport.errors import SentportError
from sentport.files import folder_written_aside

_log = logging.getLogger(__name__)

MANIFEST = "peer.json"
ENVIRONMENTS = Path("build/envs")


def peer_python(name: str, requirements: Sequence[str], environments: Path = ENVIRONMENTS) -> Path:
    """The Python of an environment, which is built where it is missing or was built for other packages.

    Args:
        name: Of the environment.
        requirements: What it holds.
        environments: Folder that holds, or shall hold, a folder of that name.

    Raises:
        SentportError: An installation that failed, or a folder there that holds something else.
    """
    folder = environments.absolute() / name
    wanted = {"python": platform.python_version(), "requirements": list(requirements)}
    if not _holds(folder, wanted):
        _build(folder, wanted, requirements)
    return _python_in(folder)


def _python_in(folder: Path) -> Path:
    return folder / "bin" / "python"


def _holds(folder: Path, wanted: Mapping[str, object]) -> bool:
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
            raise SentportError(f"{folder} holds something else than a peer's environment; move it away") from None
        return False
    return all(manifest.get(name) == value for name, value in wanted.items())


def _build(folder: Path, wanted: Mapping[str, object], requirements: Sequence[str]) -> None:
    _log.info("building %s once: %s", folder, ", ".join(requirements))
    with folder_written_aside(folder) as aside:
        venv.create(aside, symlinks=True)
        pip = [sys.executable, "-m", "pip", "--python", str(_python_in(aside)), "--disable-pip-version-check"]
        options = ["--quiet", "--no-input", "--only-binary=:all:"]
        done = subprocess.run([*pip, "install", *options, *requirements], capture_output=True, text=True, check=False)
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit code {done.returncode}"]
            reason = next((line for line in said if "ERROR" in line), said[-1])
            raise SentportError(f"the environment of {folder.name} could not be installed: {reason}")
        found = metadata.distributions(path=[str(path) for path in aside.glob("lib/python*/site-packages")])
        packages = dict(sorted((each.metadata["Name"], each.version) for each in found))
        (aside / MANIFEST).write_text(json.dumps({**wanted, "packages": packages}, indent=1) + "\n", encoding="utf-8")
