"""One training step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from training.batches import Batch, Batches
from training.devices import Devices
from training.gradients import Loss, cached_gradients, direct_gradients
from training.masked_words import MaskedWordsLoss
from training.objectives import Objective, Vectors
from training.recipe import Recipe
from training.settings import Training
from training.views import Views


@dataclass
class Learner:
    """Everything that a step touches.

    Attributes:
        recipe: What to do.
        devices: The processes that share a batch.
        batches: The examples.
        views: Encodes them.
        objective: The loss of the vectors; None where masked words are all that is trained on.
        masked_words: The loss beside it, where there is one.
        optimizer: Moves the weights: Adam, with the decoupled decay of AdamW.
    """

    recipe: Recipe
    devices: Devices
    batches: Batches
    views: Views
    objective: Objective | None
    masked_words: MaskedWordsLoss | None
    optimizer: torch.optim.Optimizer = field(init=False)

    def __post_init__(self) -> None:
        decay = self.recipe.training.weight_decay
        self.optimizer = torch.optim.AdamW(self.parameters(), weight_decay=decay, fused=True)

    @property
    def steps(self) -> int:
        """Optimiser steps of the whole training."""
        training = self.recipe.training
        return training.steps or max(1, training.epochs * self.batches.per_epoch // training.accumulate)

    def modules(self) -> dict[str, nn.Module]:
        """The modules with weights that are trained, by name."""
        modules: dict[str, nn.Module] = {"views": self.views}
        if isinstance(self.objective, nn.Module):
            modules["objective"] = self.objective
        if self.masked_words is not None:
            modules["word_head"] = self.masked_words.head
        return modules

    def parameters(self) -> Iterator[Tensor]:
        """All weights that are trained."""
        for module in self.modules().values():
            yield from module.parameters()


def train_step(learner: Learner, step: int) -> float:
    """Step number ``step`` of the optimiser, counted from 0; returns its mean loss."""
    training = learner.recipe.training
    loss = 0.0
    for number in range(step * training.accumulate, (step + 1) * training.accumulate):
        batch = learner.batches[number]  # this process's N rows of tokens a view, and targets [N]
        loss += _add_gradients(learner, batch)
    _share_gradients(learner)
    if training.clip_norm:
        clip_grad_norm_(learner.parameters(), training.clip_norm)
    for group in learner.optimizer.param_groups:
        group["lr"] = learning_rate(training, step, learner.steps)
    learner.optimizer.step()
    learner.optimizer.zero_grad()
    return loss


def learning_rate(training: Training, step: int, steps: int) -> float:
    """It rises in a line over the warm-up, and falls in a line to 0 after the last step."""
    warmup = round(steps * training.warmup)
    if step < warmup:
        return training.learning_rate * (step + 1) / warmup
    return training.learning_rate * (steps - step) / max(1, steps - warmup)


def _add_gradients(learner: Learner, batch: Batch) -> float:
    """Add a batch's gradients to those of the step; returns its part of the step's mean loss."""
    training, devices = learner.recipe.training, learner.devices
    scale = 1 / training.accumulate
    loss = 0.0
    if learner.objective is not None:
        gradients = cached_gradients if training.cached else direct_gradients
        loss += gradients(learner.views, batch, _joint_loss(learner.objective, batch, devices, scale))
    if learner.masked_words is not None:
        loss += learner.masked_words.add_gradients(batch, scale)
    return loss


def _joint_loss(objective: Objective, batch: Batch, devices: Devices, scale: float) -> Loss:
    """The loss of the whole batch, from one process's vectors ``[N, D]`` of each view."""
    targets = None if batch.targets is None else devices.gather(batch.targets.to(devices.device))  # [N * processes]

    def loss_of(views: Vectors) -> Tensor:
        return objective([devices.gather(view) for view in views], targets) * scale  # [N * processes, D] each

    return loss_of


def _share_gradients(learner: Learner) -> None:
    """Encoders have seen their own rows alone; the objective's weights have seen the whole batch everywhere."""
    for name, module in learner.modules().items():
        learner.devices.reduce_gradients(module.parameters(), "mean" if name == "objective" else "sum")
