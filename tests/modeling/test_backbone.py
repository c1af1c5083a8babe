"""The transformer behind one signature: what is known of it, what is refused, and that pads and company do nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from architectures import ARCHITECTURES, TOKENS, Architecture
from conftest import build_transformer

from sentport.errors import CheckpointError
from sentport.modeling.backbone import Backbone, SingleTextTypes
from sentport.modeling.checkpoint import load_checkpoint

# Room in the position table; None = relative or rotary positions.
POSITIONS = {
    **dict.fromkeys(("deberta-v3", "xlnet", "modernbert", "nomic_bert", "eurobert")),
    **dict.fromkeys(("bert", "minilm", "distilbert", "electra", "albert", "deberta-v2"), TOKENS),
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert", "mpnet"), TOKENS),  # of TOKENS + 2 rows
}
HAS_TOKEN_TYPES = {"bert", "minilm", "electra", "albert", "deberta-v2", "nomic_bert"}


@pytest.fixture(scope="module", params=ARCHITECTURES, ids=lambda architecture: architecture.name)
def architecture(request: pytest.FixtureRequest) -> Architecture:
    return request.param


@pytest.fixture(scope="module")
def folder(architecture: Architecture, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return architecture.save(tmp_path_factory.mktemp(architecture.name) / "plain")


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_neither_company_nor_ids_under_the_mask_move_a_row(
    architecture: Architecture, folder: Path, attention: str
) -> None:
    checkpoint = load_checkpoint(folder, pooling="cls+mean", normalize=False, attention=attention)
    model, backbone = checkpoint.model, checkpoint.model.transformer
    assert backbone.positions == POSITIONS[architecture.name]
    assert backbone.uses_token_types == (architecture.name in HAS_TOKEN_TYPES)
    random = torch.Generator().manual_seed(0)
    ids = torch.randint(0, backbone.vocabulary, (4, 40), generator=random)  # the pad's id among them
    lengths = torch.tensor([40, 17, 3, 0])
    mask = (torch.arange(40) < lengths[:, None]).to(torch.int64)
    types = torch.randint(0, max(backbone.token_types, 1), (4, 40), generator=random)
    with torch.inference_mode():
        together = model(ids, mask, types)
        for row, length in enumerate(lengths.tolist()[:3]):
            alone = model(*(table[row : row + 1, :length] for table in (ids, mask, types)))[0]
            assert torch.allclose(together[row], alone, atol=1e-5), f"row {row}"
        garbage = torch.where(mask == 1, ids, (ids + 7) % backbone.vocabulary)
        assert torch.allclose(model(garbage, mask, types), together, atol=1e-6)
        assert not together[3].any(), "a row with no token pools to zeros"
        if backbone.uses_token_types:
            assert not torch.allclose(model(ids, mask, (types + 1) % 2)[:3], together[:3], atol=1e-3)


def test_hidden_states_by_layer(folder: Path) -> None:
    backbone = load_checkpoint(folder, pooling="cls").model.transformer
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    with torch.inference_mode():
        first, last, before = backbone(ids, torch.ones_like(ids), layers=(0, -1, -2))
        (alone,) = backbone(ids, torch.ones_like(ids))
    assert torch.equal(last, alone)
    assert first.shape == before.shape == last.shape == (1, 5, backbone.hidden_size)
    assert not torch.allclose(before, last, atol=1e-3)
    assert not torch.allclose(first, before, atol=1e-3)


def test_types_of_a_single_text_by_hand() -> None:
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    types = SingleTextTypes(head=(5,), text=1, tail=(0, 2)).of(mask)
    assert types[0].tolist() == [5, 1, 1, 0, 2]
    assert types[1, :3].tolist() == [5, 0, 2]


def test_tokenizer_decides_the_types_of_a_single_text(tmp_path: Path) -> None:
    """A BERT whose tokenizer gives a single text type 1: the graph gives it itself, and takes no types."""
    plain = build_transformer(tmp_path / "plain")
    definition = json.loads((plain / "tokenizer.json").read_text())
    for piece in definition["post_processor"]["single"]:
        next(iter(piece.values()))["type_id"] = 1
    (plain / "tokenizer.json").write_text(json.dumps(definition))
    config = json.loads((plain / "tokenizer_config.json").read_text())
    config |= {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": ["input_ids", "token_type_ids"]}
    (plain / "tokenizer_config.json").write_text(json.dumps(config))
    backbone = load_checkpoint(plain, pooling="cls").model.transformer
    assert not backbone.uses_token_types
    ids = torch.tensor([[2, 7, 8, 3]])
    with torch.inference_mode():
        (found,) = backbone(ids, torch.ones_like(ids))
        wanted = backbone.model(input_ids=ids, token_type_ids=torch.ones_like(ids)).last_hidden_state
    assert torch.allclose(found, wanted, atol=1e-6)


TINY = {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
VISION = {name: value for name, value in TINY.items() if name != "vocab_size"}
REFUSED = {
    "llama": ("LlamaConfig", {**TINY, "pad_token_id": 0}, "is a decoder \\(llama"),
    "qwen3": ("Qwen3Config", {**TINY, "num_key_value_heads": 2, "head_dim": 8}, "is a decoder \\(qwen3"),
    "gpt2": ("GPT2Config", {"vocab_size": 30, "n_embd": 16, "n_layer": 1, "n_head": 2}, "is a decoder \\(gpt2"),
    "t5": ("T5Config", {"vocab_size": 30, "d_model": 16, "num_layers": 1, "num_heads": 2}, "is an encoder-decoder"),
    "vit": ("ViTConfig", {**VISION, "image_size": 8, "patch_size": 4}, "'vit' model, which does not read text alone"),
    "clip": ("CLIPConfig", {}, "'clip' model, which does not read text alone"),
    "causal-bert": ("BertConfig", {**TINY, "is_decoder": True}, r"is a decoder \(is_decoder in config.json"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_text_encoder_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    name, values, reason = REFUSED[kind]
    plain = build_transformer(tmp_path / "plain")  # for its tokenizer
    config = getattr(transformers, name)(**values)
    config.save_pretrained(plain)
    if "decoder \\(" in reason:  # told by the model itself, not by its configuration
        transformers.AutoModel.from_config(config).save_pretrained(plain)
    with pytest.raises(CheckpointError, match=reason):
        load_checkpoint(plain, pooling="cls")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_type": "nobodys-bert"}, "is a 'nobodys-bert' model, which transformers .* does not know"),
        ({"position_embedding_type": "relative_key"}, "has position_embedding_type 'relative_key'"),
    ],
)
def test_configuration_that_would_give_another_model_is_refused(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    plain = build_transformer(tmp_path / "plain")
    config = json.loads((plain / "config.json").read_text())
    (plain / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(CheckpointError, match=reason):
        load_checkpoint(plain, pooling="cls")


def test_any_other_encoder_takes_the_plain_mask() -> None:
    """No list of architectures stands in front of the gate."""
    config = transformers.BertConfig(**TINY)
    config.model_type = "a-new-encoder"
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    backbone, ids = Backbone(model), torch.tensor([[4, 5, 6, 7]])
    with torch.inference_mode():
        (padded,) = backbone(ids, torch.tensor([[1, 1, 0, 0]]))
        (alone,) = backbone(ids[:, :2], torch.ones(1, 2, dtype=torch.int64))
    assert torch.allclose(padded[:, :2], alone, atol=1e-6)
