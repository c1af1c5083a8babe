"""The checkpoint folder: the same vectors in sentence-transformers and in our own reader, with the older keys."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import build_checkpoint, build_transformer
from safetensors import safe_open

from sentport.encoder import Encoder
from sentport.errors import CheckpointError
from sentport.modeling.checkpoint import load_checkpoint
from training.save import save_checkpoint

TEXTS = ["the cat sat on the mat", "a red dog", "", "the park " * 40]


def saved(source: Path, out: Path, *, unused: dict[str, torch.Tensor] | None = None, **options: object) -> Path:
    out.mkdir()
    checkpoint = load_checkpoint(source, **options)  # type: ignore[arg-type]
    save_checkpoint(out, checkpoint.model, checkpoint, unused or {}, "# card\n")
    return out


@pytest.mark.parametrize("kind", ["mean", "dense and prompts", "cls and max", "plain", "cut"])
def test_round_trip(kind: str, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    if kind == "plain":
        source, options = build_transformer(tmp_path / "source"), {"pooling": "max", "normalize": False}
    else:
        options = {}
        source = build_checkpoint(
            tmp_path / "source",
            pooling=("cls", "max") if kind == "cls and max" else "mean",
            dense=kind == "dense and prompts",
            prompts=kind == "dense and prompts",
            normalize=kind != "cut",
        )
    if kind == "cut":
        options = {"dim": 20}
    out = saved(source, tmp_path / "out", **options)
    wanted = load_checkpoint(source, **options)
    found = load_checkpoint(out)
    assert found.spec.space == {**wanted.spec.space, "modules": list(found.spec.modules)}
    assert [dict(module) for module in found.spec.modules] == [dict(module) for module in wanted.spec.modules]
    theirs = SentenceTransformer(str(out), device="cpu").encode(TEXTS)
    ours = Encoder(out, threads=1, on_truncate="allow").encode(TEXTS)
    np.testing.assert_allclose(theirs, ours, atol=1e-6)
    if kind != "plain" and kind != "cut":
        np.testing.assert_allclose(SentenceTransformer(str(source), device="cpu").encode(TEXTS), theirs, atol=1e-6)


def test_the_older_keys(tmp_path: Path) -> None:
    """What versions 3 to 6 of sentence-transformers all read."""
    out = saved(build_checkpoint(tmp_path / "source", dense=True), tmp_path / "out")
    modules = json.loads((out / "modules.json").read_text())
    assert [module["type"].rpartition(".")[0] for module in modules] == ["sentence_transformers.models"] * 5
    assert [module["path"] for module in modules] == ["", "1_Pooling", "2_Dense", "3_Dense", "4_Normalize"]
    pooling = json.loads((out / "1_Pooling" / "config.json").read_text())
    assert (pooling["word_embedding_dimension"], pooling["pooling_mode_mean_tokens"]) == (32, True)
    assert "pooling_mode" not in pooling
    dense = json.loads((out / "2_Dense" / "config.json").read_text())
    assert dense["activation_function"] == "torch.nn.modules.activation.Tanh"
    assert json.loads((out / "sentence_bert_config.json").read_text()) == {"max_seq_length": 48, "do_lower_case": False}


def test_unused_weights_stay(tmp_path: Path) -> None:
    source = build_checkpoint(tmp_path / "source")
    out = saved(source, tmp_path / "out", unused={"pooler.dense.weight": torch.ones(32, 32)})
    with safe_open(out / "model.safetensors", framework="pt") as held:
        assert float(held.get_tensor("pooler.dense.weight").mean()) == 1


def test_what_a_folder_cannot_say(tmp_path: Path) -> None:
    source = build_transformer(tmp_path / "source")
    with pytest.raises(CheckpointError, match="cannot say LayerMean at this place; train with pooling mean"):
        saved(source, tmp_path / "out", pooling="avg_first_last")
    with pytest.raises(CheckpointError, match=r"pooling max\+cls is in another order .* expected cls\+max"):
        saved(source, tmp_path / "other", pooling="max+cls")
    with pytest.raises(CheckpointError, match="cannot say Truncate"):
        saved(source, tmp_path / "third", pooling="mean", dim=8)
