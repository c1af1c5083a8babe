"""Plans of portable graphs, built by TensorRT for RTX, which needs no GPU for it; what cannot be one is refused."""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir
import pytest
from architectures import ARCHITECTURES, Architecture
from conftest import Cli, export_tiny
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Transformer

from export import build_cli, tensorrt_network
from export.build import BuildOptions, build_plans, lengths_of, outline
from export.tensorrt import Target, check_kind
from sentport import hardware
from sentport.bundle import Bundle, GraphRecord, read_bundle
from sentport.cli import main
from sentport.engines import tensorrt_library
from sentport.errors import BundleError, EngineError, GraphError, PrecisionError, SentportError
from sentport.plans import read_plans

pytest.importorskip("tensorrt_rtx_libs", reason="pip install 'sentport[tensorrt-rtx]'")

KINDS = [(layout, precision) for layout in ("padded", "packed") for precision in ("fp32", "fp16", "bf16", "int8")]
CORPUS = ["the cat sat on the red mat", "a dog ran", "a", "the dog ran in the park , on a blue mat !"] * 3
LENGTHS = {"512": 2, "4": 8}  # one profile of each layout, for a token budget of 512
PADDED = ("--layout", "padded", "--edges", "48")
FEW = ("--token-budget", "512", "--workspace", "256")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("corpus") / "texts.txt"
    file.write_text("\n".join(CORPUS))
    return file


