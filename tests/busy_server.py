"""A real server for tests that are hard on it, and what they ask it with.

It has short queues, APIs that ask for a key, and models that can be loaded again. Of form ``ragged`` the model with
the graph is a stand-in, since this server has no onnxruntime backend: python that merges requests as was recorded,
and runs the same graph.
"""

from __future__ import annotations

import http.client
import random
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ragged_batches
import tritonclient.grpc as grpc_library

from sentport import Encoder
from sentport.encoder import Vectors
from triton_repo.client import Client
from triton_repo.config import Batching
from triton_repo.environment import ServerEnvironment
from triton_repo.flags import ServerFlags
from triton_repo.repository import write_repository
from triton_repo.server import TritonServer
from triton_repo.wanted import Wanted

KEY = "k" * 32
SAME = 2e-6
WORDS = ["the", "cat", "dog", "sat", "ran", "red", "mat", "park", "é", "日", "."]

# Gives each text back, a while after it came, and from when to when it was at it.
SLOW = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        began = time.monotonic()
        time.sleep(0.02)
        texts = [pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy() for request in requests]
        spans = [np.array([[began, time.monotonic()]] * len(text)) for text in texts]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("ECHO", text), pb_utils.Tensor("SPAN", span)])
            for text, span in zip(texts, spans)
        ]
"""
SLOW_CONFIG = """
backend: "python"
max_batch_size: 4
input [ { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "ECHO" data_type: TYPE_STRING dims: [ 1 ] }, { name: "SPAN" data_type: TYPE_FP64 dims: [ 2 ] } ]
instance_group [ {
  kind: KIND_CPU count: 1 rate_limiter { resources [ { name: "cores" global: true count: 1 } ] }
} ]
dynamic_batching {
  priority_levels: 2 default_priority_level: 2
  default_queue_policy { max_queue_size: 24 default_timeout_microseconds: 20000000 allow_timeout_override: true }
}
"""

# What the onnxruntime backend does with ragged inputs, in python; ragged_batches.py lies beside it.
GRAPH = """
import onnxruntime
import ragged_batches
import triton_python_backend_utils as pb_utils
from pathlib import Path


class TritonPythonModel:
    def initialize(self, args):
        folder = Path(args["model_repository"]) / args["model_version"]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options)

    def execute(self, requests):
        names = ("input_ids", "attention_mask")
        read = [
            {name: pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in names}
            for request in requests
        ]
        (vectors,) = self.session.run(None, ragged_batches.merged(read))
        parts = ragged_batches.given_back(vectors, read)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("sentence_embedding", part)]) for part in parts]
