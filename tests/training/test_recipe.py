"""Recipes: what is shipped loads, and what is misspelt, of another type or contradictory is refused by its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from training.objectives import Feature, Similarity
from training.recipe import describe_recipes, load_recipe, shipped_recipes
from training.settings import ContrastiveSettings, Head
from training.tables import RecipeError

GOOD = """
base = "some/base"
pooling = "cls"
head = "training"

[[data]]
format = "sentences"
files = ["sentences.txt"]

[objective]
kind = "contrastive"
temperature = 1

[training]
batch_size = 64
"""


def load(text: str, tmp_path: Path, *settings: str) -> object:
    (tmp_path / "r.toml").write_text(text)
    return load_recipe(str(tmp_path / "r.toml"), settings)


@pytest.mark.parametrize("name", shipped_recipes())
def test_shipped(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.after is None or load_recipe(recipe.after)
    assert all(source.files for source in recipe.data) or "small" not in name, "a small recipe needs no network"


def test_the_papers_are_there() -> None:
    papers = {"sbert-nli", "sbert-stsb", "sbert-nli-stsb", "sbert-wikisec", "simcse-unsup", "simcse-sup", "simcse-mlm"}
    assert papers <= set(shipped_recipes())
    assert all(about and not about.startswith("[") for _, about in describe_recipes())


def test_typed(tmp_path: Path) -> None:
    recipe = load_recipe("simcse-unsup")
    assert recipe.head is Head.TRAINING
    assert recipe.objective == ContrastiveSettings(Similarity.COSINE, 0.05, 1.0)
    assert load_recipe("sbert-nli").objective.features == (Feature.FIRST, Feature.SECOND, Feature.DIFFERENCE)  # type: ignore[union-attr]
    plain = recipe.plain()
    assert plain["objective"] == {
        "kind": "contrastive",
        "similarity": "cosine",
        "temperature": 0.05,
        "hard_negative_weight": 1.0,
    }
    assert plain["training"]["batch_size"] == 64


def test_settings_change_fields(tmp_path: Path) -> None:
    recipe = load_recipe("sbert-stsb", ["training.seed=7", "objective.kind=cosent", "matryoshka=[64, 32]"])
    assert (recipe.training.seed, recipe.objective.kind, recipe.matryoshka) == (7, "cosent", (64, 32))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("batch_size", "bach_size"), "training.bach_size is unknown; did you mean batch_size?"),
        (("temperature", "temprature"), "objective.temprature is unknown; did you mean temperature?"),
        (("temperature", "margin"), "objective.margin is unknown"),
        (('"contrastive"', '"contrastiv"'), "objective.kind is 'contrastiv'; did you mean contrastive?"),
        (('kind = "contrastive"', ""), "objective.kind is missing; expected one of classification"),
        (("batch_size = 64", 'batch_size = "64"'), "training.batch_size is '64'; expected a whole number"),
        (("batch_size = 64", "batch_size = true"), "training.batch_size is True; expected a whole number"),
        (("batch_size = 64", "batch_size = 0"), "training: batch_size is 0; expected 1 or more"),
        (("batch_size = 64", "cached = true"), "training: cached needs pass_tokens"),
        (('"sentences"', '"sentence"'), r"data\[0\].format is 'sentence'; did you mean sentences?"),
        (('format = "sentences"', ""), r"data\[0\].format is missing; expected one of sts, nli"),
        (('files = ["sentences.txt"]', ""), r"data\[0\]: give files or hub"),
        (('files = ["sentences.txt"]', 'files = "a"'), r"data\[0\].files is 'a'; expected a list, each a text"),
        (('files = ["sentences.txt"]', 'hub = "a/b"'), r"data\[0\]: hub needs fields"),
        (('"contrastive"\ntemperature = 1', '"regression"'), "format is sentences, but objective regression takes sts"),
        (("base", 'after = "sbert-nli"\nbase'), "give base, after or fresh, one of the three"),
        (('"training"', '"trained"'), "head is 'trained'; did you mean training?"),
        (("[training]", "[views]\nfixed_mask = true\ndropout = 0\n[training]"), "views: fixed_mask needs dropout"),
        (("[training]", "[views]\ncrop = 1.5\n[training]"), "crop and delete are shares"),
        (("temperature = 1", "temperature = 0"), "objective: temperature must be over 0"),
        (("base", "matryoshka = [8, 8]\nbase"), "matryoshka has a width under 1, or one twice"),
        (("base", "max_tokens = []\nbase"), r"max_tokens is \[\]; expected a whole number"),
        (("[training]", "training = 3\n[x]"), "is unknown|is 3; expected a table"),
        (("base", "= base"), "is not TOML"),
        (("temperature = 1", "temperature = nan"), "objective.temperature is nan; expected a finite number"),
        (
            ("temperature = 1", f"temperature = 1{'0' * 400}"),
            "objective.temperature is 1000*; expected a finite number",
        ),
        (("base", "max_tokens = 0\nbase"), "max_tokens is 0; expected 1 or more"),
        (("files", "rows = -1\nfiles"), r"data\[0\]: rows is -1; expected 1 or more"),
        (('"sentences"', '"nli"\nlabels = ["a", "a"]'), r"data\[0\]: labels are empty or name one twice"),
        (
            ('"contrastive"\ntemperature = 1', '"cosent"\nscale = 0'),
            "objective: scale is 0.0; expected a number over 0",
        ),
        (('"contrastive"\ntemperature = 1', '"triplet"\nmargin = -1'), "objective: margin is -1.0; expected 0 or more"),
        (('base = "some/base"\npooling = "cls"', "[fresh]"), "fresh.head is unknown"),
        (('"contrastive"\ntemperature = 1', '"masked_words"\n[masked_words]'), "masked_words is the objective already"),
    ],
)
def test_refused_by_name(change: tuple[str, str], message: str, tmp_path: Path) -> None:
    assert load(GOOD, tmp_path)
    with pytest.raises(RecipeError, match=message) as error:
        load(GOOD.replace(*change, 1), tmp_path)
    assert "\n" not in str(error.value)
    assert "r.toml" in str(error.value)


def test_contradictions_between_tables(tmp_path: Path) -> None:
    pairs = GOOD.replace('"sentences"', '"pairs"')
    with pytest.raises(RecipeError, match=r"views.crop makes a second view of one sentence"):
        load(pairs + "[views]\ncrop = 0.1\n", tmp_path)
    nli = GOOD.replace('"sentences"', '"nli"')
    with pytest.raises(RecipeError, match="hard_negatives has 'contradict'; expected some of entailment"):
        load(nli.replace("files", 'hard_negatives = ["contradict"]\nfiles'), tmp_path)
    with pytest.raises(RecipeError, match="matryoshka does not go with objective classification"):
        load("matryoshka = [4]\n" + nli.replace('"contrastive"\ntemperature = 1', '"classification"'), tmp_path)
    with pytest.raises(RecipeError, match="data mixes format sentences with others"):
        load(GOOD + '[[data]]\nformat = "pairs"\nfiles = ["a"]\n', tmp_path)


def test_unknown_recipe_and_setting(tmp_path: Path) -> None:
    with pytest.raises(
        RecipeError, match=r"no recipe simcse; did you mean simcse-sup\? expected one of sbert-nli, .* or a .toml file"
    ):
        load_recipe("simcse")
    with pytest.raises(RecipeError, match=r"'training' sets nothing; expected table.field=value"):
        load(GOOD, tmp_path, "training")
    with pytest.raises(RecipeError, match=r"training.sed is unknown; did you mean seed?"):
        load(GOOD, tmp_path, "training.sed=3")
    with pytest.raises(RecipeError, match="base is not a table"):
        load(GOOD, tmp_path, "base.name=3")
