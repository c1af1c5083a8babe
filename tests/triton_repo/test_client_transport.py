"""Both clients against small servers that are slow, answer garbage, or lose their client."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from sentport.encoder import EncoderInfo
from sentport.errors import SentportError
from triton_repo import wire
from triton_repo.client import AsyncClient, Client
from triton_repo.transport import ServerError

INFO = EncoderInfo(4, 8, {}, None, "cosine", "f", "onnxruntime", "fp32", "padded", "cpu", 0, 0)
GOOD = json.dumps(
    {"outputs": [{"name": wire.EMBEDDING, "datatype": "FP32", "shape": [1, 4], "data": [1, 1, 1, 1]}]}
).encode()


class Service(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Vectors of ones, once it is let go."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.go = threading.Event()

    def ServerLive(self, request: Any, context: Any) -> Any:
        return service_pb2.ServerLiveResponse(live=True)

    def ModelConfig(self, request: Any, context: Any) -> Any:
        answer = service_pb2.ModelConfigResponse()
        answer.config.max_batch_size = 64
        answer.config.parameters[wire.ENCODER].string_value = json.dumps(asdict(INFO))
        answer.config.output.add().name = wire.EMBEDDING
        return answer

    def ModelInfer(self, request: Any, context: Any) -> Any:
        self.asked.set()
        self.go.wait(5)
        rows = request.inputs[0].shape[0]
        answer = service_pb2.ModelInferResponse(raw_output_contents=[np.ones((rows, 4), np.float32).tobytes()])
        answer.outputs.add(name=wire.EMBEDDING, datatype="FP32", shape=[rows, 4])
        return answer


@pytest.fixture
def service() -> Iterator[tuple[Service, str]]:
    service = Service()
    server = grpc.server(futures.ThreadPoolExecutor(8))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield service, f"127.0.0.1:{port}"
    service.go.set()
    server.stop(0).wait()


class Handler(BaseHTTPRequestHandler):
    """Answers as the server's ``mode`` says, and closes after the config."""

    protocol_version = "HTTP/1.1"
    server: Any

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        config = {
            "max_batch_size": 64,
            "output": [{"name": wire.EMBEDDING}],
            "parameters": {wire.ENCODER: {"string_value": json.dumps(asdict(INFO))}},
        }
        self._answer(json.dumps(config).encode(), {"Connection": "close"})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        mode = self.server.mode
        if mode == "slow":
            time.sleep(0.6)
        if mode == "drip":
            self._drip()
        elif isinstance(mode, tuple):
            self._answer(*mode)
        else:
            self._answer(GOOD, {})

    def _answer(self, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(200)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _drip(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(GOOD)))
        self.end_headers()
        try:
            for byte in GOOD[:20]:
                self.wfile.write(bytes([byte]))
                time.sleep(0.1)
        except OSError:
            self.close_connection = True


@pytest.fixture
def web() -> Iterator[Any]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.mode = ""  # type: ignore[attr-defined]
    server.url = f"127.0.0.1:{server.server_port}"  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def encode(url: str, protocol: str, asynchronous: bool, timeout: float = 5.0) -> Any:
    async def run() -> Any:
        connected = AsyncClient.connect(url, model="m", protocol=protocol, on_truncate="allow", timeout=timeout)
        async with await connected as client:
            return await client.encode(["a"])

    if asynchronous:
        return asyncio.run(run())
    with Client(url, model="m", protocol=protocol, on_truncate="allow", timeout=timeout) as client:
        return client.encode(["a"])


def test_closing_ends_an_asynchronous_call(service: tuple[Service, str]) -> None:
    async def run() -> None:
        client = await AsyncClient.connect(service[1], model="m", on_truncate="allow", rows_per_request=1)
        call = asyncio.create_task(client.encode(["a"] * 20))
        await asyncio.to_thread(service[0].asked.wait, 5)
        await client.close()
        with pytest.raises(SentportError, match=r"^this client is closed"):
            await call

    asyncio.run(run())


def test_cancelling_an_asynchronous_call_is_no_error_of_the_server(service: tuple[Service, str]) -> None:
    async def run() -> None:
        async with await AsyncClient.connect(service[1], model="m", on_truncate="allow", rows_per_request=1) as client:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.encode(["a"] * 20), 0.1)
            service[0].go.set()
            assert (await client.encode(["a"])).tolist() == [[1, 1, 1, 1]]

    asyncio.run(run())


def test_closing_ends_a_call_of_another_thread(service: tuple[Service, str]) -> None:
    client = Client(service[1], model="m", on_truncate="allow", rows_per_request=1)
    with futures.ThreadPoolExecutor(1) as pool:
        call = pool.submit(client.encode, ["a"] * 20)
        service[0].asked.wait(5)
        client.close()
        with pytest.raises(SentportError, match=r"^this client is closed"):
            call.result()


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_closed_client_says_so(service: tuple[Service, str], web: Any, protocol: str) -> None:
    url = service[1] if protocol == "grpc" else web.url
    client = Client(url, model="m", protocol=protocol, on_truncate="allow")
    client.close()
    with pytest.raises(SentportError, match=r"^this client is closed; make a new one$"):
        client.encode(["a"])

    async def run() -> None:
        other = await AsyncClient.connect(url, model="m", protocol=protocol, on_truncate="allow")
        await other.close()
        with pytest.raises(SentportError, match=r"^this client is closed; make a new one$"):
            await other.encode(["a"])

    asyncio.run(run())


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("mode", ["slow", "drip"])
def test_time_limit_is_for_the_whole_request(web: Any, mode: str, asynchronous: bool) -> None:
    web.mode = mode
    began = time.monotonic()
    with pytest.raises(ServerError, match=r"no answer within 0\.3"):
        encode(web.url, "http", asynchronous, timeout=0.3)
    assert time.monotonic() - began < 1.0


def test_connection_that_opens_again_has_the_requests_own_limit(web: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server closed it after the config, for which the limit is that of meeting a server."""
    monkeypatch.setattr("triton_repo.transport.MEETING_SECONDS", 0.2)
    web.mode = "slow"
    assert encode(web.url, "http", False).tolist() == [[1, 1, 1, 1]]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    "mode",
    [
        (b"not json", {}),
        (b"<html>login</html>", {}),
        (b"\xff\xfe", {}),
        (b"[]", {}),
        (b"{}", {}),
        (b'{"outputs": [{"name": "EMBEDDING"}]}', {}),
        (b"abc", {"Inference-Header-Content-Length": "abc"}),
        (b'{"outputs": [{"name": "EMBEDDING", "datatype": "FP32", "shape": [1, 4], "data": [1]}]}', {}),
    ],
)
def test_garbage_is_one_line(web: Any, mode: tuple[bytes, dict[str, str]], asynchronous: bool) -> None:
    web.mode = mode
    with pytest.raises(ServerError) as caught:
        encode(web.url, "http", asynchronous)
    assert str(caught.value).isprintable()
