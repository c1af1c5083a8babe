"""Export as a whole: written aside, renamed at the end, verified again from its own suite or the source."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cli, build_checkpoint, build_transformer, export_tiny

from export import exporter
from export.verify import verify_bundle
from sentport import Encoder
from sentport.bundle import read_bundle
from sentport.errors import CheckpointError, GateError, SentportError


def test_failed_gate_leaves_nothing_and_exit_code_1(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli, few_lines: None
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise GateError("graphs/padded-fp32-portable.onnx is refused: relative L2 error is 1")

    monkeypatch.setattr(exporter, "check_graph", refuse)
    code, _, said = cli("export", str(tiny_checkpoint), "--out", str(tmp_path / "out.bundle"), "-q")
    assert (code, "is refused" in said) == (1, True)
    assert list(tmp_path.iterdir()) == []


def test_existing_out_is_kept_without_force(tiny_checkpoint: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(tiny_bundle, tmp_path / "out.bundle"))
    with pytest.raises(SentportError, match="add --force"):
        export_tiny(tiny_checkpoint, out)
    other = tmp_path / "photos"
    other.mkdir()
    with pytest.raises(SentportError, match="is not a bundle, so --force does not replace it"):
        export_tiny(tiny_checkpoint, other, force=True)


def test_force_replaces_and_the_same_export_gives_the_same_bytes(
    tiny_checkpoint: Path, tiny_bundle: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(tiny_bundle, tmp_path / "out.bundle"))
    (out / "mark").touch()
    export_tiny(tiny_checkpoint, out, ("portable",), force=True)
    assert not (out / "mark").exists()
    again, first = read_bundle(out), read_bundle(tiny_bundle)
    assert [graph.sha256 for graph in again.graphs] == [g.sha256 for g in first.graphs if g.flavour == "portable"]
    assert again.spec == first.spec
    assert [path.name for path in tmp_path.iterdir()] == ["out.bundle"]


def test_verify_from_the_suite_and_from_the_source(
    tiny_bundle: Path, tiny_checkpoint: Path, tmp_path: Path, cli: Cli, few_lines: None
) -> None:
    code, text, _ = cli("verify", str(tiny_bundle))
    assert (code, text.count("passed")) == (0, 2)
    for graph in read_bundle(tiny_bundle).native:
        assert f"not run  {graph.file}: not for engine onnxruntime" in text
    report = json.loads(cli("verify", str(tiny_bundle), "--source", str(tiny_checkpoint), "--json")[1])
    assert report["passed"]
    assert len(report["graphs"]) == 2
    other = build_checkpoint(tmp_path / "other", pooling="cls")
    code, _, said = cli("verify", str(tiny_bundle), "--source", str(other))
    assert (code, "is not what" in said) == (2, True)


def test_plain_checkpoint_needs_a_pooling_and_is_normalised(tmp_path: Path, cli: Cli, few_lines: None) -> None:
    """Several poolings, no token types, no saved limit; both flavours equal sentence-transformers."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Normalize, Pooling, Transformer

    plain = build_transformer(tmp_path / "plain", type_vocabulary=1)
    with pytest.raises(CheckpointError, match="does not say how to pool; add --pooling mean"):
        export_tiny(plain, tmp_path / "none.bundle")
    out = export_tiny(plain, tmp_path / "plain.bundle", pooling="cls+max+mean")
    bundle = read_bundle(out)
    assert bundle.spec.normalized
    assert bundle.spec.max_tokens == 64
    assert [tensor.name for tensor in bundle.graphs[0].inputs] == ["input_ids", "attention_mask"]
    code, text, _ = cli("verify", str(out), "--source", str(plain))
    assert (code, text.count("passed")) == (0, 2)
    modules = [Transformer(str(plain)), Pooling(32, ("cls", "max", "mean")), Normalize()]
    texts = ["the cat", "a dog sat on the red mat in the park . ! " * 4, "", "日 本"]
    with Encoder(out, threads=1, on_truncate="allow") as encoder:
        wanted = SentenceTransformer(modules=modules, device="cpu").encode(texts)
        np.testing.assert_allclose(encoder.encode(texts), wanted, rtol=1e-5, atol=1e-5)


def test_tokenizer_that_differs_from_the_source_is_refused(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sentport.modeling import checkpoint as module

    plain = module.plain_definition

    def without_accents(tokenizer: object) -> str:
        definition = json.loads(plain(tokenizer))
        definition["normalizer"]["lowercase"] = not definition["normalizer"]["lowercase"]
        return json.dumps(definition)

    monkeypatch.setattr(module, "plain_definition", without_accents)
    with pytest.raises(CheckpointError, match="tokenizer differs from the source"):
        export_tiny(tiny_checkpoint, tmp_path / "out.bundle")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"flavours": ("fast",)}, "flavour fast is unknown; known: portable, ort"),
        ({"flavours": ()}, "flavour (none) is unknown"),
        ({"opset": 9}, "opset 9 is not supported; expected 18 to 23"),
        ({"ir_version": 99}, "IR version 99 is not supported"),
    ],
)
def test_options_that_do_not_exist_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SentportError, match=re.escape(message)):
        exporter.ExportOptions(**options)


def test_saved_cut_stands_behind_normalize_and_is_verified(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """As sentence-transformers makes it: vectors that it cuts are not of length one any more."""
    from sentence_transformers import SentenceTransformer

    folder = Path(shutil.copytree(tiny_checkpoint, tmp_path / "cut"))
    file = folder / "config_sentence_transformers.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "truncate_dim": 8}))
    out = export_tiny(folder, tmp_path / "cut.bundle", ("portable",))
    bundle = read_bundle(out)
    assert [module["type"] for module in bundle.spec.modules[-2:]] == ["Normalize", "Truncate"]
    texts = ["the cat sat on the mat", "a dog", ""]
    with Encoder(out, threads=1) as encoder:
        np.testing.assert_allclose(
            encoder.encode(texts), SentenceTransformer(str(folder), device="cpu").encode(texts), atol=2e-6
        )
    assert all(verdict.parity for verdict in verify_bundle(bundle, folder))
