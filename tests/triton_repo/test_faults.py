"""A real server under everything that should not happen: nothing hangs, and nobody gets another's vector.

One server for all of it: see ``busy_server``.
"""

from __future__ import annotations

import http.client
import json
import random
import re
import shutil
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_library
from busy_server import (
    KEY,
    SAME,
    TAKEN,
    WORDS,
    Busy,
    at_once,
    busy_server,
    counters_at_rest,
    metrics_page,
    post,
    random_text,
    server_memory,
    text_tensor,
    until_taken,
)
from conftest import ROOT

from sentport.bundle import read_bundle, write_description
from sentport.encoder import Vectors
from sentport.errors import SentportError
from sentport.files import replace_folder
from triton_repo.environment import ServerEnvironment
from triton_repo.flags import GRPC_KEY_HEADER, KEY_HEADER
from triton_repo.metrics import METRICS
from triton_repo.serving import Follower
from triton_repo.versions import add_version


@pytest.fixture(scope="module")
def busy(
    tiny_bundle: Path,
    both_layouts: Path,
    server_environment: ServerEnvironment,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Busy]:
    with busy_server(tiny_bundle, both_layouts, server_environment, tmp_path_factory.mktemp("busy")) as busy:
        yield busy
        assert busy.server.poll() is None, busy.server.failure()


def test_ragged_ensemble_gives_each_request_its_own(busy: Busy) -> None:
    source = random.Random(1)
    asked = [
        ([random_text(source) for _ in range(source.randrange(1, 4))], source.choice(["", "query"])) for _ in range(80)
    ]
    with busy.client("ragged") as client, busy.client("ragged", "http") as other:
        assert (client.info.layout, client.info.dim, client.info.sessions) == ("packed", 24, 0)
        answers = at_once(
            len(asked), lambda n: (client, other)[n % 2].encode(asked[n][0], prompt=asked[n][1], dim=24), workers=16
        )
        for (texts, prompt), found in zip(asked, answers, strict=True):
            assert np.abs(found - [busy.right(text, prompt) for text in texts]).max() <= SAME
        with pytest.raises(SentportError, match="request parameter dim is 5, but form ragged gives all 24 values"):
            client.encode(["a"], dim=5)
    with grpc_library.InferenceServerClient(busy.server.grpc_url) as raw:
        (statistics,) = raw.get_inference_statistics("ragged_graph").model_stats
    assert statistics.execution_count < statistics.inference_stats.success.count, "no requests were merged"


def test_ragged_ensemble_answers_whoever_asks_for_everything(busy: Busy) -> None:
    tensor = {"name": "TEXT", "shape": [2, 1], "datatype": "BYTES", "data": ["the cat", "a dog " * 40]}
    status, answer = post(busy.http, "/v2/models/ragged/infer", json.dumps({"inputs": [tensor]}).encode())
    assert status == 200, answer
    outputs = {output["name"]: output for output in json.loads(answer)["outputs"]}
    assert {name: output["shape"] for name, output in outputs.items()} == {
        "EMBEDDING": [2, 24],
        "TOKENS": [2, 1],
        "TRUNCATED": [2, 1],
        "INFO": [2, 1],
    }
    assert outputs["TRUNCATED"]["data"] == [False, True]
    assert outputs["TOKENS"]["data"] == busy.encoder.tokenize(["the cat", "a dog " * 40]).full.tolist()


def test_what_asks_for_the_key(busy: Busy) -> None:
    paths = ("repository/index", "repository/models/slow/load", "systemsharedmemory/status", "trace/setting", "logging")
    for path in paths[:2]:
        status, answer = post(busy.http, f"/v2/{path}", b"{}")
        assert status == 403, (path, answer)
    for path in paths[2:]:
        connection = http.client.HTTPConnection(busy.http, timeout=5.0)
        connection.request("GET", f"/v2/{path}")
        assert connection.getresponse().status == 403, path
        connection.close()
    assert post(busy.http, "/v2/repository/index", b"{}", {KEY_HEADER: KEY})[0] == 200
    with grpc_library.InferenceServerClient(busy.server.grpc_url) as client:
        for call in (
            client.get_model_repository_index,
            client.get_system_shared_memory_status,
            client.get_trace_settings,
            client.get_log_settings,
            lambda: client.unload_model("tiny"),
        ):
            with pytest.raises(grpc_library.InferenceServerException, match="This protocol is restricted"):
                call()
        assert client.get_model_repository_index(headers={GRPC_KEY_HEADER: KEY}).models
    for protocol in ("grpc", "http"):
        with pytest.raises(SentportError, match=r"has no model 'nobody' \(which it has, it does not tell\)"):
            busy.client("nobody", protocol)
    busy.still_right()


