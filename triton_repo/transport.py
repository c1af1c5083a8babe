"""Requests over gRPC and HTTP for ordinary code, and what the ``asyncio`` transports share with it.

A transport carries one request and returns its tensors; every failure, whatever library it comes from, becomes a
``ServerError``.
"""

from __future__ import annotations

import http.client
import json
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from queue import Empty, LifoQueue
from typing import Any, Protocol
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from sentport.errors import SentportError
from triton_repo import wire

Tensors = dict[str, NDArray[Any]]

# Meeting a server is quick where there is one; a wrong address should be said soon.
MEETING_SECONDS = 5.0
# The status that stands for a time limit of our own.
TIMED_OUT = "timed out"

CHANNEL_ARGUMENTS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # A connection of each client's own: else all of a process share one, and the wait after a failure with it.
    ("grpc.use_local_subchannel_pool", 1),
    # A server that comes back is met at the next try, not after gRPC's own waits of up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Else a server on this very machine is asked for at the proxy that the environment names.
    ("grpc.enable_http_proxy", 0),
]
HTTP_OK = 200
NO_HTTP = "what came back is no HTTP"
CUT_OFF = "the connection was closed before the answer came"
_UNAVAILABLE = ("StatusCode.UNAVAILABLE", "503")
_TIMED_OUT = ("StatusCode.DEADLINE_EXCEEDED", TIMED_OUT)
_NO_VERSION = "has no available versions"
_HEADER_LENGTH = "Inference-Header-Content-Length"
# What the library's parsers raise for an answer that is none.
_UNREADABLE = (ValueError, KeyError, TypeError, IndexError, AttributeError, struct.error)


class ServerError(SentportError):
    """A request failed.

    Attributes:
        transient: The server took no notice of the request, or ended before it answered: sending it again may help.
    """

    def __init__(self, message: str, *, transient: bool) -> None:
        super().__init__(message)
        self.transient = transient


@dataclass(frozen=True, slots=True)
class Request:
    """What a transport sends: texts ``[n, 1]`` of bytes, the parameters, the outputs wanted, the priority."""

    texts: NDArray[np.object_]
    parameters: Mapping[str, str | int | bool]
    outputs: tuple[str, ...]
    priority: int = 0


class Transport(Protocol):
    """Carries requests; every failure is a ``ServerError``. Safe from several threads."""

    def live(self) -> None:
        """Return when the server answers."""
        ...

    def config(self, model: str) -> dict[str, Any]:
        """A model's config as JSON, with protobuf's field names."""
        ...

    def models(self) -> list[str]:
        """Names of the models in the server's repository."""
        ...

    def infer(self, model: str, request: Request, seconds: float) -> Tensors:
        """The outputs that a request asks for, by name."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


def judged(message: str, status: str | None, seconds: float) -> ServerError:
    """What a failed request means for us.

    Args:
        message: What the server or the network said.
        status: The gRPC or HTTP status, None where nobody answered.
        seconds: The limit that the request had.
    """
    if status in _TIMED_OUT:
        return ServerError(f"no answer within {seconds:.3g} s", transient=False)
    # Encoding changes nothing on the server, so an answer that got lost may be asked for again. A server that is ending
    # says that it has no version of the model.
    transient = status is None or status in _UNAVAILABLE or _NO_VERSION in message
    return ServerError(" ".join(message.split()), transient=transient)


@contextmanager
def readable(*others: type[Exception]) -> Iterator[None]:
    """What an answer raises that cannot be read becomes a ``ServerError``; so do other kinds of errors, if given."""
    kinds: tuple[type[Exception], ...] = (*_UNREADABLE, *others)
    try:
        yield
    except kinds as error:
        told = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise ServerError(f"what the server answered cannot be read ({told})", transient=False) from error


def load_library(name: str) -> Any:
    """A part of ``tritonclient``.

    Raises:
        SentportError: When it is not installed.
    """
    try:
        return import_module(f"tritonclient.{name}")
    except (ImportError, RuntimeError) as error:  # it raises RuntimeError where a package of its own is missing
        raise SentportError(
            f"the client needs tritonclient, which cannot be imported ({error}): pip install 'sentport[triton]'"
        ) from error


def tensors_for(library: Any, request: Request) -> tuple[list[Any], list[Any]]:
    """The inputs and the wanted outputs of a request as the library's own objects."""
    text = library.InferInput(wire.TEXT, list(request.texts.shape), "BYTES")
    text.set_data_from_numpy(request.texts)
    return [text], [library.InferRequestedOutput(name) for name in request.outputs]


def tensors_from(result: Any, request: Request) -> Tensors:
    """The outputs of an answer, those that are missing left out."""
    with readable():
        found = {name: result.as_numpy(name) for name in request.outputs}
    return {name: value for name, value in found.items() if value is not None}


def microseconds(seconds: float) -> int:
    """A limit as the server takes it: it drops a request that has waited so long."""
    return max(1, int(seconds * 1e6))


