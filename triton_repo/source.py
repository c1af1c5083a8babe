"""What the server's Python gets of ours, as files: sentport's source, and the kernels of engine ``native``."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

# What the models in a repository import; the other packages need torch or are no part of serving.
PACKAGES = ("sentport", "triton_repo")
NATIVE = "sentport_native"
_HOME = Path(__file__).resolve().parents[1]


def source_files() -> dict[str, Path]:
    """The files of ``PACKAGES`` by their path in a folder of packages, in order."""
    files = sorted(path for name in PACKAGES for path in (_HOME / name).rglob("*") if path.is_file())
    return {path.relative_to(_HOME).as_posix(): path for path in files if path.parent.name != "__pycache__"}


def native_files(suffix: str) -> dict[str, Path]:
    """The package ``sentport_native`` that is installed here, likewise.

    Args:
        suffix: What the names of extension modules end with in the Python that gets it: each has its own.

    Returns:
        Nothing where it is not installed here, or its extension module is another Python's.
    """
    try:
        held = metadata.files("sentport-native") or []
    except metadata.PackageNotFoundError:
        return {}
    files = {
        file.as_posix(): Path(str(file.locate()))
        for file in sorted(held)
        if file.parts[0] == NATIVE and file.suffix != ".pyc"
    }
    fits = f"{NATIVE}/__init__.py" in files and any(name.endswith(suffix) for name in files)
    return files if fits and all(file.is_file() for file in files.values()) else {}
