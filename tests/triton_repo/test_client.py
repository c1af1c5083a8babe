"""The clients' own logic, against a transport that fails on demand."""

from __future__ import annotations

import json
import logging
import re
import time
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from sentport.encoder import EncoderInfo
from sentport.errors import InputError, SentportError, TruncationError
from triton_repo import client as client_module
from triton_repo import client_core, wire
from triton_repo.client import Client
from triton_repo.transport import Request, ServerError, Tensors, judged

INFO = EncoderInfo(4, 8, {"query": "q "}, None, "cosine", "f", "onnxruntime", "fp32", "padded", "cpu", 1, 2)
OUTPUTS = (wire.EMBEDDING, wire.TOKENS, wire.TRUNCATED, wire.INFO)


class FakeTransport:
    """A server whose vector of a text is its length, four times; texts of ten and more letters are too long."""

    def __init__(self, address: str) -> None:
        self.requests: list[Request] = []
        self.failures: list[ServerError] = []
        self.config_answer: dict[str, Any] = {
            "max_batch_size": 8,
            "output": [{"name": name} for name in OUTPUTS],
            "parameters": {wire.ENCODER: {"string_value": json.dumps(asdict(INFO))}},
        }

    def live(self) -> None:
        pass

    def config(self, model: str) -> dict[str, Any]:
        return self.config_answer

    def models(self) -> list[str]:
        return ["other"]

    def infer(self, model: str, request: Request, seconds: float) -> Tensors:
        if request.outputs == (wire.INFO,):
            return {wire.INFO: np.array([[json.dumps(asdict(INFO)).encode()]], dtype=object)}
        self.requests.append(request)
        if self.failures:
            raise self.failures.pop(0)
        lengths = np.array([[len(text)] for text in request.texts[:, 0]], np.int32)
        tensors = {wire.EMBEDDING: np.repeat(lengths, 4, axis=1).astype(np.float32)}
        if wire.DIM in request.parameters:
            tensors[wire.EMBEDDING] = tensors[wire.EMBEDDING][:, : int(request.parameters[wire.DIM])]
        return {**tensors, wire.TOKENS: lengths, wire.TRUNCATED: lengths >= 10}

    def close(self) -> None:
        pass


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeTransport:
    transport = FakeTransport("")
    monkeypatch.setattr(client_module, "GrpcTransport", lambda address: transport)
    return transport


def connect(
    rows: int = 8, in_flight: int = 1, timeout: float = 5.0, retries: int = 4, on_truncate: str = "warn"
) -> Client:
    return Client(
        "host:1",
        model="m",
        rows_per_request=rows,
        in_flight=in_flight,
        timeout=timeout,
        retries=retries,
        on_truncate=on_truncate,
    )


@pytest.mark.parametrize("in_flight", [1, 3])
def test_splits_and_keeps_order(fake: FakeTransport, in_flight: int) -> None:
    texts = ["x" * (n % 7) for n in range(50)]
    vectors = connect(rows=100, in_flight=in_flight).encode(texts)
    assert vectors[:, 0].tolist() == [n % 7 for n in range(50)]
    assert sorted(len(request.texts) for request in fake.requests) == [2, 8, 8, 8, 8, 8, 8]  # the model's own limit


def test_splits_by_bytes(fake: FakeTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_core, "_REQUEST_BYTES", 10)
    connect(on_truncate="allow").encode(["x" * 6, "x" * 4, "x", "x" * 30, "", "x"])
    assert [[len(text) for text in request.texts[:, 0]] for request in fake.requests] == [[6, 4], [1], [30], [0, 1]]


def test_no_texts_need_no_server(fake: FakeTransport) -> None:
    client = connect()
    assert client.encode([]).shape == (0, 4)
    assert client.encode([], dim=3).shape == (0, 3)
    with pytest.raises(SentportError, match="dim is 5"):
        client.encode([], dim=5)
    with pytest.raises(SentportError, match="prompt 'x' is not saved with this model; known: query"):
        client.encode([], prompt="x")
    assert fake.requests == []