def look(follower: Follower, busy: Busy) -> None:
    """Two looks: what changes between them is still being written."""
    follower.look(busy.server)
    follower.look(busy.server)


def test_new_bundle_drops_no_request(busy: Busy, tiny_bundle: Path, both_layouts: Path, tmp_path: Path) -> None:
    """The bundle that is followed is replaced by another one with the same fingerprint, under load."""
    done, asked = threading.Event(), [0] * 8
    source = random.Random(2)
    texts = [random_text(source) for _ in range(200)]
    watched = Path(shutil.copytree(tiny_bundle, tmp_path / "watched.bundle"))
    said: list[str] = []
    follower = Follower(watched, "tiny", False, said.append)

    def keep_asking(number: int) -> None:
        with busy.client(protocol=("grpc", "http")[number % 2], retries=0) as client:
            while not done.is_set():
                text = texts[(7 * asked[number] + number) % len(texts)]
                assert np.abs(client.encode([text], prompt="")[0] - busy.right(text)).max() <= SAME
                asked[number] += 1

    def all_ask_again() -> None:
        """Every client gets three more answers, however slow the machine."""
        aims, deadline = [count + 3 for count in asked], time.monotonic() + 60
        while any(count < aim for count, aim in zip(asked, aims, strict=True)):
            assert time.monotonic() < deadline
            assert not any(each.done() for each in asking)
            time.sleep(0.01)

    for text in texts:
        busy.right(text)
    with ThreadPoolExecutor(8) as pool:
        asking = [pool.submit(keep_asking, number) for number in range(8)]
        try:
            all_ask_again()
            look(follower, busy)  # nothing has changed
            replace_folder(Path(shutil.copytree(both_layouts, tmp_path / "new")), watched)
            look(follower, busy)
            all_ask_again()
        finally:
            done.set()
            for each in asking:
                each.result(20)
    assert said == ["version 2 of tiny is served"]


def test_bundle_of_another_space_is_refused_unless_told(busy: Busy, both_layouts: Path, tmp_path: Path) -> None:
    other = read_bundle(shutil.copytree(both_layouts, tmp_path / "other.bundle"))
    watched = Path(shutil.copytree(both_layouts, tmp_path / "watched.bundle"))
    said: list[str] = []
    strict, free = (Follower(watched, "tiny", allowed, said.append) for allowed in (False, True))
    write_description(replace(other, spec=replace(other.spec, weights_sha256="0" * 64)))
    replace_folder(other.path, watched)
    changed = read_bundle(watched).spec.fingerprint
    look(strict, busy)
    with busy.client() as client:
        assert client.info.fingerprint == busy.encoder.info.fingerprint
    look(free, busy)
    with busy.client() as client:
        assert client.info.fingerprint == changed
    assert re.fullmatch(r"the new bundle is not served: .* fingerprint .*, or allow it with --other-space", said[0])
    assert re.fullmatch(r"version \d of tiny is served", said[1])
    with pytest.raises(SentportError, match="form ragged cannot be swapped for another space"):
        add_version(watched, busy.server.repository, "ragged", other_space=True)


def test_one_text_with_every_prompt_dim_and_output(busy: Busy) -> None:
    """All at once, so that they share executions."""
    cases = [(prompt, dim, asked) for prompt in ("", "query", "passage") for dim in (24, 7) for asked in (1, 3)] * 8

    def ask(number: int) -> dict[str, Any]:
        prompt, dim, count = cases[number]
        names = ["EMBEDDING", "TOKENS", "TRUNCATED"][:count]
        given = grpc_library.InferInput("TEXT", [1, 1], "BYTES")
        given.set_data_from_numpy(np.array([[b"sat on the mat"]], dtype=object))
        outputs = [grpc_library.InferRequestedOutput(name) for name in names]
        answer = raw.infer("tiny", [given], outputs=outputs, parameters={"prompt": prompt, "dim": dim})
        return {each.name: answer.as_numpy(each.name) for each in answer.get_response().outputs}

    with grpc_library.InferenceServerClient(busy.server.grpc_url) as raw:
        answers = at_once(len(cases), ask, workers=32)
    for (prompt, dim, count), found in zip(cases, answers, strict=True):
        assert list(found) == ["EMBEDDING", "TOKENS", "TRUNCATED"][:count]
        expected = busy.encoder.encode(["sat on the mat"], prompt=prompt, dim=dim)
        assert np.abs(found["EMBEDDING"] - expected).max() <= SAME
        if count > 1:
            assert (
                found["TOKENS"].tolist()
                == busy.encoder.tokenize(["sat on the mat"], prompt=prompt).full[:, None].tolist()
            )


