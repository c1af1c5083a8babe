"""Form ``ragged``: its three models, driven as a server with the onnxruntime backend drives them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import ROOT
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ragged_batches import given_back, merged
from ragged_models import Ragged, parsed, request
from tritonclient.grpc import model_config_pb2

from sentport import Encoder
from sentport.bundle import read_bundle
from sentport.encoder import Vectors
from sentport.errors import SentportError
from triton_repo import wire
from triton_repo.form_ragged import check_graph
from triton_repo.model_tokens import TokenAnswer
from triton_repo.releases import CODE_FILE, CONTAINER_FILES, RELEASES
from triton_repo.repository import write_repository
from triton_repo.versions import add_version
from triton_repo.wanted import Wanted

WORDS = ["the", "cat", "dog", "sat", "ran", "red", "blue", "park", "é", "日"]
LONG = "the cat sat on a mat " * 30


@pytest.fixture(scope="module")
def repository(both_layouts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_repository(
        Wanted(both_layouts, form="ragged", threads=2), tmp_path_factory.mktemp("ragged") / "models"
    )


@pytest.fixture(scope="module")
def ragged(repository: Path) -> Ragged:
    return Ragged(repository, "tiny")


@pytest.fixture(scope="module")
def encoder(both_layouts: Path) -> Iterator[Encoder]:
    with Encoder(both_layouts, engine="onnxruntime", threads=1, on_truncate="allow") as encoder:
        yield encoder


@pytest.fixture(scope="module")
def alone(encoder: Encoder) -> Callable[[str, str | None], Vectors]:
    """The vector of a text that is alone in its batch."""
    return cache(lambda text, prompt: encoder.encode([text], prompt=prompt)[0])


def test_batches_are_merged_as_a_server_was_seen_to_merge_them() -> None:
    recorded = json.loads((ROOT / "tests" / "fixtures" / "ragged_recorded.json").read_text())
    assert len(recorded) == 21
    for batch in recorded:
        feed = merged([{name: np.array(rows) for name, rows in one.items()} for one in batch["requests"]])
        assert {name: values.tolist() for name, values in feed.items()} == batch["delivered"]


TEXT = st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)
REQUEST = st.tuples(st.lists(st.one_of(TEXT, st.just(LONG)), min_size=1, max_size=4), st.sampled_from([None, "query"]))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(REQUEST, min_size=1, max_size=6))
def test_every_request_gets_its_own_vectors(
    ragged: Ragged, alone: Callable[[str, str | None], Vectors], asked: list[tuple[list[str], str | None]]
) -> None:
    requests = [request(*texts, **({} if prompt is None else {"prompt": prompt})) for texts, prompt in asked]
    for (texts, prompt), found in zip(asked, ragged.answer(requests), strict=True):
        assert np.abs(found - [alone(text, prompt) for text in texts]).max() <= 2e-6


def test_counting_elements_gives_another_clients_vector(ragged: Ragged) -> None:
    """Why lengths come from the shapes of rows: the other kinds say nothing of rows."""
    two_rows, other = request("the cat sat", "a dog"), request("red park")
    tensors = [ragged.step(answer) for answer in ragged.tokens.answer([two_rows, other])]
    (vectors,) = ragged.session.run(["sentence_embedding"], merged(tensors, "BATCH_ELEMENT_COUNT"))
    first, second = given_back(vectors, tensors)
    (alone,) = ragged.answer([other])
    assert len(second) == 0
    np.testing.assert_allclose(first[1:], alone, atol=2e-6)


def test_configs_fit_together_and_the_graph(repository: Path) -> None:
    whole, tokens, graph = (parsed(repository, name) for name in ("tiny", "tiny_tokens", "tiny_graph"))
    onnx_model = onnx.load(repository / "tiny_graph" / "1" / "model.onnx")
    release = RELEASES["24.10"]
    assert onnx_model.ir_version <= release.ir_version
    assert {entry.domain: entry.version for entry in onnx_model.opset_import} == {
        "": onnx_model.opset_import[0].version
    }
    assert onnx_model.opset_import[0].version <= release.opset
    declared = {value.name: value.type.tensor_type for value in onnx_model.graph.input}
    assert {each.name for each in graph.input} | {graph.batch_input[0].target_name[0]} == set(declared)
    assert all(len(kind.shape.dim) == 1 for kind in declared.values())
    assert all(each.allow_ragged_batch and list(each.dims) == [-1] for each in graph.input)
    batch_input = graph.batch_input[0]
    assert model_config_pb2.BatchInput.Kind.Name(batch_input.kind) == "BATCH_ITEM_SHAPE_FLATTEN"
    assert (batch_input.data_type, declared["lengths"].elem_type) == (model_config_pb2.TYPE_INT32, 6)
    assert list(graph.output[0].dims) == [onnx_model.graph.output[0].type.tensor_type.shape.dim[1].dim_value] == [24]
    assert [step.model_name for step in whole.ensemble_scheduling.step] == [tokens.name, graph.name]
    assert {each.name for each in whole.output} == {"EMBEDDING", "TOKENS", "TRUNCATED", "INFO"}
    assert whole.max_batch_size == tokens.max_batch_size == graph.max_batch_size == 64
    assert graph.parameters["intra_op_thread_count"].string_value == "2"
    for sample in graph.model_warmup:
        for name, tensor in sample.inputs.items():
            size = (repository / "tiny_graph" / "warmup" / tensor.input_data_file).stat().st_size
            assert size == 8 * tensor.dims[0], name


@pytest.mark.parametrize(("device", "names"), [("cuda", ["cuda"]), ("tensorrt", ["tensorrt", "cuda"])])
def test_on_a_gpu(both_layouts: Path, tmp_path: Path, device: str, names: list[str]) -> None:
    config = parsed(
        write_repository(Wanted(both_layouts, form="ragged", device=device), tmp_path / "models"), "tiny_graph"
    )
    accelerators = {
        each.name: each.parameters for each in config.optimization.execution_accelerators.gpu_execution_accelerator
    }
    assert list(accelerators) == names
    assert accelerators["cuda"]["use_tf32"] == "0"
    assert config.instance_group[0].kind == model_config_pb2.ModelInstanceGroup.KIND_GPU


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"dim": 5}, "request parameter dim is 5, but form ragged gives all 24 values"),
        ({"dim": 25}, "dim is 25; expected a whole number from 1 to 24"),
        ({"dmi": 5}, "unknown request parameter dmi; known: dim, info, on_truncate, prompt"),
        ({"prompt": "x"}, "prompt 'x' is not saved"),
        ({"on_truncate": "error"}, "1 of 2 texts is longer than 48 tokens"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(ragged: Ragged, parameters: dict[str, Any], message: str) -> None:
    refused, answered = ragged.tokens.answer([request("a", LONG, **parameters), request("a", LONG, dim=24)])
    assert isinstance(refused, SentportError)
    assert str(refused).startswith(message)
    assert isinstance(answered, TokenAnswer)
    assert answered.truncated.tolist() == [[False], [True]]
    assert answered.input_ids.shape == (2, 48)


def test_info_is_there_and_empty_unless_asked_for(ragged: Ragged, encoder: Encoder) -> None:
    told, silent = ragged.tokens.answer([request("a", info=True), request("a")])
    assert isinstance(told, TokenAnswer)
    assert isinstance(silent, TokenAnswer)
    expected = replace(encoder.info, layout="packed", sessions=0, threads=0)
    assert json.loads(told.tensors()[wire.INFO][0, 0]) == asdict(expected)
    assert silent.tensors()[wire.INFO].tolist() == [[b""]]


def test_counts(repository: Path) -> None:
    tokens = Ragged(repository, "tiny").tokens
    tokens.answer([request("a", LONG), request("a", dim=1), request("the cat")])
    counts = tokens.counts
    assert (counts.executions, counts.requests, counts.refused, counts.rows, counts.truncated) == (1, 3, 1, 3, 1)
    assert counts.tokens == counts.computed == 3 + 48 + 4


def test_graph_that_the_release_does_not_run(both_layouts: Path) -> None:
    graph = read_bundle(both_layouts).select("packed", "fp32")
    for changed, device, message in (
        (replace(graph, opset=22), "cpu", "opset 22 and IR version 10, but Triton 24.10 .* takes opset 21"),
        (replace(graph, ir_version=11), "cpu", "IR version 11, but"),
        (replace(graph, precision="bf16"), "cpu", "bf16, which ONNX Runtime does not run on a CPU"),
        (replace(graph, precision="bf16"), "tensorrt", "does not run through TensorRT"),
    ):
        with pytest.raises(SentportError, match=message):
            check_graph(changed, device, RELEASES["24.10"])
    check_graph(graph, "cpu", RELEASES["24.10"])


def test_container_files(repository: Path, tmp_path: Path) -> None:
    """The code in the image is one archive: it is imported as Python does it, and the Dockerfile copies it."""
    dockerfile, ignored, archive = (repository / name for name in CONTAINER_FILES)
    text = dockerfile.read_text()
    assert "FROM nvcr.io/nvidia/tritonserver:24.10-py3\n" in text
    assert "'numpy==1.26.4' 'tokenizers==0.23.3' \\" in text
    assert "nvidia-pytriton==0.7.0" in text
    assert f"COPY {CODE_FILE} " in text
    assert ignored.read_text() == f"*\n!{CODE_FILE}\n"
    code = "import sys; sys.path.insert(0, sys.argv[1]); import triton_repo.served as it; print(it.__file__)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, str(archive)], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == f"{archive}/triton_repo/served.py"


def test_container_commands(
    both_layouts: Path, tmp_path: Path, cli: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of the printed commands is run as it stands; the others need docker."""
    monkeypatch.chdir(tmp_path)
    key = tmp_path / "key"
    key.write_text("k" * 32)
    key.chmod(0o600)
    options = ["--form", "ragged", "--name", "mine", "--priorities", "2", "--shares", "cores", "--http-port", "9000"]
    code, out, err = cli("serve", str(both_layouts), *options, "--container", "24.10", "--restrict", str(key))
    assert (code, err) == (0, "")
    first, build, run = out.splitlines()
    assert build == f"docker build -t sentport-triton:24.10 {tmp_path}/mine.models"
    assert run.startswith(f"docker run --rm --network host --shm-size 1g -v {tmp_path}/mine.models:/models:ro ")
    assert " sentport-triton:24.10 tritonserver --model-repository=/models --http-address=127.0.0.1 " in run
    assert f'sentport-key="$(cat {key})"' in run
    assert "--rate-limit=execution_count" in run
    assert "kkk" not in out
    command, *words = first.split()
    assert command == "sentport"
    assert cli(*words)[0] == 0
    assert parsed(tmp_path / "mine.models", "mine_graph").dynamic_batching.priority_levels == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--container", "19.01"], "Triton release '19.01' is unknown; known: 24.10"),
        (["--container", "24.10", "--follow"], "leave out --container"),
        (["--container", "24.10", "--priorities", "99"], "priorities is 99; expected at most 16"),
        (["--container", "24.10", "--name", "a b"], "'a b' cannot be a model's name"),
        (["--container", "24.10", "--name", "a" * 300], "cannot be a model's name"),
        (["--container", "24.10", "--http-port", "0"], "--http-port is 0; expected one from 1 to 65535"),
        (["--form", "ragged"], "form ragged needs the onnxruntime backend"),
        (["--other-space"], "--other-space belongs to --follow"),
        (["--container", "24.10", "--engine", "native"], "the container has no kernels of engine native; leave out"),
        (["--form", "ragged", "--engine", "native"], "form ragged needs the onnxruntime backend"),
        (["--engine", "native", "--layout", "padded"], "but engine native runs packed graphs; leave it out, or use"),
    ],
)
def test_what_serve_refuses(
    both_layouts: Path, cli: Callable[..., tuple[int, str, str]], options: list[str], message: str
) -> None:
    code, _, err = cli("serve", str(both_layouts), *options)
    assert code == 2
    assert message in err


def test_a_version_more_is_the_graphs_alone(repository: Path, both_layouts: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(repository, tmp_path / "models"))
    added = add_version(both_layouts, copy, "tiny")
    assert (added.model, added.version) == ("tiny_graph", 2)
    assert (copy / "tiny_graph" / "2" / "model.onnx").samefile(both_layouts / "graphs" / "packed-fp32-portable.onnx")
    assert not (copy / "tiny_tokens" / "2").exists()
    with pytest.raises(SentportError, match="'tiny_graph' is a step of another model"):
        add_version(both_layouts, copy, "tiny_graph")
