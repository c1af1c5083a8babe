"""Contestants that live in a Python of their own: the peers of ``bench/peers`` that encode in a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np

from bench import peers
from bench.children import last_words
from bench.contestants import Conditions, Vectors, Work
from bench.peers import Variant
from bench.peers.environments import ENVIRONMENTS, peer_python
from sentport.errors import SentportError
from sentport.scheduler import BatchPolicy

_WORKER = Path(peers.__file__).with_name("worker.py")
_END_SECONDS = 30.0
_TRANSPORT = "in a process of its own"


class PeerContestant:
    """A worker process in another Python; loading goes on beside this process until the first answer is needed.

    Args:
        variant: Which peer.
        python: The Python that it is installed in.
        checkpoint: Checkpoint folder.
        threads: Its compute threads.
    """

    policies: tuple[BatchPolicy | None, ...] = (None,)
    tokenises_apart = False

    def __init__(self, variant: Variant, python: Path, checkpoint: Path, threads: int) -> None:
        self.name, self.own_rows, self._variant = variant.title, variant.rows, variant
        self._source, self._threads = checkpoint.resolve().name, threads
        self._stack = ExitStack()
        # What it says, which is wanted when it ends without an answer.
        self._log = self._stack.enter_context(TemporaryFile())  # noqa: SIM115
        self._process = subprocess.Popen(
            [python, "-I", _WORKER, variant.module.__name__, variant.kind, checkpoint.resolve(), str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={
                **os.environ,
                "HF_HUB_OFFLINE": "1",
                "OMP_NUM_THREADS": str(threads),
                "RAYON_NUM_THREADS": str(threads),
            },
        )
        self._stack.enter_context(self._process)
        self._opened: dict[str, Any] | None = None
        self._computed: int | None = 0

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid

    def conditions(self) -> Conditions:
        """What its figures depend on, with the versions in its own Python."""
        opened = self._hello()
        return Conditions(
            engine=self._variant.engine,
            model=self._source,
            precision=self._variant.precision,
            layout="padded",
            device="cpu",
            sessions=1,
            threads=opened["threads"],
            own_policy=self._variant.grouping,
            transport=_TRANSPORT,
            peer=True,
            peer_versions=", ".join(f"{name} {version}" for name, version in opened["versions"].items()),
        )

    def prepare(self, texts: Sequence[str], work: Work) -> None:
        """Hand the texts over."""
        self._hello()
        self._ask({"texts": list(texts)})

    def run(self, work: Work) -> Vectors:
        """Vectors ``[N, dim]``; the way back through a pipe is inside, a millisecond for a thousand texts."""
        answer = self._ask({"rows": work.rows_per_batch})
        self._computed = answer["computed_tokens"]
        rows, dim = answer["shape"]
        assert self._process.stdout is not None
        content = self._process.stdout.read(4 * rows * dim)
        if len(content) < 4 * rows * dim:
            raise self._ended()
        return np.frombuffer(content, "<f4").reshape(rows, dim)

    def computed_tokens(self) -> int | None:
        """Tokens that reached the model in the last run."""
        return self._computed

    def close(self) -> None:
        """End the process; a second call does nothing."""
        if self._process.stdin and not self._process.stdin.closed:
            with suppress(BrokenPipeError):  # it has ended by itself
                self._process.stdin.close()  # at which it removes what it exported, and ends
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._stack.close()

    def _hello(self) -> dict[str, Any]:
        if self._opened is None:
            self._opened = self._answer()
        return self._opened

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the reason is asked for below
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._ended()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _ended(self) -> SentportError:
        return SentportError(f"{self.name} ended: {last_words(self._log)}")


def open_contestant(kind: str, checkpoint: Path, threads: int, environments: Path = ENVIRONMENTS) -> PeerContestant:
    """A peer by its name on the command line.

    Raises:
        SentportError: When its environment cannot be had, or it is known not to run.
    """
    variant = peers.variants()[kind]
    return PeerContestant(variant, python_of(variant, environments), checkpoint, threads)


def python_of(variant: Variant, environments: Path) -> Path:
    """The Python that a peer runs in, made where it is missing.

    Raises:
        SentportError: When it cannot be had.
    """
    if not variant.environment:
        return Path(sys.executable)
    return peer_python(variant.environment, peers.requirements()[variant.environment], environments)
