"""The text model and both clients against the real server."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT, environment, install_wheel

from bench.server_metrics import read_counters
from sentport import Encoder
from sentport.encoder import EncoderInfo, TextEncoder, Vectors
from sentport.errors import InputError, SentportError
from sentport.evaluation import read_sts, sts_score
from sentport.inputs import MOST_BYTES
from triton_repo.client import AsyncClient, Client
from triton_repo.config import Batching
from triton_repo.environment import ServerEnvironment
from triton_repo.form_text import WARMUP_TEXTS
from triton_repo.repository import write_repository
from triton_repo.requests import Fixed
from triton_repo.server import TritonServer
from triton_repo.transport import GrpcTransport, HttpTransport
from triton_repo.wanted import Wanted


@dataclass(frozen=True)
class Served:
    """A server with MiniLM and the tiny model, which waits long for company, is cacheable, or has no patience."""

    urls: dict[str, str]
    minilm: Encoder
    tiny: Encoder


@pytest.fixture(scope="module")
def served(
    minilm_bundle: Path,
    tiny_bundle: Path,
    server_environment: ServerEnvironment,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    models = write_repository(Wanted(minilm_bundle, name="minilm"), folder / "models")
    slow = Batching(delay_us=400_000, max_batch=64)
    tight = Batching(max_queue=1, timeout_ms=1)
    fixed_so = Fixed(prompt="query", dim=5)
    for name, batching, fixed in (("tiny", slow, None), ("cacheable", None, fixed_so), ("tight", tight, None)):
        out = write_repository(Wanted(tiny_bundle, name=name, threads=1, batching=batching, fixed=fixed), folder / name)
        (out / name).rename(models / name)
    encoders = (
        Encoder(minilm_bundle, engine="onnxruntime"),
        Encoder(tiny_bundle, engine="onnxruntime", threads=1, on_truncate="allow"),
    )
    with TritonServer(models, server_environment) as server, encoders[0] as minilm, encoders[1] as tiny:
        server.wait_ready()
        urls = {"grpc": server.grpc_url, "http": f"http://{server.http_url}", "metrics": server.metrics_url}
        yield Served(urls, minilm, tiny)


def test_readme_client_example(served: Served) -> None:
    """The README's block, with this server's address in the place of the default one."""
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(from triton_repo\.client import Client.*?)```", readme, re.DOTALL)
    assert "127.0.0.1:8001" in block
    names: dict[str, Any] = {}
    exec(block.replace("127.0.0.1:8001", served.urls["grpc"]), names)
    np.testing.assert_allclose(names["vectors"], served.minilm.encode(["A man is eating food."]), atol=1e-5)


PROTOCOLS = pytest.mark.parametrize("protocol", ["grpc", "http"])


@PROTOCOLS
def test_client_runs_without_torch(served: Served, wheel: Path, tmp_path: Path, protocol: str) -> None:
    """The wheel in an environment of the core and tritonclient alone."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["triton"]]
    python = environment("client", "--constraint", str(ROOT / "constraints.txt"), *wanted)
    install_wheel(python, wheel)
    code = (
        "import importlib.util, json, sys\n"
        "assert importlib.util.find_spec('torch') is None and importlib.util.find_spec('transformers') is None\n"
        "from triton_repo.client import Client\n"
        "with Client(sys.argv[1], model='minilm', protocol=sys.argv[2]) as client:\n"
        "    print(json.dumps(client.encode(['A man is eating food.']).tolist()))"
    )
    done = subprocess.run(
        [python, "-c", code, served.urls[protocol], protocol], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(json.loads(done.stdout), served.minilm.encode(["A man is eating food."]), atol=1e-5)


def statistics(served: Served, model: str, after: int = 0) -> tuple[int, int]:
    """The model's own count of requests and executions, at ``after`` requests or more and at rest.

    Answers go out before they are counted: those of the test before may still be missing.
    """
    deadline = time.monotonic() + 10
    found = (-1, -1)
    while True:
        counted = read_counters(served.urls["metrics"], model)
        before, found = found, (int(counted["requests"]), int(counted["executions"]))
        if (found == before and found[0] >= after) or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


def sentences(count: int) -> list[str]:
    """Distinct English sentences of mixed length."""
    from pydoc_data import topics

    words = " ".join(topics.topics.values())
    found = dict.fromkeys(" ".join(part.split()) for part in re.split(r"(?<=[.:])\s+", words))
    return [text for text in found if 20 < len(text) < 300][:count]


def worst_cosine(found: Vectors, expected: Vectors) -> float:
    assert found.shape == expected.shape
    left, right = found.astype(np.float64), expected.astype(np.float64)
    norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return float(((left * right).sum(axis=1) / norms).min())


def together(*calls: Callable[[], Any]) -> list[Any]:
    """Results of calls that start at the same moment, exceptions as results."""
    barrier = threading.Barrier(len(calls))

    def call(one: Callable[[], Any]) -> Any:
        barrier.wait()
        try:
            return one()
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(call, calls))


