"""Folders of every generation of sentence-transformers give the vectors that sentence-transformers 6.2 gives."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import WORDS, build_transformer
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Dense, Normalize, Pooling, Transformer

from sentport.encoder import Encoder
from sentport.modeling.checkpoint import load_checkpoint

TEXTS = ["The CAT sat on the mat", "a red dog ran in the park . " * 5, "É 日本 cats", ""]


def present(folder: Path) -> None:
    """As version 6 saves: the length limit in tokenizer_config.json, modules under their new names."""
    plain = build_transformer(folder.with_name("plain"))
    chain = [Transformer(str(plain), max_seq_length=20, do_lower_case=True), Pooling(32, "cls")]
    chain += [Dense(32, 24, activation_function=torch.nn.Tanh()), Normalize()]
    SentenceTransformer(modules=chain, device="cpu", prompts={"query": "the dog "}).save(str(folder))
    assert "max_seq_length" not in json.loads((folder / "sentence_bert_config.json").read_text())


def write(file: Path, values: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(values))


def version_2(folder: Path, settings: str = "sentence_bert_config.json") -> None:
    """As versions 1 to 2 saved: the transformer in a folder of its own, flags for pooling, pickled weights."""
    present(folder)
    dense = {"in_features": 32, "out_features": 24, "bias": True}
    dense["activation_function"] = "torch.nn.modules.activation.Tanh"
    old = folder.with_name("old")
    kinds = ("Transformer", "Pooling", "Dense", "Normalize")
    modules = [
        {"idx": n, "name": str(n), "path": f"{n}_{kind}", "type": f"sentence_transformers.models.{kind}"}
        for n, kind in enumerate(kinds)
    ]
    write(old / "modules.json", modules)
    write(old / "config_sentence_transformers.json", {"__version__": {"sentence_transformers": "2.2.2"}})
    transformer = old / "0_Transformer"
    transformer.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(folder / name, transformer / name)
    (transformer / "vocab.txt").write_text("\n".join(WORDS), encoding="utf-8")
    write(transformer / "tokenizer_config.json", {"do_lower_case": False, "tokenizer_class": "BertTokenizer"})
    write(transformer / settings, {"max_seq_length": 20, "do_lower_case": True})
    flags = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False, "pooling_mode_max_tokens": False}
    write(old / "1_Pooling" / "config.json", {"word_embedding_dimension": 32, **flags})
    write(old / "2_Dense" / "config.json", dense)
    (old / "3_Normalize").mkdir()
    model = SentenceTransformer(str(folder), device="cpu")
    torch.save(model[2].state_dict(), old / "2_Dense" / "pytorch_model.bin")
    shutil.rmtree(folder)
    old.rename(folder)


def with_an_older_name(folder: Path) -> None:
    version_2(folder, "sentence_roberta_config.json")


@pytest.mark.parametrize("build", [present, version_2, with_an_older_name])
def test_vectors_are_those_of_sentence_transformers(build: Callable[[Path], None], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    build(folder)
    source = SentenceTransformer(str(folder), device="cpu")
    checkpoint = load_checkpoint(folder)
    spec = checkpoint.spec
    pickled = [remark for remark in checkpoint.remarks if "weights-only" in remark]
    assert pickled == (
        [] if build is present else ["without safetensors: 2_Dense; .bin is read with torch's weights-only loader"]
    )
    assert spec.max_tokens == source.get_max_seq_length() == 20
    assert spec.dim == 24
    with Encoder(folder, engine="torch", on_truncate="allow") as encoder:
        ours = encoder.encode(TEXTS)
        assert np.abs(ours - source.encode(TEXTS)).max() < 1e-5
        assert np.abs(ours[0] - encoder.encode(["the cat sat on the mat"])[0]).max() < 1e-6  # lower case, as saved


def test_the_settings_file_that_decided_is_named(tmp_path: Path) -> None:
    with_an_older_name(tmp_path / "model")
    assert (
        load_checkpoint(tmp_path / "model").spec.max_tokens_source == "max_seq_length in sentence_roberta_config.json"
    )