def test_long_texts(busy: Busy) -> None:
    texts = ["the cat sat " * 8334, "é" * 50_000, "x" * 100_000, "\0" * 100_000]
    for protocol in ("grpc", "http"):
        with busy.client(protocol=protocol) as client:
            found = client.encode(texts, prompt="")
        assert np.abs(found - [busy.right(text) for text in texts]).max() <= SAME


TENSOR = {"name": "TEXT", "shape": [1, 1], "datatype": "BYTES", "data": ["sat"]}
# What stands in the place of a good value, by its key in the tensor or in the request.
SPOILED: dict[str, list[Any]] = {
    "datatype": ["FP32", "INT64", "BOOL", "TEXT", "", None, 7],
    "shape": [
        *([], [1], [0, 1], [2, 1], [1, 2], [1, 1, 1], [-1, 1], ["1", 1], None, {}),
        *([2**31, 1], [2**62, 2**62], [10**30, 1], [65, 1], [-(2**63), 1]),
    ],
    "name": ["TEXTS", "", None, "TEX\0T", "é" * 1000],
    "data": [[], [1], [None], "sat", {"a": 1}, [{}], ["sat", "ran"]],
    "inputs": [[], None, "TEXT", [TENSOR, TENSOR], [{}], [TENSOR] * 100],
    "outputs": [[{"name": "NONE"}], [{}], "EMBEDDING", [{"name": 1}]],
    "parameters": [{"dim": -1}, {"dim": 2**70}, {"prompt": {}}, {"prompt": "none"}, "x", {"x" * 5000: 1}],
}
NO_JSON = [b" ", b"null", b"[]", b"{}", b"[" * 500, b"\0" * 100]


def malformed(source: random.Random) -> bytes:
    """A body of a request that is not right."""
    key = source.choice([*SPOILED, "cut", "bytes", "no json", "noise"])
    value = source.choice(SPOILED[key]) if key in SPOILED else None
    changed = {key: value} if key in SPOILED else {}
    request = {"inputs": [TENSOR | changed if key in TENSOR else TENSOR]}
    body = json.dumps(request if key in TENSOR else request | changed).encode()
    if key == "cut":
        return body[: source.randrange(1, len(body))]
    if key == "bytes":
        return body.replace(b"sat", b"\xff\xfe\xc0")
    if key == "no json":
        return source.choice(NO_JSON)
    return source.randbytes(source.randrange(1, 200)) if key == "noise" else body


def test_1000_malformed_requests(busy: Busy) -> None:
    source = random.Random(3)
    bodies = [malformed(source) for _ in range(1000)]
    # Now and then a length of the JSON that is not the body's.
    headers = [
        {"Inference-Header-Content-Length": str(source.choice([-1, 7, 10**9]))} if n % 10 == 0 else {}
        for n in range(1000)
    ]
    model = ("tiny", "ragged")

    def ask(number: int) -> tuple[int, bytes]:
        return post(busy.http, f"/v2/models/{model[number % 2]}/infer", bodies[number], headers[number])

    began = time.monotonic()
    answers = at_once(len(bodies), ask, workers=8)
    assert time.monotonic() - began < 60
    told = [answer for answer in answers if isinstance(answer, tuple)]
    assert len(told) == 1000, [answer for answer in answers if not isinstance(answer, tuple)][:3]
    taken = {bodies[n] for n, (status, _) in enumerate(told) if status == 200}
    assert taken == set(), "what was answered all the same"
    assert all(json.loads(body.decode("utf-8", "replace"))["error"] for _, body in told)
    # No malformed requests to this server: without JSON, the whole body is the one text.
    for body, text in ((b"", ""), (b"the cat sat", "the cat sat")):
        status, answer = post(busy.http, "/v2/models/tiny/infer", body, {"Inference-Header-Content-Length": "0"})
        assert status == 200, answer
        length = answer.index(b"]}") + 2
        assert np.abs(np.frombuffer(answer[length : length + 96], "<f4") - busy.right(text)).max() <= SAME
    busy.still_right()