@PROTOCOLS
def test_same_vectors_and_info_as_in_process(served: Served, protocol: str) -> None:
    texts = ["Žluťoučký kůň", "", "ends in a zero byte\0", "日本語 🙂", "same", "same", "word " * 500]
    with Client(served.urls[protocol], model="minilm", protocol=protocol, rows_per_request=3) as client:
        encoder: TextEncoder = client
        assert encoder.info == served.minilm.info
        assert worst_cosine(encoder.encode(texts), served.minilm.encode(texts)) >= 0.99999
        assert worst_cosine(encoder.encode(texts, dim=64), served.minilm.encode(texts, dim=64)) >= 0.99999
        assert encoder.encode([]).shape == (0, 384)


@PROTOCOLS
def test_async_client(served: Served, protocol: str) -> None:
    texts = sentences(40)

    async def run() -> tuple[EncoderInfo, list[Vectors]]:
        connected = AsyncClient.connect(served.urls[protocol], model="minilm", protocol=protocol, rows_per_request=8)
        async with await connected as client:
            calls = [client.encode(texts), client.encode(texts[:3], dim=5), client.encode([])]
            vectors = list(await asyncio.gather(*calls))
            with pytest.raises(
                InputError, match=r"^1 of 9 rows cannot be encoded: rows 8 \(over 1,000,000 bytes"
            ) as caught:
                await client.encode([*texts[:8], "x" * (MOST_BYTES + 1)])
            assert caught.value.rows == (8,)
            return client.info, vectors

    info, (whole, short, empty) = asyncio.run(run())
    assert info == served.minilm.info
    assert worst_cosine(whole, served.minilm.encode(texts)) >= 0.99999
    assert worst_cosine(short, served.minilm.encode(texts[:3], dim=5)) >= 0.99999
    assert empty.shape == (0, 384)


def test_one_execution_serves_prompts_dims_and_a_bad_text(served: Served) -> None:
    import tritonclient.grpc as library

    given = library.InferInput("TEXT", [2, 1], "BYTES")
    given.set_data_from_numpy(np.array([[b"fine"], [b"\xff\xfe"]], dtype=object))
    with (
        Client(served.urls["grpc"], model="tiny", retries=0) as client,
        Client(served.urls["http"], model="tiny", protocol="http", retries=0) as other,
        library.InferenceServerClient(served.urls["grpc"]) as raw,
    ):
        requests, executions = statistics(served, "tiny")
        first, second, third, fourth, bad = together(
            lambda: client.encode(["the cat"]),
            lambda: client.encode(["the cat"], prompt="query"),
            lambda: other.encode(["the cat", "a dog"], prompt="passage", dim=3),
            lambda: other.encode(["the cat"], dim=20),
            lambda: raw.infer("tiny", [given]),
        )
        after = statistics(served, "tiny", requests + 5)
    assert (after[0] - requests, after[1] - executions) == (5, 1)
    encode = served.tiny.encode
    assert worst_cosine(first, encode(["the cat"])) >= 0.99999
    assert worst_cosine(second, encode(["the cat"], prompt="query")) >= 0.99999
    assert worst_cosine(third, encode(["the cat", "a dog"], prompt="passage", dim=3)) >= 0.99999
    assert worst_cosine(fourth, encode(["the cat"], dim=20)) >= 0.99999
    assert "1 of 2 texts cannot be encoded: rows 1 (not valid UTF-8)" in str(bad)
    assert not np.allclose(first, second)


