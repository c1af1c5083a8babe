"""Contestants that are somebody else's server: started for the run, asked over HTTP by several clients at once."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from urllib.parse import urlsplit

import numpy as np

from bench.children import last_words, tie_to_parent
from bench.contestants import Conditions, Vectors, Work
from bench.peers import Variant
from sentport.errors import SentportError
from sentport.scheduler import BatchPolicy

_READY_SECONDS = 120.0
_STOP_SECONDS = 20.0
_ANSWER_SECONDS = 120.0


class HttpPeer:
    """A server that answers OpenAI's requests for embeddings, and the clients that ask it.

    Args:
        variant: Which peer.
        python: The Python that it is installed in.
        checkpoint: Checkpoint folder.
        threads: Its compute threads.
        clients: Clients that send at the same time, each with a connection of its own.
        texts_per_request: Texts of a request.

    Raises:
        SentportError: When it does not answer in time; its last word is the reason.
    """

    policies: tuple[BatchPolicy | None, ...] = (None,)
    own_rows: tuple[int, ...] = (32,)
    tokenises_apart = False

    def __init__(
        self, variant: Variant, python: Path, checkpoint: Path, threads: int, clients: int, texts_per_request: int
    ) -> None:
        assert variant.command
        self._request = "1 text a request" if texts_per_request == 1 else f"{texts_per_request} texts a request"
        self.name = f"{variant.title}, {self._request}"
        self._variant, self._threads, self._source = variant, threads, checkpoint.resolve().name
        self._size, self._texts = texts_per_request, [""]
        port = _free_port()
        self._url = urlsplit(variant.module.URL.format(port=port))
        self._log = TemporaryFile()  # noqa: SIM115 - what it says is wanted when it ends
        arguments = variant.command(str(checkpoint.resolve()), variant.kind, threads, port)
        quiet = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0"}
        counts = {"OMP_NUM_THREADS": str(threads), "RAYON_NUM_THREADS": str(threads)}
        self._process = subprocess.Popen(
            [python, *arguments],
            stdout=self._log,
            stderr=self._log,
            env={**os.environ, **quiet, **counts},
            preexec_fn=tie_to_parent(),
        )
        self._pool = ThreadPoolExecutor(clients)
        self._clients = clients
        self._connections = [
            http.client.HTTPConnection(self._url.netloc, timeout=_ANSWER_SECONDS) for _ in range(clients)
        ]
        try:
            self._wait_ready()
        except BaseException:
            self.close()
            raise

    def conditions(self) -> Conditions:
        """What its figures depend on."""
        return Conditions(
            engine=self._variant.engine,
            model=self._source,
            precision=self._variant.precision,
            layout="padded",
            device="cpu",
            sessions=1,
            threads=self._threads,
            own_policy=f"{self._variant.grouping}, {self._clients} clients",
            transport=f"http, {self._clients} clients, {self._request}",
            peer=True,
            peer_versions=", ".join(self._variant.module.REQUIREMENTS),
        )

    def prepare(self, texts: Sequence[str], work: Work) -> None:
        """Take the texts, and connect anew: servers close connections that idle, as these do while others are timed."""
        self._texts = list(texts)
        for connection in self._connections:
            connection.close()
            with self._said_when_it_fails():
                connection.connect()

    def run(self, work: Work) -> Vectors:
        """Vectors ``[N, dim]``: every client works until no texts are left."""
        starts = range(0, len(self._texts), self._size)

        def work_off(number: int) -> list[tuple[int, Vectors]]:
            mine = starts[number :: self._clients]
            return [(start, self._ask(number, self._texts[start : start + self._size])) for start in mine]

        with self._said_when_it_fails():
            found = [part for parts in self._pool.map(work_off, range(self._clients)) for part in parts]
        return np.concatenate([vectors for _, vectors in sorted(found, key=lambda part: part[0])])

    def computed_tokens(self) -> int | None:
        """The server's batches cannot be seen from here."""
        return None

    def close(self) -> None:
        """Stop the server; a second call does nothing."""
        for connection in self._connections:
            connection.close()
        self._pool.shutdown()
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _ask(self, client: int, texts: Sequence[str]) -> Vectors:
        connection = self._connections[client]
        body = json.dumps({"input": list(texts), "model": self._source})
        connection.request("POST", self._url.path, body, {"Content-Type": "application/json"})
        with connection.getresponse() as response:
            answer = response.read()
        if response.status != http.client.OK:
            raise SentportError(f"{self.name} answered {response.status}: {answer[:200].decode(errors='replace')}")
        rows = sorted(json.loads(answer)["data"], key=lambda row: int(row["index"]))
        return np.array([row["embedding"] for row in rows], np.float32)

    def _wait_ready(self) -> None:
        until = time.monotonic() + _READY_SECONDS
        while time.monotonic() < until and self._process.poll() is None:
            try:
                self._ask(0, ["a text"])
                return
            except (OSError, http.client.HTTPException):
                self._connections[0].close()
                time.sleep(0.2)
        raise SentportError(f"{self._variant.title} did not answer: {last_words(self._log)}")

    @contextmanager
    def _said_when_it_fails(self) -> Iterator[None]:
        try:
            yield
        except (OSError, http.client.HTTPException) as error:
            raise SentportError(f"{self.name} stopped answering: {error}; it said: {last_words(self._log)}") from None


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
