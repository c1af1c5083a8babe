"""Bulk encoding through a real Ray cluster on this machine: nothing lost with a worker, nothing open to the network."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from bulk_kills import contents
from conftest import ROOT, run_cli

from sentport.bulk.store import open_vectors
from sentport.cli import main

WORDS = ["a", "the", "cat", "dog", "sat", "ran", "on", "in", "mat", "park", "red", "blue", "é", "日"]


def test_what_workers_cannot_do_is_refused(
    tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("the cat")
    for source, out, said in (
        ("-", str(tmp_path / "v"), "cannot read this process's standard input"),
        (str(tmp_path / "a.txt"), "-", "cannot write to this process's standard output"),
    ):
        assert main(["encode", str(tiny_bundle), "--input", source, "--output", out, "--ray"]) == 2
        assert said in capsys.readouterr().err


def family(pid: int) -> Iterator[tuple[int, str]]:
    """Every process that a process has started, and those in turn, with their names."""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            yield child, Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ")
            yield from family(child)


def listening(pids: set[int]) -> set[str]:
    """Local addresses, as hex, on which processes listen: ``/proc/net/tcp`` and ``tcp6``."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                inodes.add(os.readlink(link).removeprefix("socket:[").removesuffix("]"))
            except OSError:
                continue
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.add(fields[1].split(":")[0])
    return found


@pytest.mark.full
def test_two_workers_of_which_one_is_killed(tiny_bundle: Path, tmp_path: Path) -> None:
    drawn = random.Random(0)
    texts = [" ".join(drawn.choices(WORDS, k=drawn.randint(1, 12))) for _ in range(40_000)]
    texts[777] = "\ufffe broken"
    data = "\n".join(texts).encode().replace("\ufffe".encode(), b"\xff")
    (tmp_path / "many.txt").write_bytes(data)

    def command(out: str) -> list[str]:
        options = ["--shard-rows", "1000", "--threads", "1", "--keep-text"]
        return ["encode", str(tiny_bundle), "--input", "many.txt", "--output", str(tmp_path / out), *options]

    run_cli(*command("plain"), cwd=tmp_path, check=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "sentport", *command("ray"), "--ray", "--workers", "2"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    addresses: set[str] = set()
    killed = None
    while process.poll() is None and killed is None:
        time.sleep(0.02)
        processes = list(family(process.pid))
        workers = [pid for pid, name in processes if name.startswith("ray::MapWorker")]
        done = len(list((tmp_path / ".ray.job").glob("part-*")))
        if len(workers) == 2 and 2 <= done <= 20:
            addresses = listening({process.pid, *(pid for pid, _ in processes)})
            killed = workers[0]
            os.kill(killed, signal.SIGKILL)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors.decode()
    assert killed is not None
    # 127.0.0.1, plain and mapped into IPv6, and ::1
    assert addresses
    assert addresses <= {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
    plain, ray = open_vectors(tmp_path / "plain"), open_vectors(tmp_path / "ray")
    assert plain.manifest == ray.manifest
    one, other = plain.load(), ray.load()
    assert one.ids.tolist() == other.ids.tolist() == [n for n in range(40_000) if n != 777]
    assert one.texts == other.texts
    np.testing.assert_allclose(one.vectors, other.vectors, atol=1e-6)
    assert contents(tmp_path / "ray").keys() == contents(tmp_path / "plain").keys()
    assert b"2 workers" in errors
