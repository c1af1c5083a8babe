"""The files of a model repository, and the command that writes them."""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2
from tritonclient.utils import deserialize_bytes_tensor

from sentport import Encoder
from sentport.bundle import read_bundle, write_description
from sentport.errors import BundleError, SentportError
from triton_repo import repository_cli, wire
from triton_repo.config import Batching
from triton_repo.form_text import WARMUP_TEXTS
from triton_repo.repository import write_repository
from triton_repo.requests import Fixed
from triton_repo.wanted import Wanted


def parsed(out: Path, name: str) -> Any:
    """The config as Triton's own parser reads it."""
    text = (out / name / "config.pbtxt").read_text(encoding="utf-8")
    return text_format.Parse(text, model_config_pb2.ModelConfig())


@pytest.fixture(scope="module")
def written(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_repository(Wanted(tiny_bundle, threads=2), tmp_path_factory.mktemp("repository") / "models")


def test_config(written: Path, tiny_bundle: Path) -> None:
    config = parsed(written, "tiny")
    assert config.name == "tiny"
    assert config.backend == "python"
    assert config.max_batch_size == 512
    assert [(each.name, each.data_type, list(each.dims)) for each in config.input] == [
        ("TEXT", model_config_pb2.TYPE_STRING, [1])
    ]
    assert [(each.name, each.data_type, list(each.dims)) for each in config.output] == [
        ("EMBEDDING", model_config_pb2.TYPE_FP32, [-1]),
        ("TOKENS", model_config_pb2.TYPE_INT32, [1]),
        ("TRUNCATED", model_config_pb2.TYPE_BOOL, [1]),
        ("INFO", model_config_pb2.TYPE_STRING, [1]),
    ]
    (group,) = config.instance_group
    assert (group.kind, group.count) == (model_config_pb2.ModelInstanceGroup.KIND_CPU, 1)
    assert not config.response_cache.enable
    assert config.dynamic_batching.max_queue_delay_microseconds == 500
    # Limits there would have Triton's batcher sleep half a second; the model has them itself.
    assert not config.dynamic_batching.HasField("default_queue_policy")
    settings = {key: value.string_value for key, value in config.parameters.items()}
    encoder = json.loads(settings.pop(wire.ENCODER))
    assert settings.pop("engine") == encoder["engine"] == "onnxruntime"
    assert (settings.pop("max_queue"), settings.pop("queue_timeout_ms")) == ("1024", "30000")
    assert settings == {"form": "text", "device": "cpu", "layout": "padded", "precision": "fp32", "threads": "2"}
    assert encoder["fingerprint"] == read_bundle(tiny_bundle).spec.fingerprint
    assert encoder["prompts"] == read_bundle(tiny_bundle).spec.prompts


def test_a_lower_precision_is_served_by_name_alone(tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = read_bundle(shutil.copytree(tiny_bundle, tmp_path / "low.bundle"))
    exact, other = bundle.graphs
    write_description(replace(bundle, graphs=(exact, replace(other, precision="fp16"))))
    for asked, served in (("auto", "fp32"), ("fp16", "fp16")):
        out = write_repository(Wanted(bundle.path, precision=asked), tmp_path / asked)
        assert parsed(out, "low").parameters["precision"].string_value == served
    with pytest.raises(BundleError, match="has no graph with layout auto in int8"):
        write_repository(Wanted(bundle.path, precision="int8"), tmp_path / "none")


def test_warmup_files_hold_one_text_each(written: Path) -> None:
    for sample in parsed(written, "tiny").model_warmup:
        given = sample.inputs["TEXT"]
        assert (sample.batch_size, list(given.dims)) == (1, [1])
        data = (written / "tiny" / "warmup" / given.input_data_file).read_bytes()
        assert [text.decode() for text in deserialize_bytes_tensor(data)] == [WARMUP_TEXTS[sample.name]]
    # Where a length counts characters, text of one byte a character would not show it.
    assert any(len(text.encode()) > len(text) for text in WARMUP_TEXTS.values())


def test_bundle_inside_is_linked_and_whole(written: Path, tiny_bundle: Path) -> None:
    inside = written / "tiny" / "1" / "bundle"
    files = [path.relative_to(tiny_bundle) for path in tiny_bundle.rglob("*") if path.is_file()]
    assert len(files) > 3
    for file in files:  # what engine native maps is a copy: it may be written over in place
        assert (inside / file).samefile(tiny_bundle / file) == (file.suffix != ".safetensors")
        assert (inside / file).read_bytes() == (tiny_bundle / file).read_bytes()
    with Encoder(inside, threads=1) as encoder:
        assert encoder.encode(["a"]).shape == (1, 24)


def test_bundle_is_copied_where_links_are_not_possible(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(source: Path, target: str) -> None:
        raise OSError("cross-device link")

    monkeypatch.setattr("os.link", no_links)
    out = write_repository(Wanted(tiny_bundle), tmp_path / "models")
    assert not (out / "tiny" / "1" / "bundle" / "bundle.json").samefile(tiny_bundle / "bundle.json")
    assert read_bundle(out / "tiny" / "1" / "bundle").spec == read_bundle(tiny_bundle).spec


def test_gpu(tiny_bundle: Path, tmp_path: Path) -> None:
    config = parsed(write_repository(Wanted(tiny_bundle, device="cuda"), tmp_path / "models"), "tiny")
    (group,) = config.instance_group
    assert (group.kind, list(group.gpus)) == (model_config_pb2.ModelInstanceGroup.KIND_GPU, [0])
    assert config.parameters["device"].string_value == "cuda"
    assert "threads" not in config.parameters


def test_a_repository_for_engine_native(tiny_bundle: Path, tmp_path: Path, cli: Cli) -> None:
    """It lies beside no Dockerfile, since that image could not run it; what it needs is said."""
    if not read_bundle(tiny_bundle).native:
        pytest.skip("sentport-native was not there when the bundle was exported")
    code, out, err = cli("repository", str(tiny_bundle), "--out", str(tmp_path / "models"), "--engine", "native")
    assert (code, err) == (0, "")
    assert "(with sentport and sentport-native in the server's Python)" in out
    settings = {key: each.string_value for key, each in parsed(tmp_path / "models", "tiny").parameters.items()}
    assert (settings["engine"], settings["layout"], settings["precision"]) == ("native", "packed", "fp32")
    assert json.loads(settings[wire.ENCODER])["engine"] == "native"
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == ["grafana.json", "tiny"]


def test_cacheable_variant_has_one_output_and_all_fixed(tiny_bundle: Path, tmp_path: Path) -> None:
    out = write_repository(Wanted(tiny_bundle, fixed=Fixed(prompt="query", dim=7)), tmp_path / "models")
    config = parsed(out, "tiny")
    assert config.response_cache.enable
    assert [(each.name, list(each.dims)) for each in config.output] == [("EMBEDDING", [7])]
    settings = {key: value.string_value for key, value in config.parameters.items()}
    # What the model refuses, the cache would keep; what Triton's queue refuses never gets there.
    assert config.dynamic_batching.default_queue_policy.max_queue_size == 1024
    assert "max_queue" not in settings
    assert (settings["fixed_prompt"], settings["fixed_dim"]) == ("query", "7")
    assert settings["fixed_on_truncate"] == "allow"
    assert json.loads(settings[wire.ENCODER])["dim"] == 7


@pytest.mark.parametrize(("policy", "samples"), [("allow", {"short", "empty", "long"}), ("error", {"short", "empty"})])
def test_strict_model_is_not_warmed_with_what_it_refuses(
    tiny_bundle: Path, tmp_path: Path, policy: str, samples: set[str]
) -> None:
    out = write_repository(Wanted(tiny_bundle, fixed=Fixed(on_truncate=policy)), tmp_path / "models")
    assert {sample.name for sample in parsed(out, "tiny").model_warmup} == samples
    assert {path.name for path in (out / "tiny" / "warmup").iterdir()} == samples


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"form": "ragged"}, "has no graph of layout packed; .*--layout padded,packed"),
        ({"form": "ragged", "layout": "padded"}, "layout is 'padded', but form ragged runs packed graphs"),
        ({"form": "ragged", "fixed": Fixed()}, "exists of form text alone"),
        ({"form": "ragged", "device": "tpu"}, "'tpu' is unknown to form ragged; expected one of cpu, cuda, tensorrt"),
        ({"device": "tensorrt"}, "'tensorrt' is unknown to form text"),
        ({"form": "plan"}, "'cpu' is unknown to form plan; expected one of cuda"),
        ({"form": "test"}, "form 'test' is unknown; expected one of text, ragged, plan"),
        ({"device": "auto"}, "device 'auto' is unknown"),
        ({"threads": 0}, "threads is 0"),
        ({"engine": "openvino"}, "'openvino' is unknown to a server; expected one of onnxruntime, native"),
        ({"engine": "native", "device": "cuda"}, "native serves form text on device cpu, not form text on cuda"),
        ({"engine": "native", "form": "ragged"}, "native serves form text on device cpu, not form ragged on cpu"),
        ({"engine": "native", "layout": "padded"}, "layout is 'padded', but engine native runs packed graphs"),
        ({"engine": "native", "precision": "fp16"}, "has no (graph|file for engine native)"),
        ({"name": "a/b"}, "'a/b' cannot be a model's name"),
        ({"name": ""}, "'' cannot be a model's name"),
        ({"fixed": Fixed(prompt="summary")}, "prompt 'summary' is not saved with this model; known: .*passage"),
        ({"fixed": Fixed(dim=25)}, "dim is 25"),
        ({"fixed": Fixed(on_truncate="warn")}, "policy is 'warn'; expected one of allow, error"),
    ],
)
def test_what_cannot_be_written(tiny_bundle: Path, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(SentportError, match=message):
        write_repository(Wanted(tiny_bundle, **options), tmp_path / "models")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_queue": -1}, "max_queue is -1; expected a whole number from 0"),
        ({"max_queue": 0, "priorities": 2}, "priorities need a queue with limits"),
        ({"priorities": -1}, "priorities is -1; expected a whole number from 0"),
        ({"max_batch": 2**31}, "max_batch is 2147483648; expected a whole number from 1 to 2147483647"),
        ({"priorities": 17}, "priorities is 17; expected at most 16"),
        ({"shares": "a b"}, "'a b' cannot be a resource's name"),
    ],
)
def test_batching_limits(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SentportError, match=message):
        Batching(**options)


