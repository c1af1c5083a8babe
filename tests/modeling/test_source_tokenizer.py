"""Tokenizers of every age: vocabulary files converted with equal ids, preprocessing carried over, the rest refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from unicodedata import is_normalized

import numpy as np
import pytest
import torch
from architectures import MERGES, byte_pairs, sentence_pieces
from conftest import WORDS, build_transformer
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Transformer
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from tokenizers import normalizers
from transformers import AutoTokenizer, BertConfig, BertModel, PreTrainedTokenizerFast
from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

from export.conformance import check_tokenizer
from export.texts import PARITY_TEXTS, adversarial_lines
from sentport.encoder import Encoder
from sentport.errors import CheckpointError
from sentport.modeling.checkpoint import load_checkpoint
from sentport.modeling.source_tokenizer import load_tokenizer, plain_definition
from sentport.tokenizer import Tokenizer

LINES = [*PARITY_TEXTS, *(line for line in adversarial_lines(300) if len(line) < 1000), "CAT É é the日本cat [MASK]ing"]


def folder_of(folder: Path, kind: str, files: dict[str, str], **config: Any) -> Path:
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def ours(folder: Path, lower_case: bool = False) -> Tokenizer:
    return Tokenizer(plain_definition(load_tokenizer(folder, lower_case)), 64)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"do_lower_case": False},
        {"strip_accents": False},
        {"do_lower_case": False, "strip_accents": True},
        {"tokenize_chinese_chars": False},
    ],
    ids=str,
)
def test_vocab_txt_alone_is_converted_with_equal_ids(options: dict[str, Any], tmp_path: Path) -> None:
    """Against the one that sentence-transformers makes of the folder, and against the slow tokenizer itself.

    The latter on printable texts: on control characters and unassigned ones slow and fast never were of one mind.
    """
    letters = [f"{mark}{letter}" for letter in "abcdefghijklmnopqrstuvwxyzABCÉèü語本" for mark in ("", "##")]
    files = {"vocab.txt": "\n".join(dict.fromkeys([*WORDS, *letters]))}
    folder = folder_of(tmp_path / "bert", "bert", files, **options)
    mine = ours(folder)
    check_tokenizer(mine, AutoTokenizer.from_pretrained(folder), 64, LINES)
    slow = BertTokenizerLegacy(str(folder / "vocab.txt"), **options)
    printable = [text for text in (*PARITY_TEXTS, LINES[-1]) if text.isprintable()]
    assert mine.encode_whole(printable) == [slow(text)["input_ids"] for text in printable]


@pytest.mark.parametrize("prefix", [False, True])
def test_vocab_json_and_merges_are_converted_with_equal_ids(prefix: bool, tmp_path: Path) -> None:
    files = {"vocab.json": json.dumps(byte_pairs()), "merges.txt": "\n".join(["#version: 0.2", "t h", "th e", "a t"])}
    folder = folder_of(tmp_path / "roberta", "roberta", files, add_prefix_space=prefix)
    mine = ours(folder)
    check_tokenizer(mine, AutoTokenizer.from_pretrained(folder), 64, LINES)
    piece = byte_pairs()
    assert mine.encode_whole(["the"])[0] == [0, *([piece["Ġ"]] if prefix else []), piece["the"], 2]
    assert len(MERGES) == 3


def test_sentencepiece_alone_is_converted_with_equal_ids(tmp_path: Path) -> None:
    """Against sentencepiece itself, whose ids XLM-R shifts by one to make room for its own special tokens.

    On composed text: of a letter with its accent apart, the fast tokenizer, which sentence-transformers uses as well,
    makes something else than sentencepiece.
    """
    corpus, folder = tmp_path / "corpus.txt", folder_of(tmp_path / "xlmr", "xlm-roberta", {})
    corpus.write_text("\n".join(text for text in PARITY_TEXTS * 5 if text.strip()), encoding="utf-8")
    model = folder / "sentencepiece.bpe"
    SentencePieceTrainer.train(
        input=str(corpus), model_prefix=str(model), vocab_size=400, hard_vocab_limit=False, minloglevel=2
    )
    mine = ours(folder)
    check_tokenizer(mine, AutoTokenizer.from_pretrained(folder), 64, LINES)
    pieces = SentencePieceProcessor(model_file=f"{model}.model")
    printable = [text for text in PARITY_TEXTS if text.isprintable() and is_normalized("NFKC", text)]
    source = [
        [0, *(3 if piece == pieces.unk_id() else piece + 1 for piece in row), 2] for row in pieces.encode(printable)
    ]
    assert mine.encode_whole(printable) == source
    assert max(map(len, source)) > 20


def test_sentencepiece_files_name_their_package_where_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sentport.modeling.source_tokenizer.find_spec", lambda name: None)
    folder = folder_of(tmp_path / "model", "xlnet", {"spiece.model": "x"})
    with pytest.raises(CheckpointError, match=r"only spiece\.model; reading it needs pip install sentencepiece"):
        load_tokenizer(folder, lower_case=False)


@pytest.mark.parametrize(
    ("kind", "files", "config", "message"),
    [
        ("bert", {}, {}, "has no tokenizer: BertTokenizer needs tokenizer.json or vocab.txt"),
        (
            "roberta",
            {"vocab.txt": "a"},
            {},
            "has no tokenizer: RobertaTokenizer needs tokenizer.json or vocab.json and",
        ),
        ("roberta", {"vocab.json": '{"a": 0}'}, {}, "cannot be loaded (ValueError: `vocab` and `merges`"),
        ("xlm-roberta", {"sentencepiece.bpe.model": "x"}, {}, "cannot be loaded ("),
        ("xlnet", {"spiece.model": "x"}, {}, "cannot be loaded ("),
        (
            "bert",
            {"vocab.txt": "a"},
            {"tokenizer_class": "CanineTokenizer"},
            "is CanineTokenizer, which has no fast form",
        ),
        ("bert", {"tokenizer.json": "{"}, {}, "cannot be loaded ("),
    ],
)
def test_what_cannot_be_converted_is_refused_by_name(
    kind: str, files: dict[str, str], config: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path / "model", kind, files, **config)
    with pytest.raises(CheckpointError, match=re.escape(message)) as caught:
        load_tokenizer(folder, lower_case=False)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("where", ["tokenizer_config.json", "tokenizer.json"])
def test_cutting_on_the_left_is_refused(where: str, tmp_path: Path) -> None:
    folder = build_transformer(tmp_path / "plain")
    changes = {
        "tokenizer_config.json": {"truncation_side": "left"},
        "tokenizer.json": {
            "truncation": {"direction": "Left", "max_length": 64, "strategy": "LongestFirst", "stride": 0}
        },
    }[where]
    (folder / where).write_text(json.dumps({**json.loads((folder / where).read_text()), **changes}))
    if where == "tokenizer.json":  # the saved configuration would go before it
        config = json.loads((folder / "tokenizer_config.json").read_text())
        config.pop("truncation_side", None)
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="cuts long texts on the left"):
        load_tokenizer(folder, lower_case=False)


@pytest.mark.parametrize(
    "normalizer",
    [
        None,
        normalizers.Lowercase(),
        normalizers.NFKC(),
        normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]),
        normalizers.BertNormalizer(lowercase=True),
        normalizers.BertNormalizer(lowercase=False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_do_lower_case_is_what_sentence_transformers_makes_of_it(normalizer: Any, tmp_path: Path) -> None:
    plain = build_transformer(tmp_path / "plain")
    fast = PreTrainedTokenizerFast.from_pretrained(plain)
    fast.backend_tokenizer.normalizer = normalizer
    fast.save_pretrained(plain)
    config = json.loads((plain / "tokenizer_config.json").read_text())
    (plain / "tokenizer_config.json").write_text(json.dumps({**config, "tokenizer_class": "PreTrainedTokenizerFast"}))
    source = Transformer(str(plain), do_lower_case=True).tokenizer
    check_tokenizer(ours(plain, lower_case=True), source, 64, LINES)
    found = load_tokenizer(plain, lower_case=True).backend_tokenizer.normalizer
    assert str(found) == str(source.backend_tokenizer.normalizer)


def test_bert_with_a_tokenizer_that_gives_no_token_types(tmp_path: Path) -> None:
    """As multilingual-e5-small has it: BERT behind an XLM-R tokenizer."""
    tokenizer = sentence_pieces("XLMRobertaTokenizer", ("<s>", "<pad>", "</s>", "<unk>", "<mask>"))()
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    torch.manual_seed(0)
    config = BertConfig(vocab_size=len(tokenizer), pad_token_id=1, initializer_range=0.2, **sizes)
    plain = tmp_path / "plain"
    BertModel(config, add_pooling_layer=False).save_pretrained(plain)
    tokenizer.save_pretrained(plain)
    source = SentenceTransformer(
        modules=[Transformer(str(plain), max_seq_length=64), Pooling(32, "mean")], device="cpu"
    )
    source.save(str(tmp_path / "saved"))
    assert "token_type_ids" not in source.tokenizer("a")
    texts = ["the cat sat", "red dog on the park", "日本 é a"]
    with Encoder(tmp_path / "saved", engine="torch") as encoder:
        assert np.abs(encoder.encode(texts) - source.encode(texts)).max() < 1e-5


def test_padding_on_the_left_is_told_and_changes_no_vector(tmp_path: Path) -> None:
    plain = build_transformer(tmp_path / "plain")
    config = json.loads((plain / "tokenizer_config.json").read_text())
    (plain / "tokenizer_config.json").write_text(json.dumps({**config, "padding_side": "left"}))
    SentenceTransformer(modules=[Transformer(str(plain)), Pooling(32, "mean")], device="cpu").save(
        str(tmp_path / "left")
    )
    checkpoint = load_checkpoint(tmp_path / "left")
    assert any("pads on the left" in remark for remark in checkpoint.remarks)
    source = SentenceTransformer(str(tmp_path / "left"), device="cpu")
    texts = ["the cat", "a red dog ran in the park ."]
    with Encoder(tmp_path / "left", engine="torch") as encoder:
        alone = np.concatenate([source.encode([text]) for text in texts])
        assert np.abs(encoder.encode(texts) - alone).max() < 1e-5
