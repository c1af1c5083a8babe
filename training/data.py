"""Examples from local files or the hub: rows of text, each good or counted as bad with its line."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from sentport.inputs import bad_rows
from training.settings import ENTAILMENT, Data, Format
from training.tables import RecipeError

# What is drawn here belongs to the data, so that every seed of a training trains on the same examples.
_DRAW_SEED = 0
_SHOWN = 5

Target = float | int | None


@dataclass(frozen=True, slots=True)
class Example:
    """One example: its texts, and what the objective wants of them (a cosine, the number of a label, or nothing)."""

    texts: tuple[str, ...]
    target: Target = None


@dataclass
class Source:
    """What was read from one place.

    Attributes:
        name: The file, or the hub's data set.
        rows: Rows read, bad ones included.
        examples: Those made of the good ones.
        bad: Line and reason of each row that is none.
        unused: Good rows that make no example, such as a premise without an entailment.
    """

    name: str
    rows: int = 0
    examples: list[Example] = field(default_factory=list)
    bad: list[tuple[int, str]] = field(default_factory=list)
    unused: int = 0

    def report(self) -> str:
        """One line on what was read."""
        parts = [f"{self.name}: {len(self.examples)} examples of {self.rows} rows"]
        if self.unused:
            parts.append(f"{self.unused} rows make none")
        if self.bad:
            shown = ", ".join(f"line {line} ({reason})" for line, reason in self.bad[:_SHOWN])
            more = f" and {len(self.bad) - _SHOWN} more" if len(self.bad) > _SHOWN else ""
            parts.append(f"{len(self.bad)} bad: {shown}{more}")
        return "; ".join(parts)


class _BadRow(Exception):
    """A row that is no example; the message is the reason."""


def read_data(data: Sequence[Data], folder: Path, *, contrastive: bool) -> list[Source]:
    """All examples of a recipe.

    Args:
        data: Its sources.
        folder: Where files are looked for.
        contrastive: NLI rows of one premise become a pair, or a pair with hard negatives, rather than one example each.

    Raises:
        RecipeError: When a source cannot be read or has no example, or examples of different width meet.
    """
    sources = []
    for settings in data:
        places = _hub(settings) if settings.hub else _files(settings, folder)
        sources += [_read(settings, name, rows, contrastive) for name, rows in places]
    widths = {source.name: len(source.examples[0].texts) for source in sources}
    if len(set(widths.values())) > 1:
        described = ", ".join(f"{name} {width}" for name, width in widths.items())
        raise RecipeError(f"sources differ in the number of texts of an example ({described}); expected one number")
    return sources


def data_hash(sources: Sequence[Source]) -> str:
    """SHA-256 over all examples in order."""
    digest = hashlib.sha256()
    for source in sources:
        for example in source.examples:
            digest.update("\t".join((*example.texts, str(example.target))).encode() + b"\n")
    return digest.hexdigest()


def _read(settings: Data, name: str, rows: Iterable[Sequence[Any]], contrastive: bool) -> Source:
    source = Source(name)
    parse = _PARSERS[settings.format]
    read: list[Example] = []
    for line, columns in enumerate(islice(rows, settings.rows), start=1):
        source.rows += 1
        try:
            read += parse(columns, settings)
        except _BadRow as reason:
            source.bad.append((line, str(reason)))
    source.examples = read
    if settings.format is Format.NLI and contrastive:
        source.examples = list(_by_premise(read, settings))
        source.unused = len(read) - len(source.examples)
    if not source.examples:
        raise RecipeError(f"{source.report()}; expected rows of format {settings.format.value}")
    return source


def _files(settings: Data, folder: Path) -> Iterator[tuple[str, Iterator[list[str]]]]:
    for name in settings.files:
        path = folder / name
        if not path.is_file():
            raise RecipeError(f"{path} does not exist; --data names the folder that data files lie under")
        yield name, _lines(path)


def _lines(path: Path) -> Iterator[list[str]]:
    r"""Columns of each line; only ``\n`` ends one, and what is not UTF-8 becomes a lone surrogate, thus a bad row."""
    with path.open("rb") as file:
        for line in file:
            yield line.rstrip(b"\n").decode("utf-8", "surrogateescape").split("\t")


def _hub(settings: Data) -> Iterator[tuple[str, Iterator[list[Any]]]]:
    """Rows of a data set as they stream in; what comes after ``rows`` of them is never fetched."""
    from datasets import load_dataset

    arguments = {"split": settings.split, "revision": settings.revision, "data_files": settings.data_files}
    with _one_line(settings):
        stream = load_dataset(settings.hub, settings.config, streaming=True, **arguments)
        first = next(iter(stream), dict.fromkeys(settings.fields))
    if missing := [name for name in settings.fields if name not in first]:
        raise RecipeError(f"{settings.hub} has no field {missing[0]}; it has {', '.join(first)}")
    parts = [settings.hub, settings.config, settings.split]
    yield "/".join(part for part in parts if part), _fields(stream, settings)


def _fields(stream: Iterable[dict[str, Any]], settings: Data) -> Iterator[list[Any]]:
    with _one_line(settings):
        for row in stream:
            yield [row[name] for name in settings.fields]


@contextmanager
def _one_line(settings: Data) -> Iterator[None]:
    """Datasets and its transports raise many kinds of error, of many lines."""
    try:
        yield
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        raise RecipeError(f"{settings.hub} cannot be read ({type(error).__name__}: {reason})") from error


def _texts(columns: Sequence[Any]) -> tuple[str, ...]:
    for place, reason in bad_rows(columns, surrogates=True).items():
        raise _BadRow(f"text {place + 1}: {reason}")
    texts = tuple(text.strip() for text in columns)
    if not all(texts):
        raise _BadRow(f"text {texts.index('') + 1} is empty")
    return texts


def _width(columns: Sequence[Any], *allowed: int) -> None:
    if len(columns) not in allowed:
        raise _BadRow(f"{len(columns)} columns, expected {' or '.join(map(str, allowed))}")


def _sts(columns: Sequence[Any], settings: Data) -> list[Example]:
    _width(columns, 3)
    least, greatest = settings.score_range
    try:
        score = float(columns[0])
    except (TypeError, ValueError):
        raise _BadRow(f"score {columns[0]!r} is no number") from None
    if not least <= score <= greatest:
        raise _BadRow(f"score {score:g} is not from {least:g} to {greatest:g}")
    return [Example(_texts(columns[1:]), (score - least) / (greatest - least))]


def _nli(columns: Sequence[Any], settings: Data) -> list[Example]:
    _width(columns, 3)
    label = columns[0]
    number = settings.labels.index(label) if label in settings.labels else label
    if type(number) is not int or not 0 <= number < len(settings.labels):
        raise _BadRow(f"label {label!r} is not one of {', '.join(settings.labels)}")
    return [Example(_texts(columns[1:]), number)]


def _triplets(columns: Sequence[Any], _settings: Data) -> list[Example]:
    _width(columns, 3, 4)
    return [Example(_texts(columns[:3]))]


def _pairs(columns: Sequence[Any], _settings: Data) -> list[Example]:
    _width(columns, 2, 3, 4)
    return [Example(_texts(columns[:2]))]


def _groups(columns: Sequence[Any], _settings: Data) -> list[Example]:
    """Disjoint pairs of a group, drawn by its own texts, whatever stands before it."""
    texts = list(_texts(columns))
    if len(texts) < 2:
        raise _BadRow("1 column, expected 2 or more")
    random.Random(f"{_DRAW_SEED} {texts}").shuffle(texts)
    return [Example(pair) for pair in zip(texts[::2], texts[1::2], strict=False)]


def _sentences(columns: Sequence[Any], _settings: Data) -> list[Example]:
    _width(columns, 1)
    return [Example(_texts(columns))]


_PARSERS: dict[Format, Callable[[Sequence[Any], Data], list[Example]]] = {
    Format.STS: _sts,
    Format.NLI: _nli,
    Format.TRIPLETS: _triplets,
    Format.PAIRS: _pairs,
    Format.GROUPS: _groups,
    Format.SENTENCES: _sentences,
}


def _by_premise(rows: Sequence[Example], settings: Data) -> Iterator[Example]:
    """Each premise with an entailment, and with a hypothesis drawn for each label of hard negatives."""
    hypotheses: dict[str, list[list[str]]] = {}
    for row in rows:
        premise, hypothesis = row.texts
        by_label = hypotheses.setdefault(premise, [[] for _ in settings.labels])
        by_label[int(row.target or 0)].append(hypothesis)
    draw = random.Random(_DRAW_SEED)
    entailment = settings.labels.index(ENTAILMENT)
    negatives = [settings.labels.index(label) for label in settings.hard_negatives]
    for premise, by_label in hypotheses.items():
        if not all(by_label[label] for label in negatives):
            continue
        for positive in by_label[entailment]:
            yield Example((premise, positive, *(draw.choice(by_label[label]) for label in negatives)))
