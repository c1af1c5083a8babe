"""A small encoder with random weights to start from, its vocabulary taken from the data, word vectors projected in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import normalizers, pre_tokenizers
from transformers import BertConfig, BertModel, BertTokenizerFast

from sentport.files import folder_written_aside
from training.save import no_progress_bar
from training.settings import Fresh
from training.tables import RecipeError
from training.views import start_noise

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_FEED_FORWARD = 4  # times the width, as in BERT

Vectors = dict[str, NDArray[np.float32]]


def make_fresh(settings: Fresh, texts: Iterable[str], data: Path, seed: int, out: Path) -> None:
    """Write a plain BERT folder.

    Args:
        settings: Its size, and where word vectors are from.
        texts: What the vocabulary is taken from.
        data: The folder that the file of word vectors lies under.
        seed: Of the weights.
        out: The folder to make.

    Raises:
        RecipeError: When the file of word vectors cannot be read.
    """
    words = vocabulary(texts, settings.vocabulary)
    vectors = {} if settings.word_vectors is None else read_word_vectors(data / settings.word_vectors, set(words))
    start_noise(seed)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=settings.width,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        intermediate_size=_FEED_FORWARD * settings.width,
        max_position_embeddings=settings.positions,
    )
    model = BertModel(config, add_pooling_layer=False)
    if vectors:
        _project_in(vectors, words, model.get_input_embeddings().weight, config.initializer_range)
    with folder_written_aside(out) as aside:
        file = aside / "vocab.txt"
        file.write_text("\n".join(words), encoding="utf-8")
        BertTokenizerFast(vocab=str(file), model_max_length=settings.positions).save_pretrained(aside)
        with no_progress_bar():
            model.save_pretrained(aside)


def vocabulary(texts: Iterable[str], size: int) -> list[str]:
    """Special tokens, every letter alone and within a word, then the most frequent words, up to ``size`` in all.

    A word that is not there is spelt, so no text has an unknown token whose letters have been seen.
    """
    lower, split = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(word for word, _ in split.pre_tokenize_str(lower.normalize_str(text)))
    letters = sorted({letter for word in counts for letter in word})
    start = dict.fromkeys([*_SPECIAL, *letters, *(f"##{letter}" for letter in letters)])
    by_frequency = sorted((word for word in counts if word not in start), key=lambda word: (-counts[word], word))
    return [*start, *by_frequency[: max(0, size - len(start))]]


def read_word_vectors(file: Path, wanted: set[str] | None = None) -> Vectors:
    """Vectors of the wanted words, or of all, from a text file in GloVe's form.

    Each line is a word and its numbers, separated by spaces.

    Raises:
        RecipeError: When it cannot be read, a line is not of that form, or it has none of the words.
    """
    if not file.is_file():
        raise RecipeError(f"fresh.word_vectors: {file} does not exist; --data names the folder that it lies under")
    found: Vectors = {}
    with file.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            word, *values = line.rstrip().split(" ")
            if wanted is not None and word not in wanted:
                continue
            try:
                found[word] = np.array(values, np.float32)
            except ValueError as error:
                raise RecipeError(f"fresh.word_vectors: {file}, line {number}: {error}; expected numbers") from error
            if not np.isfinite(found[word]).all():
                raise RecipeError(f"fresh.word_vectors: {file}, line {number}: not finite; expected finite numbers")
    widths = {len(vector) for vector in found.values()}
    if not found:
        raise RecipeError(f"fresh.word_vectors: {file} has none of the data's words; expected word, then numbers")
    if len(widths) != 1 or widths == {0}:
        raise RecipeError(f"fresh.word_vectors: {file} has vectors of {sorted(widths)} values for the data's words")
    return found


def _project_in(vectors: Vectors, words: list[str], table: torch.Tensor, deviation: float) -> None:
    """Put words' vectors into the rows ``[V, H]`` of an embedding table, mapped at random, spread as its other rows."""
    rows = [row for row, word in enumerate(words) if word in vectors]
    known = torch.from_numpy(np.stack([vectors[words[row]] for row in rows]))  # [K, D]
    known = (known - known.mean(dim=0)) / known.std()
    mapped = known @ torch.randn(known.shape[1], table.shape[1]) / known.shape[1] ** 0.5  # [K, H]
    with torch.no_grad():
        table[rows] = mapped * deviation
