"""Weights in a file of their own, as graphs over 2 GB have them: written, read, verified, and missed when gone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import export_tiny, run_cli

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
    with Encoder(moved, threads=1) as found, Encoder(tiny_bundle, threads=1) as wanted:
        np.testing.assert_array_equal(found.encode(texts), wanted.encode(texts))
        assert found.info.fingerprint == wanted.info.fingerprint


def test_verify_and_inspect_read_it(bundle: Path) -> None:
    assert run_cli("verify", str(bundle), check=True).stdout.count(b"passed") == 2
    graphs = json.loads(run_cli("inspect", str(bundle), "--json", check=True).stdout)["graphs"]
    assert all(len(graph["data_sha256"]) == 64 for graph in graphs)


@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_damaged_data_is_refused(bundle: Path, tmp_path: Path, damage: str) -> None:
    broken = Path(shutil.copytree(bundle, tmp_path / "broken.bundle"))
    data = broken / "graphs" / "padded-fp32-ort.onnx.data"
    if damage == "missing":
        data.unlink()
    else:
        weights = bytearray(data.read_bytes())
        weights[len(weights) // 2] ^= 1
        data.write_bytes(weights)
    with pytest.raises(BundleError, match=rf"padded-fp32-ort.onnx.data (has|is) {damage}"):
        Encoder(broken)
    done = run_cli("inspect", str(broken))
    assert done.returncode == 2
    assert b".onnx.data" in done.stderr


def test_data_counts_where_weights_would_be_held_twice(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = read_bundle(bundle).select("auto", "auto")
    monkeypatch.setattr("sentport.engines.onnxruntime._TWICE_BYTES", (bundle / graph.file).stat().st_size)
    with Encoder(bundle, threads=2) as encoder:
        assert (encoder.info.sessions, encoder.info.threads) == (1, 2)
