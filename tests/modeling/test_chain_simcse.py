"""SimCSE checkpoints in the authors' layouts: poolers, and a head that configuration or flag decides on (recipe 11)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from architectures import ARCHITECTURES
from conftest import build_transformer
from safetensors.torch import load_file, save_file
from transformers import AutoModel

from sentport.errors import CheckpointError
from sentport.modeling.checkpoint import load_checkpoint
from sentport.modeling.simcse import pooling_name

IDS, MASK = torch.tensor([[2, 6, 7, 9, 3], [2, 8, 3, 0, 0]]), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
SIGN_FLIP = {"weight": -torch.eye(32), "bias": torch.zeros(32)}
WAYS = r"cls_before_pooler \(unsupervised: without the head\) or --pooling cls_after_pooler \(supervised: with it\)"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_transformer(tmp_path_factory.mktemp("plain") / "plain")


def save(plain: Path, folder: Path, layout: str, prefix: str = "bert", **config: object) -> Path:
    """The plain model and a head that flips signs, as SimCSE's training, or its converter, saves them."""
    folder.mkdir()
    for file in plain.iterdir():
        if file.suffix != ".safetensors":
            (folder / file.name).write_bytes(file.read_bytes())
    weights = load_file(plain / "model.safetensors")
    if layout == "own":
        weights = {f"{prefix}.{name}": weight for name, weight in weights.items()}
    head = "mlp.dense" if layout == "own" else "pooler.dense"
    weights.update({f"{head}.{name}": weight for name, weight in SIGN_FLIP.items()})
    if layout == "safetensors":
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    else:
        torch.save(weights, folder / "pytorch_model.bin")
    values = json.loads((folder / "config.json").read_text())
    values["architectures"] = ["BertForCL" if layout == "own" else "BertModel"]
    (folder / "config.json").write_text(json.dumps({**values, **config}))
    return folder


@torch.inference_mode()
def vectors(folder: Path, pooling: str | None = None) -> torch.Tensor:
    model = load_checkpoint(folder, pooling=pooling, normalize=False).model
    return model(IDS, MASK)


@pytest.fixture(scope="module")
def hidden(plain: Path) -> tuple[torch.Tensor, ...]:
    with torch.inference_mode():
        model = AutoModel.from_pretrained(plain, add_pooling_layer=False).eval()
        return tuple(model(IDS, attention_mask=MASK, output_hidden_states=True).hidden_states)


def mean(tokens: torch.Tensor) -> torch.Tensor:
    return torch.stack([tokens[0].mean(dim=0), tokens[1, :3].mean(dim=0)])


@pytest.mark.parametrize("layout", ["own", "converted", "safetensors"])
def test_flag_decides_on_the_head(plain: Path, tmp_path: Path, hidden: tuple[torch.Tensor, ...], layout: str) -> None:
    folder = save(plain, tmp_path / "sup-simcse-bert", layout)
    cls = hidden[-1][:, 0]
    torch.testing.assert_close(vectors(folder, "cls_before_pooler"), cls)
    torch.testing.assert_close(vectors(folder, "cls_after_pooler"), torch.tanh(-cls))
    if layout != "own":
        torch.testing.assert_close(
            vectors(folder, "cls_after_pooler"),
            AutoModel.from_pretrained(folder)(IDS, attention_mask=MASK).pooler_output.detach(),
        )


def test_head_of_a_roberta(tmp_path: Path) -> None:
    plain = next(one for one in ARCHITECTURES if one.name == "roberta").save(tmp_path / "plain")
    folder = save(plain, tmp_path / "model", "own", prefix="roberta")
    before = vectors(plain, "cls")
    torch.testing.assert_close(vectors(folder, "cls_before_pooler"), before)
    torch.testing.assert_close(vectors(folder, "cls_after_pooler"), torch.tanh(-before))


@pytest.mark.parametrize(
    ("config", "pooling"),
    [
        ({"pooler_type": "cls"}, "cls_after_pooler"),
        ({"pooler_type": "cls", "mlp_only_train": True}, "cls_before_pooler"),
        ({"pooler_type": "cls_before_pooler"}, "cls_before_pooler"),
        ({"pooler_type": "avg"}, "mean"),
        ({"pooler_type": "avg_top2"}, "avg_top2"),
    ],
)
def test_saved_configuration_decides_on_the_head(
    plain: Path, tmp_path: Path, config: dict[str, object], pooling: str
) -> None:
    folder = save(plain, tmp_path / "model", "own", **config)
    spec = load_checkpoint(folder).spec
    assert pooling_name(spec.modules) == pooling
    assert spec.normalized
    assert load_checkpoint(folder, pooling=pooling).spec.fingerprint == spec.fingerprint
    with pytest.raises(CheckpointError, match="says itself how to pool"):
        load_checkpoint(folder, pooling="max")


def test_neither_is_refused_with_both_ways(plain: Path, tmp_path: Path) -> None:
    own, converted = save(plain, tmp_path / "unsup-simcse", "own"), save(plain, tmp_path / "sup-simcse", "converted")
    with pytest.raises(CheckpointError, match=f"does not say whether it takes part; say --pooling {WAYS}"):
        load_checkpoint(own)
    with pytest.raises(CheckpointError, match=f"does not say how to pool.*for SimCSE --pooling {WAYS}"):
        load_checkpoint(converted)
    with pytest.raises(CheckpointError, match=f"--pooling cls could mean two things; say --pooling {WAYS}"):
        load_checkpoint(own, pooling="cls")
    with pytest.raises(CheckpointError, match="has pooler_type 'clss' in config"):
        load_checkpoint(save(plain, tmp_path / "typo", "own", pooler_type="clss"))
    with pytest.raises(CheckpointError, match=r"has no head \(mlp.dense.weight or pooler.dense.weight\)"):
        load_checkpoint(plain, pooling="cls_after_pooler")


def test_averages_of_layers(plain: Path, hidden: tuple[torch.Tensor, ...]) -> None:
    torch.testing.assert_close(vectors(plain, "avg_first_last"), mean((hidden[1] + hidden[-1]) / 2))
    torch.testing.assert_close(vectors(plain, "avg_top2"), mean((hidden[-2] + hidden[-1]) / 2))


@pytest.mark.parametrize("pooling", ["avg_first_last", "avg_top2", "cls_after_pooler", "cls_before_pooler", "max+mean"])
def test_a_bundle_records_enough_to_load_the_same_again(plain: Path, tmp_path: Path, pooling: str) -> None:
    folder = save(plain, tmp_path / "model", "own")
    assert pooling_name(load_checkpoint(folder, pooling=pooling).spec.modules) == pooling


def test_head_that_needs_unpickling_is_refused(plain: Path, tmp_path: Path) -> None:
    folder = save(plain, tmp_path / "model", "own")
    held = torch.load(folder / "pytorch_model.bin", weights_only=True)
    torch.save({**held, "hook": print}, folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="holds more than weights"):
        load_checkpoint(folder, pooling="cls_after_pooler")
