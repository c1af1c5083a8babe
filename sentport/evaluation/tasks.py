"""The tasks by name: what each reads, and what it makes of an encoder's vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from sentport.errors import SentportError
from sentport.evaluation.arguments import argument_score, read_arguments
from sentport.evaluation.embeddings import Embeddings
from sentport.evaluation.metrics import SIMILARITIES
from sentport.evaluation.scoring import (
    AGGREGATIONS,
    CORRELATIONS,
    Embed,
    correlate,
    correlate_shuffled,
    correlate_subsets,
    rate,
)
from sentport.evaluation.sts import Form, StsPairs, read_sts_task, require_correlation
from sentport.evaluation.triplets import read_triplets, triplet_accuracy
from sentport.progress import Progress

if TYPE_CHECKING:
    from sentport.encoder import TextEncoder

SPLITS = ("train", "dev", "test")
_ALL, _TRAIN_TEST, _TRAIN_DEV_TEST = ("all",), ("train", "test"), ("train", "dev", "test")


@dataclass(frozen=True, slots=True)
class Settings:
    """How tasks are evaluated.

    Attributes:
        data: Folder of the data files.
        texts: Form of the STS texts: ``raw`` as released, ``senteval`` tokenised and lower-cased.
        split: Part of STS-B and SICK-R: ``train``, ``dev`` (SICK-R's ``trial``) or ``test``.
        aggregation: Over the subsets of STS12-16: ``all``, ``mean`` or ``wmean``.
        similarity: Of vectors: ``cosine``, ``dot``, ``euclidean`` or ``manhattan``.
        correlation: What the table shows for STS: ``spearman`` or ``pearson``.
        control: Whether to score STS against shuffled gold scores as well.
        threads: Of classifiers; None = the cores allowed.
        progress: Whether to show a bar on stderr for what takes long.
    """

    data: Path
    texts: Form = "raw"
    split: str = "test"
    aggregation: str = "all"
    similarity: str = "cosine"
    correlation: str = "spearman"
    control: bool = False
    threads: int | None = None
    progress: bool = False

    def __post_init__(self) -> None:
        for name, value, known in (
            ("split", self.split, SPLITS),
            ("aggregation", self.aggregation, AGGREGATIONS),
            ("similarity", self.similarity, SIMILARITIES),
            ("correlation", self.correlation, CORRELATIONS),
        ):
            if value not in known:
                raise SentportError(f"{name} is {value!r}; expected one of {', '.join(known)}")


@dataclass(frozen=True, slots=True)
class TaskScore:
    """What a task says about an encoder.

    Attributes:
        score: What a table shows, x 100.
        figures: Everything that was computed.
        control: Score x 100 with the gold scores shuffled, where that was asked for and the task has it.
    """

    score: float
    figures: Mapping[str, Any]
    control: float | None = None


Score = Callable[[Embed], TaskScore]


class Task(NamedTuple):
    """A task: its heading in a table, its group, and what reads its data and returns what scores an encoder."""

    heading: str
    group: str
    prepare: Callable[[Settings], Score]


def evaluate(encoder: TextEncoder, tasks: Sequence[str], settings: Settings) -> dict[str, TaskScore]:
    """Score an encoder on tasks, each text embedded once under the default prompt.

    Args:
        encoder: Any.
        tasks: Names of tasks or groups.
        settings: How.

    Raises:
        SentportError: For an unknown task, or data that cannot be read: both before anything is encoded.
    """
    scores = {name: TASKS[name].prepare(settings) for name in choose_tasks(tasks)}
    embed = Embeddings(encoder, progress=settings.progress)
    return {name: score(embed) for name, score in scores.items()}


def choose_tasks(names: Sequence[str]) -> list[str]:
    """Names of tasks, groups taken apart, each once and in the order of the papers' tables.

    Raises:
        SentportError: For an unknown name, with the nearest known one.
    """
    chosen: set[str] = set()
    for name in names:
        members = [task for task, (_, group, _) in TASKS.items() if name in (task, group)]
        if not members:
            known = [*GROUPS, *TASKS]
            near = get_close_matches(name.lower().replace("-", ""), known, n=1)
            meant = f"did you mean {near[0]}? " if near else ""
            raise SentportError(f"unknown task {name!r}; {meant}Known: {', '.join(known)}")
        chosen.update(members)
    return [task for task in TASKS if task in chosen]


def stsb_pairs(settings: Settings) -> StsPairs:
    """The pairs of the STS Benchmark's split."""
    return _split("STSBenchmark", settings.split, settings)[settings.split]


def _sts(folder: str, settings: Settings) -> Score:
    subsets = read_sts_task(settings.data, folder, settings.texts)
    return _correlated(folder, subsets, settings)


def _sts_split(folder: str, splits: Mapping[str, str], settings: Settings) -> Score:
    subsets = _split(folder, splits.get(settings.split, settings.split), settings)
    return _correlated(folder, subsets, settings)


def _correlated(folder: str, subsets: Mapping[str, StsPairs], settings: Settings) -> Score:
    for name, pairs in subsets.items():
        require_correlation(pairs, f"{folder}/{name}")
    return partial(_correlations, subsets, settings)


def _split(folder: str, split: str, settings: Settings) -> dict[str, StsPairs]:
    subsets = read_sts_task(settings.data, folder, settings.texts)
    if split not in subsets:
        raise SentportError(f"split {split!r} of {folder} is not in {settings.data}; found {', '.join(subsets)}")
    return {split: subsets[split]}


def _correlations(subsets: Mapping[str, StsPairs], settings: Settings, embed: Embed) -> TaskScore:
    rated = rate(subsets, embed, settings.similarity)
    scores = {name: correlate(rated, name, settings.aggregation) for name in CORRELATIONS}
    return TaskScore(
        score=scores[settings.correlation],
        figures={
            **scores,
            "pairs": len(rated.gold),
            "subsets": {
                name: {"pairs": rated.subsets[name], settings.correlation: score}
                for name, score in correlate_subsets(rated, settings.correlation).items()
            },
        },
        control=correlate_shuffled(rated, settings.correlation, settings.aggregation) if settings.control else None,
    )


def _transfer(folder: str, parts: tuple[str, ...], settings: Settings) -> Score:
    from sentport.evaluation import transfer

    home = settings.data / "transfer" / folder
    texts = [transfer.read_labelled(home / f"{part}.tsv", pairs=folder == "MRPC") for part in parts]

    def compute(embed: Embed) -> TaskScore:
        data = [transfer.labelled_features(part, embed) for part in texts]
        with Progress(f"{folder}, classifiers", transfer.FOLDS, "folds", shown=settings.progress) as bar:
            found = transfer.transfer_score(data, threads=settings.threads, done=bar.advance)
        return TaskScore(found.accuracy, asdict(found))

    return compute


def _wikisec(settings: Settings) -> Score:
    triplets = read_triplets(settings.data / "wiki_sections" / "triplets_constructed.tsv")

    def compute(embed: Embed) -> TaskScore:
        accuracy = triplet_accuracy(triplets, embed, settings.similarity)
        return TaskScore(accuracy, {"accuracy": accuracy, "triplets": len(triplets)})

    return compute


def _arguments(protocol: str, settings: Settings) -> Score:
    pairs = read_arguments(settings.data / "argument_similarity" / "ukp_aspect.tsv")

    def compute(embed: Embed) -> TaskScore:
        figures = asdict(argument_score(pairs, embed, protocol, settings.similarity))
        return TaskScore(figures["f1"] if pairs.labelled else figures[settings.correlation], figures)

    return compute


TASKS: Mapping[str, Task] = MappingProxyType(
    {
        "sts12": Task("STS12", "sts", partial(_sts, "STS12")),
        "sts13": Task("STS13", "sts", partial(_sts, "STS13")),
        "sts14": Task("STS14", "sts", partial(_sts, "STS14")),
        "sts15": Task("STS15", "sts", partial(_sts, "STS15")),
        "sts16": Task("STS16", "sts", partial(_sts, "STS16")),
        "stsb": Task("STS-B", "sts", partial(_sts_split, "STSBenchmark", {})),
        "sickr": Task("SICK-R", "sts", partial(_sts_split, "SICK-R", {"dev": "trial"})),
        "mr": Task("MR", "transfer", partial(_transfer, "MR", _ALL)),
        "cr": Task("CR", "transfer", partial(_transfer, "CR", _ALL)),
        "subj": Task("SUBJ", "transfer", partial(_transfer, "SUBJ", _ALL)),
        "mpqa": Task("MPQA", "transfer", partial(_transfer, "MPQA", _ALL)),
        "sst2": Task("SST", "transfer", partial(_transfer, "SST2", _TRAIN_DEV_TEST)),
        "trec": Task("TREC", "transfer", partial(_transfer, "TREC", _TRAIN_TEST)),
        "mrpc": Task("MRPC", "transfer", partial(_transfer, "MRPC", _TRAIN_TEST)),
        "wikisec": Task("WikiSec", "other", _wikisec),
        "args": Task("Args 10-fold", "other", partial(_arguments, "10-fold")),
        "argscross": Task("Args cross-topic", "other", partial(_arguments, "cross-topic")),
    }
)
GROUPS = tuple(dict.fromkeys(task.group for task in TASKS.values()))
