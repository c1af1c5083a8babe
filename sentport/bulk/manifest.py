"""What stored vectors are: the model and conditions that made them, kept beside them wherever they lie."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Protocol

from sentport.errors import SentportError

FORMAT = "1.0"


class StoreError(SentportError):
    """Stored vectors are missing, damaged, of another version, or not comparable with others."""


def seal(values: Mapping[str, Any], *, indent: int | None = None) -> str:
    """JSON that carries a hash of itself, so that no damage of it goes unseen."""
    return json.dumps({**values, "seal": _seal_of(values)}, indent=indent)


def unseal(text: str | bytes) -> dict[str, Any]:
    """What ``seal`` was given, as JSON has it.

    Raises:
        ValueError: When it is not what was sealed.
    """
    try:
        values: dict[str, Any] = json.loads(text)
        sealed = values.pop("seal")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
    if sealed != _seal_of(values):
        raise ValueError("its content has changed since it was written")
    return values


def _seal_of(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Part:
    """A file of vectors: its name, its rows, its bytes, its hash."""

    file: str
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Made:
    """What made vectors, and what of them is kept: the same while a job runs and beside its output.

    Attributes:
        fingerprint: Identity of the embedding space.
        source: Name of the model.
        similarity: The similarity that the model was trained for.
        dim: Width of a vector.
        precision: Precision of the graph that ran.
        engine: Name of the engine.
        layout: How it laid a batch out; vectors differ by it in their last digits.
        device: Device of the nodes that ran.
        stored: How a vector is kept, of ``sentport.vectors.VECTOR_TYPES``.
        prompt: Name of the saved prompt in front of every text; "" = none.
        ids: Column of the input that ids are from; None = ids are input positions, counted from 0.
        texts: Whether the texts are stored too.
    """

    fingerprint: str
    source: str
    similarity: str
    dim: int
    precision: str
    engine: str
    layout: str
    device: str
    stored: str
    prompt: str
    ids: str | None
    texts: bool


@dataclass(frozen=True, slots=True)
class Manifest(Made):
    """Which vectors these are, and under which conditions they were made.

    Attributes:
        rows: Vectors held.
        bad_rows: Input rows that could not be encoded; their ids are absent.
        truncated: Texts that lost their end to the model's length limit.
        input: Names of the input files and the text column, as given.
        parts: The files that hold them, in order; empty where the manifest lies in the file itself, a ``.parquet``.
        format: Version of this description.
    """

    rows: int
    bad_rows: int
    truncated: int
    input: Mapping[str, Any]
    parts: tuple[Part, ...] = field(default=())
    format: str = FORMAT

    def to_json(self, *, indent: int | None = 2) -> str:
        """The manifest as it is written."""
        return seal(asdict(self), indent=indent)


def read_manifest(text: str | bytes, where: str) -> Manifest:
    """Parse a manifest.

    Args:
        text: Its JSON.
        where: What it was read from, for messages.

    Raises:
        StoreError: When it is damaged, or of another format version.
    """
    try:
        values = unseal(text)
        found = str(values["format"])
        if found == FORMAT:
            held = {one.name: values[one.name] for one in fields(Manifest)}
            return Manifest(**{**held, "parts": tuple(Part(**part) for part in held["parts"])})
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{where} is damaged ({error}); encode the texts again, with --force") from None
    raise StoreError(f"{where} has format {found}, this sentport reads {FORMAT}; encode again, or use its version")


def short(value: object) -> str:
    """A value for a message: of a hash its first digits."""
    text = str(value)
    return text[:12] if re.fullmatch("[0-9a-f]{64}", text) else text


class Space(Protocol):
    """What decides whether vectors may be compared: a ``Manifest``'s and an ``EncoderInfo``'s common part."""

    @property
    def fingerprint(self) -> str:
        """Identity of the embedding space."""

    @property
    def precision(self) -> str:
        """Precision of the graph."""

    @property
    def dim(self) -> int:
        """Width of a vector."""


def refuse_mix(one: Space, other: Space, names: tuple[str, str]) -> None:
    """Vectors are compared only with vectors of the same space, width, precision and stored type.

    Args:
        one: A manifest, or an encoder's info.
        other: The same; stored types are compared where both are manifests, since an encoder stores nothing.
        names: What to call the two.

    Raises:
        StoreError: Naming what differs.
    """
    aspects = ["fingerprint", "dim", "precision"]
    if isinstance(one, Manifest) and isinstance(other, Manifest):
        aspects.append("stored")
    for aspect in aspects:
        left, right = getattr(one, aspect), getattr(other, aspect)
        if left != right:
            raise StoreError(
                f"{names[0]} has {aspect} {short(left)}, {names[1]} has {short(right)}: their vectors cannot be "
                "compared; encode both with the same model and options"
            )
