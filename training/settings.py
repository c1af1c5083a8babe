"""The tables of a recipe, each a dataclass that refuses what contradicts itself."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from training.objectives import Distance, Feature, Similarity
from training.tables import RecipeError

ENTAILMENT = "entailment"  # the label whose pairs mean the same


class Format(str, Enum):
    """How the rows of a data source are laid out."""

    STS = "sts"  # score, two sentences
    NLI = "nli"  # label, premise, hypothesis
    TRIPLETS = "triplets"  # anchor, positive, negative; a fourth column names the row's origin and is not read
    PAIRS = "pairs"  # two sentences that mean the same; what stands behind them, as in triplets, is not read
    GROUPS = "groups"  # two or more sentences about one thing: two of them are drawn
    SENTENCES = "sentences"  # one sentence


class Head(str, Enum):
    """SimCSE's head on the pooled vector: linear, tanh."""

    NONE = "none"
    TRAINING = "training"  # left out of the checkpoint (unsupervised SimCSE)
    KEPT = "kept"  # a Dense module of the checkpoint (supervised SimCSE)


@dataclass(frozen=True)
class Data:
    """One source of examples: local files, or a data set of the hub.

    Attributes:
        format: How a row is laid out.
        files: Tab-separated files without header, under the data folder.
        hub: Id of a data set of the hub, or a folder that ``datasets`` can read.
        config: The hub data set's configuration.
        split: Its split.
        revision: Its branch, tag or commit.
        data_files: Which of its files are read, where it has no configurations.
        fields: Its fields, in the order of the format's columns.
        rows: How many rows are read; None = all.
        score_range: The least and the greatest score, which become cosines 0 and 1 (format sts).
        labels: Names of the labels; a label that is a number is an index into them (format nli).
        hard_negatives: The labels whose hypotheses become an entailment's hard negatives (format nli, contrastive).
    """

    format: Format
    files: tuple[str, ...] = ()
    hub: str | None = None
    config: str | None = None
    split: str = "train"
    revision: str | None = None
    data_files: str | None = None
    fields: tuple[str, ...] = ()
    rows: int | None = None
    score_range: tuple[float, ...] = (0.0, 5.0)
    labels: tuple[str, ...] = ("entailment", "neutral", "contradiction")
    hard_negatives: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if bool(self.files) == (self.hub is not None):
            raise RecipeError("give files or hub, one of the two")
        if self.hub is not None and not self.fields:
            raise RecipeError(f"hub needs fields: the names of the columns of format {self.format.value}, in order")
        if self.files and (self.config or self.fields or self.revision or self.data_files):
            raise RecipeError("config, revision, data_files and fields belong to hub, not to files")
        if len(self.score_range) != 2 or self.score_range[0] >= self.score_range[1]:
            raise RecipeError(f"score_range is {list(self.score_range)}; expected the least and the greatest score")
        if self.rows is not None and self.rows < 1:
            raise RecipeError(f"rows is {self.rows}; expected 1 or more")
        if not self.labels or len(set(self.labels)) < len(self.labels):
            raise RecipeError("labels are empty or name one twice; expected different ones, ordered by number")
        if self.hard_negatives and self.format is not Format.NLI:
            raise RecipeError(f"hard_negatives are labels, which format {self.format.value} has not; nli has")
        if unknown := set(self.hard_negatives) - set(self.labels):
            raise RecipeError(f"hard_negatives has {sorted(unknown)[0]!r}; expected some of {', '.join(self.labels)}")


@dataclass(frozen=True)
class ClassificationSettings:
    """Softmax over features of a pair."""

    kind: ClassVar[str] = "classification"
    formats: ClassVar[tuple[Format, ...]] = (Format.NLI,)
    features: tuple[Feature, ...] = (Feature.FIRST, Feature.SECOND, Feature.DIFFERENCE)

    def __post_init__(self) -> None:
        if not self.features or len(set(self.features)) < len(self.features):
            raise RecipeError("features are empty or name one twice; expected some of u, v, |u-v|, u*v")


@dataclass(frozen=True)
class RegressionSettings:
    """Squared error of the cosine."""

    kind: ClassVar[str] = "regression"
    formats: ClassVar[tuple[Format, ...]] = (Format.STS,)


@dataclass(frozen=True)
class TripletSettings:
    """A margin between two distances."""

    kind: ClassVar[str] = "triplet"
    formats: ClassVar[tuple[Format, ...]] = (Format.TRIPLETS,)
    distance: Distance = Distance.EUCLIDEAN
    margin: float = 1.0

    def __post_init__(self) -> None:
        if self.margin < 0:
            raise RecipeError(f"margin is {self.margin}; expected 0 or more")


@dataclass(frozen=True)
class ContrastiveSettings:
    """In-batch negatives, and hard ones where the data has them."""

    kind: ClassVar[str] = "contrastive"
    formats: ClassVar[tuple[Format, ...]] = (
        Format.SENTENCES,
        Format.PAIRS,
        Format.GROUPS,
        Format.TRIPLETS,
        Format.NLI,
    )
    similarity: Similarity = Similarity.COSINE
    temperature: float = 0.05
    hard_negative_weight: float = 1.0

    def __post_init__(self) -> None:
        if self.temperature <= 0 or self.hard_negative_weight < 0:
            raise RecipeError("temperature must be over 0, and hard_negative_weight 0 or more")


@dataclass(frozen=True)
class CosentSettings:
    """Ranking by cosine."""

    kind: ClassVar[str] = "cosent"
    formats: ClassVar[tuple[Format, ...]] = (Format.STS,)
    scale: float = 20.0

    def __post_init__(self) -> None:
        _check_scale(self.scale)