def test_outputs_asked_for_plainly(served: Served) -> None:
    """A client that knows nothing of us, over JSON."""
    import http.client

    connection = http.client.HTTPConnection(served.urls["http"].removeprefix("http://"))
    tensor = {"name": "TEXT", "shape": [2, 1], "datatype": "BYTES", "data": ["the cat 🙂", "a dog " * 40]}
    body = json.dumps({"inputs": [tensor], "parameters": {"dim": 2, "prompt": ""}})
    connection.request("POST", "/v2/models/tiny/infer", body)
    answer = json.loads(connection.getresponse().read())
    connection.close()
    outputs = {output["name"]: output for output in answer["outputs"]}
    assert {name: output["shape"] for name, output in outputs.items()} == {
        "EMBEDDING": [2, 2],
        "TOKENS": [2, 1],
        "TRUNCATED": [2, 1],
    }
    assert outputs["TRUNCATED"]["data"] == [False, True]
    assert outputs["TOKENS"]["data"] == served.tiny.tokenize(["the cat 🙂", "a dog " * 40], prompt="").full.tolist()


def test_parameter_that_cannot_be_read_fails_its_own_request_only(served: Served) -> None:
    """What is no UTF-8 in JSON reaches the model as it is."""

    def post(model: str) -> bytes:
        import http.client

        tensor = {"name": "TEXT", "shape": [1, 1], "datatype": "BYTES", "data": ["sat"]}
        body = json.dumps({"inputs": [tensor], "parameters": {"prompt": "@"}}).encode().replace(b"@", b"\xff")
        connection = http.client.HTTPConnection(served.urls["http"].removeprefix("http://"))
        connection.request("POST", f"/v2/models/{model}/infer", body)
        answer = connection.getresponse().read()
        connection.close()
        return answer

    with Client(served.urls["grpc"], model="tiny", retries=0) as client:
        good, bad = together(lambda: client.encode(["sat"]), lambda: post("tiny"))
    assert worst_cosine(good, served.tiny.encode(["sat"])) >= 0.99999
    assert b"the request cannot be read (UnicodeDecodeError" in bad
    assert b"EMBEDDING" in post("cacheable")


@PROTOCOLS
def test_cacheable_variant(served: Served, protocol: str, caplog: pytest.LogCaptureFixture) -> None:
    with Client(served.urls[protocol], model="cacheable", protocol=protocol) as client:
        assert "does not tell when it cuts a text" in caplog.text
        assert (client.info.dim, client.info.default_prompt, client.info.threads) == (5, "query", 0)
        assert worst_cosine(client.encode(["sat"]), served.tiny.encode(["sat"], prompt="query", dim=5)) >= 0.99999
        with pytest.raises(SentportError, match=r"prompt, dim \(5\) and truncation of model 'cacheable' are fixed"):
            client.encode(["sat"], dim=3)
    with pytest.raises(SentportError, match="cacheable variant"):
        Client(served.urls[protocol], model="cacheable", protocol=protocol, on_truncate="error")


def test_the_smallest_limits_do_not_refuse_the_warm_up(served: Served) -> None:
    import tritonclient.grpc as library

    with library.InferenceServerClient(served.urls["grpc"]) as client:
        assert client.is_model_ready("tight")
    assert statistics(served, "tight") == (len(WARMUP_TEXTS), len(WARMUP_TEXTS))


def hammer(served: Served, texts: list[str], clients: int) -> tuple[Vectors, float]:
    """One text a request from many clients at once: the vectors, and executions for each request."""
    url = served.urls["grpc"]
    opened = [Client(url, model="minilm", rows_per_request=1, in_flight=1, retries=0) for _ in range(clients)]
    before = statistics(served, "minilm")
    calls = [lambda n=n: opened[n].encode(texts[n::clients]) for n in range(clients)]
    vectors = np.empty((len(texts), 384), np.float32)
    for n, found in enumerate(together(*calls)):
        vectors[n::clients] = found
    for client in opened:
        client.close()
    after = statistics(served, "minilm", before[0] + len(texts))
    assert after[0] - before[0] == len(texts)
    return vectors, (after[1] - before[1]) / (after[0] - before[0])


