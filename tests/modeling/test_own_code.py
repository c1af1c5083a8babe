"""Checkpoints that bring code along: off, on when asked for and pinned, and then really working."""

from __future__ import annotations

import json
import re
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import build_checkpoint, export_tiny
from sentence_transformers import SentenceTransformer

from export import cli
from sentport.encoder import Encoder
from sentport.errors import CheckpointError
from sentport.modeling.checkpoint import load_checkpoint
from sentport.modeling.hub import Source
from sentport.modeling.own_code import own_code

CODE = """
from transformers import BertConfig, BertModel


class DoublingConfig(BertConfig):
    model_type = "doubling"


class DoublingModel(BertModel):
    config_class = DoublingConfig

    def forward(self, *arguments, **options):
        found = super().forward(*arguments, **options)
        found.last_hidden_state = found.last_hidden_state * 2 + 1
        return found
"""
AUTO_MAP = {"AutoConfig": "modeling_doubling.DoublingConfig", "AutoModel": "modeling_doubling.DoublingModel"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint whose transformer is BERT with something behind it that only its own code knows."""
    folder = build_checkpoint(tmp_path / "doubling", normalize=False)
    edit(folder / "config.json", auto_map=AUTO_MAP, model_type="doubling", architectures=["DoublingModel"])
    (folder / "modeling_doubling.py").write_text(CODE)
    return folder


def edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_code_stays_off_until_it_is_asked_for(folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"needs code of its own \(modeling_doubling.DoublingConfig, ") as caught:
        load_checkpoint(folder)
    assert "remote code stays off" in str(caught.value)
    assert "add --trust-remote-code" in str(caught.value)


def test_code_that_was_asked_for_runs_as_in_the_source(folder: Path, tmp_path: Path) -> None:
    texts = ["the cat sat", "a red dog ran in the park .", ""]
    expected = SentenceTransformer(str(folder), device="cpu", trust_remote_code=True).encode(texts)
    checkpoint = load_checkpoint(folder, trust_remote_code=True)
    assert any("ran code of the checkpoint's own: modeling_doubling" in remark for remark in checkpoint.remarks)
    bundle = export_tiny(folder, tmp_path / "doubling.bundle", ("portable",), trust_remote_code=True)
    with Encoder(bundle) as encoder:
        assert np.abs(encoder.encode(texts) - expected).max() < 1e-5


@pytest.mark.parametrize(
    ("file", "changes", "named"),
    [
        ("config.json", {"auto_map": {"AutoModel": "modeling.Own"}}, "modeling.Own"),
        ("config.json", {"auto_map": {"AutoModelForMaskedLM": "modeling.Own"}}, None),
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["code.Slow", None]}}, "code.Slow"),
        ("tokenizer_config.json", {"auto_map": ["code.Slow", "code.Fast"]}, "code.Fast, code.Slow"),
    ],
)
def test_code_is_found_wherever_a_checkpoint_names_it(
    file: str, changes: dict[str, Any], named: str | None, tmp_path: Path
) -> None:
    (tmp_path / file).write_text(json.dumps(changes))
    source = Source(tmp_path, "model")
    assert own_code(source, tmp_path, trusted=True) == ([] if named is None else named.split(", "))
    if named is not None:
        with pytest.raises(CheckpointError, match=re.escape(f"({named}: auto_map")):
            own_code(source, tmp_path, trusted=False)


def test_code_of_the_hub_needs_a_full_commit_and_its_own_repository(tmp_path: Path) -> None:
    commit = "a" * 40
    (tmp_path / "config.json").write_text(json.dumps({"auto_map": {"AutoModel": "modeling.Own"}}))
    with pytest.raises(CheckpointError, match=f"of a full commit only: add --revision {commit}"):
        own_code(Source(tmp_path, "org/name", commit, pinned=False), tmp_path, trusted=True)
    with pytest.raises(CheckpointError, match=f"add --trust-remote-code --revision {commit}"):
        own_code(Source(tmp_path, "org/name", commit, pinned=False), tmp_path, trusted=False)
    assert own_code(Source(tmp_path, "org/name", commit, pinned=True), tmp_path, trusted=True) == ["modeling.Own"]
    (tmp_path / "config.json").write_text(json.dumps({"auto_map": {"AutoModel": "org/other--modeling.Own"}}))
    with pytest.raises(CheckpointError, match="lies in another repository"):
        own_code(Source(tmp_path, "org/name", commit, pinned=True), tmp_path, trusted=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "remote code stays off"),
        (["--trust-remote-code"], "modeling_gone"),  # on, and so looked for
        (["--revision", "main"], "which has no revision 'main'; leave --revision out"),
    ],
)
def test_command_line_hands_the_options_on(options: list[str], message: str, folder: Path, tmp_path: Path) -> None:
    edit(folder / "config.json", auto_map={"AutoModel": "modeling_gone.Own"}, model_type="bert")
    parser = ArgumentParser()
    cli.add_arguments(parser)
    arguments = parser.parse_args([str(folder), "--out", str(tmp_path / "bundle"), *options])
    arguments.quiet = True
    with pytest.raises(CheckpointError, match=re.escape(message)) as caught:
        cli.run(arguments)
    assert "\n" not in str(caught.value)
