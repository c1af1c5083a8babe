"""A text encoder behind a Triton server, for ``asyncio``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from sentport.encoder import EncoderInfo, Vectors
from sentport.progress import Progress
from triton_repo import client_core as core
from triton_repo import wire
from triton_repo.transport import (
    CHANNEL_ARGUMENTS,
    CUT_OFF,
    MEETING_SECONDS,
    NO_HTTP,
    TIMED_OUT,
    Request,
    ServerError,
    Tensors,
    judged,
    load_library,
    microseconds,
    readable,
    tensors_for,
    tensors_from,
)


class AsyncClient:
    """``Client`` for ``asyncio``: ``await AsyncClient.connect(...)`` makes one; an asynchronous context manager.

    Attributes:
        info: The encoder on the server. Of the cacheable variant, sessions and threads are 0: it does not tell.
    """

    def __init__(self, transport: _Transport, options: core.Options, facts: core.ModelFacts) -> None:
        """For ``connect`` only, since a constructor cannot await the server."""
        self._transport = transport
        self._options = options
        self._facts = facts
        self._closed = False
        self.info: EncoderInfo = facts.info

    @classmethod
    async def connect(
        cls,
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
    ) -> Self:
        """Meet a server; the options are those of ``Client``.

        Raises:
            SentportError: When no server answers, or it has no such model.
        """
        options = core.Options(model, rows_per_request, in_flight, timeout, retries, on_truncate, priority)
        address = core.bare_address(url, protocol)
        transport: _Transport = _GrpcTransport(address) if protocol == "grpc" else _HttpTransport(address)
        try:
            client = cls(transport, options, await _meet(transport, model, address, protocol))
            core.check_truncation(client._facts, options)
            if wire.INFO in client._facts.outputs:
                client.info = core.info_from(await client._send(core.INFO_REQUEST))
        except BaseException:
            await transport.close()
            raise
        return client

    async def encode(
        self, texts: Sequence[str], *, prompt: str | None = None, dim: int | None = None, progress: bool = False
    ) -> Vectors:
        """Vectors ``[n, dim]`` float32 of texts; see ``Client.encode``."""
        job = core.Job(self._facts, self.info, self._options, texts, prompt, dim)
        waiting = iter(job.chunks)

        async def work(bar: Progress) -> None:
            for chunk in waiting:  # one iterator for all workers: each takes the next that nobody has
                try:
                    bar.advance(job.accept(chunk, await self._send(chunk.request)))
                except ServerError as error:
                    raise job.refused(chunk, error) from error

        with Progress("encoding", job.total, "sentences", shown=progress) as bar:
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(min(self._options.in_flight, len(job.chunks))):
                        group.create_task(work(bar))
            except BaseExceptionGroup as errors:
                raise errors.exceptions[0] from errors.exceptions[0].__cause__  # the first, which ended the others
        return job.result()

    async def close(self) -> None:
        """Close the connections; a second call does nothing."""
        self._closed = True
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _send(self, request: Request) -> Tensors:
        patience = core.Patience(self._options)
        while True:
            core.check_open(self._closed)
            try:
                return await self._transport.infer(self._options.model, request, patience.left)
            except ServerError as error:
                core.check_open(self._closed)
                await asyncio.sleep(patience.delay_after(error))


class _Transport(Protocol):
    """``transport.Transport``, awaited."""

    async def live(self) -> None: ...

    async def config(self, model: str) -> dict[str, Any]: ...

    async def models(self) -> list[str]: ...

    async def infer(self, model: str, request: Request, seconds: float) -> Tensors: ...

    async def close(self) -> None: ...


async def _meet(transport: _Transport, model: str, address: str, protocol: str) -> core.ModelFacts:
    try:
        await transport.live()
    except ServerError as error:
        raise core.not_met(error, address, protocol) from error
    try:
        config = await transport.config(model)
    except ServerError as error:
        raise core.not_served(model, address, await _models(transport), error) from error
    return core.described(model, config)


async def _models(transport: _Transport) -> list[str] | None:
    try:
        return await transport.models()
    except ServerError:  # a server may ask for a key to tell
        return None


class _LibraryTransport:
    """What the library's two ``asyncio`` clients have in common."""

    def __init__(self, library: Any, client: Any, failures: tuple[type[Exception], ...]) -> None:
        self._library = library
        self._client = client
        self._failures = failures

    async def close(self) -> None:
        await self._client.close()

    async def _call(self, call: Awaitable[Any], seconds: float) -> Any:
        try:
            async with asyncio.timeout(seconds):
                with readable():
                    return await call
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # A channel that is closed cancels its calls; a task group would take that for a worker that is done.
            raise ServerError(CUT_OFF, transient=False) from error
        except self._library.InferenceServerException as error:
            raise judged(error.message(), error.status(), seconds) from error
        except TimeoutError as error:
            raise judged("", TIMED_OUT, seconds) from error
        except self._failures as error:
            garbled = hasattr(error, "history")  # aiohttp's ClientResponseError, whose text holds the bytes
            raise judged(NO_HTTP if garbled else str(error) or type(error).__name__, None, seconds) from error
        except RuntimeError as error:  # what both libraries' closed sessions raise, among others
            raise ServerError(f"{CUT_OFF} ({error})", transient=False) from error


class _GrpcTransport(_LibraryTransport):
    def __init__(self, address: str) -> None:
        library = load_library("grpc.aio")
        client = library.InferenceServerClient(address, channel_args=CHANNEL_ARGUMENTS)
        super().__init__(load_library("grpc"), client, ())

    async def live(self) -> None:
        await self._call(self._client.is_server_live(), MEETING_SECONDS)

    async def config(self, model: str) -> dict[str, Any]:
        answer = await self._call(self._client.get_model_config(model, as_json=True), MEETING_SECONDS)
        config: dict[str, Any] = answer["config"]
        return config

    async def models(self) -> list[str]:
        index = await self._call(self._client.get_model_repository_index(), MEETING_SECONDS)
        return [model.name for model in index.models]

    async def infer(self, model: str, request: Request, seconds: float) -> Tensors:
        inputs, outputs = tensors_for(self._library, request)
        call = self._client.infer(
            model,
            inputs,
            outputs=outputs,
            parameters=dict(request.parameters),
            priority=request.priority,
            timeout=microseconds(seconds),
            client_timeout=seconds,
        )
        return tensors_from(await self._call(call, seconds), request)


class _HttpTransport(_LibraryTransport):
    def __init__(self, address: str) -> None:
        library = load_library("http.aio")
        # No limit of the library's own, on time or connections: ours are per request.
        client = library.InferenceServerClient(address, conn_limit=0, conn_timeout=None)
        super().__init__(load_library("http"), client, (OSError, library.aiohttp.ClientError))

    async def live(self) -> None:
        if not await self._call(self._client.is_server_live(), MEETING_SECONDS):
            raise ServerError("it says that it is not live", transient=False)

    async def config(self, model: str) -> dict[str, Any]:
        config: dict[str, Any] = await self._call(self._client.get_model_config(model), MEETING_SECONDS)
        return config

    async def models(self) -> list[str]:
        index = await self._call(self._client.get_model_repository_index(), MEETING_SECONDS)
        with readable():
            return [model["name"] for model in index]

    async def infer(self, model: str, request: Request, seconds: float) -> Tensors:
        inputs, outputs = tensors_for(self._library, request)
        call = self._client.infer(
            model,
            inputs,
            outputs=outputs,
            parameters=dict(request.parameters),
            priority=request.priority,
            timeout=microseconds(seconds),
        )
        return tensors_from(await self._call(call, seconds), request)
