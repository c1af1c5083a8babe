"""From a recipe to everything that its training steps touch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from sentport.errors import CheckpointError
from sentport.modeling.checkpoint import Checkpoint, load_checkpoint
from sentport.modeling.hub import locate
from sentport.modeling.sentence_model import SentenceModel
from sentport.modeling.source_files import read_modules, transformer_folder
from sentport.modeling.weights import read_weights
from sentport.tokenizer import Tokenizer
from training import objectives
from training.batches import Batches
from training.data import Source
from training.devices import Devices
from training.encoder import ModelEncoder
from training.masked_words import MaskedWordsLoss, WordHead, Words
from training.objectives import Matryoshka, Objective
from training.recipe import Recipe
from training.settings import (
    AngleSettings,
    ClassificationSettings,
    ContrastiveSettings,
    CosentSettings,
    Head,
    MaskedWordsSettings,
    RegressionSettings,
    TripletSettings,
)
from training.step import Learner
from training.tables import RecipeError
from training.views import Views, set_dropout, start_noise, warn_if_equal, with_head


@dataclass(frozen=True)
class Base:
    """What training starts from, and goes on to change.

    Attributes:
        checkpoint: As it was read.
        model: What is trained.
        encoder: The model as a text encoder.
        transformer: The folder of its transformer.
    """

    checkpoint: Checkpoint
    model: SentenceModel
    encoder: ModelEncoder
    transformer: Path

    def unused_weights(self) -> dict[str, Tensor]:
        """Weights of the transformer that no vector depends on: BERT's pooler."""
        try:
            return read_weights(self.transformer, ("pooler.",))
        except CheckpointError:
            return {}


def open_base(recipe: Recipe, source: str | Path, devices: Devices, say: Callable[[str], object]) -> Base:
    """Read the checkpoint that training starts from, as the recipe wants it.

    Args:
        recipe: What to do.
        source: Checkpoint folder or hub id.
        devices: Where it computes.
        say: Told what a user should know about it.

    Raises:
        SentportError: When it cannot be read, or cannot do what the recipe asks.
    """
    folder = locate(source).folder
    modules = read_modules(folder)
    # A plain checkpoint is normalised when it is used; most objectives want its vectors as they are.
    normalize = False if modules is None and recipe.normalize is None else recipe.normalize
    if modules is not None and recipe.pooling is not None:
        raise RecipeError(f"pooling is {recipe.pooling}, but {source} says itself how it pools; leave pooling out")
    checkpoint = load_checkpoint(source, pooling=recipe.pooling, normalize=normalize, max_tokens=recipe.max_tokens)
    for remark in checkpoint.remarks:
        say(f"{source}: {remark}")
    start_noise(recipe.training.seed)
    model = with_head(checkpoint.model) if recipe.head is Head.KEPT else checkpoint.model
    if wide := [dim for dim in recipe.matryoshka if dim > model.dim]:
        raise RecipeError(f"matryoshka has {wide[0]}, but vectors of this base have {model.dim} values")
    tokenizer = Tokenizer(checkpoint.tokenizer_definition, checkpoint.spec.max_tokens, torch.get_num_threads())
    encoder = ModelEncoder(model.to(devices.device), checkpoint.spec, tokenizer, devices.device)
    return Base(checkpoint, model, encoder, transformer_folder(folder, modules))


def make_learner(
    recipe: Recipe, base: Base, sources: Sequence[Source], devices: Devices, say: Callable[[str], object]
) -> Learner:
    """Set up the training of a base on examples.

    Raises:
        RecipeError: When the base or the examples cannot do what the recipe asks.
    """
    model, training = base.model, recipe.training
    dropout = set_dropout(model, recipe.views.dropout)
    if recipe.sees_twice:
        warn_if_equal(recipe, dropout)
    batches = Batches(
        [example for source in sources for example in source.examples],
        base.encoder.tokens,
        training.batch_size,
        training.seed,
        recipe.views,
        two_views=recipe.sees_twice,
        process=devices.process,
        processes=devices.processes,
    )
    views = Views(model, recipe, devices.process).to(devices.device).train()
    objective = _objective(recipe, model.dim)
    if isinstance(objective, torch.nn.Module):
        objective.to(devices.device)
    masked_words = None if recipe.word_loss is None else _masked_words(recipe, base, views, devices, say)
    return Learner(recipe, devices, batches, views, objective, masked_words)


def _masked_words(
    recipe: Recipe, base: Base, views: Views, devices: Devices, say: Callable[[str], object]
) -> MaskedWordsLoss:
    backbone = base.model.transformer
    head = WordHead(backbone.model.get_input_embeddings(), backbone.hidden_size)
    if not head.load(base.transformer):
        say("the base was saved without the head that finds masked words: it starts at random")
    words = Words.of(base.checkpoint.tokenizer, backbone.vocabulary)
    head.to(devices.device).train()
    return MaskedWordsLoss(views, head, words, recipe, devices)


def _objective(recipe: Recipe, dim: int) -> Objective | None:
    """The objective of a recipe, for vectors of ``dim`` values; None where it trains on masked words alone."""
    objective = _whole_objective(recipe, dim)
    return objective if objective is None or not recipe.matryoshka else Matryoshka(objective, recipe.matryoshka)


def _whole_objective(recipe: Recipe, dim: int) -> Objective | None:
    match recipe.objective:
        case ClassificationSettings(features=features):
            return objectives.Classification(dim, max(len(source.labels) for source in recipe.data), features)
        case RegressionSettings():
            return _of_pairs(objectives.regression)
        case TripletSettings(distance=distance, margin=margin):
            return _of_views(partial(objectives.triplet, distance=distance, margin=margin))
        case ContrastiveSettings(similarity=similarity, temperature=temperature, hard_negative_weight=weight):
            return _of_views(
                partial(
                    objectives.contrastive, similarity=similarity, temperature=temperature, hard_negative_weight=weight
                )
            )
        case CosentSettings(scale=scale):
            return _of_pairs(partial(objectives.cosent, scale=scale))
        case AngleSettings(scale=scale):
            return _of_pairs(partial(objectives.angle, scale=scale))
        case MaskedWordsSettings():
            return None


def _of_views(function: Callable[[objectives.Vectors], Tensor]) -> Objective:
    """An objective that has no targets."""
    return lambda views, targets: function(views)


def _of_pairs(function: Callable[[objectives.Vectors, Tensor], Tensor]) -> Objective:
    """An objective that has targets."""

    def objective(views: objectives.Vectors, targets: Tensor | None) -> Tensor:
        assert targets is not None, "this is a bug: the data has no targets"
        return function(views, targets)

    return objective
