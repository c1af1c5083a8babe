"""A random encoder of one's own: its words are the data's, its first vectors those that are given."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from sentport.modeling.checkpoint import load_checkpoint
from training.fresh import make_fresh, read_word_vectors, vocabulary
from training.settings import Fresh
from training.tables import RecipeError

TEXTS = ["the cat sat", "the cat ran", "The dog ran on 日本"]
SMALL = Fresh(layers=2, width=32, heads=4, positions=24, vocabulary=60)


def test_vocabulary() -> None:
    words = vocabulary(TEXTS, 1000)
    assert words[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert {"c", "##c", "日"} <= set(words)
    assert words[-6:] == ["the", "cat", "ran", "dog", "on", "sat"], "frequent words come first, ties by name"
    fewer = vocabulary(TEXTS, len(words) - 4)
    assert fewer == words[:-4]
    assert len(set(words)) == len(words)


def test_a_fresh_base_loads_and_spells_what_it_does_not_know(tmp_path: Path) -> None:
    (tmp_path / "vectors.txt").write_text("cat 1 0\nthe 0 1\nunrelated 5 5\n dog -1 -1\nran -1 0\n")
    settings = Fresh(2, 32, 4, 24, 60, "vectors.txt")
    make_fresh(settings, TEXTS, tmp_path, 1, tmp_path / "fresh")
    checkpoint = load_checkpoint(tmp_path / "fresh", pooling="mean")
    assert (checkpoint.model.dim, checkpoint.spec.max_tokens) == (32, 24)
    ids = checkpoint.tokenizer("the ratcd")["input_ids"]
    assert checkpoint.tokenizer.convert_ids_to_tokens(ids) == ["[CLS]", "the", "r", "##a", "##t", "##c", "##d", "[SEP]"]
    make_fresh(settings, TEXTS, tmp_path, 1, tmp_path / "again")
    make_fresh(SMALL, TEXTS, tmp_path, 1, tmp_path / "random")
    tables = [
        load_checkpoint(tmp_path / name, pooling="mean").model.transformer.model.get_input_embeddings().weight
        for name in ("fresh", "again", "random")
    ]
    assert torch.equal(tables[0], tables[1])
    changed = (tables[0] != tables[2]).any(dim=1)
    row = checkpoint.tokenizer.convert_tokens_to_ids
    assert set(np.flatnonzero(changed.numpy())) == {row("cat"), row("the"), row("ran")}
    assert tables[0][changed].std().item() == pytest.approx(0.02, rel=0.5)


def test_word_vectors_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"word_vectors: .*no\.txt does not exist"):
        read_word_vectors(tmp_path / "no.txt", {"cat"})
    file = tmp_path / "v.txt"
    file.write_text("dog 1 2\ncat 1 x\n")
    with pytest.raises(RecipeError, match=r"v\.txt, line 2: .*expected numbers"):
        read_word_vectors(file, {"cat"})
    with pytest.raises(RecipeError, match=r"v\.txt, line 1: not finite"):
        file.write_text("cat 1 nan\n")
        read_word_vectors(file, {"cat"})
    with pytest.raises(RecipeError, match="has none of the data's words"):
        read_word_vectors(file, {"dog"})
    with pytest.raises(RecipeError, match=r"has vectors of \[1, 2\] values for the data's words"):
        file.write_text("cat 1 2\ndog 1\n")
        read_word_vectors(file, {"cat", "dog"})


def test_words_first_and_vectors_after(
    cli: Callable[..., tuple[int, str, str]], recipe_file: Callable[..., str], data: Path, tmp_path: Path
) -> None:
    """A fresh encoder learns words by the masked-word loss alone, and goes on to sentences from there."""
    words = Path(recipe_file("words", kind="masked_words"))
    base = words.read_text().split("\n")[1]
    fresh = 'pooling = "mean"\n[fresh]\nlayers = 2\nwidth = 32\npositions = 24\nvocabulary = 60\n'
    words.write_text(
        words.read_text().replace(base, fresh).replace("steps = 6", "steps = 30").replace("every = 2", "every = 15")
    )
    vectors = Path(recipe_file("vectors"))
    vectors.write_text(vectors.read_text().replace(base, f'after = "{words}"'))
    out = tmp_path / "out"
    code, _, said = cli("train", str(words), "--data", str(data), "--out", str(out), "--threads", "1")
    assert code == 0, said
    assert "it starts at random" in said
    curve = json.loads((out / "training.json").read_text())["seeds"][0]["curve"]
    assert curve[-1]["loss"] < curve[0]["loss"]
    assert {"alignment", "uniformity"} <= set(curve[0])
    assert cli("train", str(vectors), "--data", str(data), "--out", str(out), "--force", "-q", "--threads", "1")[0] == 0
    assert load_checkpoint(out).model.dim == 32