class GrpcTransport:
    """See ``Transport``."""

    def __init__(self, address: str) -> None:
        self._library = load_library("grpc")
        self._client = self._library.InferenceServerClient(address, channel_args=CHANNEL_ARGUMENTS)

    def live(self) -> None:
        """See ``Transport``."""
        self._call(lambda: self._client.is_server_live(client_timeout=MEETING_SECONDS), MEETING_SECONDS)

    def config(self, model: str) -> dict[str, Any]:
        """See ``Transport``."""
        answer = self._call(
            lambda: self._client.get_model_config(model, as_json=True, client_timeout=MEETING_SECONDS), MEETING_SECONDS
        )
        config: dict[str, Any] = answer["config"]
        return config

    def models(self) -> list[str]:
        """See ``Transport``."""
        index = self._call(
            lambda: self._client.get_model_repository_index(client_timeout=MEETING_SECONDS), MEETING_SECONDS
        )
        return [model.name for model in index.models]

    def infer(self, model: str, request: Request, seconds: float) -> Tensors:
        """See ``Transport``."""
        inputs, outputs = tensors_for(self._library, request)
        result = self._call(
            lambda: self._client.infer(
                model,
                inputs,
                outputs=outputs,
                parameters=dict(request.parameters),
                priority=request.priority,
                timeout=microseconds(seconds),
                client_timeout=seconds,
            ),
            seconds,
        )
        return tensors_from(result, request)

    def close(self) -> None:
        """See ``Transport``."""
        self._client.close()

    def _call(self, call: Callable[[], Any], seconds: float) -> Any:
        try:
            with readable():
                return call()
        except self._library.InferenceServerException as error:
            raise judged(error.message(), error.status(), seconds) from error


class _Socket(socket.socket):
    """A socket with one time limit for all that is sent and received until the next is set."""

    deadline = 0.0

    def sendall(self, data: Any, flags: int = 0) -> None:
        self._limit()
        super().sendall(data, flags)

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        self._limit()
        return super().recv_into(buffer, nbytes, flags)

    def _limit(self) -> None:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.settimeout(left)


class _Connection(http.client.HTTPConnection):
    """A connection whose time limit is for a whole request, also where it has to be opened again for it."""

    deadline = 0.0
    sock: Any

    def limit(self, seconds: float) -> None:
        self.timeout = seconds
        self.deadline = time.monotonic() + seconds
        if self.sock is not None:
            self.sock.deadline = self.deadline

    def connect(self) -> None:
        super().connect()
        self.sock = _Socket(fileno=self.sock.detach())
        self.sock.deadline = self.deadline


class HttpTransport:
    """See ``Transport``.

    The library's own HTTP client is bound to one thread each; its bodies travel over the standard library's here.
    """

    def __init__(self, address: str) -> None:
        self._library = load_library("http")
        self._address = address
        self._idle: LifoQueue[_Connection] = LifoQueue()
        self._closed = False

    def live(self) -> None:
        """See ``Transport``."""
        self._exchange("GET", "/v2/health/live", b"", {}, MEETING_SECONDS)

    def config(self, model: str) -> dict[str, Any]:
        """See ``Transport``."""
        config: dict[str, Any] = self._json("GET", f"/v2/models/{quote(model, safe='')}/config")
        return config

    def models(self) -> list[str]:
        """See ``Transport``."""
        with readable():
            return [model["name"] for model in self._json("POST", "/v2/repository/index")]

    def infer(self, model: str, request: Request, seconds: float) -> Tensors:
        """See ``Transport``."""
        inputs, outputs = tensors_for(self._library, request)
        client = self._library.InferenceServerClient
        body, header_length = client.generate_request_body(
            inputs,
            outputs=outputs,
            parameters=dict(request.parameters),
            priority=request.priority,
            timeout=microseconds(seconds),
        )
        headers = {_HEADER_LENGTH: str(header_length)} if header_length is not None else {}
        path = f"/v2/models/{quote(model, safe='')}/infer"
        answered, data = self._exchange("POST", path, body, headers, seconds)
        length = answered.get(_HEADER_LENGTH)
        with readable(self._library.InferenceServerException):
            result = client.parse_response_body(data, header_length=None if length is None else int(length))
        return tensors_from(result, request)

    def close(self) -> None:
        """See ``Transport``."""
        self._closed = True
        self._drop_idle()

    def _json(self, method: str, path: str) -> Any:
        _, data = self._exchange(method, path, b"", {}, MEETING_SECONDS)
        with readable():
            return json.loads(data)

    def _exchange(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str], seconds: float
    ) -> tuple[http.client.HTTPMessage, bytes]:
        connection = self._connection(seconds)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            data = response.read()
        except TimeoutError as error:
            connection.close()
            raise judged("", TIMED_OUT, seconds) from error
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            self._drop_idle()  # they are of the same server: where it was started again, none of them is any good
            garbled = isinstance(error, http.client.BadStatusLine) and not isinstance(error, ConnectionError)
            raise judged(NO_HTTP if garbled else str(error) or type(error).__name__, None, seconds) from error
        self._idle.put(connection)
        if self._closed:
            self._drop_idle()
        if response.status != HTTP_OK:
            raise judged(_reason(data) or f"HTTP status {response.status}", str(response.status), seconds)
        return response.headers, data

    def _drop_idle(self) -> None:
        while True:
            try:
                self._idle.get_nowait().close()
            except Empty:
                return

    def _connection(self, seconds: float) -> _Connection:
        try:
            connection = self._idle.get_nowait()
        except Empty:
            connection = _Connection(self._address)
        connection.limit(seconds)
        return connection


def _reason(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return ""
