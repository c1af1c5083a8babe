"""The masked-language-model loss: some tokens are hidden, and found again by the encoder (Devlin et al. 2019)."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedTokenizerFast

from sentport.batch import TokenBatch
from sentport.modeling.weights import read_weights
from sentport.scheduler import plan_batches
from sentport.tokenizer import Tokens
from training.batches import Batch
from training.devices import Devices
from training.recipe import Recipe
from training.tables import RecipeError
from training.views import Views, start_noise

logger = logging.getLogger(__name__)

_NOT_MASKED = -100  # a target that cross-entropy leaves out
_NOISE = 10**6  # a key no view has
_PASS_TOKENS = 4096  # padded tokens of one pass, where the recipe does not say
# Where BERT and RoBERTa keep the parts of their own head.
_SAVED = (
    {
        "dense": "cls.predictions.transform.dense.",
        "norm": "cls.predictions.transform.LayerNorm.",
        "bias": "cls.predictions.",
    },
    {"dense": "lm_head.dense.", "norm": "lm_head.layer_norm.", "bias": "lm_head."},
)


@dataclass(frozen=True)
class Words:
    """What masking knows of a vocabulary: its size, the mask's id, and the ids that are never masked."""

    size: int
    mask: int
    special: frozenset[int]

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerFast, size: int) -> Words:
        """A tokenizer's.

        Raises:
            RecipeError: When it has no mask token.
        """
        if tokenizer.mask_token_id is None:
            raise RecipeError("masked_words needs a tokenizer with a mask token, which the base's has not")
        return cls(size, int(tokenizer.mask_token_id), frozenset(tokenizer.all_special_ids))


class WordHead(nn.Module):
    """Hidden states to a score for every token of the vocabulary; the last layer is the embedding table itself."""

    def __init__(self, embeddings: nn.Embedding, hidden: int) -> None:
        super().__init__()
        if embeddings.embedding_dim != hidden:
            raise RecipeError(
                f"masked_words needs word embeddings as wide as the hidden states; the base has "
                f"{embeddings.embedding_dim} and {hidden}"
            )
        self.dense = nn.Linear(hidden, hidden)
        self.norm = nn.LayerNorm(hidden, eps=1e-12)
        self.bias = nn.Parameter(torch.zeros(embeddings.num_embeddings))
        self._embeddings = (embeddings,)  # in a tuple: its weights are the encoder's, not another parameter

    def forward(self, hidden: Tensor) -> Tensor:
        """``[M, H]`` to ``[M, vocabulary]``."""
        found: Tensor = self.norm(functional.gelu(self.dense(hidden)))
        return functional.linear(found, self._embeddings[0].weight, self.bias)

    def load(self, folder: Path) -> bool:
        """Take over the head that a checkpoint was trained with; False when it has none."""
        for names in _SAVED:
            held = read_weights(folder, tuple(names.values()))
            if f"{names['dense']}weight" in held:
                for part in ("dense", "norm"):
                    module: nn.Module = getattr(self, part)
                    module.load_state_dict({end: held[names[part] + end] for end in ("weight", "bias")})
                self.bias.data.copy_(held[f"{names['bias']}bias"])
                return True
        return False


def mask_words(
    tokens: Tokens, words: Words, share: float, draw: np.random.Generator
) -> tuple[Tokens, list[NDArray[np.int64]]]:
    """Hide a share of the tokens: of those 80 % become the mask, 10 % any token, 10 % stay.

    Returns:
        The rows with hidden tokens, and for each row the ids to be found, -100 where there is nothing to find.
    """
    rows, targets = [], []
    for row in tokens.rows:
        chosen = draw.random(len(row)) < share
        chosen &= ~np.isin(row, list(words.special))
        fate = draw.random(len(row))
        hidden = np.where(chosen & (fate < 0.8), words.mask, row)
        rows.append(np.where(chosen & (fate >= 0.9), draw.integers(words.size, size=len(row)), hidden))
        targets.append(np.where(chosen, row, _NOT_MASKED))
    return Tokens(rows, tokens.full_lengths, tokens.unpooled), targets


class MaskedWordsLoss:
    """The gradient of weight * (mean cross-entropy over the hidden tokens of a batch's first view).

    Args:
        views: What encodes.
        head: Scores the vocabulary.
        words: The vocabulary.
        recipe: Weight and share, seed and size of a pass.
        devices: Over whose tokens the mean is taken.
    """

    def __init__(self, views: Views, head: WordHead, words: Words, recipe: Recipe, devices: Devices) -> None:
        assert recipe.word_loss is not None
        self.head = head
        self._model = views.model
        self._words, self._settings, self._devices = words, recipe.word_loss, devices
        self._seed, self._budget = recipe.training.seed, recipe.training.pass_tokens or _PASS_TOKENS

    def add_gradients(self, batch: Batch, scale: float) -> float:
        """Add ``scale`` times the gradient, pass by pass; returns this process's part of the loss."""
        key = (self._seed, self._devices.process, batch.number, _NOISE)
        rows, targets = mask_words(batch.views[0], self._words, self._settings.share, np.random.default_rng(key))
        device = self._devices.device
        own = torch.tensor([sum(int((row != _NOT_MASKED).sum()) for row in targets)], device=device)
        count = self._devices.gather(own).sum().clamp(min=1)
        total = 0.0
        for number, place in enumerate(plan_batches(rows.lengths, token_budget=self._budget)):
            start_noise(*key, number)
            some = [targets[row] for row in place]
            loss = self._cross_entropy(rows.take(place), some) * self._settings.weight * scale / count
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.item())
        return total

    def _cross_entropy(self, tokens: Tokens, targets: list[NDArray[np.int64]]) -> Tensor:
        """The sum over the hidden tokens of B rows."""
        device = self._devices.device
        ids, mask, types, _ = (
            torch.from_numpy(table).to(device) for table in TokenBatch.from_rows(tokens.rows).padded()
        )
        model = self._model
        (hidden,) = model.transformer(ids, mask, types if model.uses_token_types else None)  # [B, L, H]
        wanted = torch.from_numpy(np.concatenate(targets)).to(device)  # [T]
        at = wanted != _NOT_MASKED
        scores = self.head(hidden[mask > 0][at])  # [T, H] to [M, vocabulary]
        return functional.cross_entropy(scores, wanted[at], reduction="sum")
