"""Written aside, then renamed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sentport.files import file_written_aside, folder_written_aside, replace_folder


def test_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(RuntimeError), folder_written_aside(out) as folder:
        (folder / "half").touch()
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    for name in ("first", "second"):
        with folder_written_aside(out) as folder:
            (folder / name).touch()
    assert [path.name for path in out.iterdir()] == ["second"]
    assert list(tmp_path.iterdir()) == [out]


def test_what_was_there_comes_back_when_the_new_cannot_take_its_place(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "old").touch()
    with pytest.raises(FileNotFoundError):
        replace_folder(tmp_path / "missing", out)
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "old"]


def test_what_a_killed_process_left_is_removed_and_a_living_one_s_is_not(tmp_path: Path) -> None:
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    stale, living = (tmp_path / f".out.partial-{pid}" for pid in (int(dead.stdout), os.getppid()))
    for folder in (stale, living):
        folder.mkdir()
    with folder_written_aside(tmp_path / "out"):
        pass
    assert not stale.exists()
    assert living.exists()


def test_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    out = tmp_path / "out.npy"
    out.write_text("old")
    with pytest.raises(RuntimeError), file_written_aside(out) as aside:
        aside.write_text("half")
        raise RuntimeError
    assert out.read_text() == "old"
    with file_written_aside(out) as aside:
        aside.write_text("new")
    assert out.read_text() == "new"
    assert list(tmp_path.iterdir()) == [out]
