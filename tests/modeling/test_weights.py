"""Weights in every form that a checkpoint saves them: sharded, half, ``.bin``; damaged ones are one line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import BertModel

from sentport.encoder import Encoder
from sentport.errors import CheckpointError
from sentport.modeling.checkpoint import load_checkpoint

TEXTS = ["the cat sat", "a red dog ran in the park .", ""]
SHARD = "model-00002-of-00003.safetensors"


@pytest.fixture
def folder(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_checkpoint, tmp_path / "model"))


@pytest.fixture
def sharded(folder: Path) -> Path:
    model = BertModel.from_pretrained(folder, add_pooling_layer=False)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="40KB")
    assert (folder / SHARD).is_file()
    return folder


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_fp32_and_told(dtype: torch.dtype, folder: Path) -> None:
    SentenceTransformer(str(folder), device="cpu").to(dtype).save(str(folder))
    source = SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": torch.float32}).float()
    checkpoint = load_checkpoint(folder)
    assert {parameter.dtype for parameter in checkpoint.model.parameters()} == {torch.float32}
    name = str(dtype).removeprefix("torch.")
    assert any(f"weights are saved as {name}; they are computed in fp32" in remark for remark in checkpoint.remarks)
    with Encoder(folder, engine="torch") as encoder:
        assert np.abs(encoder.encode(TEXTS, prompt="") - source.encode(TEXTS)).max() < 1e-5


def test_shards_are_the_same_model(sharded: Path, tiny_checkpoint: Path) -> None:
    assert load_checkpoint(sharded).spec.weights_sha256 == load_checkpoint(tiny_checkpoint).spec.weights_sha256


def remove_shard(folder: Path) -> None:
    (folder / SHARD).unlink()


def cut_shard(folder: Path) -> None:
    whole = (folder / SHARD).read_bytes()
    (folder / SHARD).write_bytes(whole[: len(whole) // 2])


def damage_index(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text("{")


def drop_from_index(folder: Path) -> None:
    file = folder / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    index["weight_map"] = {name: shard for name, shard in index["weight_map"].items() if shard != SHARD}
    file.write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove_shard, SHARD),
        (cut_shard, "SafetensorError"),
        (damage_index, "JSONDecodeError: Expecting property name"),
        (drop_from_index, "of the model's weights"),
    ],
)
def test_damaged_shards_are_one_line(damage: Callable[[Path], None], message: str, sharded: Path) -> None:
    damage(sharded)
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(sharded)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bin_of_the_transformer_that_needs_unpickling_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"has no model.safetensors and no pytorch_model.bin"):
        load_checkpoint(folder)
    torch.save({"embeddings.word_embeddings.weight": torch.zeros(2), "hook": print}, folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="holds more than weights, or is damaged; unpickling stays off") as caught:
        load_checkpoint(folder)
    assert "\n" not in str(caught.value)
