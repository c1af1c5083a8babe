"""Reading checkpoint folders: both config generations, limits, and everything that is refused by name."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import WORDS, build_checkpoint, build_transformer, save_tokenizer

from sentport.errors import CheckpointError
from sentport.modeling.checkpoint import load_checkpoint


@pytest.fixture
def folder(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_checkpoint, tmp_path / "model"))


def edit(path: Path, **changes: Any) -> None:
    values = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({key: value for key, value in {**values, **changes}.items() if value != "DROP"}))


def test_reads_what_sentence_transformers_saved(tiny_checkpoint: Path) -> None:
    checkpoint = load_checkpoint(tiny_checkpoint)
    spec = checkpoint.spec
    assert (spec.dim, spec.max_tokens, spec.similarity, spec.architecture) == (24, 48, "cosine", "bert")
    assert [module["type"] for module in spec.modules] == ["Transformer", "Pooling", "Dense", "Dense", "Normalize"]
    assert spec.prompts["query"] == "the cat "
    assert spec.default_prompt is None
    assert not checkpoint.model.training
    assert {parameter.dtype for parameter in checkpoint.model.parameters()} == {torch.float32}


def test_older_config_generation_means_the_same(folder: Path, tiny_checkpoint: Path) -> None:
    for number, entry in enumerate(modules := json.loads((folder / "modules.json").read_text())):
        kind = entry["type"].rpartition(".")[2]
        modules[number]["type"] = f"sentence_transformers.models.{kind}"
    (folder / "modules.json").write_text(json.dumps(modules))
    old = {"word_embedding_dimension": 32, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(old))
    dense = torch.nn.Linear(24, 24, bias=False)
    from safetensors.torch import load_file

    weights = load_file(folder / "3_Dense" / "model.safetensors")
    dense.load_state_dict({"weight": weights["linear.weight"]})
    torch.save(weights, folder / "3_Dense" / "pytorch_model.bin")
    (folder / "3_Dense" / "model.safetensors").unlink()
    assert load_checkpoint(folder).spec.fingerprint == load_checkpoint(tiny_checkpoint).spec.fingerprint


def test_weights_hash_is_of_the_values_not_of_the_file(folder: Path, tiny_checkpoint: Path) -> None:
    from transformers import BertModel

    before = load_checkpoint(tiny_checkpoint)
    state = BertModel.from_pretrained(folder, add_pooling_layer=False).state_dict()
    (folder / "model.safetensors").unlink()
    torch.save(state, folder / "pytorch_model.bin")
    after = load_checkpoint(folder)
    assert after.spec.weights_sha256 == before.spec.weights_sha256
    assert any("weights-only" in remark for remark in after.remarks)


@pytest.mark.parametrize(
    ("saved", "tokenizer", "limit", "source"),
    [
        (20, 40, 20, "max_seq_length in sentence_bert_config.json"),
        (50, 40, 50, "max_seq_length in sentence_bert_config.json"),
        ("DROP", 40, 40, "model_max_length in tokenizer_config.json"),
        ("DROP", 10**30, 64, "max_position_embeddings in config.json"),
        ("DROP", 512, 64, "max_position_embeddings in config.json"),
    ],
)
def test_length_limit_names_its_source(folder: Path, saved: Any, tokenizer: int, limit: int, source: str) -> None:
    edit(folder / "sentence_bert_config.json", max_seq_length=saved)
    edit(folder / "tokenizer_config.json", model_max_length=tokenizer)
    spec = load_checkpoint(folder).spec
    assert (spec.max_tokens, spec.max_tokens_source) == (limit, source)


def test_limit_over_the_position_table_is_capped_and_said(folder: Path) -> None:
    edit(folder / "sentence_bert_config.json", max_seq_length=512)
    checkpoint = load_checkpoint(folder)
    assert checkpoint.spec.max_tokens == 64
    assert any("is 512, but the position table has room for 64" in remark for remark in checkpoint.remarks)


def test_do_lower_case_is_honoured(folder: Path) -> None:
    edit(folder / "tokenizer_config.json", do_lower_case=False)
    for name in ("tokenizer.json",):
        definition = json.loads((folder / name).read_text())
        definition["normalizer"]["lowercase"] = False
        (folder / name).write_text(json.dumps(definition))
    from sentport.tokenizer import Tokenizer

    def ids() -> list[int]:
        return Tokenizer(load_checkpoint(folder).tokenizer_definition, 16).encode(["CAT"]).rows[0].tolist()

    assert ids() == [2, 1, 3]
    edit(folder / "sentence_bert_config.json", do_lower_case=True)
    assert ids() == [2, 7, 3]


REFUSED = [
    ("1_Pooling/config.json", {"layer": 3}, "has layer: not supported yet"),
    ("1_Pooling/config.json", {"pooling_mode": []}, "asks for pooling (none)"),
    ("2_Dense/config.json", {"activation_function": "torch.nn.PReLU"}, "has weights of its own"),
    ("2_Dense/config.json", {"activation_function": None}, "activation None; expected a class of torch.nn"),
    (
        "2_Dense/config.json",
        {"activation_function": "torch.nn.GLU"},
        "expected one without arguments that keeps the width",
    ),
    ("2_Dense/config.json", {"activation_function": "torch.nn.LayerNorm"}, "expected one without arguments"),
    ("config_sentence_transformers.json", {"truncate_dim": "5"}, "is '5'; expected a number of values"),
    ("config_sentence_transformers.json", {"prompts": {"query": "\ud800"}}, "expected texts by name"),
    ("config_sentence_transformers.json", {"default_prompt_name": "", "prompts": {"": "a"}}, "whose name is empty"),
    ("2_Dense/config.json", {"out_features": "DROP"}, "cannot be read as a checkpoint (KeyError"),
    ("config.json", {"vocab_size": 20}, "cannot be loaded"),
    ("config.json", {"attention_type": "block_sparse"}, "its vectors depend on what came before"),
    ("config_sentence_transformers.json", {"model_type": "CrossEncoder"}, "is a CrossEncoder"),
    ("config_sentence_transformers.json", {"prompts": ["a"]}, "expected texts by name"),
    ("config_sentence_transformers.json", {"default_prompt_name": "none"}, "which is not among its prompts"),
    ("adapter_config.json", {"peft_type": "LORA"}, "merge it into the model"),
    (
        "sentence_bert_config.json",
        {"modality_config": {"text": {"method": "forward", "method_output_name": "pooler_output"}}},
        "modality_config=",
    ),
    ("1_Pooling/config.json", {"pooling_mode": "median"}, "asks for pooling median; supported: cls, max, mean"),
    ("1_Pooling/config.json", {"embedding_dimension": 31}, "pools vectors of 31"),
    ("2_Dense/config.json", {"activation_function": "my_code.Swish"}, "activation 'my_code.Swish'"),
    ("2_Dense/config.json", {"activation_function": "torch.nn.functional.relu"}, "expected a class of torch.nn"),
    ("2_Dense/config.json", {"in_features": 16}, "takes vectors of 16"),
    (
        "2_Dense/config.json",
        {"module_input_name": "token_embeddings", "module_output_name": None},
        "on token vectors, after pooling",
    ),
    ("2_Dense/config.json", {"module_input_name": "all_layer_embeddings"}, "module_input_name='all_layer_embeddings'"),
    ("2_Dense/config.json", {"module_output_name": "token_embeddings"}, "module_output_name='token_embeddings'"),
    ("2_Dense/config.json", {"scale": 2}, "has scale: not supported yet"),
    ("4_Normalize/config.json", {"p": 1}, "has p: not supported yet"),
    ("config.json", {"model_type": "gpt2"}, "lacks 28 of the model's weights"),
    ("config.json", {"auto_map": {"AutoModel": "code.Model"}}, "remote code stays off"),
    ("config.json", {"is_decoder": True}, "expected an encoder"),
    ("config.json", {"position_embedding_type": "relative_key"}, "'relative_key', which transformers"),
    ("sentence_bert_config.json", {"model_args": {"torch_dtype": "bfloat16"}}, "model_args="),
    ("tokenizer_config.json", {"truncation_side": "left"}, "only the right is supported"),
    ("tokenizer_config.json", {"split_special_tokens": True}, "splits special tokens that stand in a text"),
    ("sentence_bert_config.json", {"max_seq_length": "many"}, "max_seq_length in sentence_bert_config.json is 'many'"),
    ("sentence_bert_config.json", {"processing_kwargs": {"text": {"max_length": 9}}}, "processing_kwargs="),
    ("sentence_bert_config.json", {"tokenizer_args": {"model_max_length": 9}}, "tokenizer_args="),
    ("sentence_bert_config.json", {"tokenizer_name_or_path": "other"}, "tokenizer_name_or_path='other'"),
    ("sentence_bert_config.json", {"query_length": 9}, "query_length=9"),
]


@pytest.mark.parametrize(("file", "changes", "message"), REFUSED)
def test_what_would_be_dropped_is_refused_by_name(
    folder: Path, file: str, changes: dict[str, Any], message: str
) -> None:
    edit(folder / file, **changes)
    with pytest.raises(CheckpointError, match=re.escape(message)):
        load_checkpoint(folder)


@pytest.mark.parametrize(
    "kind",
    [
        *(f"sentence_transformers.models.{name}" for name in ("WordWeights", "Router", "CNN", "LSTM", "BoW", "Asym")),
        "sentence_transformers.sentence_transformer.modules.static_embedding.StaticEmbedding",
        "my.own.Module",
    ],
)
def test_unknown_module_is_refused_by_name(folder: Path, kind: str) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    modules.insert(2, {"idx": 2, "name": "2", "path": "2_Own", "type": kind})
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(CheckpointError, match=f"is module {kind.rpartition('.')[2] if kind[0] == 's' else kind}"):
        load_checkpoint(folder)


def test_pickled_weights_are_refused(folder: Path) -> None:
    (folder / "2_Dense" / "model.safetensors").unlink()
    torch.save({"linear.weight": torch.zeros(24, 32), "hook": print}, folder / "2_Dense" / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="holds more than weights"):
        load_checkpoint(folder)


def test_missing_weights_are_refused_not_made_up(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    weights.pop("encoder.layer.1.output.dense.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"lacks 1 of the model's weights \(encoder.layer.1.output.dense.weight"):
        load_checkpoint(folder)


@pytest.mark.parametrize("kind", ["roberta", "xlnet"])
def test_older_names_of_the_settings_file_count(folder: Path, kind: str) -> None:
    (folder / "sentence_bert_config.json").unlink()
    edit(folder / f"sentence_{kind}_config.json", max_seq_length=8)
    assert load_checkpoint(folder).spec.max_tokens == 8


@pytest.mark.parametrize("path", ["../1_Pooling", "/1_Pooling"])
def test_module_outside_of_the_folder_is_refused(folder: Path, path: str) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["path"] = path
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(CheckpointError, match="lies outside of it"):
        load_checkpoint(folder)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", "{", "cannot be read (Expecting property name"),
        ("config.json", "[1]", "holds a list; expected a dict"),
        ("modules.json", '{"0": {}}', "holds a dict; expected a list"),
        ("modules.json", '[{"path": "1"}]', "has the entry {'path': '1'}; expected a module with its type"),
        ("modules.json", "[]", "starts with nothing; expected sentence-transformers' Transformer"),
        ("modules.json", '[{"type": "own.Transformer", "path": ""}]', "starts with own.Transformer; expected"),
        ("sentence_bert_config.json", '"a"', "holds a str; expected a dict"),
        ("1_Pooling/config.json", "\x00", "cannot be read ("),
        ("tokenizer_config.json", "[]", "holds a list; expected a dict"),
    ],
)
def test_damaged_files_are_one_line(folder: Path, file: str, content: str, message: str) -> None:
    (folder / file).write_text(content)
    with pytest.raises(CheckpointError, match=re.escape(message)) as caught:
        load_checkpoint(folder)
    assert "\n" not in str(caught.value)


def test_damaged_and_infinite_weights_are_one_line(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    weights["encoder.layer.0.output.dense.bias"][3] = float("inf")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="weights that are not finite"):
        load_checkpoint(folder)
    (folder / "model.safetensors").write_bytes(b"short")
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(folder)
    assert "\n" not in str(caught.value)


def test_half_weights_and_unknown_similarity_are_told(folder: Path) -> None:
    edit(folder / "config.json", dtype="bfloat16")
    edit(folder / "config_sentence_transformers.json", similarity_fn_name="dot_product")
    checkpoint = load_checkpoint(folder)
    assert checkpoint.spec.similarity == "cosine"
    assert any("saved as bfloat16; they are computed in fp32" in remark for remark in checkpoint.remarks)
    assert any("'dot_product' is unknown" in remark for remark in checkpoint.remarks)


def test_missing_dense_is_refused(folder: Path) -> None:
    (folder / "2_Dense" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no model\.safetensors and no pytorch_model\.bin"):
        load_checkpoint(folder)
    shutil.rmtree(folder / "2_Dense")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_checkpoint(folder)


def test_pooling_options_belong_to_plain_checkpoints(tiny_checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="leave --pooling out"):
        load_checkpoint(tiny_checkpoint, pooling="mean")
    with pytest.raises(CheckpointError, match="would change the model"):
        load_checkpoint(tiny_checkpoint, normalize=False)
    plain = build_transformer(tmp_path / "plain")
    with pytest.raises(CheckpointError, match="--pooling asks for pooling median"):
        load_checkpoint(plain, pooling="median")
    assert not load_checkpoint(plain, pooling="cls+mean", normalize=False).spec.normalized
    assert load_checkpoint(plain, pooling="cls+mean").spec.dim == 64


def test_normalize_can_be_added(tmp_path: Path) -> None:
    folder = build_checkpoint(tmp_path / "raw", normalize=False)
    assert not load_checkpoint(folder).spec.normalized
    assert load_checkpoint(folder, normalize=True).spec.normalized


def test_bundle_is_not_a_checkpoint(tiny_bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is a bundle"):
        load_checkpoint(tiny_bundle)
    with pytest.raises(CheckpointError, match="cannot be fetched from the hub"):
        load_checkpoint("nobody/no-such-model")


def test_a_pooler_that_is_always_called_is_no_obstacle(tmp_path: Path) -> None:
    """SqueezeBERT and LayoutLM call theirs without asking whether it is there; it takes no part in the vectors."""
    from transformers import SqueezeBertConfig, SqueezeBertModel

    config = SqueezeBertConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        embedding_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    model = SqueezeBertModel(config).eval()
    model.save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    checkpoint = load_checkpoint(tmp_path, pooling="mean", normalize=False)
    ids = torch.tensor([[2, 7, 8, 3]])
    with torch.inference_mode():
        expected = model(ids).last_hidden_state.mean(dim=1)
        torch.testing.assert_close(checkpoint.model(ids, torch.ones_like(ids)), expected)
