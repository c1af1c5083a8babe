"""What layout packed costs: multiply-adds and memory, counted and measured on the graph itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from architectures import ARCHITECTURES

from export.graphs import make_graphs
from export.tokenwise import Tokenwise
from sentport.modeling.checkpoint import load_checkpoint

LAYOUTS = ("padded", "packed")
# Lengths as sentences have them, in the order in which they came.
MIXED = [14, 9, 46, 11, 7, 22, 5, 31, 12, 10, 18, 8, 13, 26, 6, 16]


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two layers of BERT, wide enough for its projections to be most of the work."""
    folder = tmp_path_factory.mktemp("wide")
    sizes = {"hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 4}
    checkpoint = load_checkpoint(
        replace(ARCHITECTURES[0], sizes=sizes).save(folder / "bert"), pooling="mean", attention="eager"
    )
    files = {}
    for graph in make_graphs(checkpoint.model, LAYOUTS, ("portable",), 18, 10, lambda _: None):
        files[graph.layout] = folder / f"{graph.layout}.onnx"
        ir.save(graph.model, files[graph.layout])
    return files


def feed(layout: str, lengths: list[int]) -> dict[str, np.ndarray]:
    """Rows of tokens that are all attended to."""
    if layout == "packed":
        ids = np.full(sum(lengths), 7, np.int64)
        return {"input_ids": ids, "attention_mask": np.ones_like(ids), "lengths": np.array(lengths, np.int32)}
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int64)
    return {"input_ids": 7 * mask, "attention_mask": mask, "token_type_ids": 0 * mask}


def multiply_adds(graph: Path, layout: str, lengths: list[int], folder: Path) -> int:
    """Of all matrix products of one run, by the shapes in ONNX Runtime's own profile."""
    options = ort.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(folder / "profile")
    session = ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    session.run(None, feed(layout, lengths))
    events = json.loads(Path(session.end_profiling()).read_text())
    nodes = [event["args"] for event in events if "input_type_shape" in event.get("args", {})]
    products = [node for node in nodes if node["op_name"] in ("MatMul", "FusedMatMul", "Gemm")]
    assert len(products) == 2 * 8
    shapes = [(shape(node["output_type_shape"][0]), shape(node["input_type_shape"][0])[-1]) for node in products]
    return sum(prod(out) * inner for out, inner in shapes)


def shape(entry: dict[str, list[int]]) -> list[int]:
    (dims,) = entry.values()
    return dims


def test_a_mixed_batch_costs_what_its_rows_cost_alone(graphs: dict[str, Path], tmp_path: Path) -> None:
    alone = {length: multiply_adds(graphs["packed"], "packed", [length], tmp_path) for length in set(MIXED)}
    padded_alone = multiply_adds(graphs["padded"], "padded", [MIXED[0]], tmp_path)
    assert alone[MIXED[0]] == padded_alone, "a row alone has no pads in either layout"
    rows = sum(alone[length] for length in MIXED)
    together = {layout: multiply_adds(graphs[layout], layout, MIXED, tmp_path) for layout in LAYOUTS}
    assert rows <= together["packed"] <= 1.1 * rows
    assert together["padded"] > 2 * rows


PEAK = """
import sys
from pathlib import Path
import numpy as np, onnxruntime as ort

def kib(name):
    return next(int(line.split()[1]) for line in Path("/proc/self/status").open() if line.startswith(name))

options = ort.SessionOptions()
options.enable_cpu_mem_arena = False  # what is held is what is needed, together with PEAK_ENVIRONMENT
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
feed = dict(np.load(sys.argv[2]))
Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
before = kib("VmRSS")
session.run(None, feed)
print(kib("VmHWM") - before)
"""
# glibc raises this threshold with what is freed, and then keeps freed tensors: by chance of the threads the peak of
# one and the same batch was 239 or 393 MB. Set by hand it stays, and every tensor goes back at once.
PEAK_ENVIRONMENT = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}


@pytest.mark.parametrize(
    "lengths",
    [
        pytest.param([14] * 1000, id="1000x14"),
        pytest.param([512] * 64, id="64x512", marks=pytest.mark.full),
        pytest.param([*[10] * 100, 512, *[10] * 100], id="one 512 in 200x10", marks=pytest.mark.full),
    ],
)
def test_peak_memory_is_at_most_that_of_the_padded_graph(
    graphs: dict[str, Path], tmp_path: Path, lengths: list[int]
) -> None:
    """Never grows as the square of all tokens together: at 1000 x 14 that alone would be 4 heads x 784 MB."""
    peaks = {}
    for layout in LAYOUTS:
        np.savez(tmp_path / "feed.npz", **feed(layout, lengths))
        command = [sys.executable, "-c", PEAK, graphs[layout], tmp_path / "feed.npz"]
        run = subprocess.run(command, capture_output=True, text=True, check=True, env=PEAK_ENVIRONMENT)
        peaks[layout] = int(run.stdout)
    assert peaks["padded"] > 20_000, "KiB; the batch is large enough to measure"
    assert peaks["packed"] <= 1.1 * peaks["padded"], peaks


def test_unknown_nodes_stay_where_they_are() -> None:
    """Only what is known to act on tokens alone moves; nothing is taken for it because nothing is known of it."""
    shapes = {
        "x": ("batch", "tokens", 8),
        "y": ("batch", "tokens", 8),
        "row": ("batch", 1, 8),
        "scores": ("batch", "tokens", "tokens"),
        "heads": ("batch", "tokens", 2, 8),
    }
    values = {name: ir.Value(name=name) for name in (*shapes, "unknown", "w")}
    tokenwise = Tokenwise({**shapes, "w": (8, 8)})

    def moves(kind: str, inputs: list[str], output: str = "y", **attributes: object) -> bool:
        node = ir.node(kind, [values[name] for name in inputs], attributes, outputs=[ir.Value(name=output)])
        return tokenwise.is_tokenwise(node)

    assert moves("Add", ["x", "row"])
    assert moves("MatMul", ["x", "w"])
    assert moves("Softmax", ["x"], axis=-1)
    assert not moves("Add", ["x", "unknown"])
    assert not moves("MatMul", ["x", "unknown"])
    assert not moves("Softmax", ["x"], axis=1)
    assert not moves("MatMul", ["scores", "x"])
    assert not moves("CumSum", ["x", "w"])
    assert not moves("Softmax", ["scores"], "scores", axis=-1)
    assert moves("Transpose", ["x"], "turned", perm=[1, 0, 2])
    assert not moves("Transpose", ["heads"], "turned", perm=[1, 0, 3, 2])
    assert moves("Einsum", ["x", "w"], equation="blh,hd->bld")
    assert not moves("Einsum", ["x", "w"], equation="blh,ld->bhd")
