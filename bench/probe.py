"""What needs a process of its own: start-up, peak memory, and single texts, one contestant at a time.

``python -m bench.probe SPEC`` is that process; SPEC is JSON. It reads a JSON list of texts from standard input, says
``{"ready": true}`` once a first text is encoded, and then what it found.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from bench.contestants import Contestant, Work
from bench.contestants.opening import PEERS, TRITON, Spec, open_contestant
from bench.peers import variants
from bench.records import Record
from sentport.errors import SentportError
from sentport.scheduler import BatchPolicy

# Single texts that are timed: enough for a 99th percentile.
SINGLES = 200
_MEBIBYTE = 1 << 20


def can_probe(spec: Spec) -> bool:
    """Whether it runs where its start and its memory can be seen."""
    return spec.kind != TRITON and not (spec.kind in PEERS and variants()[spec.kind].command)


def probe(spec: Spec, texts: Sequence[str]) -> Record:
    """Open a contestant in a new process and measure it there.

    Args:
        spec: Which one.
        texts: N distinct texts, encoded in one call; the first ``SINGLES`` of them one by one as well.

    Returns:
        ``startup_s`` from the start of the process to its first vector, imports included; ``peak_mb`` the process's
        resident memory at its highest; ``single_ms``, a number for each single text; ``probe_texts``.

    Raises:
        SentportError: When the process ends early.
    """
    start = time.perf_counter()
    command = [sys.executable, "-m", "bench.probe", json.dumps(spec.to_json())]
    with TemporaryFile() as log:
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=Path(__file__).parents[1]
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            with contextlib.suppress(BrokenPipeError):  # it ended before it read; why is asked for below
                process.stdin.write(json.dumps(list(texts)))
                process.stdin.close()
            process.stdout.readline()
            startup_s = time.perf_counter() - start
            line = process.stdout.readline()
        if process.returncode or not line:
            log.seek(0)
            said = log.read().decode(errors="replace").strip().splitlines() or [f"with code {process.returncode}"]
            raise SentportError(f"{spec.kind} in a process of its own ended: {said[-1]}")
    found: Record = json.loads(line)
    return {"startup_s": startup_s, "probe_texts": len(texts), **found}


def _look(contestant: Contestant, spec: Spec, texts: Sequence[str], work: Work) -> Record:
    """After the first vector: the whole corpus, the memory that took, then single texts."""
    contestant.prepare(texts, work)
    contestant.run(work)
    peak = _peak_bytes(contestant, spec)
    single_ms = []
    for text in texts[:SINGLES]:
        contestant.prepare([text], work)
        start = time.perf_counter()
        contestant.run(work)
        single_ms.append(round(1000 * (time.perf_counter() - start), 4))
    return {"peak_mb": peak / _MEBIBYTE, "single_ms": single_ms}


def _peak_bytes(contestant: Contestant, spec: Spec) -> int:
    """Of this process, or of the peer's, which works in one of its own."""
    pid: Any = contestant.pid if spec.kind in PEERS else "self"  # type: ignore[attr-defined]
    status = Path("/proc", str(pid), "status").read_text(encoding="utf-8")
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def main() -> None:
    """Measure the contestant that the command line names."""
    spec = Spec.from_json(json.loads(sys.argv[1]))
    texts: list[str] = json.load(sys.stdin)
    try:
        contestant = open_contestant(spec)
    except SentportError as problem:
        sys.exit(str(problem))
    try:
        policy = None if None in contestant.policies else BatchPolicy.TOKEN_BUDGET
        work = Work(policy)
        contestant.prepare(texts[:1], work)
        contestant.run(work)
        print(json.dumps({"ready": True}), flush=True)
        print(json.dumps(_look(contestant, spec, texts, work)), flush=True)
    finally:
        contestant.close()


if __name__ == "__main__":
    main()
