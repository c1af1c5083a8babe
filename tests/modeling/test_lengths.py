"""The length limit: every source of it, the position table's true size, and the same vectors as the source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from architectures import ARCHITECTURES
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Transformer

from sentport.encoder import Encoder
from sentport.errors import CheckpointError
from sentport.modeling.checkpoint import load_checkpoint

NO_LIMIT = 10**30
UNIT = {"roberta": "a", "mpnet": "a ", "bert": "a ", "xlnet": "a "}  # one token each, beside the special ones
UNITS = {"roberta": "th", "mpnet": "cat ", "bert": "cat "}


def save(name: str, folder: Path, *, max_seq_length: int | None = None, **tokenizer: Any) -> Path:
    """A tiny model of 512 usable positions as sentence-transformers saves it; then its tokenizer's settings changed."""
    plain = next(found for found in ARCHITECTURES if found.name == name).save(folder.with_name(f"{name}-plain"))
    first = Transformer(str(plain))
    SentenceTransformer(modules=[first, Pooling(32, "mean")], device="cpu").save(str(folder))
    edit(folder / "tokenizer_config.json", **tokenizer)
    edit(folder / "sentence_bert_config.json", max_seq_length=max_seq_length)
    return folder


def edit(file: Path, **changes: Any) -> None:
    values = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))


@pytest.mark.parametrize("stated", [512, NO_LIMIT])
@pytest.mark.parametrize("name", ["roberta", "mpnet"])
def test_table_of_514_has_room_for_512(name: str, stated: int, tmp_path: Path) -> None:
    folder = save(name, tmp_path / name, model_max_length=stated)
    texts = [UNITS[name] * 40 + UNIT[name] * (tokens - 42) for tokens in (512, 513, 514, 2000)]
    source = SentenceTransformer(str(folder), device="cpu")
    assert source.get_max_seq_length() == min(stated, 514)
    source.max_seq_length = 512  # at 514, which it takes where the tokenizer states no limit, it fails
    with Encoder(folder, engine="torch", on_truncate="allow") as encoder:
        counts = encoder.tokenize(texts)
        assert counts.used.tolist() == [512] * 4
        assert counts.full.tolist() == [512, 513, 514, 2000]
        assert np.abs(encoder.encode(texts) - source.encode(texts)).max() < 1e-5
    checkpoint = load_checkpoint(folder)
    assert checkpoint.spec.max_tokens == 512
    capped = [remark for remark in checkpoint.remarks if "the position table has room for 512" in remark]
    assert bool(capped) == (stated == NO_LIMIT)


@pytest.mark.parametrize(
    ("saved", "stated", "limit", "source"),
    [
        (256, 512, 256, "max_seq_length in sentence_bert_config.json"),
        (None, 300, 300, "model_max_length in tokenizer_config.json"),
        (None, NO_LIMIT, 512, "max_position_embeddings in config.json"),
    ],
)
def test_four_sources_and_the_one_that_wins(
    saved: int | None, stated: int, limit: int, source: str, tmp_path: Path
) -> None:
    """tokenizer.json says 128 throughout; the last 50 of 200 tokens decide what the text means."""
    folder = save("bert", tmp_path / "bert", max_seq_length=saved, model_max_length=stated)
    truncation = {"direction": "Right", "max_length": 128, "strategy": "LongestFirst", "stride": 0}
    edit(folder / "tokenizer.json", truncation=truncation)
    text = "the cat sat on the " * 30
    texts = [text + "red dog ran in " * 12, text + "park a cat " * 16, "a " * 600]
    theirs = SentenceTransformer(str(folder), device="cpu")
    assert theirs.get_max_seq_length() == limit
    checkpoint = load_checkpoint(folder)
    assert (checkpoint.spec.max_tokens, checkpoint.spec.max_tokens_source) == (limit, source)
    assert any("tokenizer.json itself cuts at 128 tokens" in remark for remark in checkpoint.remarks)
    with Encoder(folder, engine="torch", on_truncate="allow") as encoder:
        ours = encoder.encode(texts)
        assert encoder.tokenize(texts).used.tolist() == [200, 200, limit]
    assert np.abs(ours - theirs.encode(texts)).max() < 1e-5
    assert np.abs(ours[0] - ours[1]).max() > 1e-2


def test_a_limit_is_asked_for_where_nothing_states_one(tmp_path: Path) -> None:
    folder = save("xlnet", tmp_path / "xlnet", model_max_length=NO_LIMIT)
    with pytest.raises(CheckpointError, match=r"nothing in the checkpoint limits .* give the limit with --max-tokens"):
        load_checkpoint(folder)
    spec = load_checkpoint(folder, max_tokens=700).spec
    assert (spec.max_tokens, spec.max_tokens_source) == (700, "--max-tokens")


def test_limit_asked_for_goes_before_the_saved_one_but_not_over_the_table(tmp_path: Path) -> None:
    folder = save("bert", tmp_path / "bert", max_seq_length=128)
    assert load_checkpoint(folder, max_tokens=300).spec.max_tokens == 300
    with pytest.raises(CheckpointError, match="--max-tokens is 513, but the position table has room for 512"):
        load_checkpoint(folder, max_tokens=513)
    with pytest.raises(CheckpointError, match="--max-tokens is 0; expected a number of tokens"):
        load_checkpoint(folder, max_tokens=0)
