"""The encoders of the Sentence-BERT paper's table 7, in the shapes of their papers, with random weights.

Weights decide no speed, so none are needed. Dimension letters: B texts of a batch, T tokens of the longest, D width.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sentport.scheduler import BatchPolicy, computed_tokens, plan_batches
from sentport.tokenizer import Tokenizer

Vectors = NDArray[np.float32]

GLOVE_DIM = 300
ROWS = 32
_WORD = re.compile(r"\w+|[^\w\s]")
_LONGEST = 128
_BUCKETS = 100_000
_PAD = 0


class Encoder(Protocol):
    """Texts to vectors.

    Attributes:
        grouping: How it groups texts, in a few words.
        computed: Tokens that the last call computed, pads included; None where it has no batches.
    """

    grouping: str
    computed: int | None

    def __call__(self, texts: Sequence[str]) -> Vectors:
        """``[N, D]``."""
        ...


class AverageGlove:
    """The mean of word vectors: a loop over words with a dictionary and NumPy, as the paper says it did it.

    Args:
        texts: What it will be asked for: all their words have vectors.
    """

    grouping = "one by one"
    computed: int | None = None

    def __init__(self, texts: Sequence[str]) -> None:
        draw = np.random.default_rng(1)
        words = dict.fromkeys(word for text in texts for word in split_words(text))
        self.vectors = {word: draw.standard_normal(GLOVE_DIM, np.float32) for word in words}

    def __call__(self, texts: Sequence[str]) -> Vectors:
        """``[N, 300]``."""
        return np.stack([self._mean(text) for text in texts])

    def _mean(self, text: str) -> NDArray[np.float32]:
        known = [self.vectors[word] for word in split_words(text) if word in self.vectors]
        return np.mean(known, axis=0) if known else np.zeros(GLOVE_DIM, np.float32)


class InferSent(nn.Module):
    """A BiLSTM of 2048 a direction over GloVe vectors, maximum over the words (Conneau et al. 2017): 4096 numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(_BUCKETS, GLOVE_DIM)
        self.lstm = nn.LSTM(GLOVE_DIM, 2048, batch_first=True, bidirectional=True)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """``[B, 4096]`` of ids ``[B, T]``; rows are sorted by length, as its own code does."""
        packed = nn.utils.rnn.pack_padded_sequence(self.words(ids), lengths.cpu(), batch_first=True)
        states, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True, padding_value=-1e9)
        highest: Tensor = states.max(dim=1).values
        return highest


class UniversalTransformer(nn.Module):
    """The transformer of the Universal Sentence Encoder (Cer et al. 2018): 6 layers of 512, summed over the words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(_BUCKETS, 512)
        self.places = nn.Embedding(_LONGEST, 512)
        layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """``[B, 512]`` of ids ``[B, T]``."""
        steps = torch.arange(ids.shape[1], device=ids.device)
        padding = steps >= lengths[:, None]  # [B, T]
        states = self.layers(self.words(ids) + self.places(steps), src_key_padding_mask=padding)  # [B, T, 512]
        summed: Tensor = states.masked_fill(padding[..., None], 0).sum(1) / lengths[:, None].sqrt()
        return summed


class DeepAverage(nn.Module):
    """Its other encoder: the mean of words and word pairs (Iyyer et al. 2015), four layers of 512 over it."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(_BUCKETS, 512, mode="mean")
        self.layers = nn.Sequential(*(part for _ in range(4) for part in (nn.Linear(512, 512), nn.Tanh())))

    def forward(self, ids: Tensor, starts: Tensor) -> Tensor:
        """``[B, 512]`` of the ids of all rows, laid end to end, and where each row starts."""
        vectors: Tensor = self.layers(self.words(ids, starts))
        return vectors


def split_words(text: str) -> list[str]:
    """Words and marks of a text, in lower case."""
    return _WORD.findall(text.lower())