def test_what_is_no_text(fake: FakeTransport) -> None:
    with pytest.raises(TypeError, match="not one string"):
        connect().encode("bare")
    rows: Any = ["a", None, "b", 3, "\ud800", None]
    with pytest.raises(InputError, match=r"4 of 6 rows .*rows 1, 5 \(NoneType, not text\), rows 3") as caught:
        connect().encode(rows)
    assert caught.value.rows == (1, 3, 4, 5)
    assert fake.requests == []


def test_parameters_are_sent_only_when_given(fake: FakeTransport) -> None:
    client = connect()
    client.encode(["a"])
    client.encode(["a"], prompt="", dim=2)
    assert [dict(request.parameters) for request in fake.requests] == [{}, {"prompt": "", "dim": 2}]


def test_priority_goes_with_every_request(fake: FakeTransport) -> None:
    Client("host:1", model="m", rows_per_request=2, priority=3).encode(["a"] * 5)
    assert [request.priority for request in fake.requests] == [3, 3, 3]
    with pytest.raises(SentportError, match="priority is -1; expected a whole number from 0"):
        Client("host:1", model="m", priority=-1)


def test_errors_name_the_callers_rows(fake: FakeTransport) -> None:
    refusal = ServerError("2 of 8 texts cannot be encoded: rows 0, 7 (not valid UTF-8)", transient=False)
    client = connect()
    infer = fake.infer

    def second_fails(model: str, request: Request, seconds: float) -> Tensors:
        if len(fake.requests) == 1:
            fake.failures = [refusal]
        return infer(model, request, seconds)

    fake.infer = second_fails  # type: ignore[method-assign]
    with pytest.raises(InputError, match=r"^rows 8 to 15 failed: 2 of 8 texts .*: rows 8, 15 \(not") as caught:
        client.encode(["a"] * 30)
    assert caught.value.rows == (8, 15)
    assert len(fake.requests) == 2, "went on after an error"


def test_tries_again_where_that_is_safe(fake: FakeTransport) -> None:
    client = connect()
    fake.failures = [ServerError("busy", transient=True), ServerError("gone", transient=True)]
    assert client.encode(["a"]).shape == (1, 4)
    assert len(fake.requests) == 3
    fake.failures = [ServerError("bad request", transient=False)]
    with pytest.raises(ServerError, match=r"^bad request$"):
        client.encode(["a"])
    assert len(fake.requests) == 4


def test_tries_are_bounded(fake: FakeTransport) -> None:
    fake.failures = [ServerError("busy", transient=True)] * 100
    with pytest.raises(ServerError, match="busy"):
        connect(retries=2).encode(["a"])
    assert len(fake.requests) == 3
    began = time.monotonic()
    with pytest.raises(ServerError, match="busy"):
        connect(retries=50, timeout=0.3).encode(["a"])
    assert time.monotonic() - began < 1.0


def test_truncation_is_told_for_the_whole_call(fake: FakeTransport, caplog: pytest.LogCaptureFixture) -> None:
    texts = ["short", *["x" * 12] * 9, "x" * 20]
    with caplog.at_level(logging.WARNING):
        connect().encode(texts)
    (record,) = caplog.records
    assert "10 of 11 texts are longer than 8 tokens (longest 20) and lose their end: rows 1, 2," in record.message
    with pytest.raises(TruncationError, match="10 of 11 texts") as caught:
        connect(on_truncate="error").encode(texts)
    assert caught.value.rows == tuple(range(1, 11))
    caplog.clear()
    connect(on_truncate="allow").encode(texts)
    assert not caplog.records


def test_answer_of_another_shape_is_refused(fake: FakeTransport) -> None:
    client = connect()
    fake.infer = lambda model, request, seconds: {wire.EMBEDDING: np.zeros((1, 3))}  # type: ignore[method-assign]
    with pytest.raises(ServerError, match=r"answered EMBEDDING \(1, 3\), expected \(2, 4\)"):
        client.encode(["a", "b"])


def test_model_of_somebody_else(fake: FakeTransport) -> None:
    fake.config_answer = {"max_batch_size": 8, "output": []}
    with pytest.raises(SentportError, match="model 'm' is served, but not as a text encoder"):
        connect()