@dataclass(frozen=True)
class AngleSettings:
    """Ranking by angle."""

    kind: ClassVar[str] = "angle"
    formats: ClassVar[tuple[Format, ...]] = (Format.STS,)
    scale: float = 20.0

    def __post_init__(self) -> None:
        _check_scale(self.scale)


def _check_scale(scale: float) -> None:
    if scale <= 0:
        raise RecipeError(f"scale is {scale}; expected a number over 0")


@dataclass(frozen=True)
class MaskedWordsSettings:
    """The masked-language-model loss alone, which trains an encoder's words rather than its vectors."""

    kind: ClassVar[str] = "masked_words"
    formats: ClassVar[tuple[Format, ...]] = (Format.SENTENCES,)
    share: float = 0.15

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise RecipeError(f"share is {self.share}; expected a share of the tokens between 0 and 1")


ObjectiveSettings = (
    ClassificationSettings
    | RegressionSettings
    | TripletSettings
    | ContrastiveSettings
    | CosentSettings
    | AngleSettings
    | MaskedWordsSettings
)


@dataclass(frozen=True)
class ViewSettings:
    """How one sentence becomes two views (Gao, Yao & Chen 2021, section 3), and what encodes them.

    Attributes:
        dropout: Rate of every dropout layer; None = as the base saves it.
        fixed_mask: Both views get the same dropout mask.
        crop: Share of its words that the second view loses at its ends.
        delete: Share of its words that the second view loses anywhere.
        dual_encoder: The second view (and hard negatives) has an encoder of its own, which is not saved.
    """

    dropout: float | None = None
    fixed_mask: bool = False
    crop: float = 0.0
    delete: float = 0.0
    dual_encoder: bool = False

    def __post_init__(self) -> None:
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise RecipeError(f"dropout is {self.dropout}; expected a rate from 0 to under 1")
        if not (0 <= self.crop < 1 and 0 <= self.delete < 1):
            raise RecipeError("crop and delete are shares of a sentence's words; expected 0 to under 1")
        if self.fixed_mask and self.dropout == 0:
            raise RecipeError("fixed_mask needs dropout, which is 0; leave one of the two out")
        if self.fixed_mask and (self.crop or self.delete):
            raise RecipeError("fixed_mask needs two equal sentences; leave crop and delete out")


@dataclass(frozen=True)
class MaskedWords:
    """The masked-language-model loss beside the objective: loss + weight * this one.

    Attributes:
        weight: Lambda.
        share: Share of the tokens that are to be found again.
    """

    weight: float = 0.1
    share: float = 0.15

    def __post_init__(self) -> None:
        if self.weight <= 0 or not 0 < self.share < 1:
            raise RecipeError("weight must be over 0, and share between 0 and 1")


@dataclass(frozen=True)
class Training:
    """The optimisation; the defaults are those of Reimers & Gurevych 2019.

    Attributes:
        batch_size: Examples of an optimiser step, on all devices together, before accumulation.
        epochs: Passes over the data.
        steps: Optimiser steps; None = as many as the epochs have.
        learning_rate: Its peak.
        warmup: Share of the steps over which it rises; then it falls to 0.
        weight_decay: Decoupled, as in AdamW; 0 = Adam.
        clip_norm: Longest gradient; 0 = any.
        accumulate: Batches whose gradients are added before a step.
        cached: Gradients in two passes over the batch, so that memory holds one pass's activations only.
        pass_tokens: Padded tokens of one pass through the model; None = a view of the batch at once.
        bf16: Matrix products in bfloat16; weights, norms and losses stay fp32.
        seed: Of everything that is drawn.
        checkpoint_every: Steps between two evaluations, each with the state saved.
    """

    batch_size: int = 16
    epochs: int = 1
    steps: int | None = None
    learning_rate: float = 2e-5
    warmup: float = 0.1
    weight_decay: float = 0.0
    clip_norm: float = 1.0
    accumulate: int = 1
    cached: bool = False
    pass_tokens: int | None = None
    bf16: bool = False
    seed: int = 1
    checkpoint_every: int = 250

    def __post_init__(self) -> None:
        for name in ("batch_size", "epochs", "steps", "accumulate", "pass_tokens", "checkpoint_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise RecipeError(f"{name} is {value}; expected 1 or more")
        for name in ("seed", "weight_decay", "clip_norm"):
            if getattr(self, name) < 0:
                raise RecipeError(f"{name} is {getattr(self, name)}; expected 0 or more")
        if self.learning_rate <= 0 or not 0 <= self.warmup <= 1:
            raise RecipeError("learning_rate must be over 0, and warmup a share from 0 to 1")
        if self.cached and not self.pass_tokens:
            raise RecipeError("cached needs pass_tokens, the padded tokens of one pass; 4096 is a good start")


@dataclass(frozen=True)
class Evaluation:
    """STS pairs for choosing a checkpoint, and for the report.

    Attributes:
        dev: File of score and two sentences, under the data folder: the checkpoint with the best Spearman is kept.
        test: Files that are scored once, at the end.
    """

    dev: str
    test: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fresh:
    """A BERT with random weights, in place of a base.

    Attributes:
        layers: How many.
        width: Of a hidden state.
        heads: Of attention; they share the width.
        positions: Longest text, in tokens.
        vocabulary: Tokens at most: the most frequent words of the data, and letters for all others.
        word_vectors: A file in GloVe's form under the data folder, projected into the embeddings; None = random ones.
    """

    layers: int = 4
    width: int = 256
    heads: int = 4
    positions: int = 128
    vocabulary: int = 20_000
    word_vectors: str | None = None

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "positions", "vocabulary"):
            if getattr(self, name) < 1:
                raise RecipeError(f"{name} is {getattr(self, name)}; expected 1 or more")
        if self.width % self.heads:
            raise RecipeError(f"width is {self.width}, which {self.heads} heads cannot share")
