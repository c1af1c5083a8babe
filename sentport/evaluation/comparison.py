"""Two encoders side by side: whether they share an embedding space, and what their vectors have in common."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentport.bundle import ModelSpec
from sentport.errors import SentportError
from sentport.evaluation.metrics import cosine_pairs

Vectors = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TextCosines:
    """Cosines between the two vectors of each text.

    Attributes:
        texts: How many texts were compared; those with zero vectors on both sides say nothing and are left out.
        worst: The lowest cosine.
        mean: Their mean.
        median: Their median.
        worst_rows: Rows of the lowest cosines, worst first.
        worst_values: The cosines of these rows.
    """

    texts: int
    worst: float
    mean: float
    median: float
    worst_rows: tuple[int, ...]
    worst_values: tuple[float, ...]


def text_cosines(a: Vectors, b: Vectors, shown: int = 5) -> TextCosines:
    """Compare the vectors of the same texts, ``[N, D]`` each; ``shown`` is how many of the worst rows to name.

    Raises:
        SentportError: When shapes differ, or no text has a vector that is not zero.
    """
    cosines = cosine_pairs(a, b)  # [N]
    rows = np.flatnonzero(a.any(axis=1) | b.any(axis=1))  # [M]
    if not len(rows):
        raise SentportError(f"all {len(a)} texts have zero vectors on both sides; there is nothing to compare")
    held = cosines[rows]
    order = np.argsort(held, kind="stable")[:shown]
    return TextCosines(
        texts=len(rows),
        worst=float(held.min()),
        mean=float(held.mean()),
        median=float(np.median(held)),
        worst_rows=tuple(rows[order].tolist()),
        worst_values=tuple(held[order].tolist()),
    )


def space_differences(a: ModelSpec, b: ModelSpec) -> list[str]:
    """Why two models' vectors must not be compared with each other: each part of the fingerprint that differs.

    Returns:
        One line a part, of the form ``dim: A has 384, B has 256``; empty exactly when the fingerprints are equal.
    """
    first, second = _parts(a), _parts(b)
    names = [*first, *(name for name in second if name not in first)]
    pairs = [(name, first.get(name, "none"), second.get(name, "none")) for name in names]
    return [f"{name}: A has {here}, B has {there}" for name, here, there in pairs if here != there]


def _parts(spec: ModelSpec) -> dict[str, str]:
    """The parts of an embedding space, by name, in words."""
    modules = {f"module {place}": words for place, words in enumerate(spec.chain, start=1)}
    prompts = {f"prompt {name!r}": repr(text) for name, text in spec.prompts.items()}
    return {
        "weights": f"SHA-256 {spec.weights_sha256[:12]}…",
        **modules,
        "dim": str(spec.dim),
        "tokenizer": f"SHA-256 {spec.tokenizer_sha256[:12]}…",
        "max tokens": str(spec.max_tokens),
        **prompts,
        "default prompt": repr(spec.default_prompt) if spec.default_prompt else "none",
    }
