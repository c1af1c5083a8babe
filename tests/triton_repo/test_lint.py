"""The linter on repositories of ours, which are clean, and on broken ones, each for one reason."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import broken_models
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from broken_models import CONFIG, ENSEMBLE, Broken
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, InvalidGraph, InvalidProtobuf

from triton_repo.config import Batching
from triton_repo.lint import Finding, Proof, Target, lint
from triton_repo.lint_rules import RULES
from triton_repo.releases import RELEASES
from triton_repo.repository import write_repository
from triton_repo.requests import Fixed
from triton_repo.wanted import Wanted

# What ONNX Runtime raises; for the names of a feed, its Python part.
REFUSALS = (Fail, InvalidArgument, InvalidGraph, InvalidProtobuf, ValueError)
PARAMETER = 'parameters { key: "%s" value { string_value: "%s" } }\n'
TARGET = Target(RELEASES["24.10"], gpu=False)
Cli = Callable[..., tuple[int, str, str]]


def rules(findings: list[Finding]) -> list[str]:
    return [each.rule for each in findings]


@pytest.fixture(scope="module")
def ours(both_layouts: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every kind of repository that we write."""
    folder = tmp_path_factory.mktemp("ours")
    kinds: dict[str, dict[str, Any]] = {
        "text": {"threads": 2},
        "cacheable": {"fixed": Fixed("query", 5)},
        "ragged": {"form": "ragged", "threads": 1, "batching": Batching(64, priorities=3, shares="cores")},
        "text-cuda": {"device": "cuda"},
        "ragged-cuda": {"form": "ragged", "device": "cuda"},
        "ragged-tensorrt": {"form": "ragged", "device": "tensorrt", "batching": Batching(8, max_queue=0)},
    }
    return {kind: write_repository(Wanted(both_layouts, **options), folder / kind) for kind, options in kinds.items()}


@pytest.mark.parametrize("kind", ["text", "cacheable", "ragged", "text-cuda", "ragged-cuda", "ragged-tensorrt"])
def test_ours_are_clean(ours: dict[str, Path], kind: str) -> None:
    target = TARGET if not kind.endswith(("cuda", "tensorrt")) else Target(RELEASES["24.10"], gpu=True)
    assert lint(ours[kind], target) == []


def test_gpu_model_where_there_is_none(ours: dict[str, Path]) -> None:
    (finding,) = lint(ours["ragged-cuda"], TARGET)
    assert (finding.file, finding.rule, finding.fix) == ("tiny_graph/config.pbtxt", "instance-kind", "make it KIND_CPU")


def test_each_rule_finds_its_own_and_no_other(tmp_path: Path) -> None:
    """Models that a server refuses, as ``test_lint_proofs`` shows."""
    wanted = broken_models.write_all(tmp_path / "models")
    found: dict[str, list[str]] = {name: [] for name in ("echo", *wanted)}
    for finding in lint(tmp_path / "models", TARGET):
        found[finding.file.split("/")[0]].append(finding.rule)
        assert finding.proof == Proof.SERVER
        assert finding.what
        assert finding.fix
    assert found.pop("echo") == []
    # A tensor that lost its only reader or maker is also one that nothing uses.
    assert all(rule in found[name] and set(found[name]) <= {rule, "ensemble-unused"} for name, rule in wanted.items())


@pytest.mark.parametrize("field", broken_models.CRASHES)
def test_warm_up_that_crashes_the_server(tmp_path: Path, field: str) -> None:
    broken_models.CRASHES[field].write(tmp_path / "crashes")
    (finding,) = lint(tmp_path, TARGET)
    assert finding.rule == "warm-up"
    assert finding.field.endswith(f".{field}")


