"""Written aside, then renamed: what exists is whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def folder_written_aside(out: Path) -> Iterator[Path]:
    """A folder beside ``out`` that takes its place at the end, or vanishes with whatever went wrong."""
    out = out.absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    _sweep(out)
    aside = out.parent / f".{out.name}.partial-{os.getpid()}"
    aside.mkdir()
    try:
        yield aside
        replace_folder(aside, out)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def replace_folder(new: Path, out: Path) -> None:
    """Rename a finished folder to ``out``, in place of what is there.

    What a killed process had moved out of the way goes too, now that there is something newer.
    """
    before = out.parent / f".{out.name}.old-{os.getpid()}"
    if out.exists():
        out.rename(before)
    try:
        new.rename(out)
    except BaseException:  # Ctrl-C too
        if before.exists() and not out.exists():
            before.rename(out)
        raise
    for old in out.parent.glob(f".{out.name}.old-*"):
        shutil.rmtree(old, ignore_errors=True)


def _sweep(out: Path) -> None:
    """Remove what a killed process left half-written beside ``out``."""
    for stale in out.parent.glob(f".{out.name}.partial-*"):
        owner = stale.name.rpartition("-")[2]
        if owner.isdecimal() and not _is_alive(int(owner)):
            shutil.rmtree(stale, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        return True
    return True


@contextmanager
def file_written_aside(out: Path) -> Iterator[Path]:
    """A file path beside ``out`` whose file takes its place at the end, or vanishes with whatever went wrong."""
    aside = out.with_name(f".{out.name}.partial-{os.getpid()}")
    try:
        yield aside
        aside.rename(out)
    finally:
        aside.unlink(missing_ok=True)
