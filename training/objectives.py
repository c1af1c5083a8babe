"""What training minimises, as functions of the sentence vectors of one batch.

A batch has N examples and a view for each of their texts: ``views[k]`` holds the vectors ``[N, D]`` of all k-th texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

Vectors = Sequence[Tensor]


class Objective(Protocol):
    """The loss of a batch."""

    def __call__(self, views: Vectors, targets: Tensor | None) -> Tensor:
        """A scalar, from the views ``[N, D]`` each and the targets ``[N]`` where there are some."""
        ...


class Feature(str, Enum):
    """What the classifier sees of a pair (u, v)."""

    FIRST = "u"
    SECOND = "v"
    DIFFERENCE = "|u-v|"
    PRODUCT = "u*v"


class Distance(str, Enum):
    """How far apart two vectors are."""

    EUCLIDEAN = "euclidean"
    COSINE = "cosine"  # 1 - cosine
    MANHATTAN = "manhattan"


class Similarity(str, Enum):
    """How alike two vectors are."""

    COSINE = "cosine"
    DOT = "dot"


_FEATURES: dict[Feature, Callable[[Tensor, Tensor], Tensor]] = {
    Feature.FIRST: lambda u, v: u,
    Feature.SECOND: lambda u, v: v,
    Feature.DIFFERENCE: lambda u, v: (u - v).abs(),
    Feature.PRODUCT: lambda u, v: u * v,
}


class Classification(nn.Module):
    """Cross-entropy of softmax(W f(u, v)), f some features side by side (Reimers & Gurevych 2019, section 3).

    Args:
        dim: D, the width of a vector.
        labels: How many labels there are.
        features: What f holds, in order.
    """

    def __init__(self, dim: int, labels: int, features: Sequence[Feature]) -> None:
        super().__init__()
        self.features = tuple(features)
        self.weight = nn.Linear(dim * len(self.features), labels, bias=False)

    def forward(self, views: Vectors, targets: Tensor) -> Tensor:
        """The mean over pairs ``views`` with label numbers ``targets [N]`` int64."""
        u, v = views
        seen = torch.cat([_FEATURES[feature](u, v) for feature in self.features], dim=1)  # [N, D * features]
        return functional.cross_entropy(self.weight(seen), targets)  # logits [N, labels]


def regression(views: Vectors, targets: Tensor) -> Tensor:
    """Mean squared error between the cosine of a pair and its target (Reimers & Gurevych 2019, section 3)."""
    return functional.mse_loss(cosine(*views), targets)


def triplet(views: Vectors, *, distance: Distance = Distance.EUCLIDEAN, margin: float = 1.0) -> Tensor:
    """Mean of max(0, d(anchor, positive) - d(anchor, negative) + margin) (Reimers & Gurevych 2019, section 3)."""
    anchor, positive, negative = views
    apart = _DISTANCES[distance]
    return functional.relu(apart(anchor, positive) - apart(anchor, negative) + margin).mean()  # over [N]


def contrastive(
    views: Vectors,
    *,
    similarity: Similarity = Similarity.COSINE,
    temperature: float = 0.05,
    hard_negative_weight: float = 1.0,
) -> Tensor:
    """Each anchor finds its positive among those of all, and among all hard negatives (Gao, Yao & Chen 2021, eq. 5).

    With the similarities s of anchor i, the weight a and the temperature t, the mean over i of
    -log( exp(s(i, i+)/t) / sum over j of (exp(s(i, j+)/t) + a^[i=j] exp(s(i, j-)/t)) ).

    Args:
        views: Anchors, positives, and any number of columns of hard negatives, ``[N, D]`` each.
        similarity: s.
        temperature: t.
        hard_negative_weight: a, the weight of an anchor's own hard negatives.
    """
    anchors, *candidates = [functional.normalize(view) for view in views] if similarity == "cosine" else views
    logits = anchors @ torch.cat(candidates).T / temperature  # [N, N * (views - 1)]
    own = torch.arange(len(anchors), device=logits.device)  # [N] where an anchor's positive stands
    weights = torch.zeros_like(logits)
    for column in range(1, len(candidates)):
        weights[own, own + column * len(anchors)] = weights.new_tensor(hard_negative_weight).log()
    return functional.cross_entropy(logits + weights, own)


def cosent(views: Vectors, targets: Tensor, *, scale: float = 20.0) -> Tensor:
    """Pairs ranked as their targets are, by cosine (Su 2022, "CoSENT").

    log(1 + sum over pairs i, j with target i > target j of exp(scale (s_j - s_i))).
    """
    return _rank(cosine(*views) * scale, targets)


def angle(views: Vectors, targets: Tensor, *, scale: float = 20.0) -> Tensor:
    """As ``cosent``, by the angle between vectors of complex numbers (Li & Li 2024, "AnglE")."""
    return _rank(_angle_similarity(*views) * scale, targets)


class Matryoshka:
    """The sum of an objective over vectors cut to several widths (Kusupati et al. 2022).

    Args:
        objective: Of whole vectors.
        dims: The widths.
    """

    def __init__(self, objective: Objective, dims: Sequence[int]) -> None:
        self.objective, self.dims = objective, tuple(dims)

    def __call__(self, views: Vectors, targets: Tensor | None) -> Tensor:
        """The sum for these views ``[N, D]``."""
        losses = [self.objective([view[:, :dim] for view in views], targets) for dim in self.dims]
        return torch.stack(losses).sum()


def cosine(u: Tensor, v: Tensor) -> Tensor:
    """``[N]`` cosines of the rows of two ``[N, D]``."""
    return functional.cosine_similarity(u, v)


def _rank(scores: Tensor, targets: Tensor) -> Tensor:
    """log(1 + sum of exp(score j - score i) over all i that should be above j)."""
    above = targets[:, None] > targets[None, :]  # [N, N] at i, j
    gaps = (scores[None, :] - scores[:, None])[above]  # [pairs]
    return torch.cat([gaps.new_zeros(1), gaps]).logsumexp(dim=0)


def _angle_similarity(u: Tensor, v: Tensor) -> Tensor:
    """``[N]``: |cosine + sine| of vectors whose first half is the real part, whose second half the imaginary one."""
    if u.shape[1] % 2:
        u, v = functional.pad(u, (0, 1)), functional.pad(v, (0, 1))
    (a, b), (c, d) = functional.normalize(u).chunk(2, dim=1), functional.normalize(v).chunk(2, dim=1)  # [N, D / 2] each
    return (a * c + b * d + b * c - a * d).sum(dim=1).abs()


_DISTANCES: dict[Distance, Callable[[Tensor, Tensor], Tensor]] = {
    Distance.EUCLIDEAN: lambda u, v: torch.linalg.vector_norm(u - v, dim=1),
    Distance.COSINE: lambda u, v: 1 - cosine(u, v),
    Distance.MANHATTAN: lambda u, v: torch.linalg.vector_norm(u - v, ord=1, dim=1),
}
