"""Models of the hub: what is fetched, resumed, recorded and refused, against a small hub on loopback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT
from local_hub import LocalHub, local_hub

from sentport.modeling.checkpoint import load_checkpoint
from sentport.modeling.hub import needed_files

FIRST, SECOND = "1" * 40, "2" * 40

LOCATE = """
import sys
from sentport.errors import CheckpointError
from sentport.modeling.hub import locate
try:
    found = locate(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
    print(found.folder, found.name, found.commit, found.pinned, "torch" in sys.modules)
except CheckpointError as error:
    print(error)
    sys.exit(2)
"""


@pytest.fixture
def hub() -> Iterator[LocalHub]:
    with local_hub() as running:
        yield running


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A repository with all that repositories hold; the files' content does not matter here."""
    folder = tmp_path / "repository"
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"},
    ]
    for name in (
        *(
            "config.json",
            "model.safetensors",
            "pytorch_model.bin",
            "tf_model.h5",
            "flax_model.msgpack",
            "rust_model.ot",
        ),
        *("tokenizer.json", "vocab.txt", "model.fp16.safetensors", "README.md", "training_args.bin", ".gitattributes"),
        *("onnx/model.onnx", "onnx/config.json", "openvino/openvino_model.bin", "openvino/openvino_model.xml"),
        *("1_Pooling/config.json", "2_Dense/config.json", "2_Dense/pytorch_model.bin", "0_Old/model.safetensors"),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode() * 1000)
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder


def environment(hub: LocalHub, home: Path, *, offline: bool = False) -> dict[str, str]:
    search = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
    return {
        **{"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(home), "HF_TOKEN": "", "PYTHONPATH": search},
        "HF_HUB_OFFLINE": "1" if offline else "0",
    }


def python(
    hub: LocalHub, home: Path, code: str, *arguments: str, offline: bool = False
) -> subprocess.CompletedProcess[str]:
    """In a process of its own: huggingface_hub reads the environment when it is imported."""
    changes = environment(hub, home, offline=offline)
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, env={**os.environ, **changes}, cwd=home.parent, capture_output=True, text=True)


def locate(hub: LocalHub, home: Path, *arguments: str, offline: bool = False) -> subprocess.CompletedProcess[str]:
    return python(hub, home, LOCATE, *arguments, offline=offline)


