"""The gradient of a batch's loss, directly or in two walks over the batch; both are equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from training.batches import Batch
from training.objectives import Vectors
from training.views import Views

Loss = Callable[[Vectors], Tensor]


def direct_gradients(views: Views, batch: Batch, loss_of: Loss) -> float:
    """Add the gradient of ``loss_of(vectors of the views)`` to every parameter; returns the loss."""
    loss = loss_of(views(batch))
    loss.backward()  # type: ignore[no-untyped-call]
    return float(loss.item())


def cached_gradients(views: Views, batch: Batch, loss_of: Loss) -> float:
    """As ``direct_gradients``, holding the activations of one pass at a time (Gao, Zhang, Han & Callan 2021).

    The first walk makes the vectors without a graph; the loss gives the gradient of each vector; the second walk
    repeats every pass, with its dropout masks, and takes that gradient on to the parameters.
    """
    with torch.no_grad():
        vectors = views(batch)  # [N, D] each
    leaves = [view.requires_grad_() for view in vectors]
    loss = loss_of(leaves)
    loss.backward()  # type: ignore[no-untyped-call]
    assert all(leaf.grad is not None for leaf in leaves), "this is a bug: a view has no part in the loss"
    gradient = torch.cat([cast(Tensor, leaf.grad) for leaf in leaves])  # [views * N, D]
    for rows, again in views.passes(batch):  # again [B, D]
        again.backward(gradient[torch.from_numpy(rows)])  # type: ignore[no-untyped-call]
    return float(loss.item())