"""


@dataclass(frozen=True)
class Busy:
    """The server and the same model in this process."""

    server: TritonServer
    encoder: Encoder
    alone: dict[tuple[str, str], Vectors]

    @property
    def http(self) -> str:
        return self.server.http_url

    def right(self, text: str, prompt: str = "") -> Vectors:
        """The vector of a text that is alone in its batch."""
        if (text, prompt) not in self.alone:
            self.alone[text, prompt] = self.encoder.encode([text], prompt=prompt)[0]
        return self.alone[text, prompt]

    def client(self, model: str = "tiny", protocol: str = "grpc", **options: Any) -> Client:
        url = self.server.grpc_url if protocol == "grpc" else f"http://{self.http}"
        return Client(url, model=model, protocol=protocol, on_truncate="allow", **options)

    def still_right(self) -> None:
        """The server answers both protocols, and rightly."""
        for protocol in ("grpc", "http"):
            with self.client(protocol=protocol, timeout=10.0) as client:
                found = client.encode(["the cat sat"], prompt="")[0]
                assert np.abs(found - self.right("the cat sat")).max() <= SAME


def imitate_graph(models: Path, name: str) -> None:
    """Make a python model of the one with the graph; its config stays but for the backend and the batch input."""
    folder = models / f"{name}_graph"
    lines = (folder / "config.pbtxt").read_text().splitlines()
    kept = [line for line in lines if not line.startswith(("batch_input", "model_warmup"))]
    (folder / "config.pbtxt").write_text("\n".join(kept).replace('"onnxruntime"', '"python"'))
    (folder / "1" / "model.py").write_text(GRAPH)
    shutil.copy(ragged_batches.__file__, folder / "1")


@contextmanager
def busy_server(tiny: Path, both_layouts: Path, environment: ServerEnvironment, folder: Path) -> Iterator[Busy]:
    """The server: models tiny (form text) and ragged, of these bundles, and two slow ones that share one thing."""
    queue = Batching(max_batch=64, max_queue=256)
    models = write_repository(Wanted(tiny, name="tiny", threads=1, batching=queue), folder / "models")
    ragged = write_repository(Wanted(both_layouts, name="ragged", form="ragged", threads=1), folder / "ragged")
    imitate_graph(ragged, "ragged")
    for path in ragged.iterdir():
        if path.is_dir():
            path.rename(models / path.name)
    for name in ("slow", "slow_too"):
        (models / name / "1").mkdir(parents=True)
        (models / name / "config.pbtxt").write_text(SLOW_CONFIG)
        (models / name / "1" / "model.py").write_text(SLOW)
    flags = ServerFlags(rate_limit=True, controlled=True, key=KEY)
    with (
        TritonServer(models, environment, flags=flags) as server,
        Encoder(tiny, engine="onnxruntime", threads=1, on_truncate="allow") as encoder,
    ):
        server.wait_ready()
        yield Busy(server, encoder, {})


def random_text(source: random.Random, most: int = 20) -> str:
    return " ".join(source.choices(WORDS, k=source.randrange(most)))


def at_once(count: int, call: Callable[[int], Any], workers: int = 64) -> list[Any]:
    """Results of calls made from many threads; an exception is a result."""

    def guarded(number: int) -> Any:
        try:
            return call(number)
        except Exception as error:
            return error

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(guarded, range(count)))


def post(address: str, path: str, body: bytes, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(address, timeout=10.0)
    try:
        connection.request("POST", path, body, headers or {})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def text_tensor(text: str) -> Any:
    given = grpc_library.InferInput("TEXT", [1, 1], "BYTES")
    given.set_data_from_numpy(np.array([[text.encode()]], dtype=object))
    return given


def metrics_page(busy: Busy) -> str:
    """All that the server counts."""
    connection = http.client.HTTPConnection(busy.server.metrics_url.split("/")[2], timeout=5)
    connection.request("GET", "/metrics")
    page = connection.getresponse().read().decode()
    connection.close()
    return page


# Triton's count of requests that were answered; to Triton, that is when the model takes them.
TAKEN = "nv_inference_request_success"


def until_taken(busy: Busy, count: int) -> None:
    """Until the model has taken so many requests in all."""
    deadline = time.monotonic() + 20
    while counters(busy)[TAKEN] < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def counters(busy: Busy) -> Counter[str]:
    """What the server has counted of model tiny, in all its versions."""
    found: Counter[str] = Counter()
    found_lines = re.findall(r'^(\w+)\{model="tiny",version="\d+"\} (\S+)$', metrics_page(busy), re.MULTILINE)
    for name, value in found_lines:
        found[name] += round(float(value))
    return found


def counters_at_rest(busy: Busy) -> Counter[str]:
    """The same when they stand still: a model counts after it answers."""
    found = counters(busy)
    for _ in range(50):
        time.sleep(0.2)
        before, found = found, counters(busy)
        if found == before:
            break
    return found


def server_memory(server: TritonServer) -> int:
    """Resident bytes of the server and its python processes."""
    total = 0
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and server.region_prefix.encode() in (folder / "cmdline").read_bytes():
                total += int((folder / "statm").read_text().split()[1]) * 4096
        except OSError:
            continue
    return total
