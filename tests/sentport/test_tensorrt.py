"""Engine tensorrt on a machine without a GPU: buffers, profiles, graphs and every refusal, over a fake driver."""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT, Cli
from fake_gpu import PROFILES, FakeDriver, FakeTensorRt, graph_of, real_cdll, write_fake_plan
from hypothesis import given
from hypothesis import strategies as st

from sentport import Encoder
from sentport.batch import TokenBatch
from sentport.bundle import Bundle, read_bundle, sha256_of
from sentport.cli import COMMANDS
from sentport.engines.fitting import Piece, fit, rows_of
from sentport.engines.opening import open_graph
from sentport.engines.tensorrt import TensorRtEngine
from sentport.engines.tensorrt_check import layer_types
from sentport.errors import BundleError, EngineError, GateError
from sentport.plans import Plan, read_plans

TEXTS = ["the cat sat on the red mat", "a dog", "", "the dog ran in the park , on a blue mat ! " * 3, "日本 é"]
ROWS = [[2, 5, 7, 9, 3], [2, 6, 3], list(range(2, 24)) * 2, [2], [2, 3], [4, 5, 6], [7, 8, 9, 10]]


@dataclass
class Machine:
    """A fake GPU and library, and a bundle with a plan for them."""

    bundle: Bundle
    plan: Plan
    driver: FakeDriver
    trt: FakeTensorRt

    def open(self) -> TensorRtEngine:
        return TensorRtEngine(self.bundle, read_plans(self.bundle)[0])


def machine(layout: str, source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, **values: Any) -> Machine:
    bundle = read_bundle(shutil.copytree(source, folder / "tiny.bundle"))
    plan = write_fake_plan(bundle, layout, **values)
    driver = FakeDriver()
    trt = FakeTensorRt(driver, bundle, plan)
    monkeypatch.setattr(ctypes, "CDLL", real_cdll(driver))
    monkeypatch.setitem(sys.modules, "tensorrt", trt)
    return Machine(bundle, plan, driver, trt)


