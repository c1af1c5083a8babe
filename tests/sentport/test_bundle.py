"""The bundle folder: what is refused, and with which line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Cli

from sentport.bundle import DESCRIPTION_FILE, FORMAT, read_bundle, sha256_of
from sentport.encoder import Encoder
from sentport.errors import BundleError

Refused = Callable[..., str]


@pytest.fixture
def copy(tiny_bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_bundle, tmp_path / "copy.bundle"))


def edit(bundle: Path, **changes: object) -> None:
    path = bundle / DESCRIPTION_FILE
    values = json.loads(path.read_text())
    path.write_text(json.dumps({**values, **changes}))


@pytest.fixture
def refused(cli: Cli) -> Refused:
    """The one line that a command refuses with, exit code 2."""

    def run(*arguments: str) -> str:
        code, out, said = cli(*arguments)
        assert (code, out, said.count("\n")) == (2, "", 1), said
        return said.rstrip("\n")

    return run


@pytest.mark.parametrize("flavour", ["ort", "portable"])
def test_one_changed_byte_in_a_graph_is_refused(copy: Path, flavour: str, refused: Refused, cli: Cli) -> None:
    graph = copy / "graphs" / f"padded-fp32-{flavour}.onnx"
    data = bytearray(graph.read_bytes())
    data[len(data) // 2] ^= 1
    graph.write_bytes(data)
    code, out, _ = cli("verify", str(copy))
    (line,) = (line for line in out.splitlines() if line.startswith("REFUSED"))
    assert (code, graph.name in line, "has changed" in line) == (1, True, True)
    assert out.count("passed ") == 1  # the other flavour
    assert "has changed" in refused("inspect", str(copy))


def test_encode_refuses_a_changed_graph(copy: Path, tmp_path: Path, refused: Refused) -> None:
    with (copy / "graphs" / "padded-fp32-ort.onnx").open("ab") as file:
        file.write(b"\0")
    options = ("--engine", "onnxruntime", "--input", "-", "--output", str(tmp_path / "v.npy"))
    assert "has changed" in refused("encode", str(copy), *options)
    assert not (tmp_path / "v.npy").exists()


def test_missing_tokenizer_is_refused(copy: Path, refused: Refused) -> None:
    (copy / "tokenizer.json").unlink()
    assert "tokenizer.json is missing" in refused("verify", str(copy))
    with pytest.raises(BundleError, match=r"tokenizer\.json is missing"):
        Encoder(copy)


@pytest.mark.parametrize(
    ("version", "way_out"),
    [
        ("0.9", "make it again with `sentport export`"),
        (f"{FORMAT[0] + 1}.0", "upgrade"),
        (f"{FORMAT[0]}.{FORMAT[1] + 1}", "upgrade"),
    ],
)
def test_unknown_format_version_is_refused(copy: Path, version: str, way_out: str, refused: Refused) -> None:
    edit(copy, format=version)
    line = refused("inspect", str(copy))
    assert f"bundle format {version}" in line
    assert way_out in line


def test_older_minor_format_still_encodes(copy: Path, tiny_bundle: Path) -> None:
    values = json.loads((copy / DESCRIPTION_FILE).read_text())
    del values["revision"]
    for graph in values["graphs"]:
        del graph["data_sha256"], graph["packed"]
    (copy / DESCRIPTION_FILE).write_text(json.dumps({**values, "format": "1.0"}))
    bundle = read_bundle(copy)
    assert (bundle.spec.revision, bundle.graphs[0].data_sha256, bundle.spec.pools_prompt) == (None, None, True)
    assert bundle.spec.fingerprint == read_bundle(tiny_bundle).spec.fingerprint
    with Encoder(copy, threads=1) as old, Encoder(tiny_bundle, threads=1) as new:
        assert (old.encode(["the cat"]) == new.encode(["the cat"])).all()
    del values["dim"]
    (copy / DESCRIPTION_FILE).write_text(json.dumps({**values, "format": "1.0"}))
    with pytest.raises(BundleError, match="damaged"):
        read_bundle(copy)


def test_external_data_of_a_graph_is_checked_with_it(copy: Path, cli: Cli, refused: Refused) -> None:
    values = json.loads((copy / DESCRIPTION_FILE).read_text())
    data = copy / f"{values['graphs'][0]['file']}.data"
    data.write_bytes(b"weights")
    values["graphs"][0]["data_sha256"] = sha256_of(data)
    edit(copy, graphs=values["graphs"])
    bundle = read_bundle(copy)
    assert bundle.graph_file(bundle.graphs[0]).is_file()
    assert data.name in cli("inspect", str(copy))[1]
    data.write_bytes(b"wEights")
    assert f"{data.name} has changed" in refused("inspect", str(copy))
    data.unlink()
    with pytest.raises(BundleError, match=f"{data.name} is missing"):
        bundle.graph_file(bundle.graphs[0])


def test_half_written_folder_is_refused(copy: Path, refused: Refused) -> None:
    (copy / DESCRIPTION_FILE).unlink()
    assert "half-written or not a bundle" in refused("verify", str(copy))


def test_what_is_no_bundle_is_named(tiny_checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, said in (
        (tiny_checkpoint, "is a checkpoint, not a bundle"),
        (tmp_path / "file", "is not a folder"),
        (tmp_path / "nothing", "does not exist"),
        (tmp_path, "is half-written or not a bundle"),
    ):
        with pytest.raises(BundleError, match=said):
            read_bundle(path)


def test_damaged_and_edited_descriptions_are_refused(copy: Path, refused: Refused) -> None:
    edit(copy, max_tokens=64)
    with pytest.raises(BundleError, match="fingerprint does not match"):
        read_bundle(copy)
    (copy / DESCRIPTION_FILE).write_text("{")
    assert "is damaged" in refused("inspect", str(copy))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("dim", "24", "dim is '24'"),
        ("dim", 25, "does not give vectors of 25"),
        ("max_tokens", -1, "max_tokens is -1"),
        ("graphs", [], "there is no graph"),
        ("modules", None, "is damaged"),
        ("prompts", None, "is damaged"),
    ],
)
def test_values_that_nothing_could_use_are_refused(copy: Path, name: str, value: object, said: str) -> None:
    edit(copy, **{name: value})
    with pytest.raises(BundleError, match=said):
        read_bundle(copy)


TRADE = [{"kept": 1, "cosine": 0.96, "mean_cosine": 0.99, "rank": 0.99}]
INT8 = {"form": "static", "layers": ["a"], "sha256": "0", "kept": [], "trade": [], "calibration": "texts"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"precision": "fp8"}, "precision 'fp8' is unknown"),
        ({"precision": None}, "precision None is unknown"),
        ({"precision": "int8"}, r"onnx is int8 and lacks a record of int8 layers"),
        ({"int8": INT8}, r"onnx is fp32 and has a record of int8 layers"),
        ({"precision": "int8", "int8": {}}, r"form of .*onnx's int8 layers is None"),
        ({"precision": "int8", "int8": {**INT8, "layers": "a"}}, r"layers of .*onnx's int8 layers is 'a'"),
        ({"precision": "int8", "int8": {**INT8, "kept": [1], "trade": TRADE}}, "names that are no text"),
        (
            {"precision": "int8", "int8": {**INT8, "trade": [{**TRADE[0], "cosine": "1"}]}},
            "figures that are no numbers",
        ),
        ({"precision": "int8", "int8": {**INT8, "kept": ["b"]}}, "kept in fp32, and what that gained is not said"),
        ({"parity": {"cosine": "high"}}, r"cosine of .*onnx is 'high'"),
        ({"parity": {"mean_cosine": float("nan")}}, r"mean_cosine of .*onnx is nan"),
        ({"parity": None}, "is damaged"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value,
)
def test_precisions_that_nothing_could_have_made_are_refused(copy: Path, changes: dict[str, object], said: str) -> None:
    graphs = json.loads((copy / DESCRIPTION_FILE).read_text())["graphs"]
    edit(copy, graphs=[{**graphs[0], **changes}, *graphs[1:]])
    with pytest.raises(BundleError, match=said):
        read_bundle(copy)


def test_auto_is_the_precision_of_the_whole_bundle_and_never_a_lower_one_beside_fp32(tiny_bundle: Path) -> None:
    bundle = read_bundle(tiny_bundle)
    low = [replace(bundle.graphs[0], precision=name) for name in ("int8", "bf16")]
    both = replace(bundle, graphs=(bundle.graphs[0], low[0]))
    assert both.precision_of("auto") == "fp32"
    assert both.precision_of("int8") == "int8"
    some = replace(both, graphs=(low[0],))  # as an engine sees it that runs the int8 graph alone
    with pytest.raises(BundleError, match="in fp32 for this engine; it holds padded int8"):
        some.select("auto", both.precision_of("auto"))
    assert some.precision_of("auto") == "int8", "its only one"
    with pytest.raises(BundleError, match="holds padded bf16, padded int8; name a precision"):
        replace(both, graphs=tuple(low)).precision_of("auto")


def test_an_engine_that_runs_a_lower_precision_alone_is_not_given_it_unasked(copy: Path) -> None:
    graph = json.loads((copy / DESCRIPTION_FILE).read_text())["graphs"][0]
    edit(copy, native=[{**graph, "flavour": "native", "precision": "int8", "int8": INT8}])
    with pytest.raises(BundleError, match="no graph with layout auto in fp32 for this engine; it holds padded int8"):
        Encoder(copy, engine="native")


def test_file_outside_of_the_bundle_is_refused(copy: Path) -> None:
    values = json.loads((copy / DESCRIPTION_FILE).read_text())
    values["graphs"][0]["file"] = values["graphs"][1]["file"] = "../outside.onnx"
    edit(copy, graphs=values["graphs"])
    with pytest.raises(BundleError, match="outside"):
        Encoder(copy, engine="onnxruntime")


def test_expected_hash_proves_where_a_bundle_comes_from(tiny_bundle: Path) -> None:
    right = sha256_of(tiny_bundle / DESCRIPTION_FILE)
    assert read_bundle(tiny_bundle, right.upper()).spec.dim == 24
    with pytest.raises(BundleError, match="expected 00"):
        read_bundle(tiny_bundle, "00" * 32)


def test_description_comes_back_as_it_was_written(tiny_bundle: Path) -> None:
    bundle = read_bundle(tiny_bundle)
    values = json.loads((tiny_bundle / DESCRIPTION_FILE).read_text())
    assert [module["type"] for module in bundle.spec.modules] == [
        "Transformer",
        "Pooling",
        "Dense",
        "Dense",
        "Normalize",
    ]
    assert bundle.spec.fingerprint == values["fingerprint"]
    assert {graph.flavour for graph in bundle.graphs} == {"portable", "ort"}
    assert bundle.select("auto", "auto").flavour == "ort"
    with pytest.raises(BundleError, match="it holds padded fp32"):
        bundle.select("auto", "int8")
    with pytest.raises(BundleError, match="precision 'INT8' is unknown; known: auto, fp32, fp16, bf16, int8"):
        bundle.select("auto", "INT8")


def test_no_path_of_the_exporting_machine_in_a_bundle(tiny_bundle: Path) -> None:
    for file in tiny_bundle.rglob("*"):
        if file.is_file():
            data = file.read_bytes()
            assert str(Path.home()).encode() + b"/" not in data, file
            assert str(tiny_bundle.parent).encode() not in data, file
            assert b".py" not in data, file