@pytest.fixture(scope="module")
def built(every_precision: Path, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny checkpoint in all precisions, and plans of two of its graphs."""
    folder = shutil.copytree(every_precision, tmp_path_factory.mktemp("plans") / "tiny.bundle")
    for layout, precision in (("padded", "fp16"), ("packed", "int8")):
        kind = ("--layout", layout, "--precision", precision, "--corpus", str(corpus))
        assert main(["build", str(folder), "--builder", "rtx", *kind, "--profiles", "1", *FEW]) == 0
    return folder


@pytest.fixture
def bundle(built: Path, tmp_path: Path) -> Bundle:
    return read_bundle(shutil.copytree(built, tmp_path / "copy.bundle"))


def test_a_plan_says_what_it_is(built: Path, cli: Cli) -> None:
    bundle = read_bundle(built)
    packed, padded = read_plans(bundle)
    assert (packed.name, padded.name) == ("packed-int8-rtx", "padded-fp16-rtx")
    assert (packed.types, padded.types) == ({"fp32": 2, "int8": 12}, {"fp16": 14})
    for plan, covered in ((packed, 512), (padded, bundle.spec.max_tokens)):
        assert (plan.parity, plan.runs_on, plan.newer_versions) == ({"state": "unverified"}, ("8.0+",), False)
        assert (plan.profiles[0].tokens.least, plan.profiles[-1].tokens.most) == (1, covered)
    code, out, _ = cli("inspect", str(built))
    assert code == 0
    assert out.count("unverified: layer types and vectors are checked when it is first loaded on a GPU") == 2
    assert "engines/padded-fp16-rtx.plan" in out
    assert "tokens of a row 15 to 48, rows 1 to 10" in out


@pytest.mark.usefixtures("few_lines")
def test_export_builds_too(tiny_checkpoint: Path, corpus: Path, tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "new.bundle"
    options = ("--precision", "fp16", "--flavour", "portable", "--profiles", "1", *FEW)
    plans = ("--tensorrt", "--builder", "rtx", "--corpus", str(corpus))
    code, said, _ = cli("export", str(tiny_checkpoint), "--out", str(out), *options, *plans)
    assert code == 0
    assert "rows 1 to 36" in said
    assert "of computed tokens are pads; with one profile for all" in said
    assert "parity          unverified" in said
    bundle = read_bundle(out)
    assert bundle.length_counts == {"3": 3, "5": 3, "9": 3, "14": 3}
    assert [plan.name for plan in read_plans(bundle)] == ["padded-fp16-rtx"]


def test_a_plan_that_is_there_is_replaced_only_by_force(bundle: Bundle, cli: Cli) -> None:
    before = (bundle.path / "bundle.json").read_bytes()
    build = ("build", str(bundle.path), "--builder", "rtx", "--layout", "padded", "--precision", "fp16")
    code, _, err = cli(*build, "--edges", "48")
    assert (code, "add --force to replace it" in err) == (2, True)
    code, out, _ = cli(*build, "--force", "--edges", "48", "--compute-capability", "8.6,8.9", "--json")
    (plan,) = json.loads(out)
    assert (code, plan["name"], plan["runs_on"]) == (0, "padded-fp16-rtx-sm86-sm89", ["8.6", "8.9"])
    assert [profile[1] for profile in plan["profiles"]] == [[1, 48, 48]]
    assert (bundle.path / "bundle.json").read_bytes() == before
    assert not list(bundle.path.rglob("*.partial-*"))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--builder", "rtx", "--layout", "padded", "--edges", "8,16"), "no profile covers 17 to 48 tokens"),
        (("--builder", "rtx", "--layout", "padded", "--edges", f"48,{10**20}"), "is above 48 tokens, the most"),
        (("--builder", "rtx", "--edges", "48", "--precision", "fp16,"), "has no portable graph of ''; export it"),
        (("--builder", "rtx", *PADDED, "--compute-capability", "86"), "'86' is unknown to version"),
        (("--builder", "rtx", "--precision", "fp8"), "has no such graph; it holds packed bf16, packed fp16"),
        (("--builder", "rtx", "--edges", "48", "--precision", "fp16,fp8"), "has no portable graph of 'fp8'; export it"),
        (("--builder", "rtx", "--edges", "48", "--layout", "packed"), "layout packed needs --corpus"),
        (("--builder", "rtx", *PADDED, "--compute-capability", "9.9"), "'9.9' is unknown to version"),
        (("--builder", "rtx", "--timing-cache", "x"), "--timing-cache is for --builder trt"),
        (("--builder", "rtx", "--newer-versions"), "--newer-versions is for --builder trt"),
        (("--builder", "trt", "--compute-capability", "8.9"), "--compute-capability is for --builder rtx"),
        (("--builder", "trt",), "builder trt needs TensorRT, whose module tensorrt is not installed: pip install"),
        ((), "name a builder"),
    ],
)  # fmt: skip
def test_misuse_is_one_line(options: tuple[str, ...], says: str, bundle: Bundle, cli: Cli) -> None:
    code, out, err = cli("build", str(bundle.path), *options, "--force", "--quiet")
    assert (code, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--profiles", "3"), "--profiles is for --tensorrt"),
        (("--tensorrt",), "name a builder"),
        (("--tensorrt", "--builder", "rtx"), "--tensorrt plans profiles: give --corpus"),
        (("--tensorrt", "--builder", "rtx", "--flavour", "ort", "--corpus", "x"), "needs flavour portable"),
        (("--tensorrt", "--builder", "trt", "--corpus", "x"), "builder trt needs TensorRT"),
        (("--tensorrt", "--builder", "rtx", "--edges", "48", "--compute-capability", "9.9"), "'9.9' is unknown to"),
    ],
)
def test_export_says_before_it_starts_what_plans_lack(
    options: tuple[str, ...], says: str, tiny_checkpoint: Path, tmp_path: Path, cli: Cli
) -> None:
    code, _, err = cli("export", str(tiny_checkpoint), "--out", str(tmp_path / "out.bundle"), *options)
    assert (code, says in err) == (2, True), err
    assert not (tmp_path / "out.bundle").exists()


def test_a_bundle_that_takes_no_plan_is_refused_before_the_build(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, options = bundle.path / "engines", BuildOptions(Target("rtx"), ("padded",), edges=(48,), force=True)
    with monkeypatch.context() as patch:  # whoever runs the tests may write anywhere
        patch.setattr("sentport.plans.os.access", lambda _path, _mode: False)
        with pytest.raises(BundleError, match="engines cannot be written, where plans go; make it writable"):
            build_plans(bundle, options, lambda _: None)
    elsewhere = folder.rename(tmp_path / "elsewhere")
    before = {file.name: file.stat().st_mtime_ns for file in elsewhere.iterdir()}
    folder.symlink_to(elsewhere)
    with pytest.raises(BundleError, match="engines is no folder of the bundle itself"):
        build_plans(bundle, options, lambda _: None)
    assert {file.name: file.stat().st_mtime_ns for file in elsewhere.iterdir()} == before
    folder.unlink()
    folder.write_text("a file")
    with pytest.raises(BundleError, match="engines is no folder of the bundle itself"):
        build_plans(bundle, options, lambda _: None)


def test_the_command_that_rebuilds_gives_the_same_plan(bundle: Bundle, corpus: Path) -> None:
    packed, padded = read_plans(bundle)
    for plan in (packed, padded, replace(padded, runs_on=("8.6", "8.9"))):
        words = shlex.split(plan.rebuild(bundle).replace("FILE", str(corpus)))[2:]
        parser = argparse.ArgumentParser()
        build_cli.add_arguments(parser)
        asked = parser.parse_args(words)
        options = build_cli.options_of(asked, build_cli.names(asked.layout), build_cli.names(asked.precision))
        found = outline(plan.layout, lengths_of(bundle, options), bundle.spec.max_tokens, options)
        assert (found.profiles, options.force, asked.bundle) == (plan.profiles, True, bundle.path)
        assert options.target.compute_capabilities == (() if plan.runs_on == ("8.0+",) else plan.runs_on)
    everywhere = replace(padded, builder="trt", newer_versions=True).rebuild(bundle)
    assert everywhere.endswith(" --other-devices --newer-versions --force")
    assert "--other-devices" not in replace(padded, builder="trt").rebuild(bundle, same_devices=False)


def test_fused_operators_are_refused_by_name(bundle: Bundle) -> None:
    fused = next(graph for graph in bundle.graphs if graph.flavour == "ort")
    with pytest.raises(EngineError, match="has ONNX Runtime's fused operators, which TensorRT does not parse"):
        check_kind(fused)
    with pytest.raises(EngineError, match="has the operators MatMulInteger, which TensorRT does not parse"):
        check_kind(replace(fused, flavour="portable", operators={"MatMulInteger": 1}))
    only_fused = replace(bundle, graphs=(fused,))
    with pytest.raises(EngineError, match="fused operators"):
        build_plans(only_fused, BuildOptions(Target("rtx"), edges=(48,)), lambda _: None)
    with pytest.raises(SentportError, match="nothing to plan profiles from; give --corpus FILE"):
        build_plans(bundle, BuildOptions(Target("rtx")), lambda _: None)


def test_an_error_of_the_parser_names_the_node_and_our_tensor(bundle: Bundle, tmp_path: Path) -> None:
    graph = graph_of(bundle, "padded", "fp16")
    model = ir.load(bundle.graph_file(graph))
    node = next(node for node in model.graph if node.op_type == "Softmax")
    node.op_type, node.domain = "Surprise", "elsewhere"
    ir.save(model, tmp_path / "odd.onnx")
    trt = tensorrt_library.load_library("rtx")
    with pytest.raises(GraphError, match=rf"node '{node.name}' \(Surprise, tensor '{node.outputs[0].name}'\)"):
        tensorrt_network.parse(trt, graph, tmp_path / "odd.onnx")


@pytest.mark.parametrize(("asked", "given"), [("fp16", "int8"), ("int8", "fp16"), ("fp32", "fp16"), ("bf16", "fp16")])
def test_a_precision_that_the_network_does_not_have_is_refused(asked: str, given: str, bundle: Bundle) -> None:
    graph = graph_of(bundle, "padded", given)
    int8 = graph_of(bundle, "padded", "int8").int8 if asked == "int8" else None
    trt = tensorrt_library.load_library("rtx")
    with pytest.raises(PrecisionError, match=f"is {asked}, but the network has of its linear layers"):
        tensorrt_network.parse(trt, replace(graph, precision=asked, int8=int8), bundle.graph_file(graph))


def test_a_plan_of_another_graph_is_refused(bundle: Bundle) -> None:
    file = bundle.path / "engines" / "padded-fp16-rtx.json"
    record = json.loads(file.read_text())
    file.write_text(json.dumps(record | {"graph_sha256": "0" * 64}))
    with pytest.raises(BundleError, match=r"was built of another graphs/padded-fp16-portable\.onnx"):
        read_plans(bundle)
    file.write_text(json.dumps(record | {"profiles": [[1, 2]]}))
    with pytest.raises(BundleError, match="is damaged"):
        read_plans(bundle)


def test_a_library_that_does_not_load_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise OSError("libnvinfer.so.10: cannot open shared object file")

    monkeypatch.setattr(tensorrt_library, "import_module", broken)
    with pytest.raises(EngineError, match=r"is installed but does not load: libnvinfer\.so\.10"):
        tensorrt_library.load_library("trt")
    with pytest.raises(EngineError, match="builder 'tflite' is unknown; known: trt, rtx"):
        tensorrt_library.load_library("tflite")


def test_builder_trt_wants_a_gpu(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("export.tensorrt.load_library", lambda _builder: None)
    monkeypatch.setattr(hardware, "cuda_driver", lambda: hardware.CudaDriver((), reason="none"))
    with pytest.raises(EngineError, match="builder trt times kernels on a GPU, and no CUDA device was found"):
        build_plans(bundle, BuildOptions(Target("trt")), lambda _: None)


def test_builder_trt_goes_the_same_way(bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the other library in its place, and a GPU as far as its name goes."""
    rtx = tensorrt_library.load_library("rtx")
    monkeypatch.setattr("export.tensorrt.load_library", lambda _builder: rtx)
    driver = hardware.CudaDriver(("GPU",), capabilities=((9, 0),))
    monkeypatch.setattr(hardware, "cuda_driver", lambda: driver)
    target = Target("trt", timing_cache=tmp_path / "timings", workspace_mib=64)
    options = BuildOptions(target, ("padded",), ("fp16",), edges=(48,))
    ((plan, found),) = build_plans(bundle, options, lambda _: None)
    assert (plan.name, plan.builder, plan.runs_on) == ("padded-fp16-trt-sm90", "trt", ("9.0",))
    assert found.planned is None
    assert (tmp_path / "timings").stat().st_size > 0
    target = Target("trt", other_devices=True)
    ((plan, _),) = build_plans(bundle, replace(options, target=target), lambda _: None)
    assert (plan.name, plan.runs_on) == ("padded-fp16-trt", ("8.0+",))


@pytest.mark.full
@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda architecture: architecture.name)
def test_every_portable_graph_of_every_architecture_builds(architecture: Architecture, tmp_path: Path) -> None:
    first = Transformer(str(architecture.save(tmp_path / "plain")))
    pooling = Pooling(first.auto_model.config.hidden_size, pooling_mode="mean")
    SentenceTransformer(modules=[first, pooling], device="cpu").save(str(tmp_path / "st"))
    layouts, precisions = ("padded", "packed"), ("fp32", "fp16", "bf16", "int8")
    out = export_tiny(tmp_path / "st", tmp_path / "b", ("portable",), layouts=layouts, precisions=precisions)
    bundle = replace(read_bundle(out), length_counts=LENGTHS)
    built = build_plans(bundle, BuildOptions(Target("rtx"), profiles=1, token_budget=512), lambda _: None)
    assert [(plan.layout, plan.precision) for plan, _ in built] == KINDS


@pytest.mark.full
def test_every_portable_graph_of_minilm_builds(minilm_checkpoint: Path, tmp_path: Path) -> None:
    layouts, precisions = ("padded", "packed"), ("fp32", "fp16", "bf16", "int8")
    out = export_tiny(minilm_checkpoint, tmp_path / "b", ("portable",), layouts=layouts, precisions=precisions)
    bundle = replace(read_bundle(out), length_counts={"11": 40, "16": 30, "27": 20, "46": 10})
    built = build_plans(bundle, BuildOptions(Target("rtx"), profiles=2), lambda _: None)
    assert [(plan.layout, plan.precision) for plan, _ in built] == KINDS
    assert all(plan.types.get(plan.precision) for plan, _ in built)


def graph_of(bundle: Bundle, layout: str, precision: str) -> GraphRecord:
    return next(graph for graph in bundle.graphs if graph.file == f"graphs/{layout}-{precision}-portable.onnx")
