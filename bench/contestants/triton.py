"""Contestant ``Triton``: a running server, asked by several clients at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from queue import Empty, SimpleQueue

import numpy as np

from bench.contestants import ROWS_PER_BATCH, Conditions, Vectors, Work
from sentport.errors import SentportError
from sentport.scheduler import BatchPolicy
from triton_repo.client import Client


class TritonContestant:
    """Clients that each take the next texts in line, send them as one request, and wait for the answer.

    Args:
        url: ``http://host:port``, or ``host:port`` for gRPC.
        model: The model's name on the server.
        source: Name of the source model, which a server does not tell.
        clients: Clients that send at the same time, each with a connection of its own.
        texts_per_request: Texts of a request.
        one_of_many: Whether other servers are measured too, so that the name has to tell them apart.

    Raises:
        SentportError: When no server answers, or it has no such model.
    """

    policies: tuple[BatchPolicy | None, ...] = (None,)
    own_rows: tuple[int, ...] = (ROWS_PER_BATCH,)
    tokenises_apart = False

    def __init__(
        self, url: str, model: str, source: str, clients: int, texts_per_request: int, *, one_of_many: bool = False
    ) -> None:
        if clients < 1 or texts_per_request < 1:
            raise SentportError(f"{clients} clients with {texts_per_request} texts a request; both must be 1 or more")
        protocol = "http" if url.startswith("http") else "grpc"
        texts = "1 text" if texts_per_request == 1 else f"{texts_per_request} texts"
        self.name = f"Triton at {url}, {texts} a request" if one_of_many else f"Triton, {texts} a request"
        self._source, self._size, self._count = source, texts_per_request, clients
        self._transport = f"{protocol}, {clients} clients, {texts} a request"
        self._texts: list[str] = []
        with ExitStack() as opening:
            self._clients = [
                opening.enter_context(
                    Client(
                        url,
                        model=model,
                        protocol=protocol,
                        rows_per_request=texts_per_request,
                        in_flight=1,
                        on_truncate="allow",
                    )
                )
                for _ in range(clients)
            ]
            self._pool = opening.enter_context(ThreadPoolExecutor(clients))
            self._stack = opening.pop_all()

    def conditions(self) -> Conditions:
        """What its figures depend on, as the server's model says."""
        info = self._clients[0].info
        return Conditions(
            engine=info.engine,
            model=self._source,
            precision=info.precision,
            layout=info.layout,
            device=info.device,
            sessions=info.sessions,
            threads=info.threads,
            own_policy=f"the server's, {self._count} clients",
            transport=self._transport,
        )

    def prepare(self, texts: Sequence[str], work: Work) -> None:
        """Take the texts."""
        self._texts = list(texts)

    def run(self, work: Work) -> Vectors:
        """Vectors ``[N, dim]``: every client works until no texts are left."""
        starts: SimpleQueue[int] = SimpleQueue()
        for start in range(0, len(self._texts), self._size):
            starts.put(start)
        vectors = np.empty((len(self._texts), self._clients[0].info.dim), np.float32)  # [N, dim]

        def work_off(client: Client) -> None:
            while True:
                try:
                    start = starts.get_nowait()
                except Empty:
                    return
                rows = slice(start, start + self._size)
                vectors[rows] = client.encode(self._texts[rows])

        list(self._pool.map(work_off, self._clients))  # raises what a client raised
        return vectors

    def computed_tokens(self) -> int | None:
        """The server's batches cannot be seen from here."""
        return None

    def close(self) -> None:
        """Close the connections; the server goes on."""
        self._stack.close()
