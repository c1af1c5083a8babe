"""The machine's file, and what ONNX Runtime does with it; the providers themselves need a GPU."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from sentport import Encoder
from sentport.batch import TokenBatch
from sentport.bundle import read_bundle
from sentport.engines import onnxruntime as engine
from sentport.engines.feeds import make_feed
from sentport.errors import EngineError, SentportError
from sentport.machine import Machine, read_machine

FILE = """\
[onnxruntime]
cpu_nodes = "refuse"
[onnxruntime.cuda]
gpu_mem_limit = 1024
[onnxruntime.tensorrt]
trt_engine_cache_enable = true
trt_engine_cache_path = "/var/cache/x"
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SENTPORT_MACHINE", str(tmp_path / "machine.toml"))
    return tmp_path / "machine.toml"


def test_options_are_taken_by_provider_and_ours_stay(file: Path) -> None:
    file.write_text(FILE)
    machine = read_machine()
    assert machine.refuse_cpu_nodes
    tensorrt, cuda = engine._providers("tensorrt", machine)
    assert tensorrt == (
        "TensorrtExecutionProvider",
        {"trt_engine_cache_enable": "1", "trt_engine_cache_path": "/var/cache/x"},
    )
    assert cuda == ("CUDAExecutionProvider", {"use_tf32": "0", "gpu_mem_limit": "1024"})
    assert engine._providers("cpu", Machine()) == [("CPUExecutionProvider", {})]


def test_no_file_is_no_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SENTPORT_MACHINE", raising=False)
    monkeypatch.setattr("sentport.machine._DEFAULT", tmp_path / "none.toml")
    assert read_machine() == Machine()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "which is not there"),
        ("[", "is not TOML"),
        ("[openvino]", "openvino is unknown; known: onnxruntime"),
        ("[onnxruntime.rocm]", "onnxruntime.rocm is unknown; known: cpu_nodes, cuda, tensorrt"),
        ("onnxruntime = 1", "onnxruntime is 1; expected a table"),
        ("[onnxruntime]\ncuda = 1", "onnxruntime.cuda is 1; expected a table"),
        ("[onnxruntime.cuda]\ngpu_mem_limit = [1]", r"gpu_mem_limit is \[1\]; expected a number"),
        ('[onnxruntime]\ncpu_nodes = "hide"', "cpu_nodes is 'hide'; expected one of report, refuse"),
        ("[onnxruntime.cuda]\nuse_tf32 = 1", "use_tf32 would change the precision"),
        ("[onnxruntime.tensorrt]\ntrt_fp16_enable = true", "trt_fp16_enable would change the precision"),
    ],
)
def test_what_the_file_may_not_say(content: str | None, says: str, file: Path) -> None:
    if content is not None:
        file.write_text(content)
    with pytest.raises(SentportError, match=says):
        read_machine()


def test_nodes_left_on_the_cpu_are_told_or_refused(caplog: pytest.LogCaptureFixture) -> None:
    nodes = {"CUDAExecutionProvider": Counter(MatMul=4), "CPUExecutionProvider": Counter(Shape=3)}
    with caplog.at_level("INFO", logger="sentport"):
        engine._check_device("cuda", nodes, Machine())
    assert "device cuda: 3 nodes ran on the CPU (3 Shape)" in caplog.text
    with pytest.raises(
        EngineError, match=r"3 nodes ran on the CPU \(3 Shape\), which this machine's cpu_nodes refuses"
    ):
        engine._check_device("cuda", nodes, Machine(refuse_cpu_nodes=True))
    nodes["TensorrtExecutionProvider"] = Counter(TRTKernel_0=1)
    with pytest.raises(EngineError, match="device tensorrt was asked for, but MatMul ran elsewhere"):
        engine._check_device("tensorrt", nodes, Machine())


def test_a_gpu_that_is_not_there_is_said(both_layouts: Path) -> None:
    with pytest.raises(EngineError, match="device tensorrt was asked for, but"):
        Encoder(both_layouts, engine="onnxruntime", device="tensorrt")


def test_bound_inputs_give_the_same_vectors(both_layouts: Path) -> None:
    bundle = read_bundle(both_layouts)
    graph = bundle.graphs[0]
    session = engine._open_session(bundle.graph_file(graph), "cpu", 1, Machine())
    batch = TokenBatch.from_rows([[2, 5, 3], [2, 3]])
    feed = make_feed(graph.layout, [tensor.name for tensor in graph.inputs], batch)
    found = engine.run_bound(session, feed, "sentence_embedding")
    np.testing.assert_array_equal(found, session.run(None, feed)[0])