UNTIDY = [
    Broken('"python"', '"python"', script="-" * 100_000 + "1"),
    Broken('"python"', '"python"', script="a" + ".a" * 50_000),
    Broken("KIND_CPU", "55"),
    Broken("TYPE_INT32", "99", config=ENSEMBLE),
    Broken(new="batch_input { kind: 77 data_type: 99 }", config=CONFIG.replace("python", "onnxruntime")),
    Broken(new=PARAMETER % ("intra_op_thread_count", "9" * 6000), config=CONFIG.replace("python", "onnxruntime")),
    Broken(new=PARAMETER % ("form", "text") + PARAMETER % ("threads", "9" * 6000)),
    *(Broken(new=PARAMETER % ("form", "text") + PARAMETER % ("encoder", told)) for told in ("{", "[]", "[" * 9999)),
    Broken(new="# comment\n" * 500_000),
    Broken(new='name: "a\\033[2J\\nb"'),
]


@pytest.mark.parametrize("untidy", UNTIDY, ids=map(str, range(len(UNTIDY))))
def test_whatever_it_reads_it_tells_lines(tmp_path: Path, cli: Cli, untidy: Broken) -> None:
    """Numbers without a name, texts without an end, control characters: findings, none of them a trace."""
    Broken().write(tmp_path / "echo")
    untidy.write(tmp_path / "m")
    code, out, err = cli("lint", str(tmp_path))
    assert (code, err) == (1, "")
    assert all(line.startswith(("m/", "  fix: ")) and line.isprintable() for line in out.splitlines())
    assert max(map(len, out.splitlines())) < 1000


def test_backends_that_are_not_looked_into(tmp_path: Path) -> None:
    for backend in ("tensorrtllm", "pytorch", "dali", "our_own"):
        Broken('"python"', f'"{backend}"').write(tmp_path / backend)
    assert lint(tmp_path, TARGET) == []


@dataclass(frozen=True)
class Spoiled:
    """A change to a good repository: of one model's config, and of its files."""

    rule: str
    model: str
    old: str
    new: str
    files: Callable[[Path], None] = lambda folder: None


def edit_graph(change: Callable[[Any], None]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        file = folder / "1" / "model.onnx"
        model = onnx.load(file)
        change(model)
        file.unlink()  # it is a link to the bundle's
        onnx.save(model, file)

    return edit


def replace_file(name: str, data: bytes) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).write_bytes(data)

    return edit


def fix_axis(model: Any) -> None:
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 1


def free_axis(model: Any) -> None:
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_param = "dim"


def two_axes(model: Any) -> None:
    model.graph.input[0].type.tensor_type.shape.dim.add().dim_param = "tokens"


GRAPH, TEXT = "tiny_graph", "tiny"
SPOILED = [
    Spoiled("model-file", GRAPH, "", "", lambda folder: (folder / "1" / "model.onnx").unlink()),
    Spoiled("optional-input", GRAPH, "allow_ragged_batch: true", "allow_ragged_batch: true optional: true"),
    Spoiled("instance-count", GRAPH, "instance_group [ { kind: KIND_CPU count: 1 ", "# "),
    Spoiled("unknown-parameter", GRAPH, '"intra_op_thread_count"', '"intra_op_threads"'),
    Spoiled("parameter-value", GRAPH, 'string_value: "1"', 'string_value: "two"'),
    Spoiled("graph-read", GRAPH, "", "", replace_file("1/model.onnx", b"no graph")),
    Spoiled("graph-read", GRAPH, "", "", replace_file("1/model.onnx", b"")),
    Spoiled("graph-release", GRAPH, "", "", edit_graph(lambda m: setattr(m.opset_import[0], "version", 22))),
    Spoiled("graph-release", GRAPH, "", "", edit_graph(lambda m: setattr(m, "ir_version", 11))),
    Spoiled("graph-names", GRAPH, 'output [ { name: "sentence_embedding"', 'output [ { name: "vectors"'),
    Spoiled("graph-types", GRAPH, "TYPE_FP32 dims: [ 24 ]", "TYPE_FP16 dims: [ 24 ]"),
    Spoiled("graph-dims", GRAPH, "dims: [ 24 ]", "dims: [ 25 ]"),
    Spoiled("graph-dims", GRAPH, "", "", edit_graph(free_axis)),
    Spoiled("graph-batch-axis", GRAPH, "", "", edit_graph(fix_axis)),
    Spoiled("ragged-rank", GRAPH, "", "", edit_graph(two_axes)),
    Spoiled("ragged-kind", GRAPH, "BATCH_ITEM_SHAPE_FLATTEN", "BATCH_ACCUMULATED_ELEMENT_COUNT"),
    Spoiled("ragged-target", GRAPH, 'target_name: "lengths"', 'target_name: ["lengths", "lengths"]'),
    Spoiled("ragged-target", GRAPH, 'source_input: "input_ids"', 'source_input: "ids"'),
    Spoiled(
        "graph-level", GRAPH, 'backend: "onnxruntime"', 'backend: "onnxruntime" optimization { graph { level: 2 } }'
    ),
    Spoiled("bundle", f"{TEXT}_tokens", '\\"fingerprint\\": \\"', '\\"fingerprint\\": \\"0'),
    Spoiled("bundle", f"{TEXT}_tokens", "", "", replace_file("1/bundle/tokenizer.json", b"{}")),
]