def test_many_clients(served: Served) -> None:
    texts = sentences(320)
    vectors, share = hammer(served, texts, 32)
    assert worst_cosine(vectors, served.minilm.encode(texts)) >= 0.99999
    assert share < 0.5, "requests of several clients share executions"


@pytest.mark.full
def test_64_clients_with_2000_texts(served: Served) -> None:
    texts = sentences(2000)
    assert len(set(texts)) == 2000
    vectors, share = hammer(served, texts, 64)
    assert worst_cosine(vectors, served.minilm.encode(texts)) >= 0.99999
    assert share < 0.25


async def connect_async(url: str, model: str, protocol: str) -> None:
    client = await AsyncClient.connect(url, model=model, protocol=protocol)
    await client.close()


@PROTOCOLS
def test_wrong_address_and_model_are_one_line(served: Served, protocol: str) -> None:
    other = served.urls["http" if protocol == "grpc" else "grpc"].removeprefix("http://")
    cases = [
        ("127.0.0.1:1", "minilm", r"no Triton server answers at 127\.0\.0\.1:1 over .*sentport serve"),
        (other, "minilm", f"no Triton server answers at {other} over {protocol}"),
        (served.urls[protocol], "minilmm", "has no model 'minilmm'; it has cacheable, minilm, tight, tiny"),
    ]
    for url, model, message in cases:
        for connected in (
            lambda url=url, model=model: Client(url, model=model, protocol=protocol),
            lambda url=url, model=model: asyncio.run(connect_async(url, model, protocol)),
        ):
            began = time.monotonic()
            with pytest.raises(SentportError, match=message) as caught:
                connected()
            assert "\n" not in str(caught.value)
            assert str(caught.value).isprintable()
            assert time.monotonic() - began < 5


@PROTOCOLS
def test_server_that_comes_back(served: Served, protocol: str) -> None:
    """Nobody listens at first, as while a server is started again."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    client = Client(served.urls[protocol], model="minilm", protocol=protocol, retries=8)
    client._transport.close()
    gone = GrpcTransport if protocol == "grpc" else HttpTransport
    client._transport = gone(f"127.0.0.1:{port}")
    target = served.urls[protocol].removeprefix("http://")
    forwarder = threading.Timer(0.5, forward, (port, target))
    forwarder.start()
    assert worst_cosine(client.encode(["back"]), served.minilm.encode(["back"])) >= 0.99999
    client.close()
    forwarder.join(10)


def forward(port: int, target: str) -> None:
    """Listen on a port and pass one connection on to a server, until the client ends it."""

    def copy(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):  # of the two ways, one ends first
            while data := source.recv(1 << 16):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    with socket.create_server(("127.0.0.1", port)) as listener:
        inside, _ = listener.accept()
    host, _, number = target.rpartition(":")
    with inside, socket.create_connection((host, int(number))) as outside:
        back = threading.Thread(target=copy, args=(outside, inside))
        back.start()
        copy(inside, outside)
        back.join()


@PROTOCOLS
def test_evaluate_asks_the_server(
    served: Served, protocol: str, cli: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    """A cache does not keep it from being asked again."""
    lines = [f"{row}\tA man is eating food.\tA man is eating{' pasta' * row}." for row in range(5)]
    (tmp_path / "sts_raw/STSBenchmark").mkdir(parents=True)
    (tmp_path / "sts_raw/STSBenchmark/test.tsv").write_text("\n".join(lines))
    address = f"{protocol}://{served.urls[protocol].removeprefix('http://')}/minilm"
    options = ("--tasks", "stsb", "--data", str(tmp_path), "--cache", str(tmp_path / "cache"), "--json")
    for _ in range(2):
        code, out, err = cli("evaluate", address, *options)
        assert code == 0, err
        (system,) = json.loads(out)["systems"]
        assert (system["kind"], system["label"], system["texts_computed"]) == ("server", "minilm", 6)
        assert system["fingerprint"] == served.minilm.info.fingerprint
    pairs = read_sts(tmp_path / "sts_raw/STSBenchmark/test.tsv")
    assert system["scores"]["stsb"]["score"] == pytest.approx(sts_score(served.minilm, pairs), abs=0.01)
