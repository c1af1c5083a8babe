"""Which examples form which batch: grouped by length, and a function of the seed and the batch's number alone.

Nothing of it has to be saved: a run that resumes at batch n asks for batch n.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sentport.scheduler import BatchPolicy, plan_batches
from sentport.tokenizer import Tokens
from training.data import Example
from training.settings import ViewSettings
from training.tables import RecipeError

# Batches that are sorted by length together: enough for little padding, few enough to leave the order random.
_WINDOW = 50

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """One process's share of a batch.

    Attributes:
        number: Counted from the start of training.
        views: N rows of tokens for each text of an example.
        targets: ``[N]`` cosines (float32), numbers of labels (int64), or None.
    """

    number: int
    views: tuple[Tokens, ...]
    targets: Tensor | None


class Batches:
    """The batches of a training, by number.

    Args:
        examples: All examples.
        tokenize: Texts to tokens.
        size: Examples of a batch, over all processes.
        seed: Of the order.
        views: How a sentence that stands alone becomes two views.
        two_views: Whether a sentence that stands alone is seen twice.
        process: Which process this is.
        processes: How many share a batch.

    Raises:
        RecipeError: When there are fewer examples than a batch has, or the processes cannot share one evenly.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        tokenize: Callable[[Sequence[str]], Tokens],
        size: int,
        seed: int,
        views: ViewSettings,
        *,
        two_views: bool,
        process: int = 0,
        processes: int = 1,
    ) -> None:
        if len(examples) < size:
            raise RecipeError(
                f"training.batch_size is {size}, but the data has {len(examples)} examples; expected no more than that"
            )
        if size % processes:
            raise RecipeError(f"training.batch_size is {size}, which {processes} processes cannot share evenly")
        self._examples, self._tokenize, self._size, self._seed, self._views = examples, tokenize, size, seed, views
        self._two_views = two_views
        self._process, self._processes = process, processes
        columns = list(zip(*(example.texts for example in examples), strict=True))
        self._columns = [tokenize(column) for column in columns]
        self._order = _size_order(np.stack([column.lengths for column in self._columns]))  # [examples]
        self._planned: tuple[int, list[Rows]] = (-1, [])

    @property
    def per_epoch(self) -> int:
        """Batches of an epoch; what is left over, another part of the data in each epoch, is not used."""
        return len(self._examples) // self._size

    def __getitem__(self, number: int) -> Batch:
        epoch, place = divmod(number, self.per_epoch)
        if self._planned[0] != epoch:
            self._planned = (epoch, self._plan(epoch))
        # Rows of similar length stand beside each other, so every process gets the same mix.
        rows = self._planned[1][place][self._process :: self._processes]
        views = [column.take(rows) for column in self._columns]
        if self._two_views:
            views.append(self._second_view(number, rows) if self._augments else views[0])
        return Batch(number, tuple(views), self._targets(rows))

    @property
    def _augments(self) -> bool:
        return bool(self._views.crop or self._views.delete)

    def _plan(self, epoch: int) -> list[Rows]:
        """The epoch's batches: examples in random order, sorted by length within windows, batches shuffled again."""
        draw = np.random.default_rng([self._seed, epoch])
        order = draw.permutation(len(self._examples))[: self.per_epoch * self._size]
        batches: list[Rows] = []
        for start in range(0, len(order), _WINDOW * self._size):
            window = order[start : start + _WINDOW * self._size]
            plan = plan_batches(self._order[window], BatchPolicy.SMART, rows_per_batch=self._size)
            batches += [window[rows] for rows in plan]
        return [batches[place] for place in draw.permutation(len(batches))]

    def _second_view(self, number: int, rows: Rows) -> Tokens:
        draw = np.random.default_rng([self._seed, number, self._process])
        texts = (self._examples[row].texts[0] for row in rows)
        return self._tokenize([augment(text, self._views.crop, self._views.delete, draw) for text in texts])

    def _targets(self, rows: Rows) -> Tensor | None:
        targets = [self._examples[row].target for row in rows]
        if targets[0] is None:
            return None
        return torch.tensor(targets, dtype=torch.int64 if isinstance(targets[0], int) else torch.float32)


def _size_order(lengths: Rows) -> Rows:
    """A number ``[examples]`` for each column of ``lengths [views, examples]``, greater for what needs more room.

    Each view is padded by itself, so the longest text counts first: by the sum alone, long texts beside short ones
    would widen both views (STS-B in batches of 16: 20 % of padding, and 12 % so).
    """
    total: Rows = lengths.sum(axis=0)
    order: Rows = lengths.max(axis=0) * (total.max() + 1) + total
    return order


def augment(text: str, crop: float, delete: float, draw: np.random.Generator) -> str:
    """A sentence without a share of its words (Gao, Yao & Chen 2021, table 1); at least one word stays.

    Args:
        text: The sentence.
        crop: Share lost at its two ends together.
        delete: Share of the rest lost anywhere.
        draw: Where chance is from.
    """
    words = text.split()
    kept = max(1, round(len(words) * (1 - crop)))
    start = int(draw.integers(len(words) - kept + 1))
    words = words[start : start + kept]
    left = max(1, round(kept * (1 - delete)))
    return " ".join(words[place] for place in sorted(draw.permutation(kept)[:left]))