def test_queue_without_limits(tiny_bundle: Path, tmp_path: Path) -> None:
    out = write_repository(Wanted(tiny_bundle, batching=Batching(max_queue=0)), tmp_path / "m")
    config = parsed(out, "tiny")
    assert config.dynamic_batching.max_queue_delay_microseconds == 500
    assert not config.dynamic_batching.HasField("default_queue_policy")
    assert not config.parameters.keys() & {"max_queue", "queue_timeout_ms"}


def test_priorities_and_what_models_share(tiny_bundle: Path, tmp_path: Path) -> None:
    out = write_repository(Wanted(tiny_bundle, batching=Batching(priorities=3, shares="cores")), tmp_path / "models")
    config = parsed(out, "tiny")
    assert (config.dynamic_batching.priority_levels, config.dynamic_batching.default_priority_level) == (3, 2)
    (resource,) = config.instance_group[0].rate_limiter.resources
    assert (resource.name, getattr(resource, "global"), resource.count) == ("cores", True, 1)
    policy = config.dynamic_batching.default_queue_policy
    assert (policy.max_queue_size, policy.default_timeout_microseconds) == (1024, 30_000_000)
    assert policy.allow_timeout_override
    assert not config.parameters.keys() & {"max_queue", "queue_timeout_ms"}


