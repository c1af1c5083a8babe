"""Weights in a file of their own, as graphs over 2 GB have them: written, read, verified, and missed when gone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import Cli, export_tiny

from export import exporter
from sentport import Encoder
from sentport.bundle import read_bundle
from sentport.errors import BundleError


@pytest.fixture(scope="module")
def bundle(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exporter, "_ONE_FILE_BYTES", 10_000)
        return export_tiny(tiny_checkpoint, tmp_path_factory.mktemp("large") / "large.bundle")


def test_weights_lie_beside_the_graph_and_vectors_stay(bundle: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(bundle, tmp_path / "moved.bundle"))
    for graph in read_bundle(moved).graphs:
        assert graph.data_sha256 is not None
        assert (moved / graph.data_file).name == f"padded-fp32-{graph.flavour}.onnx.data"
        assert (moved / graph.file).stat().st_size < (moved / graph.data_file).stat().st_size
    texts = ["the cat", "a dog sat on the mat"]
    with Encoder(moved, "onnxruntime", threads=1) as found, Encoder(tiny_bundle, "onnxruntime", threads=1) as wanted:
        np.testing.assert_array_equal(found.encode(texts), wanted.encode(texts))
        assert found.info.fingerprint == wanted.info.fingerprint


def test_verify_and_inspect_read_it(bundle: Path, cli: Cli) -> None:
    code, text, _ = cli("verify", str(bundle))
    assert (code, text.count("passed")) == (0, 2)
    graphs = json.loads(cli("inspect", str(bundle), "--json")[1])["graphs"]
    assert all(len(graph["data_sha256"]) == 64 for graph in graphs)


@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_damaged_data_is_refused(bundle: Path, tmp_path: Path, damage: str, cli: Cli) -> None:
    broken = Path(shutil.copytree(bundle, tmp_path / "broken.bundle"))
    data = broken / "graphs" / "padded-fp32-ort.onnx.data"
    if damage == "missing":
        data.unlink()
    else:
        weights = bytearray(data.read_bytes())
        weights[len(weights) // 2] ^= 1
        data.write_bytes(weights)
    with pytest.raises(BundleError, match=rf"padded-fp32-ort.onnx.data (has|is) {damage}"):
        Encoder(broken, "onnxruntime")
    code, _, said = cli("inspect", str(broken))
    assert (code, ".onnx.data" in said) == (2, True)


def test_data_counts_where_weights_would_be_held_twice(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = read_bundle(bundle).select("auto", "auto")
    monkeypatch.setattr("sentport.engines.onnxruntime._TWICE_BYTES", (bundle / graph.file).stat().st_size)
    with Encoder(bundle, "onnxruntime", threads=2) as encoder:
        assert (encoder.info.sessions, encoder.info.threads) == (1, 2)