def test_binary_tensors_that_lie(busy: Busy) -> None:
    """gRPC, whose bytes are not looked at by JSON: lengths beyond the buffer, too few texts, another dtype."""
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    channel = grpc_library._client.grpc.insecure_channel(busy.server.grpc_url)
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    source = random.Random(4)
    for number in range(100):
        request = service_pb2.ModelInferRequest(model_name=("tiny", "ragged")[number % 2])
        rows = source.choice([1, 2, 2**31, -1])
        request.inputs.add(name="TEXT", datatype=source.choice(["BYTES", "INT64"]), shape=[rows, 1])
        size = source.choice([1, 5, 2**31 - 1, 2**32 - 1])
        request.raw_input_contents.append(size.to_bytes(4, "little") + source.choice([b"", b"sat"]))
        with pytest.raises(grpc_library._client.grpc.RpcError) as caught:
            stub.ModelInfer(request, timeout=10)
        assert caught.value.code().name in ("INVALID_ARGUMENT", "INTERNAL", "UNAVAILABLE"), caught.value
    channel.close()
    busy.still_right()


def test_slow_and_vanished_clients(busy: Busy) -> None:
    """Half a request and then nothing, a request and no patience for its answer, and a header without an end."""
    body = json.dumps({"inputs": [TENSOR]}).encode()
    head = f"POST /v2/models/slow/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    host, port = busy.http.split(":")
    waiting = []
    for number in range(60):
        connection = socket.create_connection((host, int(port)), timeout=5)
        if number % 3 == 0:
            connection.sendall(head + body[: len(body) // 2])
            waiting.append(connection)
        elif number % 3 == 1:
            connection.sendall(head + body)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset, not a good-bye
            connection.close()
        else:
            connection.sendall(b"POST /v2/models/slow/infer HTTP/1.1\r\nX: " + b"y" * 200_000)
            waiting.append(connection)
    busy.still_right()
    for connection in waiting:
        connection.close()
    with grpc_library.InferenceServerClient(busy.server.grpc_url) as client:
        for _ in range(20):
            call = client.async_infer("tiny", [text_tensor("sat")], lambda result, error: None)
            call.cancel()
    busy.still_right()


def test_overload_is_refused_and_passes(busy: Busy) -> None:
    """Ten times what the queue holds: an echo that is one's own or UNAVAILABLE, and then all is well again."""

    def ask(number: int) -> bytes:
        answer = client.infer("slow", [text_tensor(f"mine {number}")], client_timeout=20)
        return bytes(answer.as_numpy("ECHO")[0, 0])

    with grpc_library.InferenceServerClient(busy.server.grpc_url) as client:
        before = server_memory(busy.server)
        answers = at_once(250, ask, workers=100)
        grown = server_memory(busy.server) - before
        refused = [answer for answer in answers if isinstance(answer, Exception)]
        assert {str(error.status()) for error in refused} == {"StatusCode.UNAVAILABLE"}
        assert 30 < len(refused) < 250
        assert all(answer == f"mine {n}".encode() for n, answer in enumerate(answers) if isinstance(answer, bytes))
        assert grown < 100 << 20
        assert ask(7) == b"mine 7"
    busy.still_right()


def test_a_full_line_and_who_waits_in_it_in_vain(busy: Busy) -> None:
    """Form text, whose model has the limits of its queue itself: 256 wait behind seconds of work for somebody else.

    Some of them are called off, and others have less patience; 40 more find no room.
    """
    long = np.array([[f"{number} {'the cat sat on a mat ' * 8000}".encode()] for number in range(64)], dtype=object)
    work = grpc_library.InferInput("TEXT", [64, 1], "BYTES")
    work.set_data_from_numpy(long)
    before, memory = counters_at_rest(busy), server_memory(busy.server)
    answers: SimpleQueue[tuple[str, Any, Any]] = SimpleQueue()

    def send(kind: str, given: Any, timeout: int | None = None) -> Any:
        return client.async_infer("tiny", [given], partial(told, kind), timeout=timeout, parameters={"prompt": ""})

    def told(kind: str, result: Any, error: Any) -> None:
        answers.put((kind, result, error))

    with grpc_library.InferenceServerClient(busy.server.grpc_url) as client:
        send("work", work)
        until_taken(busy, before[TAKEN] + 1)
        gone = [send("gone", text_tensor("sat")) for _ in range(20)]
        for _ in range(100):
            send("hasty", text_tensor("sat"), timeout=1)
        for _ in range(136):
            send("patient", text_tensor("sat"))
        until_taken(busy, before[TAKEN] + 257)
        for _ in range(40):
            send("too many", text_tensor("sat"))
        until_taken(busy, before[TAKEN] + 297)
        for each in gone:
            each.cancel()
        found = [answers.get(timeout=60) for _ in range(297)]
        assert server_memory(busy.server) - memory < 200 << 20
    kinds = Counter((kind, error and error.message()) for kind, _, error in found if kind != "gone")
    assert kinds == {
        ("work", None): 1,
        ("hasty", "the request waited longer than it may"): 100,
        ("patient", None): 136,
        ("too many", "the model's queue is full; ask again later"): 40,
    }
    assert {str(error.status()) for kind, _, error in found if kind in ("hasty", "too many")} == {
        "StatusCode.UNAVAILABLE"
    }
    assert all(
        np.abs(answer.as_numpy("EMBEDDING")[0] - busy.right("sat")).max() <= SAME
        for kind, answer, _ in found
        if kind == "patient"
    )
    after = counters_at_rest(busy)
    grown = {name: after[name] - before[name] for name in ("sentport_refused_total", "sentport_turned_away_total")}
    assert grown == {"sentport_refused_total": 100 + 20, "sentport_turned_away_total": 40}
    busy.still_right()


def test_urgent_requests_go_first_and_late_ones_are_refused(busy: Busy) -> None:
    order: list[str] = []

    def ask(number: int) -> None:
        urgent = number == 24
        if urgent:
            time.sleep(0.05)  # the others are in the queue by then
        client.infer("slow", [text_tensor("sat")], priority=1 if urgent else 2)
        order.append("urgent" if urgent else "other")

    with grpc_library.InferenceServerClient(busy.server.grpc_url) as client:
        # A busy machine may send the urgent one when no queue is left; without priorities it is the last every time.
        for _ in range(5):
            order.clear()
            at_once(25, ask, workers=25)
            if order.index("urgent") < 18:
                break
        assert order.index("urgent") < 18
        late = at_once(30, lambda _: client.infer("slow", [text_tensor("sat")], timeout=30_000), workers=20)
    told = {error.message() for error in late if isinstance(error, Exception)}
    assert told == {"Request timeout expired"}


def test_models_that_share_something_take_turns(busy: Busy) -> None:
    with grpc_library.InferenceServerClient(busy.server.grpc_url) as client:
        answers = at_once(
            24, lambda n: client.infer(("slow", "slow_too")[n % 2], [text_tensor("sat")]).as_numpy("SPAN")[0], workers=8
        )
    spans = sorted({(began, ended, number % 2) for number, (began, ended) in enumerate(answers)})
    assert {model for _, _, model in spans} == {0, 1}
    assert all(first[1] <= second[0] for first, second in pairwise(spans) if first[2] != second[2])


def test_metrics_and_the_dashboard(busy: Busy) -> None:
    """After all of the above; the file does not depend on which of its tests ran."""
    with busy.client() as client:
        client.encode(["the cat sat", "a " * 100], prompt="")
    page = metrics_page(busy)
    values = dict(re.findall(r'^(sentport_\w+)\{model="tiny",version="\d+"\} (\S+)$', page, re.MULTILINE))
    assert {name for name, _ in METRICS.values()} - set(values) <= {
        "sentport_refused_total",
        "sentport_turned_away_total",
    }
    assert float(values["sentport_computed_tokens_total"]) >= float(values["sentport_tokens_total"]) >= 53
    assert float(values["sentport_truncated_total"]) >= 1
    names = set(re.findall(r"^(\w+)[{ ]", page, re.MULTILINE)) | {name for name, _ in METRICS.values()}
    dashboard = json.loads((ROOT / "triton_repo" / "templates" / "grafana.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(queries) > 12
    for query in queries:
        used = set(re.findall(r"\b(?:nv|sentport)_\w+", query))
        assert used, query
        assert used <= names, query


def ask_with_clients(busy: Busy, texts: list[str], clients: int) -> Vectors:
    """One text a request, from many clients at once, every other one over HTTP."""
    vectors = np.empty((len(texts), busy.encoder.info.dim), np.float32)

    def ask(number: int) -> None:
        with busy.client(protocol=("grpc", "http")[number % 2], rows_per_request=1, in_flight=1) as client:
            vectors[number::clients] = client.encode(texts[number::clients], prompt="")

    assert at_once(clients, ask, workers=clients) == [None] * clients
    return vectors


@pytest.mark.full
def test_20000_texts_from_64_clients(busy: Busy) -> None:
    source = random.Random(5)
    texts = [" ".join(source.choices(WORDS, k=round(256 ** source.random()))) for _ in range(20_000)]
    found = ask_with_clients(busy, texts, 64)
    assert np.abs(found - busy.encoder.encode(texts, prompt="")).max() <= SAME


@pytest.mark.full
def test_third_pass_needs_no_more_memory(busy: Busy) -> None:
    source = random.Random(6)
    texts = [" ".join(source.choices(WORDS, k=round(256 ** source.random()))) for _ in range(3000)]
    resident = []
    for _ in range(3):
        ask_with_clients(busy, texts, 32)
        resident.append(server_memory(busy.server))
    assert resident[2] <= 1.03 * resident[1], resident
