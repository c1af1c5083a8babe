"""One step: gradients direct and cached, accumulated, with masks that repeat, and what ablations change."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import build_checkpoint
from torch import Tensor, nn

from sentport.tokenizer import Tokens
from training.data import Source, read_data
from training.devices import Devices
from training.gradients import cached_gradients, direct_gradients
from training.masked_words import WordHead, Words, mask_words
from training.recipe import Recipe
from training.settings import (
    AngleSettings,
    ClassificationSettings,
    ContrastiveSettings,
    CosentSettings,
    Data,
    Format,
    Head,
    MaskedWords,
    RegressionSettings,
    Training,
    TripletSettings,
    ViewSettings,
)
from training.setup import Base, make_learner, open_base
from training.step import Learner, learning_rate, train_step
from training.tables import RecipeError

TRAINING = Training(batch_size=8, steps=4, learning_rate=1e-3, warmup=0.0)
FORMATS = {
    "classification": (Format.NLI, ClassificationSettings()),
    "regression": (Format.STS, RegressionSettings()),
    "triplet": (Format.TRIPLETS, TripletSettings()),
    "unsupervised": (Format.SENTENCES, ContrastiveSettings()),
    "pairs": (Format.PAIRS, ContrastiveSettings()),
    "groups": (Format.GROUPS, ContrastiveSettings()),
    "hard negatives": (Format.TRIPLETS, ContrastiveSettings(hard_negative_weight=2.0)),
    "cosent": (Format.STS, CosentSettings()),
    "angle": (Format.STS, AngleSettings()),
}
Make = Callable[..., tuple[Learner, Base]]


@pytest.fixture
def make(base: Path, data: Path) -> Make:
    """A learner of one of the cases, from the same weights each time."""

    def made(case: str = "unsupervised", source: Path = base, **fields: Any) -> tuple[Learner, Base]:
        format_, objective = FORMATS[case]
        settings = Data(format_, files=(f"{format_.value}.tsv",))
        recipe = Recipe(
            (settings,), objective, base=str(source), **{"training": TRAINING, "views": ViewSettings(), **fields}
        )
        devices = Devices("cpu")
        opened = open_base(recipe, source, devices, lambda _: None)
        return make_learner(recipe, opened, read(settings, data, recipe), devices, lambda _: None), opened

    return made


def read(settings: Data, data: Path, recipe: Recipe) -> list[Source]:
    return read_data([settings], data, contrastive=recipe.objective.kind == "contrastive")


def weights(learner: Learner) -> dict[str, Tensor]:
    return {f"{n}.{k}": v.clone() for n, m in learner.modules().items() for k, v in m.state_dict().items()}


def gradients(learner: Learner) -> dict[str, Tensor]:
    modules = learner.modules().items()
    return {f"{n}.{k}": v.grad.clone() for n, m in modules for k, v in m.named_parameters() if v.grad is not None}


def difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """The greatest one, relative to the greatest value."""
    assert one.keys() == other.keys()
    largest = max(float(value.abs().max()) for value in one.values())
    return max(float((one[name] - other[name]).abs().max()) for name in one) / largest


@pytest.mark.parametrize("case", FORMATS)
def test_every_objective_learns(case: str, make: Make) -> None:
    """A step moves every kind of weight, and some steps on one small set lower the loss."""
    slow = replace(TRAINING, batch_size=18 if case == "groups" else 48, steps=12)
    learner, _ = make(case, training=slow, views=ViewSettings(dropout=0.0 if case != "unsupervised" else None))
    before = weights(learner)
    losses = [train_step(learner, step) for step in range(12)]
    assert all(not torch.equal(before[name], value) for name, value in weights(learner).items())
    assert min(losses[-3:]) < losses[0]


@pytest.mark.parametrize("case", ["unsupervised", "hard negatives", "regression", "classification"])
def test_cached_gradients_are_the_direct_ones(case: str, make: Make) -> None:
    """With dropout, over several passes a view."""
    learner, _ = make(case, training=replace(TRAINING, batch_size=16, pass_tokens=40))
    batch = learner.batches[0]
    assert len(list(learner.views.passes(batch))) > 6

    def loss_of(views: Any) -> Tensor:
        return learner.objective(views, batch.targets)

    found = []
    for way in (direct_gradients, cached_gradients):
        loss = way(learner.views, batch, loss_of)
        found.append((float(loss), gradients(learner)))
        learner.optimizer.zero_grad()
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-6)
    assert difference(found[0][1], found[1][1]) < 1e-5


def test_views_share_a_pass_where_that_adds_little_padding(make: Make) -> None:
    """Views of like lengths share one, with the vectors of each alone; unlike ones, towers and fixed masks do not."""
    learner, _ = make("hard negatives", views=ViewSettings(dropout=0.0))
    batch = learner.batches[0]
    first = batch.views[0]
    alike = replace(batch, views=(first, first, first))
    longer = Tokens([np.concatenate([row, *[row[1:]] * 3]) for row in first.rows], first.full_lengths)
    unlike = replace(batch, views=(first, first, longer))
    for some, passes in ((alike, 1), (unlike, 2)):
        with torch.no_grad():
            assert len(list(learner.views.passes(some))) == passes
            for view, vectors in zip(some.views, learner.views(some), strict=True):
                alone = learner.views.towers[0](view)
                assert float((vectors - alone).abs().max()) < 1e-5
    twice = replace(batch, views=(first, first))
    for settings, passes in (
        (ViewSettings(), 1),
        (ViewSettings(fixed_mask=True), 2),
        (ViewSettings(dual_encoder=True), 2),
    ):
        assert len(list(make("unsupervised", views=settings)[0].views.passes(twice))) == passes


@pytest.mark.full
def test_cached_gradients_at_batch_512(make: Make) -> None:
    """512 sentences of a file of its own, in passes of 1,024 tokens."""
    learner, _ = make("unsupervised")
    rows = [row for number in range(64) for row in learner.batches[number].views[0].rows]
    view = replace(learner.batches[0].views[0], rows=rows, full_lengths=torch.zeros(512).numpy())
    batch = replace(learner.batches[0], views=(view, view))
    found = []
    for way, budget in ((direct_gradients, 1024), (cached_gradients, 1024)):
        learner.views._budget = budget
        way(learner.views, batch, lambda views: learner.objective(views, None))
        found.append(gradients(learner))
        learner.optimizer.zero_grad()
    assert difference(*found) < 1e-5


def test_accumulated_gradients_are_the_mean_of_their_batches(make: Make) -> None:
    together, _ = make("regression", training=replace(TRAINING, accumulate=3, clip_norm=0.0))
    for number in range(3):
        batch = together.batches[number]
        direct_gradients(together.views, batch, lambda views, b=batch: together.objective(views, b.targets) / 3)  # type: ignore[misc]
    sums = gradients(together)
    together.optimizer.zero_grad()
    together.optimizer.step = lambda: kept.update(gradients(together))  # type: ignore[method-assign,assignment]
    kept: dict[str, Tensor] = {}
    train_step(together, 0)
    assert difference(sums, kept) == 0
    assert together.steps == 4


def test_the_same_seed_gives_the_same_weights(make: Make) -> None:
    def trained(seed: int) -> dict[str, Tensor]:
        learner, _ = make(training=replace(TRAINING, seed=seed), head=Head.TRAINING)
        torch.rand(3)  # what else is drawn in this process changes nothing
        for step in range(3):
            train_step(learner, step)
        return weights(learner)

    first, again, other = trained(1), trained(1), trained(2)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_masks_of_views(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    """Two views differ by dropout alone; a fixed mask or none makes them equal, and that is told."""
    caplog.set_level(logging.WARNING, "training")
    for views, equal, told in (
        (ViewSettings(), False, None),
        (ViewSettings(fixed_mask=True), True, "views.fixed_mask gives both one dropout mask"),
        (ViewSettings(dropout=0.0), True, "dropout is off"),
        (ViewSettings(dropout=0.0, delete=0.4), False, None),
        (ViewSettings(dropout=0.3), False, None),
    ):
        caplog.clear()
        learner, _ = make(views=views)
        with torch.no_grad():
            first, second = learner.views(learner.batches[0])
            again, _ = learner.views(learner.batches[0])
            following, _ = learner.views(replace(learner.batches[0], number=1))
        assert torch.equal(first, second) == equal
        assert torch.equal(first, again), "a second walk draws other masks"
        assert torch.equal(first, following) == (views.dropout == 0), "the next batch has the same masks"
        assert (told or "both views") in caplog.text if told else not caplog.records


def test_dropout_rates_reach_every_layer(make: Make) -> None:
    learner, _ = make(views=ViewSettings(dropout=0.25))
    rates = {module.p for module in learner.views.modules() if isinstance(module, nn.Dropout)}
    assert rates == {0.25}


def test_dual_encoder(make: Make) -> None:
    learner, base = make(views=ViewSettings(dual_encoder=True))
    first, second = learner.views.towers
    assert first.model is base.model
    train_step(learner, 0)
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    assert not all(torch.equal(a, b) for a, b in pairs), "both encoders are one"


def test_heads(make: Make, base: Path) -> None:
    """The head of training stands outside of the model; the kept one in its chain, before a last Normalize."""
    plain, training = make(head=Head.NONE)[0], make(head=Head.TRAINING)
    assert len(weights(training[0])) == len(weights(plain)) + 2
    assert [type(module).__name__ for module in training[1].model.chain] == ["Pooling"]
    kept = make(head=Head.KEPT, normalize=True)[1].model
    assert [type(module).__name__ for module in kept.chain] == ["Pooling", "Dense", "Normalize"]


def test_matryoshka_trains_each_width(make: Make) -> None:
    learner, _ = make("regression", matryoshka=(32, 8))
    whole, _ = make("regression")
    batch = learner.batches[0]
    with torch.no_grad():
        views = learner.views(batch)
        parts = [whole.objective([view[:, :dim] for view in views], batch.targets) for dim in (32, 8)]
        assert learner.objective(views, batch.targets) == pytest.approx(float(sum(parts)))
    with pytest.raises(RecipeError, match="matryoshka has 64, but vectors of this base have 32 values"):
        make("regression", matryoshka=(64,))


def test_bf16_is_near_fp32(make: Make) -> None:
    exact, rough = make("pairs")[0], make("pairs", training=replace(TRAINING, bf16=True))[0]
    with torch.no_grad():
        a, b = exact.views(exact.batches[0])[0], rough.views(rough.batches[0])[0]
    assert b.dtype == torch.float32
    assert 0 < float((a - b).abs().max()) < 0.1
    assert train_step(rough, 0) == pytest.approx(train_step(exact, 0), rel=0.05)
    assert all(value.dtype == torch.float32 for value in weights(rough).values())


def test_learning_rate() -> None:
    """By hand: ten steps, two of them warm-up."""
    training = Training(learning_rate=1.0, warmup=0.2)
    rates = [learning_rate(training, step, 10) for step in range(10)]
    assert rates == pytest.approx([0.5, 1, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8])
    assert learning_rate(Training(learning_rate=1.0, warmup=0.0), 0, 10) == 1


def test_masked_words(make: Make) -> None:
    """The loss is lambda times cross-entropy over the hidden tokens, whatever the size of a pass."""
    losses = []
    for budget in (None, 40):
        training = replace(TRAINING, pass_tokens=budget)
        learner, _ = make(training=training, masked_words=MaskedWords(weight=0.5), views=ViewSettings(dropout=0.0))
        assert learner.masked_words is not None
        losses.append((float(learner.masked_words.add_gradients(learner.batches[0], 1.0)), gradients(learner)))
    assert losses[0][0] == pytest.approx(losses[1][0], rel=1e-5)
    assert difference(losses[0][1], losses[1][1]) < 1e-5
    assert 0.5 < losses[0][0] / 0.5 < 10
    before = weights(learner)
    train_step(learner, 0)
    assert all(not torch.equal(before[name], value) for name, value in weights(learner).items())


def test_hidden_tokens(make: Make) -> None:
    import numpy as np

    _, base = make()
    words = Words.of(base.checkpoint.tokenizer, base.model.transformer.vocabulary)
    tokens = base.encoder.tokens(["the cat sat on the mat in the park"] * 400)
    hidden, targets = mask_words(tokens, words, 0.15, np.random.default_rng(0))
    before, after, wanted = (np.concatenate(rows) for rows in (tokens.rows, hidden.rows, targets))
    chosen = wanted >= 0
    assert (before[~chosen] == after[~chosen]).all()
    assert (wanted[chosen] == before[chosen]).all()
    assert not np.isin(before[chosen], list(words.special)).any(), "a special token was hidden"
    assert chosen.sum() / (~np.isin(before, list(words.special))).sum() == pytest.approx(0.15, abs=0.02)
    assert (after[chosen] == words.mask).mean() == pytest.approx(0.8, abs=0.06)
    assert (after[chosen] == before[chosen]).mean() == pytest.approx(0.1, abs=0.05)


def test_the_word_head_of_a_checkpoint_is_taken_over(tmp_path: Path, base: Path) -> None:
    from safetensors.torch import save_file

    head = WordHead(nn.Embedding(25, 32), 32)
    assert not head.load(base)
    named = {
        "cls.predictions.transform.dense.weight": torch.full((32, 32), 2.0),
        "cls.predictions.transform.dense.bias": torch.full((32,), 3.0),
        "cls.predictions.transform.LayerNorm.weight": torch.full((32,), 4.0),
        "cls.predictions.transform.LayerNorm.bias": torch.full((32,), 5.0),
        "cls.predictions.bias": torch.full((25,), 6.0),
    }
    save_file(named, tmp_path / "model.safetensors")
    assert head.load(tmp_path)
    values = [head.dense.weight, head.dense.bias, head.norm.weight, head.norm.bias, head.bias]
    assert [float(value.detach().flatten()[0]) for value in values] == [2, 3, 4, 5, 6]
    with pytest.raises(RecipeError, match="word embeddings as wide as the hidden states; the base has 16 and 32"):
        WordHead(nn.Embedding(25, 16), 32)


def test_prompts_are_trained_with(make: Make, tmp_path: Path) -> None:
    """The default prompt of a base stands in front of every text, in training as in use."""
    import json

    prompted = build_checkpoint(tmp_path / "prompted", normalize=False)
    file = prompted / "config_sentence_transformers.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "prompts": {"q": "the "}, "default_prompt_name": "q"}))
    with_prompt, without = make(source=prompted)[0].batches[0], make()[0].batches[0]
    lengths = [[len(row) for row in batch.views[0].rows] for batch in (with_prompt, without)]
    assert lengths[0] == [length + 1 for length in lengths[1]]
