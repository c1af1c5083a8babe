"""What a training run does, as a TOML file that is read into typed tables."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from training.settings import (
    ENTAILMENT,
    Data,
    Evaluation,
    Format,
    Fresh,
    Head,
    MaskedWords,
    MaskedWordsSettings,
    ObjectiveSettings,
    Training,
    ViewSettings,
)
from training.tables import RecipeError, nearest, read_table

RECIPES = Path(__file__).parent / "recipes"


@dataclass(frozen=True)
class Recipe:
    """A training run.

    Attributes:
        data: Where the examples are from; several sources are one set.
        objective: What is minimised.
        base: Checkpoint folder or hub id that training starts from.
        after: Name or file of a recipe that is trained first, and whose outcome is the base.
        fresh: A random encoder as the base.
        pooling: How a base without modules.json pools.
        normalize: Append L2 normalisation; None = as the base saves it, and none for one without modules.json.
        head: SimCSE's head.
        max_tokens: Length limit, in training and of the checkpoint; None = the base's.
        matryoshka: Widths that each must do as a vector; empty = the whole one.
        training: The optimisation.
        views: How views are made.
        masked_words: The auxiliary loss, where there is one.
        evaluation: How checkpoints are chosen and scored; None = the last one is kept.
    """

    data: tuple[Data, ...]
    objective: ObjectiveSettings
    base: str | None = None
    after: str | None = None
    fresh: Fresh | None = None
    pooling: str | None = None
    normalize: bool | None = None
    head: Head = Head.NONE
    max_tokens: int | None = None
    matryoshka: tuple[int, ...] = ()
    training: Training = field(default_factory=Training)
    views: ViewSettings = field(default_factory=ViewSettings)
    masked_words: MaskedWords | None = None
    evaluation: Evaluation | None = None

    def __post_init__(self) -> None:
        self._check_start()
        self._check_data()
        self._check_views()
        if self.masked_words is not None and self.objective.kind == "masked_words":
            raise RecipeError("masked_words is the objective already; leave the table masked_words out")
        if self.matryoshka and self.objective.kind in ("classification", "masked_words"):
            raise RecipeError(
                f"matryoshka does not go with objective {self.objective.kind}, whose weights have one width"
            )
        if any(dim < 1 for dim in self.matryoshka) or len(set(self.matryoshka)) < len(self.matryoshka):
            raise RecipeError("matryoshka has a width under 1, or one twice; expected different widths")

    def _check_start(self) -> None:
        if sum(start is not None for start in (self.base, self.after, self.fresh)) != 1:
            raise RecipeError("give base, after or fresh, one of the three")
        if self.fresh is not None and self.pooling is None:
            raise RecipeError("fresh needs pooling, which nothing else decides; mean is a good start")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise RecipeError(f"max_tokens is {self.max_tokens}; expected 1 or more")
        if self.after is not None and self.pooling is not None:
            raise RecipeError("pooling is decided by the recipe named in after; leave it out here")

    def _check_data(self) -> None:
        if not self.data:
            raise RecipeError("data is empty; expected one [[data]] table or more")
        for place, source in enumerate(self.data):
            if source.format not in self.objective.formats:
                raise RecipeError(
                    f"data[{place}].format is {source.format.value}, but objective {self.objective.kind} takes "
                    f"{' or '.join(known.value for known in self.objective.formats)}"
                )
            if self.objective.kind == "contrastive" and source.format is Format.NLI and ENTAILMENT not in source.labels:
                raise RecipeError(
                    f"data[{place}].labels has no {ENTAILMENT}, which makes the pairs of objective contrastive"
                )

    def _check_views(self) -> None:
        """Crop, deletion and the fixed mask make a second view of one sentence, which only some data needs."""
        forms = {source.format for source in self.data}
        if Format.SENTENCES in forms and len(forms) > 1:
            raise RecipeError("data mixes format sentences with others; expected sentences alone, or none")
        if self.sees_twice:
            return
        for name in ("fixed_mask", "crop", "delete"):
            if getattr(self.views, name):
                raise RecipeError(
                    f"views.{name} makes a second view of one sentence; expected data of format sentences"
                )
        if self.views.dual_encoder and self.objective.kind != "contrastive":
            raise RecipeError(f"views.dual_encoder does not go with objective {self.objective.kind}")

    @property
    def sees_twice(self) -> bool:
        """Whether an example is one sentence, seen twice."""
        return self.objective.kind == "contrastive" and all(one.format is Format.SENTENCES for one in self.data)

    @property
    def word_loss(self) -> MaskedWords | None:
        """The masked-language-model loss, beside the objective or as the objective."""
        if isinstance(self.objective, MaskedWordsSettings):
            return MaskedWords(weight=1.0, share=self.objective.share)
        return self.masked_words

    def with_seed(self, seed: int) -> Recipe:
        """The same with another seed."""
        return replace(self, training=replace(self.training, seed=seed))

    def plain(self) -> dict[str, Any]:
        """The recipe as plain values, every default written out."""
        values = asdict(self)
        values["objective"] = {"kind": self.objective.kind, **values["objective"]}
        plain: dict[str, Any] = json.loads(json.dumps(values))  # enums by value, tuples as lists
        return plain


def load_recipe(name: str, settings: Sequence[str] = ()) -> Recipe:
    """A recipe by name (those shipped here) or file.

    Args:
        name: ``simcse-unsup``, or a path that ends in ``.toml``.
        settings: Fields that are to be otherwise: ``training.seed=2``, the right side as TOML has it.

    Raises:
        RecipeError: When there is no such recipe, or something in it cannot be done.
    """
    path = Path(name) if name.endswith(".toml") else RECIPES / f"{name}.toml"
    if not path.is_file():
        raise RecipeError(f"there is no recipe {name}{nearest(name, shipped_recipes())}, or a .toml file")
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path} is not TOML ({error})") from error
    for setting in settings:
        _override(values, setting)
    try:
        return read_table(Recipe, values)
    except RecipeError as error:
        raise RecipeError(f"{path}: {error}") from error


def shipped_recipes() -> list[str]:
    """Names of the recipes that this package brings along."""
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def describe_recipes() -> list[tuple[str, str]]:
    """Each shipped recipe's name, and the first line of its file: what it is."""
    files = {name: (RECIPES / f"{name}.toml").read_text(encoding="utf-8") for name in shipped_recipes()}
    return [(name, text.partition("\n")[0].removeprefix("# ")) for name, text in files.items()]


def _override(values: dict[str, Any], setting: str) -> None:
    """Put one ``table.field=value`` into a recipe's tables."""
    path, equals, text = setting.partition("=")
    if not equals or not path:
        raise RecipeError(f"{setting!r} sets nothing; expected table.field=value")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text  # a bare word is a text
    *tables, name = path.split(".")
    for table in tables:
        values = values.setdefault(table, {})
        if not isinstance(values, dict):
            raise RecipeError(f"{setting!r}: {table} is not a table")
    values[name] = value
