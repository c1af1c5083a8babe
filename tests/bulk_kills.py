"""Kill a real bulk run before its n-th file operation, for every n, and resume it: each result must be the same.

Run as a script, so that every run is a process of its own: forked from one that has imported everything and opened
nothing. Prints how many operations a run has, thus how many times it was killed.
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

# Everything that a run imports, so that a fork has it; pyarrow looks for pandas at its first array.
import numpy as np
import onnxruntime  # noqa: F401
import pyarrow.parquet

import sentport.bulk.columns
import sentport.bulk.job
import sentport.encoder
import sentport.engines.onnxruntime  # noqa: F401
from sentport.cli import main

pyarrow.array([0])
OPERATIONS = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate")


class Countdown:
    """Ends this process, as ``kill -9`` does, before its n-th operation on a file under a folder."""

    def __init__(self, folder: Path, operations: int) -> None:
        self.folder, self.left = str(folder), operations

    def step(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in OPERATIONS and (event == "os.truncate" or str(arguments[0]).startswith(self.folder)):
            self.step()

    def open(self, file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        """``io.open``, where writing is counted by what reaches the system."""
        ours = isinstance(file, str | os.PathLike) and str(file).startswith(self.folder)
        if not ours or not set(mode) & set("wxa"):
            return _real_open(file, mode, *arguments, **options)
        self.step()
        countdown = self

        class Counted(io.FileIO):
            def write(self, data: Any) -> int | None:  # type: ignore[override]
                countdown.step()
                return super().write(data)

        raw = Counted(file, mode.replace("b", "").replace("+", "") + ("+" if "+" in mode else ""))
        binary = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return binary if "b" in mode else io.TextIOWrapper(binary, encoding="utf-8", write_through=True)


_real_open = io.open


def run(command: list[str], folder: Path, kill_at: int | None) -> int:
    """Wait status of a forked run."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    if kill_at is not None:
        countdown = Countdown(folder, kill_at)
        io.open = countdown.open  # type: ignore[assignment]
        sys.addaudithook(countdown.audit)
    os._exit(main(command))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def check_untouched_or_new(output: Path, versions: list[Path]) -> None:
    """What a kill leaves in place of an output is the old one, the new one, or nothing that opens."""
    from sentport.bulk.manifest import StoreError
    from sentport.bulk.store import open_vectors

    try:
        held = open_vectors(output).load()
    except StoreError:
        return
    assert any(np.array_equal(held.vectors, open_vectors(one).load().vectors) for one in versions if one.exists())


def kill_everywhere(bundle: str, source: str, name: str, folder: Path, options: list[str]) -> int:
    """Kill before operation 1, 2, 3 ... until a run gets through.

    With ``--force`` among the options, an older output, of another input, stands in the way each time.
    """

    def command(where: Path, texts: str) -> list[str]:
        out = str(where / name)
        return ["encode", bundle, "--input", texts, "--output", out, "--threads", "1", "-q", *options]

    whole, older, where = folder / "whole", folder / "older", folder / "killed"
    whole.mkdir()
    older.mkdir()
    assert run(command(whole, source), whole, None) == 0
    wanted = contents(whole)
    if "--force" in options:
        (folder / "older.txt").write_text("a dog\na dog ran\nthe red cat\nthe blue dog\n\n")
        assert run(command(older, str(folder / "older.txt")), older, None) == 0
    for operation in range(1, 1000):
        shutil.copytree(older, where)
        status = run(command(where, source), where, operation)
        if status == 0:
            return operation - 1
        assert os.WIFSIGNALED(status), f"ended by itself at operation {operation}: {status}"
        check_untouched_or_new(where / name, [whole / name, older / name])
        status = run(command(where, source), where, None)
        # Killed after its last step, a run is complete, and its output is not replaced unasked.
        assert status == 0 or (os.WEXITSTATUS(status) == 2 and "--force" not in options), status
        found = contents(where)
        assert found == wanted, (operation, set(found) ^ set(wanted), [n for n in wanted if found.get(n) != wanted[n]])
        shutil.rmtree(where)
    raise AssertionError("a run has no end")


if __name__ == "__main__":
    bundle, source, name, folder, *options = sys.argv[1:]
    print(kill_everywhere(bundle, source, name, Path(folder), options))
