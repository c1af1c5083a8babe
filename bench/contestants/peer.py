"""Contestants that live in a Python of their own: sentence-transformers' ONNX backend, as exported and quantised."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np

from bench.contestants import Conditions, Vectors, Work
from bench.peers import ENVIRONMENTS, peer_python
from sentport.errors import SentportError
from sentport.hardware import cpu_features
from sentport.scheduler import BatchPolicy

NAME = "sentence-transformers ONNX"
ENVIRONMENT = "sentence-transformers-onnx"
# Its default, and the fastest of 4 to 128 rows on STS-B (two Zen 3 cores, both precisions).
ROWS = (32, 64)

_WORKER = Path(__file__).parents[1] / "peer_worker.py"
_END_SECONDS = 30.0
_TRANSPORT = "in a process of its own"


class PeerContestant:
    """A worker process in another Python; loading goes on beside this process until the first answer is needed.

    Args:
        name: As in the table.
        python: The Python that the peer is installed in.
        checkpoint: Checkpoint folder.
        backend: As ``bench/peer_worker.py`` names it.
        threads: Its compute threads.
        own_rows: Rows of a batch; its own way is measured with each.
    """

    policies: tuple[BatchPolicy | None, ...] = (None,)
    tokenises_apart = False

    def __init__(
        self, name: str, python: Path, checkpoint: Path, backend: str, threads: int, own_rows: tuple[int, ...] = ROWS
    ) -> None:
        self.name, self.own_rows = name, own_rows
        self._source, self._backend, self._threads = checkpoint.resolve().name, backend, threads
        self._stack = ExitStack()
        # What it says, which is wanted when it ends without an answer.
        self._log = self._stack.enter_context(TemporaryFile())  # noqa: SIM115
        self._process = subprocess.Popen(
            [python, "-I", _WORKER, checkpoint.resolve(), backend, str(threads)],
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
        self._computed = 0

    def conditions(self) -> Conditions:
        """What its figures depend on, with the versions in its own Python."""
        engine, _, quantised = self._backend.partition("-")
        opened = self._hello()
        return Conditions(
            engine="onnxruntime" if engine == "onnx" else engine,
            model=self._source,
            precision="int8" if quantised else "fp32",
            layout="padded",
            device="cpu",
            sessions=1,
            threads=opened["threads"],
            own_policy="sorted by characters, {rows} rows",
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
        return np.frombuffer(content, "<f4").reshape(rows, dim)

    def computed_tokens(self) -> int | None:
        """Tokens that reached the model in the last run."""
        return self._computed

    def close(self) -> None:
        """End the process; a second call does nothing."""
        if self._process.stdin and not self._process.stdin.closed:
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
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the reason is asked for below
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            said = self._log.read().decode(errors="replace").strip().splitlines() or ["without a word"]
            raise SentportError(f"{self.name} ended: {said[-1]}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def open_contestant(
    checkpoint: Path, threads: int, *, quantised: bool, environments: Path = ENVIRONMENTS
) -> PeerContestant:
    """Sentence-transformers' ONNX backend, in fp32 or in the quantisation that it documents for this CPU.

    Raises:
        SentportError: When its environment cannot be had.
    """
    python = peer_python(ENVIRONMENT, environments)
    if not quantised:
        return PeerContestant(NAME, python, checkpoint, "onnx", threads)
    settings = quantisation()
    return PeerContestant(f"{NAME} int8 {settings}", python, checkpoint, f"onnx-{settings}", threads)


def quantisation() -> str:
    """The name of sentence-transformers' dynamic quantisation for this CPU."""
    if platform.machine().lower() in ("aarch64", "arm64"):
        return "arm64"
    features = cpu_features() or frozenset()
    known = {"AVX512-VNNI": "avx512_vnni", "AVX512F": "avx512"}
    return next((name for feature, name in known.items() if feature in features), "avx2")