@pytest.fixture(params=["padded", "packed"])
def gpu(request: pytest.FixtureRequest, both_layouts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return machine(request.param, both_layouts, tmp_path, monkeypatch)


@pytest.fixture
def padded(both_layouts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return machine("padded", both_layouts, tmp_path, monkeypatch)


def test_the_first_load_checks_and_later_ones_do_not(gpu: Machine, cli: Cli) -> None:
    gpu.open().close()
    (plan,) = read_plans(gpu.bundle)
    name = "Fake GPU (compute capability 9.0)"
    assert (plan.parity["state"], plan.parity["device"], plan.parity["version"]) == ("passed", name, "10.13.0.35")
    assert plan.parity["layers"] == {"fp32": 1}
    assert plan.parity["relative_l2"] < 1e-5
    runs = gpu.driver.calls.count("cuMemcpyDtoHAsync_v2")
    gpu.open().close()
    assert gpu.driver.calls.count("cuMemcpyDtoHAsync_v2") == runs
    _, out, _ = cli("inspect", str(gpu.bundle.path))
    assert f"passed on {name} with version 10.13.0.35: worst cosine 1.0000000" in out


def test_vectors_are_the_graphs_and_everything_is_given_back(gpu: Machine) -> None:
    engine = gpu.open()
    other = open_graph(gpu.bundle, graph_of(gpu.bundle, gpu.plan.layout), "onnxruntime", threads=1)
    batch = TokenBatch.from_rows(ROWS)  # more rows than a profile has, one of them long
    for _ in range(4):
        np.testing.assert_allclose(engine.run(batch), other.run(batch), atol=2e-6)
    assert engine.run(TokenBatch.from_rows([])).shape == (0, 24)
    no_token = TokenBatch(np.array([7]), np.array([1], np.int32), attention_mask=np.array([0]))
    np.testing.assert_allclose(engine.run(no_token), other.run(no_token), atol=2e-6)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(engine.run, [batch] * 8):
            np.testing.assert_allclose(found, other.run(batch), atol=2e-6)
    engine.close()
    engine.close()
    assert (gpu.driver.memory, gpu.driver.streams, gpu.driver.graphs) == ({}, set(), {})
    with pytest.raises(EngineError, match="this engine is closed"):
        engine.run(batch)


def test_buffers_are_made_once_and_graphs_of_shapes_that_come_again(padded: Machine) -> None:
    engine = padded.open()
    made = padded.driver.calls.count("cuMemAlloc_v2")
    assert made == 2 * (4 + 1)  # on each of two streams three inputs and one output, and the contexts' memory
    # 4 rows of 8 tokens, or 2 of 48: the latter is the larger, in 8 bytes.
    assert max(len(block) for block in padded.driver.memory.values()) == 2 * 48 * 8
    launches = padded.driver.calls.count("cuGraphLaunch")
    executed = len(padded.trt.contexts)
    batch = TokenBatch.from_rows([[2, 5, 3], [2, 5, 6, 3]])
    for _ in range(6):
        engine.run(batch)
    assert padded.driver.calls.count("cuMemAlloc_v2") == made
    assert padded.driver.calls.count("cuGraphLaunch") > launches
    assert len(padded.trt.contexts) <= executed + 2  # one for the graph on each stream
    # A graph holds its context's state: the one that runs other shapes is another.
    engine.run(TokenBatch.from_rows([[2, 3]]))
    np.testing.assert_array_equal(engine.run(batch), engine.run(batch))
    engine.close()


def test_packed_shapes_are_not_captured(both_layouts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = machine("packed", both_layouts, tmp_path, monkeypatch)
    engine = gpu.open()
    for _ in range(3):
        engine.run(TokenBatch.from_rows([[2, 3]]))
    engine.close()
    assert "cuGraphLaunch" not in gpu.driver.calls


def test_an_encoder_takes_the_plan_by_name_alone(gpu: Machine) -> None:
    with Encoder(gpu.bundle.path, engine="tensorrt", layout=gpu.plan.layout) as encoder:
        assert (encoder.info.engine, encoder.info.device, encoder.info.sessions) == ("tensorrt", "cuda", 2)
        found = encoder.encode(TEXTS)
    with Encoder(gpu.bundle.path, engine="onnxruntime", device="cpu") as encoder:
        np.testing.assert_allclose(found, encoder.encode(TEXTS), atol=2e-6)


def test_verify_takes_plans(gpu: Machine, cli: Cli) -> None:
    code, out, _ = cli("verify", str(gpu.bundle.path), "--engine", "tensorrt", "--device", "cuda")
    assert (code, out.count("passed")) == (0, 1)


@pytest.mark.parametrize(
    ("values", "version", "says"),
    [
        ({"runs_on": ("8.9",)}, "10.13.0.35", "is for compute capability 8.9, this GPU has 9.0; build it here"),
        ({"runs_on": ("12.0+",)}, "10.13.0.35", "is for compute capability 12.0+, this GPU has 9.0"),
        ({}, "10.14.0.1", "was built by TensorRT 10.13.0.35, installed is 10.14.0.1; build it here: sentport build"),
        ({"newer_versions": True}, "11.0.0.1", "was built by TensorRT 10.13.0.35, installed is 11.0.0.1"),
        ({}, "8.6.1", "TensorRT 8.6.1 is installed; 10 or newer is needed"),
    ],
)
def test_another_machine_is_refused_with_the_command_that_rebuilds(
    values: dict[str, Any],
    version: str,
    says: str,
    both_layouts: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = machine("padded", both_layouts, tmp_path, monkeypatch, **values)
    gpu.trt.__version__ = version
    with pytest.raises(EngineError) as caught:
        gpu.open()
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_plan_for_later_machines_runs_there(
    both_layouts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = machine("padded", both_layouts, tmp_path, monkeypatch, runs_on=("8.0+",), newer_versions=True)
    gpu.trt.__version__ = "10.20.1"
    gpu.open().close()
    assert read_plans(gpu.bundle)[0].parity["version"] == "10.20.1"
    gpu.trt.__version__ = "10.20.2"
    gpu.trt.damage = 0.1
    with pytest.raises(GateError):  # what another version computes is checked again
        gpu.open()


@pytest.mark.parametrize(
    ("damage", "types", "says"),
    [
        (0.01, ["Float"], "relative L2 error is"),
        (0.0, ["Row major linear FP16 format"], "it was built for fp32, and its layers work on tensors 1 in fp16"),
        (0.0, ["Float", "Half"], "its layers work on tensors 1 in fp16, 1 in fp32"),
    ],
)
def test_a_wrong_plan_is_refused_and_stays_refused(
    damage: float, types: list[str], says: str, padded: Machine, cli: Cli
) -> None:
    padded.trt.damage, padded.trt.types = damage, types
    with pytest.raises(GateError, match="is wrong on Fake GPU") as caught:
        padded.open()
    assert says in str(caught.value)
    assert "build it again: sentport build" in str(caught.value)
    assert (padded.driver.memory, padded.driver.streams) == ({}, set())
    padded.trt.damage, padded.trt.types = 0.0, ["Float"]
    with pytest.raises(GateError, match="is not used"):
        padded.open()
    _, out, _ = cli("inspect", str(padded.bundle.path))
    assert "REFUSED on Fake GPU" in out


def test_a_bundle_that_nobody_may_write_is_checked_at_every_load(
    padded: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_bundle: Bundle, _plan: Plan) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("sentport.engines.tensorrt_check.write_record", refuse)
    padded.open().close()
    assert "cannot be kept (Permission denied) and is repeated at the next load" in caplog.text
    assert read_plans(padded.bundle)[0].parity == {"state": "unverified"}


def test_a_library_that_tells_no_types_leaves_it_to_the_vectors(
    padded: Machine, cli: Cli, caplog: pytest.LogCaptureFixture
) -> None:
    padded.trt.types = []
    padded.open().close()
    assert "the library does not tell the types of its layers; its vectors decide" in caplog.text
    assert "tensors between layers are not told" in cli("inspect", str(padded.bundle.path))[1]


def test_runs_that_cannot_be_captured_are_launched_one_by_one(
    padded: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    engine = padded.open()
    padded.driver.cuStreamBeginCapture_v2.fails_with = 900
    batch = TokenBatch.from_rows([[2, 5, 3], [2, 5, 6, 3], [4, 5]])
    first = engine.run(batch)
    for _ in range(8):
        np.testing.assert_array_equal(engine.run(batch), first)
    assert caplog.text.count("cannot be captured as CUDA graphs") == 2  # once for each stream
    engine.close()
    assert padded.driver.memory == {}


def test_what_is_missing_is_said(padded: Machine, both_layouts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    padded.trt.loads = False
    with pytest.raises(EngineError, match=r"TensorRT cannot load .*padded-fp32-trt-sm90\.plan: it gives no reason"):
        padded.open()
    padded.driver.cuMemAlloc_v2.fails_with = 2
    padded.trt.loads = True
    with pytest.raises(EngineError, match=r"cuMemAlloc_v2 gives error 2 on Fake GPU .* no memory left"):
        padded.open()
    assert padded.driver.streams == set()
    padded.driver.devices = 0
    with pytest.raises(EngineError, match="runs on a GPU, and there is none: the NVIDIA driver sees no device"):
        padded.open()
    monkeypatch.delitem(sys.modules, "tensorrt")
    with pytest.raises(EngineError, match=r"needs TensorRT, whose module tensorrt is not installed: pip install"):
        padded.open()
    with pytest.raises(EngineError, match=r"has no TensorRT plan; `sentport build"):
        Encoder(both_layouts, engine="tensorrt")
    with pytest.raises(EngineError, match="device 'cpu' is unknown to engine tensorrt"):
        Encoder(padded.bundle.path, engine="tensorrt", device="cpu")
    with pytest.raises(BundleError, match="has no graph of layout packed"):
        Encoder(padded.bundle.path, engine="tensorrt", layout="packed")


def test_a_plan_that_changed_is_refused(padded: Machine) -> None:
    (padded.bundle.path / padded.plan.file).write_bytes(b"other")
    with pytest.raises(BundleError, match=r"has changed: its SHA-256 is .*; make it again with `sentport build"):
        padded.open()


PASSED = {"state": "passed", "device": "x", "version": "1.0", "layers": {}, "cosine": 1.0, "rows": 1, "sha256": "0"}


@pytest.mark.parametrize(
    "values",
    [
        *({"parity": parity} for parity in ({"state": "verified"}, {"state": "passed"}, {"state": "refused"}, None)),
        *({"parity": parity} for parity in (PASSED, {**PASSED, "layers": 3})),
        *({"profiles": profiles} for profiles in ([], 5, [[[1, 4, 4], [2, 8, 8]]], [[[1, 8, 4], [1, 8, 8]]])),
        *({"profiles": [[[1, 8, 8], [1, most, most]]]} for most in (-4, 10**30, 8.0, True, "8", float("inf"))),
        {"profiles": [[[1, 4, 4], [9, 48, 48]], [[1, 4, 4], [1, 8, 8]]]},
        *({"builder": "other"}, {"version": None}, {"version": "new"}, {"runs_on": []}, {"runs_on": ["x"]}),
        *({"newer_versions": "no"}, {"types": 3}, {"types": {"fp32": "many"}}, {"seconds": "long"}, {"sha256": 3}),
        {"name": "../../other"},
    ],
    ids=str,
)
def test_a_json_that_no_build_writes_is_damaged(values: dict[str, Any], padded: Machine) -> None:
    file = (padded.bundle.path / padded.plan.file).with_suffix(".json")
    file.write_text(json.dumps(json.loads(file.read_text()) | values))
    with pytest.raises(BundleError, match=r"json is damaged \(.*\); remove it and its plan, and build again"):
        read_plans(padded.bundle)


@pytest.mark.parametrize("content", [b"", b"{", b"null", b"\xff\xfe", b"[" * 100_000])
def test_a_file_that_is_no_json_is_damaged(content: bytes, padded: Machine) -> None:
    (padded.bundle.path / padded.plan.file).with_suffix(".json").write_bytes(content)
    with pytest.raises(BundleError, match="json is damaged"):
        read_plans(padded.bundle)


@pytest.mark.parametrize("values", [{"precision": "int8"}, {"layout": "packed"}])
def test_a_plan_keeps_to_its_graphs_record(values: dict[str, str], padded: Machine) -> None:
    """Another precision would have another gate."""
    file = (padded.bundle.path / padded.plan.file).with_suffix(".json")
    file.write_text(json.dumps(json.loads(file.read_text()) | values))
    with pytest.raises(BundleError, match="was built of another graphs/padded-fp32-portable"):
        read_plans(padded.bundle)


def test_a_check_holds_for_the_plan_that_was_checked(padded: Machine) -> None:
    padded.open().close()
    plan = padded.bundle.path / padded.plan.file
    plan.write_bytes(b"other")
    record = json.loads(plan.with_suffix(".json").read_text())
    plan.with_suffix(".json").write_text(json.dumps(record | {"sha256": sha256_of(plan)}))
    with pytest.raises(BundleError, match="is damaged"):
        padded.open()


def test_a_plan_that_is_not_there_or_elsewhere_is_refused(padded: Machine, tmp_path: Path, cli: Cli) -> None:
    plan = padded.bundle.path / padded.plan.file
    rebuild = f"make it again with `sentport build {padded.bundle.path} --builder trt --layout padded"
    elsewhere = plan.rename(tmp_path / "elsewhere")
    code, _, err = cli("inspect", str(padded.bundle.path))
    assert (code, "is missing; " + rebuild in err) == (2, True), err
    plan.symlink_to(elsewhere)
    code, _, err = cli("inspect", str(padded.bundle.path))
    assert (code, f"lies outside of {padded.bundle.path}" in err, rebuild in err) == (2, True, True), err


def test_what_cannot_be_written_leaves_nothing(padded: Machine) -> None:
    folder = padded.bundle.path / "engines"
    (folder / "other.plan").mkdir()
    before = sorted(folder.rglob("*"))
    with pytest.raises(BundleError, match=r"other\.plan of 0 MB cannot be written \(Is a directory\); make room there"):
        write_fake_plan(padded.bundle, "padded", name="other")
    assert sorted(folder.rglob("*")) == before


def test_a_row_that_no_profile_covers_is_refused(padded: Machine) -> None:
    file = (padded.bundle.path / padded.plan.file).with_suffix(".json")
    record = json.loads(file.read_text())
    engine = padded.open()
    with pytest.raises(EngineError, match="a row has 49 tokens, and no profile of the plan takes more than 48"):
        engine.run(TokenBatch.from_rows([[5] * 49]))
    engine.close()
    assert record["parity"] == {"state": "unverified"}


@given(st.sampled_from(["padded", "packed"]), st.lists(st.integers(0, 48), min_size=1, max_size=40))
def test_pieces_cover_a_batch_and_fit_their_profiles(layout: str, lengths: list[int]) -> None:
    profiles = PROFILES[layout]
    pieces = fit(profiles, layout, np.array(lengths, np.int32))
    assert [row for piece in pieces for row in range(piece.start, piece.stop)] == list(range(len(lengths)))
    for number, start, stop in pieces:
        tokens = sum(lengths[start:stop]) if layout == "packed" else max(lengths)
        assert (stop - start <= profiles[number].rows.most, tokens <= profiles[number].tokens.most) == (True, True)
        tighter = profiles[:number]
        assert all(profile.tokens.most < tokens or profile.rows.most < stop - start for profile in tighter)


def test_the_tightest_profile_is_taken() -> None:
    assert fit(PROFILES["padded"], "padded", np.array([8, 2, 1, 1, 1], np.int32)) == [Piece(0, 0, 4), Piece(0, 4, 5)]
    assert fit(PROFILES["padded"], "padded", np.array([9], np.int32)) == [Piece(1, 0, 1)]
    assert fit(PROFILES["packed"], "packed", np.array([16, 17], np.int32)) == [Piece(1, 0, 2)]


def test_rows_of_a_batch_keep_their_masks() -> None:
    ids = np.arange(6)
    batch = TokenBatch(ids, np.array([1, 2, 3], np.int32), np.ones(6, np.int64), ids * 2, ids % 2)
    part = rows_of(batch, 1, 3)
    assert part.ids.tolist() == [1, 2, 3, 4, 5]
    assert (part.token_type_ids.tolist(), part.pooling_mask.tolist()) == ([2, 4, 6, 8, 10], [1, 0, 1, 0, 1])
    assert rows_of(replace(batch, pooling_mask=None), 0, 1).pooling_mask is None


def test_types_are_read_as_the_inspector_writes_them() -> None:
    kinds = ["Row major linear FP32", "Half", "BFloat16", "Int8", "Int64", "Bool", "Channel major Float16 format"]
    layers = [{"Outputs": [{"Format/Datatype": kind}]} for kind in kinds]
    assert layer_types({"Layers": [*layers, "a name alone"]}) == {"bf16": 1, "fp16": 2, "fp32": 1, "int8": 1}
    assert layer_types({}) == {}


def test_commands_of_the_documentation_exist() -> None:
    section = (ROOT / "docs" / "architecture.md").read_text().partition("\n## TensorRT\n")[2].partition("\n## ")[0]
    commands = [words.split() for words in re.findall(r"`sentport ([^`]+)`", section)]
    assert len(commands) >= 8
    for name, *words in commands:
        module = importlib.import_module(COMMANDS[name].module)
        parser = argparse.ArgumentParser()
        module.add_arguments(parser)
        known = {*parser._option_string_actions, "-v"}
        assert {word for word in words if word.startswith("-")} <= known, (name, words)
