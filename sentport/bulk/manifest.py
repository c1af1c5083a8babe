"""What stored vectors are: the model and conditions that made them, kept beside them wherever they lie."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sentport.errors import SentportError

FORMAT = "1.0"
STORED_TYPES = ("float32", "float16", "int8", "binary")


class StoreError(SentportError):
    """Stored vectors are missing, damaged, of another version, or not comparable with others."""


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a folder of vectors: its name, its rows, its size."""

    file: str
    rows: int
    bytes: int


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
        device: Device of the nodes that ran.
        stored: ``float32``, ``float16``, ``int8`` (a scale a row) or ``binary`` (sign bits).
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
        parts: Files of a folder, in order; empty for a single file.
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
        return json.dumps(asdict(self), indent=indent, ensure_ascii=False)


def read_manifest(text: str | bytes, where: str) -> Manifest:
    """Parse a manifest.

    Args:
        text: Its JSON.
        where: What it was read from, for messages.

    Raises:
        StoreError: When it is damaged, or of another format version.
    """
    try:
        values = json.loads(text)
        found = str(values["format"])
        if found == FORMAT:
            held = {one.name: values[one.name] for one in fields(Manifest)}
            return Manifest(**{**held, "parts": tuple(Part(**part) for part in held["parts"])})
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StoreError(f"{where} is damaged ({type(error).__name__}: {error}); encode the texts again") from None
    raise StoreError(f"{where} has format {found}, this sentport reads {FORMAT}; encode again, or use its version")


def narrowed(vectors: NDArray[np.float32], dtype: DTypeLike) -> NDArray[Any]:
    """Vectors in the type that they are stored in.

    Raises:
        StoreError: When a value does not fit, or is no number.
    """
    with np.errstate(over="ignore"):
        values = vectors.astype(dtype)
    if not np.isfinite(values).all():
        raise StoreError(f"a value of {np.abs(vectors).max():.3g} does not fit {np.dtype(dtype)}; use --store float32")
    return values


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
        left, right = str(getattr(one, aspect))[:12], str(getattr(other, aspect))[:12]
        if getattr(one, aspect) != getattr(other, aspect):
            raise StoreError(
                f"{names[0]} has {aspect} {left}, {names[1]} has {right}: their vectors cannot be compared; "
                "encode both with the same model and options"
            )
