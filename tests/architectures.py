"""Tiny random encoders of every architecture, each with a small fast tokenizer of its family's own class."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

WORDS = ("the", "a", "cat", "dog", "sat", "ran", "on", "in", "red", "park")
CHARACTERS = tuple("abcdefghijklmnopqrstuvwxyz.,!é日本")
TOKENS = 512  # every model has room for so many tokens


@dataclass(frozen=True)
class Architecture:
    """How to make one: configuration class, tokenizer, and what differs from the usual names of sizes."""

    name: str
    config: str
    tokenizer: Callable[[], Any]
    sizes: dict[str, Any] = field(default_factory=dict)

    @property
    def layers(self) -> int:
        return self.sizes.get("num_hidden_layers") or 2

    def save(self, folder: Path) -> Path:
        """Write a plain Hugging Face folder: random weights, two layers of width 32."""
        tokenizer = self.tokenizer()
        usual = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
        sizes = {**usual, "max_position_embeddings": TOKENS, "initializer_range": 0.2, **self.sizes}
        kept = {name: value for name, value in sizes.items() if value is not None}
        special = {
            f"{name}_token_id": getattr(tokenizer, f"{name}_token_id")
            for name in ("pad", "bos", "eos")
            if getattr(tokenizer, f"{name}_token_id") is not None
        }
        config = getattr(transformers, self.config)(vocab_size=len(tokenizer), **special, **kept)
        torch.manual_seed(0)
        transformers.AutoModel.from_config(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder


def word_pieces(kind: str, special: tuple[str, ...]) -> Callable[[], Any]:
    def make() -> Any:
        pieces = dict.fromkeys([*special, *WORDS, *CHARACTERS, *(f"##{letter}" for letter in CHARACTERS)])
        return getattr(transformers, kind)(vocab={piece: n for n, piece in enumerate(pieces)}, model_max_length=TOKENS)

    return make


def byte_pairs() -> dict[str, int]:
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    pieces = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet()), "th", "the", "at"]
    return {piece: n for n, piece in enumerate(pieces)}


MERGES = [("t", "h"), ("th", "e"), ("a", "t")]


def roberta_tokenizer() -> Any:
    return transformers.RobertaTokenizer(vocab=byte_pairs(), merges=MERGES, model_max_length=TOKENS)


def modern_tokenizer() -> Any:
    """No class of its own: a tokenizer.json, as ModernBERT's and others' come."""
    pieces = byte_pairs()
    fast = Tokenizer(models.BPE(vocab=pieces, merges=MERGES))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.post_processor = processors.BertProcessing(("</s>", pieces["</s>"]), ("<s>", pieces["<s>"]))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=fast,
        cls_token="<s>",
        sep_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        mask_token="<mask>",
        model_max_length=TOKENS,
        model_input_names=["input_ids", "attention_mask"],
    )


def sentence_pieces(kind: str, special: tuple[str, ...]) -> Callable[[], Any]:
    def make() -> Any:
        pieces = [(piece, 0.0) for piece in special]
        pieces += [(f"▁{word}", -2.0) for word in WORDS]
        pieces += [("▁", -4.0), *((letter, -5.0) for letter in CHARACTERS)]
        return getattr(transformers, kind)(vocab=pieces, model_max_length=TOKENS)

    return make


_BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_ROBERTA = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
_XLNET = ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>")
_bert_tokenizer = word_pieces("BertTokenizer", _BERT)
_padded_table = {"max_position_embeddings": TOKENS + 2, "type_vocab_size": 1}

ARCHITECTURES = (
    Architecture("bert", "BertConfig", _bert_tokenizer),
    # The multilingual kind: a BERT whose tokenizer, XLM-R's, emits no token types.
    Architecture(
        "minilm",
        "BertConfig",
        sentence_pieces("XLMRobertaTokenizer", _ROBERTA),
        {"num_attention_heads": 12, "hidden_size": 48},
    ),
    Architecture("roberta", "RobertaConfig", roberta_tokenizer, _padded_table),
    Architecture("xlm-roberta", "XLMRobertaConfig", sentence_pieces("XLMRobertaTokenizer", _ROBERTA), _padded_table),
    Architecture(
        "camembert",
        "CamembertConfig",
        sentence_pieces("CamembertTokenizer", _ROBERTA),
        _padded_table,
    ),
    Architecture(
        "distilbert",
        "DistilBertConfig",
        word_pieces("DistilBertTokenizer", _BERT),
        {
            **dict.fromkeys(("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")),
            **{"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
        },
    ),
    Architecture(
        "mpnet",
        "MPNetConfig",
        word_pieces("MPNetTokenizer", ("<s>", "<pad>", "</s>", "[UNK]", "<mask>")),
        {"max_position_embeddings": TOKENS + 2},
    ),
    Architecture("electra", "ElectraConfig", word_pieces("ElectraTokenizer", _BERT), {"embedding_size": 16}),
    Architecture(
        "albert",
        "AlbertConfig",
        sentence_pieces("AlbertTokenizer", ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")),
        {"embedding_size": 16},
    ),
    Architecture(
        "deberta-v3",
        "DebertaV2Config",
        sentence_pieces("DebertaV2Tokenizer", ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]")),
        {
            "relative_attention": True,
            "position_buckets": 64,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "pos_att_type": ["p2c", "c2p"],
            "position_biased_input": False,
            "type_vocab_size": 0,
        },
    ),
    Architecture(
        "deberta-v2",
        "DebertaV2Config",
        sentence_pieces("DebertaV2Tokenizer", ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]")),
        {
            "relative_attention": True,
            "max_relative_positions": 32,
            "pos_att_type": ["p2c", "c2p"],
            "conv_kernel_size": 3,
            "type_vocab_size": 2,
        },
    ),
    Architecture(
        "xlnet",
        "XLNetConfig",
        sentence_pieces("XLNetTokenizer", _XLNET),
        {
            **dict.fromkeys(("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")),
            **{"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64, "max_position_embeddings": None},
        },
    ),
    Architecture(
        "modernbert",
        "ModernBertConfig",
        modern_tokenizer,
        {"local_attention": 16, "global_attn_every_n_layers": 2},
    ),
    Architecture("nomic_bert", "NomicBertConfig", _bert_tokenizer),
    Architecture("eurobert", "EuroBertConfig", modern_tokenizer, {"num_key_value_heads": 2}),
)
