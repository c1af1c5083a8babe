"""Form ``plan``: its three models, the last of them stood in for by the graph that the plan was built of."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from fake_gpu import graph_of, write_fake_plan
from google.protobuf import json_format
from ragged_models import parsed, request

from sentport import Encoder
from sentport.bundle import Bundle, read_bundle
from sentport.errors import SentportError
from triton_repo.config import Batching
from triton_repo.lint import Target, lint
from triton_repo.model_tokens import TokenAnswer, TokenModel
from triton_repo.releases import RELEASES
from triton_repo.repository import write_repository
from triton_repo.requests import Fixed
from triton_repo.versions import add_version
from triton_repo.wanted import Wanted

PASSED = {
    "state": "passed",
    "sha256": hashlib.sha256(b"plan").hexdigest(),
    "device": "NVIDIA H100",
    "version": "10.13.0.35",
    "layers": {"fp32": 9},
    "cosine": 1.0,
    "rows": 100,
}


@pytest.fixture
def bundle(both_layouts: Path, tmp_path: Path) -> Bundle:
    return read_bundle(shutil.copytree(both_layouts, tmp_path / "tiny.bundle"))


@pytest.fixture
def repository(bundle: Bundle, tmp_path: Path) -> Path:
    write_fake_plan(bundle, "padded", parity=PASSED)
    return write_repository(Wanted(bundle.path, form="plan", device="cuda"), tmp_path / "models")


def tokens_of(repository: Path) -> TokenModel:
    config = json_format.MessageToJson(parsed(repository, "tiny_tokens"), preserving_proto_field_name=True)
    return TokenModel.from_config(json.loads(config), repository / "tiny_tokens" / "1")


def test_edges_are_profiles_and_full_batches_are_preferred(repository: Path) -> None:
    plan, tokens = parsed(repository, "tiny_plan"), parsed(repository, "tiny_tokens")
    assert plan.platform == "tensorrt_plan"
    assert plan.max_batch_size == 2  # the widest profile takes no more rows
    assert list(plan.instance_group[0].profile) == ["0", "1"]
    assert list(plan.dynamic_batching.preferred_batch_size) == [2]
    assert tokens.parameters["edges"].string_value == "8,48"
    names = ["input_ids", "attention_mask", "token_type_ids"]
    assert [each.name for each in plan.input] == names == [each.name for each in tokens.output[:3]]
    assert [dict(sample.inputs)["input_ids"].dims for sample in plan.model_warmup] == [[8], [48]]
    assert (repository / "tiny_plan" / "1" / "model.plan").read_bytes() == b"plan"
    assert not (repository / "tiny_tokens" / "1" / "bundle" / "graphs").exists()
    assert lint(repository, Target(RELEASES["24.10"], gpu=True)) == []


def test_requests_are_padded_to_edges_and_vectors_stay(repository: Path, bundle: Bundle) -> None:
    texts = ["a", "the cat sat on the red mat", "a dog ran in the park , on a mat ! " * 9]
    graph = bundle.graph_file(graph_of(bundle, "padded"))
    session = ort.InferenceSession(str(graph), providers=["CPUExecutionProvider"])
    with Encoder(bundle.path, engine="onnxruntime", threads=1, on_truncate="allow") as encoder:
        wanted = encoder.encode(texts)
    edges = []
    for text, vector in zip(texts, wanted, strict=True):
        (answer,) = tokens_of(repository).answer([request(text)])
        assert isinstance(answer, TokenAnswer)
        tensors = answer.tensors()
        edges.append(tensors["input_ids"].shape[1])
        feed = {each.name: tensors[each.name] for each in session.get_inputs()}
        np.testing.assert_allclose(session.run(None, feed)[0][0], vector, atol=2e-6)
    assert edges == [8, 48, 48]
    (refused,) = tokens_of(repository).answer([request("a", dim=5)])
    assert "but form plan gives all 24 values" in str(refused)


@pytest.mark.parametrize(
    ("plans", "options", "says"),
    [
        ([], {}, "has no plan of layout padded by TensorRT"),
        ([{"builder": "rtx", "parity": PASSED}], {}, "has no plan of layout padded by TensorRT"),
        ([{}], {}, r"padded-fp32-trt-sm90\.plan is unverified, and Triton would serve whatever it gives; check it"),
        ([{"parity": {**PASSED, "state": "refused", "reason": "x"}}], {}, r"plan is refused, and Triton would"),
        ([{"parity": PASSED}, {"parity": PASSED, "name": "other"}], {}, "keep the one for the server's GPU"),
        ([{"parity": PASSED}], {"precision": "fp16"}, "has no graph with layout padded in fp16"),
        ([{"parity": PASSED}], {"device": "cpu"}, "'cpu' is unknown to form plan; expected one of cuda"),
        ([{"parity": PASSED}], {"layout": "packed"}, "form plan runs padded graphs"),
        ([{"parity": PASSED}], {"fixed": Fixed()}, "exists of form text alone"),
    ],
)
def test_what_is_refused(
    plans: list[dict[str, Any]], options: dict[str, Any], says: str, bundle: Bundle, tmp_path: Path
) -> None:
    for values in plans:
        write_fake_plan(bundle, "padded", **values)
    with pytest.raises(SentportError, match=says):
        write_repository(Wanted(bundle.path, **{"form": "plan", "device": "cuda", **options}), tmp_path / "models")


def test_a_changed_plan_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    plan = write_fake_plan(bundle, "padded", parity=PASSED)
    (bundle.path / plan.file).write_bytes(b"other")
    with pytest.raises(SentportError, match="has changed"):
        write_repository(Wanted(bundle.path, form="plan", device="cuda"), tmp_path / "models")


def test_it_takes_no_new_version(repository: Path, bundle: Bundle) -> None:
    with pytest.raises(SentportError, match="is of form plan, whose profiles are its plan's alone"):
        add_version(bundle.path, repository, "tiny")


def test_a_small_batch_is_kept(bundle: Bundle, tmp_path: Path) -> None:
    write_fake_plan(bundle, "padded", parity=PASSED)
    batching = Batching(max_batch=1)
    models = write_repository(Wanted(bundle.path, form="plan", device="cuda", batching=batching), tmp_path / "models")
    assert parsed(models, "tiny_plan").max_batch_size == 1