@pytest.mark.parametrize("spoiled", SPOILED, ids=lambda each: each.rule)
def test_spoiled_ragged_repository(both_layouts: Path, tmp_path: Path, spoiled: Spoiled) -> None:
    repository = write_repository(Wanted(both_layouts, form="ragged", threads=1), tmp_path / "models")
    folder = repository / spoiled.model
    text = (folder / "config.pbtxt").read_text()
    assert spoiled.old in text
    (folder / "config.pbtxt").write_text(text.replace(spoiled.old, spoiled.new, 1))
    spoiled.files(folder)
    findings = lint(repository, TARGET)
    assert spoiled.rule in rules(findings)
    # What another model or rule sees of the same fault: a name that is gone, a type that no longer fits the next step.
    assert set(rules(findings)) <= {spoiled.rule, "ensemble-map", "ensemble-kind", "graph-names", "ragged-target"}


def test_cache_where_answers_depend_on_parameters(both_layouts: Path, tmp_path: Path) -> None:
    repository = write_repository(Wanted(both_layouts), tmp_path / "models")
    config = repository / "tiny" / "config.pbtxt"
    config.write_text(config.read_text().replace("enable: false", "enable: true"))
    several, parameters = lint(repository, TARGET)
    assert several.rule == parameters.rule == "cache"
    assert "4 outputs" in several.what
    assert "request parameters" in parameters.what


def test_environment_is_looked_at(ours: dict[str, Path], tmp_path: Path) -> None:
    packages = tmp_path / "env" / "lib" / "python3.11" / "site-packages"
    (packages / "numpy-2.4.6.dist-info").mkdir(parents=True)
    (packages / "numpy-2.4.6.dist-info" / "METADATA").write_text("Name: numpy\nVersion: 2.4.6\n")
    stub = tmp_path / "env" / "backends" / "python" / "triton_python_backend_stub"
    stub.parent.mkdir(parents=True)
    stub.write_bytes(b"\x7fELF ... libpython3.12.so.1.0 ...")
    findings = lint(ours["text"], Target(RELEASES["24.10"], environment=tmp_path / "env"))
    assert [(each.rule, each.proof) for each in findings] == [("numpy", Proof.SERVER), ("stub", Proof.UNPROVED)]
    assert "numpy 2.4.6" in findings[0].what
    assert "the stub embeds Python 3.12, the environment is 3.11" in findings[1].what


def session_of(model: Any) -> Any:
    return ort.InferenceSession(model.SerializeToString())