def test_only_what_an_export_needs_is_fetched_once(hub: LocalHub, model: Path, tmp_path: Path) -> None:
    hub.add("org/name", model, FIRST)
    done = locate(hub, tmp_path / "home", "org/name")
    folder, *rest = done.stdout.split()
    assert rest == ["org/name", FIRST, "False", "False"], done.stderr
    needed = ["1_Pooling/config.json", "2_Dense/config.json", "2_Dense/pytorch_model.bin", "config.json"]
    needed += ["model.safetensors", "modules.json", "tokenizer.json", "vocab.txt"]
    assert hub.fetched() == needed
    assert (Path(folder) / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    locate(hub, tmp_path / "home", "org/name")
    assert hub.fetched() == needed  # nothing again
    hub.down = True
    assert locate(hub, tmp_path / "home", "org/name").stdout == done.stdout
    assert locate(hub, tmp_path / "home", "org/name", offline=True).stdout == done.stdout


def test_a_branch_and_a_commit_are_that_commit(hub: LocalHub, model: Path, tmp_path: Path) -> None:
    other = shutil.copytree(model, tmp_path / "other")
    (other / "config.json").write_text("second")
    hub.add("org/name", model, FIRST)
    hub.add("org/name", other, SECOND, branch="next")
    for revision, commit, pinned in (("next", SECOND, "True"), (SECOND, SECOND, "True"), (FIRST, FIRST, "True")):
        found = locate(hub, tmp_path / "home", "org/name", revision).stdout.split()
        assert found[2:4] == [commit, pinned if revision == commit else "False"]
        assert (Path(found[0]) / "config.json").read_bytes() == (
            hub.models["org/name", commit] / "config.json"
        ).read_bytes()


def test_a_broken_connection_goes_on_where_it_stopped(hub: LocalHub, model: Path, tmp_path: Path) -> None:
    hub.add("org/name", model, FIRST)
    (model / "model.safetensors").write_bytes(os.urandom(1 << 20) * 12)  # the client goes on at steps of 10 MB
    hub.cut_after["model.safetensors"] = 11 << 20
    folder = Path(locate(hub, tmp_path / "home", "org/name").stdout.split()[0])
    assert (folder / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    assert f"GET /org/name/resolve/{FIRST}/model.safetensors bytes={10 << 20}-" in hub.asked


def test_a_cache_that_lacks_files_is_not_taken_for_the_model(hub: LocalHub, model: Path, tmp_path: Path) -> None:
    hub.add("org/name", model, FIRST)
    folder = Path(locate(hub, tmp_path / "home", "org/name").stdout.split()[0])
    (folder / "2_Dense" / "config.json").unlink()
    done = locate(hub, tmp_path / "home", "org/name", offline=True)
    assert done.returncode == 2
    assert "in the local cache only in part" in done.stdout
    assert "HF_HUB_OFFLINE is set" in done.stdout
    (folder / "2_Dense" / "config.json").touch()
    shutil.rmtree(folder.parent.parent / "trees")  # as tools leave it that fetch file by file
    assert "in the local cache only in part" in locate(hub, tmp_path / "home", "org/name", offline=True).stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["org/none"], "org/none is no folder here, and no model of the hub or a private one (http"),
        (["org/gated"], "org/gated is gated (http"),
        (["org/name", "nowhere"], "org/name has no revision 'nowhere' (http"),
        (["org/name", "3" * 40], f"org/name has no revision '{'3' * 40}' (http"),
        (["./org/name"], "./org/name does not exist; give a checkpoint folder or a hub id"),
        (["a/b/c"], "a/b/c does not exist; give a checkpoint folder or a hub id"),
        (["repository", "main"], "repository is a folder, which has no revision 'main'; leave --revision out"),
    ],
)
def test_what_the_hub_does_not_give_is_one_line(
    hub: LocalHub, model: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    hub.add("org/name", model, FIRST)
    hub.add("org/gated", model, FIRST)
    hub.gated.add("org/gated")
    done = locate(hub, tmp_path / "home", *arguments)
    assert done.returncode == 2, done.stderr
    assert done.stdout.startswith(message)
    assert done.stdout.count("\n") == 1


def test_hub_that_cannot_be_reached_is_one_line(hub: LocalHub, tmp_path: Path) -> None:
    hub.endpoint = "http://127.0.0.1:9"  # the discard port: nothing listens
    done = locate(hub, tmp_path / "home", "org/name")
    assert "cannot be fetched from the hub: http://127.0.0.1:9 cannot be reached" in done.stdout
    assert done.stdout.count("\n") == 1
    offline = locate(hub, tmp_path / "home", "org/name", offline=True).stdout
    assert "is not in the local cache and cannot be fetched from the hub: HF_HUB_OFFLINE is set" in offline


def test_bin_is_needed_only_where_there_is_no_safetensors() -> None:
    files = ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin", "pytorch_model.bin.index.json"]
    assert needed_files([*files, "code/modeling.py", "optimizer.bin"], []) == [*files, "code/modeling.py"]
    safe = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"]
    assert needed_files([*files, *safe, "adapter_model.safetensors"], []) == safe


LOAD = """
from sentport.modeling.checkpoint import load_checkpoint
checkpoint = load_checkpoint("org/tiny")
print(checkpoint.spec.source, checkpoint.spec.revision, checkpoint.spec.fingerprint)
print(*checkpoint.remarks, sep="\\n")
"""


def test_checkpoint_of_the_hub_is_the_folder_with_its_commit(
    hub: LocalHub, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    hub.add("org/tiny", tiny_checkpoint, FIRST)
    found, *remarks = python(hub, tmp_path / "home", LOAD).stdout.splitlines()
    assert found.split() == ["org/tiny", FIRST, load_checkpoint(tiny_checkpoint).spec.fingerprint]
    assert remarks == [f"org/tiny is at commit {FIRST}"]