class WordModel:
    """A model of words over batches: splitting, hashing and padding are part of each call.

    Args:
        model: ``InferSent`` or ``UniversalTransformer``.
        device: Where it runs.
        policy: How texts are grouped.
    """

    def __init__(self, model: nn.Module, device: str, policy: BatchPolicy) -> None:
        self.model, self.device, self.policy = model.to(device).eval(), device, policy
        self.grouping = f"{policy.value}, {ROWS} rows"
        self.computed: int | None = None

    def __call__(self, texts: Sequence[str]) -> Vectors:
        """``[N, D]``."""
        rows = [[hash_of(word) for word in split_words(text)][:_LONGEST] or [_PAD] for text in texts]
        lengths = np.array([len(row) for row in rows])
        batches = plan_batches(lengths, self.policy, rows_per_batch=ROWS)
        self.computed = computed_tokens(lengths, batches, "padded")
        with torch.inference_mode():
            return _restored(batches, [self._batch([rows[row] for row in batch]) for batch in batches])

    def _batch(self, rows: list[list[int]]) -> Vectors:
        order = sorted(range(len(rows)), key=lambda row: -len(rows[row]))
        lengths = torch.tensor([len(rows[row]) for row in order])
        ids = nn.utils.rnn.pad_sequence([torch.tensor(rows[row]) for row in order], batch_first=True)
        vectors = self.model(ids.to(self.device), lengths.to(self.device)).cpu().numpy()
        return _restored([np.array(order)], [vectors])


class PairModel:
    """``DeepAverage`` over texts: words and pairs of neighbours."""

    grouping = "all at once"
    computed: int | None = None

    def __init__(self, device: str) -> None:
        self.model, self.device = DeepAverage().to(device).eval(), device

    def __call__(self, texts: Sequence[str]) -> Vectors:
        """``[N, 512]``."""
        rows = []
        for text in texts:
            words = split_words(text) or [""]
            pairs = (f"{first} {second}" for first, second in pairwise(words))
            rows.append([hash_of(item) for item in (*words, *pairs)])
        starts = np.cumsum([0, *(len(row) for row in rows[:-1])])
        flat = torch.tensor([number for row in rows for number in row], device=self.device)
        with torch.inference_mode():
            vectors: Vectors = self.model(flat, torch.tensor(starts, device=self.device)).cpu().numpy()
        return vectors


def hash_of(word: str) -> int:
    """A word's row in a table of random vectors."""
    return crc32(word.encode()) % (_BUCKETS - 1) + 1


class BertBase:
    """BERT-base with the mean of its tokens, as Sentence-BERT has it.

    Args:
        tokenizer: ``tokenizer.json`` of an uncased BERT.
        device: Where it runs.
        policy: ``arrival``, or ``smart`` for the paper's smart batching.
        model: One made before; None = a new one.
    """

    def __init__(self, tokenizer: Path, device: str, policy: BatchPolicy, model: Any = None) -> None:
        self.model = model or bert_base().to(device)
        self.device, self.policy = device, policy
        self.grouping = f"{policy.value}, {ROWS} rows"
        self.computed: int | None = None
        self._tokenizer = Tokenizer.from_file(tokenizer, _LONGEST)

    def __call__(self, texts: Sequence[str]) -> Vectors:
        """``[N, 768]``."""
        tokens = self._tokenizer.encode(list(texts))
        batches = plan_batches(tokens.lengths, self.policy, rows_per_batch=ROWS)
        self.computed = computed_tokens(tokens.lengths, batches, "padded")
        with torch.inference_mode():
            return _restored(batches, [self._batch([tokens.rows[row] for row in batch]) for batch in batches])

    def _batch(self, rows: Sequence[Any]) -> Vectors:
        ids = nn.utils.rnn.pad_sequence([torch.as_tensor(row) for row in rows], batch_first=True)  # [B, T]
        mask = torch.arange(ids.shape[1]) < torch.tensor([len(row) for row in rows])[:, None]
        ids, mask = ids.to(self.device), mask.to(self.device)
        states = self.model(input_ids=ids, attention_mask=mask).last_hidden_state  # [B, T, 768]
        kept = mask[..., None].to(states.dtype)
        vectors: Vectors = ((states * kept).sum(1) / kept.sum(1)).cpu().numpy()
        return vectors


def bert_base(*, pairs: bool = False) -> Any:
    """BERT-base with random weights; with ``pairs`` it scores two texts at once, as a cross-encoder."""
    from transformers import BertConfig, BertForSequenceClassification, BertModel

    torch.manual_seed(1)
    if pairs:
        return BertForSequenceClassification(BertConfig(num_labels=1)).eval()
    return BertModel(BertConfig(), add_pooling_layer=False).eval()


def _restored(batches: Sequence[NDArray[Any]], parts: Sequence[Vectors]) -> Vectors:
    """Rows of batches back in the order of the texts."""
    found = np.empty((sum(len(batch) for batch in batches), parts[0].shape[1]), np.float32)
    for batch, vectors in zip(batches, parts, strict=True):
        found[batch] = vectors
    return found
