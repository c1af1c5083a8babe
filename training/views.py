"""From the tokens of a batch to the vectors of its views, with every dropout mask reproducible."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from sentport.batch import TokenBatch
from sentport.modeling.chain import Dense, Normalize
from sentport.modeling.sentence_model import SentenceModel
from sentport.scheduler import plan_batches
from sentport.tokenizer import Tokens, join_tokens
from training.batches import Batch, Rows
from training.recipe import Recipe
from training.settings import Head
from training.tables import RecipeError

logger = logging.getLogger(__name__)

_HEAD_DEVIATION = 0.02  # of the head's first weights, as BERT's
_WHOLE = 2**62  # a token budget that holds any batch
# Views share a pass as long as that adds less padding than a greater matrix gains: 16 pairs of STS-B trained 1.2 times
# as fast so, on two CPU cores.
_PADDING_OF_COMPANY = 1.1


class Tower(nn.Module):
    """Tokens to vectors in training: the model, and the head that is not kept.

    Args:
        model: What is trained and saved.
        head: What stands on it in training only.
        bf16: Matrix products in bfloat16.
    """

    def __init__(self, model: SentenceModel, head: nn.Module, bf16: bool) -> None:
        super().__init__()
        self.model, self.head, self._bf16 = model, head, bf16

    def forward(self, tokens: Tokens) -> Tensor:
        """B rows of tokens to ``[B, D]`` float32."""
        device = next(self.parameters()).device
        ids, mask, types, pooled = (torch.from_numpy(table).to(device) for table in _rectangle(tokens))  # [B, L] each
        used = types if self.model.uses_token_types else None, pooled if self.model.uses_pooling_mask else None
        with torch.autocast(device.type, torch.bfloat16, enabled=self._bf16):
            vectors: Tensor = self.head(self.model(ids, mask, *used))  # [B, D]
        return vectors.float()


class Views(nn.Module):
    """The encoder of every view: one for all, or one for the first and another for the others.

    Args:
        model: What is trained and saved: the first view's encoder.
        recipe: How views are made.
        process: Which process this is; each has dropout masks of its own.
    """

    def __init__(self, model: SentenceModel, recipe: Recipe, process: int = 0) -> None:
        super().__init__()
        start_noise(recipe.training.seed)
        head = make_head(model.dim) if recipe.head is Head.TRAINING else nn.Identity()
        first = Tower(model, head, recipe.training.bf16)
        self.towers = nn.ModuleList([first, copy.deepcopy(first)] if recipe.views.dual_encoder else [first])
        self._budget = recipe.training.pass_tokens or _WHOLE
        self._same_mask = recipe.views.fixed_mask
        self._key = (recipe.training.seed, process)

    @property
    def model(self) -> SentenceModel:
        """What is trained and saved."""
        return cast(Tower, self.towers[0]).model

    def forward(self, batch: Batch) -> list[Tensor]:
        """The vectors ``[N, D]`` of each view."""
        order, vectors = zip(*self.passes(batch), strict=True)
        places = torch.from_numpy(np.argsort(np.concatenate(order)))
        return list(torch.cat(vectors)[places].chunk(len(batch.views)))

    def passes(self, batch: Batch) -> Iterator[tuple[Rows, Tensor]]:
        """Pass after pass of at most the token budget: B rows and their vectors ``[B, D]``.

        Rows are counted through the views: row r of view k is k * N + r. A pass draws its dropout masks from its own
        key, so that a second walk over the same batch repeats the first.
        """
        size = len(batch.views[0].rows)
        for views in self._companies(batch.views):
            tower = self.towers[min(views.start, len(self.towers) - 1)]
            tokens = join_tokens(batch.views[views.start : views.stop])
            for number, rows in enumerate(plan_batches(tokens.lengths, token_budget=self._budget)):
                start_noise(*self._key, batch.number, 0 if self._same_mask else views.start, number)
                yield views.start * size + rows, tower(tokens.take(rows))

    def _companies(self, views: Sequence[Tokens]) -> Iterator[range]:
        """Neighbouring views that pass through an encoder together; each alone where they are to share a mask."""
        start, padded = 0, _padded(views[0])
        for end in range(1, len(views)):
            apart = padded + _padded(views[end])
            together = _padded(join_tokens(views[start : end + 1]))
            other_tower = len(self.towers) > 1 and end == 1
            if self._same_mask or other_tower or together > _PADDING_OF_COMPANY * apart:
                yield range(start, end)
                start, padded = end, _padded(views[end])
            else:
                padded = together
        yield range(start, len(views))


def start_noise(*key: int) -> None:
    """Draw all that torch draws from here on from these numbers alone."""
    torch.manual_seed(int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0]))


def make_head(dim: int) -> Dense:
    """SimCSE's head: a linear layer of the same width, and tanh."""
    head = Dense(dim, dim, True, nn.Tanh())
    nn.init.normal_(head.linear.weight, std=_HEAD_DEVIATION)
    nn.init.zeros_(head.linear.bias)
    return head


def with_head(model: SentenceModel) -> SentenceModel:
    """The model with SimCSE's head in its chain, before a last Normalize."""
    chain = list(model.chain)
    end = len(chain) - isinstance(chain[-1], Normalize)
    return SentenceModel(model.transformer, [*chain[:end], make_head(model.dim), *chain[end:]])  # type: ignore[list-item]


def set_dropout(model: nn.Module, rate: float | None) -> float:
    """Set every dropout rate of a model; None leaves them. Returns the greatest one in force.

    Architectures hold a rate in a Dropout module or, for attention, in a number of their own.

    Raises:
        RecipeError: When a rate is asked for and the model has nothing to set.
    """
    greatest, found = 0.0, False
    for module in model.modules():
        names = ["p"] if isinstance(module, nn.Dropout) else [n for n, v in vars(module).items() if _is_rate(n, v)]
        for name in names:
            found = True
            if rate is not None:
                setattr(module, name, rate)
            greatest = max(greatest, float(getattr(module, name)))
    if rate and not found:
        raise RecipeError(f"views.dropout is {rate}, but the base has no dropout layer")
    return greatest


def _is_rate(name: str, value: object) -> bool:
    return "dropout" in name and isinstance(value, float)


def warn_if_equal(recipe: Recipe, dropout: float) -> None:
    """Say so when nothing tells the two views of a sentence apart."""
    views = recipe.views
    if views.crop or views.delete or views.dual_encoder:
        return
    if dropout == 0 or views.fixed_mask:
        why = "views.fixed_mask gives both one dropout mask" if views.fixed_mask else "dropout is off"
        logger.warning("both views of a sentence are equal (%s): only the negatives teach anything", why)


def _padded(tokens: Tokens) -> int:
    return len(tokens.rows) * int(tokens.lengths.max())


def _rectangle(tokens: Tokens) -> tuple[Rows, Rows, Rows, Rows]:
    return TokenBatch.from_rows(tokens.rows, tokens.unpooled).padded()
