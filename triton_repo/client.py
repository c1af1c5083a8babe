"""A text encoder behind a Triton server, for ordinary code; ``client_async`` has the one for ``asyncio``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

from sentport.encoder import EncoderInfo, Vectors
from sentport.progress import Progress
from triton_repo import client_core as core
from triton_repo import wire
from triton_repo.client_async import AsyncClient
from triton_repo.transport import GrpcTransport, HttpTransport, Request, ServerError, Tensors, Transport

__all__ = ["AsyncClient", "Client"]


class Client:
    """Encodes with a model that a Triton server runs. Safe from several threads; a context manager.

    Args:
        url: ``host:port`` of the server, as `sentport serve` prints it.
        model: The model's name.
        protocol: ``grpc`` or ``http``.
        rows_per_request: Texts of one request, at most; the model's own limit holds as well.
        in_flight: Requests of one call of ``encode`` that are under way at once.
        timeout: Seconds for one request, its tries included. The server drops requests that nobody waits for.
        retries: Tries after the first where the server was not reached, or was too busy.
        on_truncate: ``warn`` logs once a call, ``error`` raises, ``allow`` says nothing.
        priority: Of all its requests, 1 the most urgent, where the model has levels of priority; 0 = the middle one.

    Attributes:
        info: The encoder on the server. Of the cacheable variant, sessions and threads are 0: it does not tell.

    Raises:
        SentportError: When no server answers, or it has no such model.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str,
        protocol: str = "grpc",
        rows_per_request: int = 64,
        in_flight: int = 4,
        timeout: float = 60.0,
        retries: int = 4,
        on_truncate: str = "warn",
        priority: int = 0,
    ) -> None:
        self._closed = False
        self._options = core.Options(model, rows_per_request, in_flight, timeout, retries, on_truncate, priority)
        address = core.bare_address(url, protocol)
        self._transport: Transport = GrpcTransport(address) if protocol == "grpc" else HttpTransport(address)
        try:
            self._facts = self._meet(address, protocol)
            core.check_truncation(self._facts, self._options)
            self.info: EncoderInfo = self._facts.info
            if wire.INFO in self._facts.outputs:
                self.info = core.info_from(self._send(core.INFO_REQUEST))
        except BaseException:
            self.close()
            raise

    def encode(
        self, texts: Sequence[str], *, prompt: str | None = None, dim: int | None = None, progress: bool = False
    ) -> Vectors:
        """Vectors ``[n, dim]`` float32 of texts, one row a text, in input order; ``[0, dim]`` for no texts.

        Args:
            texts: Any number of texts.
            prompt: Name of a saved prompt; None = the default prompt, "" = none.
            dim: Cut vectors to their first ``dim`` values, as ``Encoder.encode`` does.
            progress: Show a bar on stderr when that is a terminal and the work takes over two seconds.

        Raises:
            TypeError: For a bare string.
            InputError: Listing the rows that cannot be encoded.
            TruncationError: When a text is over the limit and ``on_truncate="error"``.
            SentportError: For an unknown prompt, a dim that the model does not have, or a server that fails.
        """
        job = core.Job(self._facts, self.info, self._options, texts, prompt, dim)

        def run(chunk: core.Chunk) -> int:
            try:
                return job.accept(chunk, self._send(chunk.request))
            except ServerError as error:
                raise job.refused(chunk, error) from error

        with Progress("encoding", job.total, "sentences", shown=progress) as bar:
            for rows in _each(run, job.chunks, self._options.in_flight):
                bar.advance(rows)
        return job.result()

    def close(self) -> None:
        """Close the connections; a second call does nothing."""
        self._closed = True
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _meet(self, address: str, protocol: str) -> core.ModelFacts:
        model = self._options.model
        try:
            self._transport.live()
        except ServerError as error:
            raise core.not_met(error, address, protocol) from error
        try:
            config = self._transport.config(model)
        except ServerError as error:
            raise core.not_served(model, address, self._models(), error) from error
        return core.described(model, config)

    def _models(self) -> list[str] | None:
        try:
            return self._transport.models()
        except ServerError:  # a server may ask for a key to tell
            return None

    def _send(self, request: Request) -> Tensors:
        patience = core.Patience(self._options)
        while True:
            core.check_open(self._closed)
            try:
                return self._transport.infer(self._options.model, request, patience.left)
            except ServerError as error:
                core.check_open(self._closed)
                time.sleep(patience.delay_after(error))


def _each(run: Callable[[core.Chunk], int], chunks: list[core.Chunk], in_flight: int) -> Iterator[int]:
    if in_flight == 1 or len(chunks) < 2:
        yield from map(run, chunks)
        return
    with ThreadPoolExecutor(min(in_flight, len(chunks))) as pool:
        yield from pool.map(run, chunks)  # an error cancels those that have not begun
