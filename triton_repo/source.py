"""Our own source as files: what the server's Python gets of sentport."""

from __future__ import annotations

from pathlib import Path

# What the models in a repository import; the other packages need torch or are no part of serving.
PACKAGES = ("sentport", "triton_repo")
HOME = Path(__file__).resolve().parents[1]


def source_files() -> list[Path]:
    """The files of ``PACKAGES``, in order; they lie under ``HOME``."""
    return sorted(
        path
        for name in PACKAGES
        for path in (HOME / name).rglob("*")
        if path.is_file() and path.parent.name != "__pycache__"
    )