def test_onnxruntime_refuses_what_the_rules_find(ours: dict[str, Path]) -> None:
    """For each rule with this proof: what the backend would do, in this process."""
    proven = {rule.name for rule in RULES if rule.proof == Proof.ONNXRUNTIME}
    good = onnx.load(ours["ragged"] / "tiny_graph" / "1" / "model.onnx")
    ids, lengths = np.arange(1, 6), np.array([3, 2], np.int32)
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "lengths": lengths}
    session = session_of(good)
    assert session.run(["sentence_embedding"], feed)[0].shape == (2, 24)

    def changed(change: Callable[[Any], None]) -> Any:
        model = onnx.ModelProto()
        model.CopyFrom(good)
        change(model)
        return model

    newest = 99  # beyond this process's ONNX Runtime too
    refused: list[tuple[str, Callable[[], Any]]] = [
        ("graph-read", lambda: ort.InferenceSession(b"no graph")),
        ("graph-release", lambda: session_of(changed(lambda m: setattr(m.opset_import[0], "version", newest)))),
        ("graph-release", lambda: session_of(changed(lambda m: setattr(m, "ir_version", newest)))),
        ("graph-names", lambda: session.run(["vectors"], feed)),
        ("graph-names", lambda: session.run(None, {"input_ids": ids})),
        ("graph-names", lambda: session.run(None, {**feed, "more": ids})),
        ("graph-types", lambda: session.run(None, {**feed, "input_ids": ids.astype(np.int32)})),
        ("graph-dims", lambda: session.run(None, {**feed, "lengths": lengths[None]})),
        ("graph-batch-axis", lambda: session_of(changed(one_row)).run(None, feed)),
        ("ragged-rank", lambda: session_of(changed(two_axes)).run(None, feed)),
    ]
    for _, call in refused:
        with pytest.raises(REFUSALS):
            call()
    # `ragged-kind` by test_ragged.test_counting_elements_gives_another_clients_vector.
    assert {rule for rule, _ in refused} | {"ragged-kind"} == proven


def one_row(model: Any) -> None:
    """The graph's ``lengths`` has one row, fixed."""
    (lengths,) = (each for each in model.graph.input if each.name == "lengths")
    lengths.type.tensor_type.shape.dim[0].dim_value = 1


def test_every_rule_is_broken_by_some_test() -> None:
    covered = {*broken_models.REFUSED, *(each.rule for each in SPOILED), "cache", "numpy", "stub"} - {"config-read"}
    assert {rule.name for rule in RULES} - covered == {"ragged-batch"}  # below
    assert all(rule.check.__doc__ for rule in RULES)


def test_ragged_without_batches(both_layouts: Path, tmp_path: Path) -> None:
    repository = write_repository(Wanted(both_layouts, form="ragged"), tmp_path / "models")
    for model in ("tiny", "tiny_tokens", "tiny_graph"):
        config = repository / model / "config.pbtxt"
        config.write_text(config.read_text().replace("max_batch_size: 64", "max_batch_size: 0"))
    assert "ragged-batch" in rules(lint(repository, TARGET))


def test_command(ours: dict[str, Path], tmp_path: Path, cli: Cli) -> None:
    assert cli("lint", str(ours["text"])) == (0, f"{ours['text']}: nothing found\n", "")
    assert cli("lint", str(ours["text"]), "--json") == (0, "[]\n", "")
    code, out, _ = cli("lint", str(ours["text-cuda"]), "--gpu", "no")
    assert code == 1
    assert out.splitlines() == [
        "tiny/config.pbtxt: instance_group.kind: is KIND_GPU, and there is no GPU",
        "  fix: make it KIND_CPU  [instance-kind, proven on a server]",
    ]
    code, out, _ = cli("lint", str(ours["text-cuda"]), "--gpu", "no", "--json")
    (finding,) = json.loads(out)
    assert (code, set(finding)) == (1, {"file", "field", "what", "fix", "rule", "proof"})
    for arguments, message in (
        ((str(tmp_path / "nowhere"),), "is not a folder; expected what `sentport repository` writes"),
        ((str(tmp_path),), "holds no folder of a model"),
        ((str(ours["text"]), "--release", "1.0"), "Triton release '1.0' is unknown; known: 24.10"),
        ((str(ours["text"]), "--server-env", str(tmp_path)), "is no python environment"),
    ):
        code, out, err = cli("lint", *arguments)
        assert (code, out) == (2, "")
        assert message in err


def test_missing_library_names_the_extra(ours: dict[str, Path], cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    code, out, err = cli("lint", str(ours["text"]))
    assert (code, out) == (2, "")
    assert "`sentport lint` needs onnx" in err
    assert "pip install 'sentport[lint]'" in err