def test_damaged_bundle_is_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(tiny_bundle, damaged)
    (damaged / "tokenizer.json").write_text("{}")
    with pytest.raises(SentportError, match="has changed"):
        write_repository(Wanted(damaged), tmp_path / "models")


def test_existing_out(tiny_bundle: Path, tmp_path: Path) -> None:
    out = write_repository(Wanted(tiny_bundle, name="first"), tmp_path / "models")
    with pytest.raises(SentportError, match="exists; add --force"):
        write_repository(Wanted(tiny_bundle), out)
    write_repository(Wanted(tiny_bundle, name="second"), out, force=True)
    assert [path.name for path in out.iterdir() if path.is_dir()] == ["second"]
    (out / "notes").mkdir()
    with pytest.raises(SentportError, match="is not a model repository"):
        write_repository(Wanted(tiny_bundle), out, force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["models"]


def test_force_spares_models_of_others(tiny_bundle: Path, tmp_path: Path) -> None:
    out = write_repository(Wanted(tiny_bundle), tmp_path / "models")
    (out / "foreign").mkdir()
    (out / "foreign" / "config.pbtxt").write_text('name: "foreign"\nbackend: "python"\n')
    with pytest.raises(SentportError, match="models holds foreign, which `sentport repository` did not write"):
        write_repository(Wanted(tiny_bundle), out, force=True)
    assert (out / "foreign" / "config.pbtxt").exists()


def test_out_that_cannot_be(tiny_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for out, message in (
        (tiny_bundle / "models", "lies inside the bundle"),
        (tmp_path / "link", "is a symbolic link"),
        (tmp_path / "file" / "a" / "models", "cannot be made: .*file is not a folder"),
    ):
        with pytest.raises(SentportError, match=message):
            write_repository(Wanted(tiny_bundle), out, force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]


def test_nothing_half_written(tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(source: Path, target: Path) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("shutil.copyfile", fails)
    with pytest.raises(OSError, match="disk full"):
        write_repository(Wanted(tiny_bundle), tmp_path / "models")
    assert list(tmp_path.iterdir()) == []


def test_command(tiny_bundle: Path, tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "models of mine"
    options = ["--name", "mine", "--max-batch", "32", "--queue-delay-us", "0", "--max-queue", "9", "--threads", "1"]
    code, printed, _ = cli("repository", str(tiny_bundle), "--out", str(out), *options, "--queue-timeout-ms", "70")
    assert code == 0
    config = parsed(out, "mine")
    assert (config.max_batch_size, config.dynamic_batching.max_queue_delay_microseconds) == (32, 0)
    limits = [config.parameters[name].string_value for name in ("max_queue", "queue_timeout_ms")]
    assert limits == ["9", "70"]
    assert printed.startswith(f"repository  {out}\nmodel       mine\nnext        tritonserver ")
    words = shlex.split(printed.splitlines()[2].partition("  (")[0])[1:]
    assert words[1:3] == ["--model-repository", str(out)]
    assert {f"--{service}-address=127.0.0.1" for service in ("http", "grpc", "metrics")} < set(words)


def test_command_for_the_cacheable_variant(tiny_bundle: Path, tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "models"
    command = ("repository", str(tiny_bundle), "--out", str(out), "--fixed-dim", "3")
    code, _, err = cli(*command)
    assert (code, "belong to --cache" in err) == (2, True)
    assert cli(*command, "--cache")[0] == 0
    assert parsed(out, "tiny").response_cache.enable


def test_defaults_in_the_help_are_the_real_ones() -> None:
    parser = argparse.ArgumentParser()
    repository_cli.add_arguments(parser)
    shown = parser.format_help()
    defaults = Batching()
    for value in (defaults.max_batch, defaults.delay_us, defaults.max_queue, defaults.timeout_ms):
        assert f"({value}" in shown