@pytest.fixture
def cacheable(fake: FakeTransport) -> FakeTransport:
    fake.config_answer["output"] = [{"name": wire.EMBEDDING}]
    return fake


def test_cacheable_model_is_asked_for_what_it_has(cacheable: FakeTransport) -> None:
    client = connect(on_truncate="allow")
    asked: list[dict[str, Any]] = [{"prompt": "query"}, {"prompt": ""}, {"dim": 3}]
    for options in asked:
        with pytest.raises(SentportError, match=r"^the prompt, dim \(4\) and truncation of model 'm' are fixed"):
            client.encode(["a"], **options)
    assert cacheable.requests == []
    assert client.encode(["a"], dim=4).shape == (1, 4)
    assert [dict(request.parameters) for request in cacheable.requests] == [{}]
    with pytest.raises(SentportError, match="its prompt, dim and truncation are fixed"):
        connect(on_truncate="error")


def test_refusal_from_the_cache_is_named(cacheable: FakeTransport) -> None:
    client = connect(on_truncate="allow")
    cacheable.infer = lambda model, request, seconds: {}  # type: ignore[method-assign]
    with pytest.raises(ServerError, match="answered without vectors: it keeps refusals of a cached model"):
        client.encode(["a"])


def test_result_needs_every_answer(fake: FakeTransport) -> None:
    client = connect(rows=2)
    job = client_core.Job(client._facts, client.info, client._options, ["a", "b", "c"], None, None)
    job.accept(job.chunks[0], fake.infer("m", job.chunks[0].request, 1.0))
    with pytest.raises(ServerError, match=r"^1 of 3 texts were not answered$"):
        job.result()


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e10, True, "5", None, -1])
def test_wrong_timeout(value: Any) -> None:
    with pytest.raises(SentportError, match=re.escape(f"timeout is {value!r}; expected seconds")):
        Client("host:1", model="m", timeout=value)


@pytest.mark.parametrize("name", ["rows_per_request", "in_flight", "timeout"])
def test_wrong_option(name: str) -> None:
    values: dict[str, Any] = {name: 0}
    with pytest.raises(SentportError, match=f"{name} is 0"):
        Client("host:1", model="m", **values)


@pytest.mark.parametrize(
    ("url", "protocol", "message"),
    [
        ("host", "grpc", "'host' is not an address; expected host:port"),
        ("host:port", "http", "is not an address"),
        ("http://host:1/v2", "http", "is not an address"),
        ("a..b:1", "http", "'a..b:1' is not an address"),
        ("x" * 64 + ":1", "grpc", "is not an address"),
        ("ho st:1", "http", "is not an address"),
        ("ho\nst:1", "http", "is not an address"),
        (None, "grpc", "None is not an address"),
        ("http://host:1", "grpc", "is not an address for protocol grpc"),
        ("https://host:1", "http", "is not an address for protocol http"),
        ("host:1", "rest", "protocol is 'rest'; expected one of grpc, http"),
    ],
)
def test_wrong_address_is_seen_at_once(url: Any, protocol: str, message: str) -> None:
    with pytest.raises(SentportError, match=re.escape(message)):
        Client(url, model="m", protocol=protocol)


def test_address_as_serve_prints_it() -> None:
    assert client_core.bare_address("http://127.0.0.1:8000/", "http") == "127.0.0.1:8000"


@pytest.mark.parametrize(
    ("message", "status", "transient"),
    [
        ("connection refused", None, True),
        ("the server is busy", "StatusCode.UNAVAILABLE", True),
        ("Request for unknown model: 'm' has no available versions", "StatusCode.NOT_FOUND", True),  # it is ending
        ("Request for unknown model: 'm' is not found", "StatusCode.NOT_FOUND", False),
        ("bad input", "400", False),
        ("slow", "StatusCode.DEADLINE_EXCEEDED", False),
    ],
)
def test_what_may_be_sent_again(message: str, status: str | None, transient: bool) -> None:
    assert judged(message, status, 1.0).transient is transient
