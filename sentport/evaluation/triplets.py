"""Triplets: whether an anchor is nearer to its positive than to its negative."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sentport.evaluation.metrics import pair_similarity
from sentport.evaluation.scoring import Embed
from sentport.evaluation.tsv import read_columns


@dataclass(frozen=True, slots=True)
class Triplets:
    """N triplets of texts."""

    anchors: tuple[str, ...]
    positives: tuple[str, ...]
    negatives: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.anchors)


def read_triplets(path: Path) -> Triplets:
    """Read a file of ``anchor<TAB>positive<TAB>negative`` lines.

    Raises:
        SentportError: As ``read_columns`` does.
    """
    return Triplets(*read_columns(path, ("anchor", "positive", "negative")))


def triplet_accuracy(triplets: Triplets, embed: Embed, similarity: str = "euclidean") -> float:
    """Share x 100 of the triplets whose positive is more similar to the anchor than the negative is; a tie is not.

    Source: Reimers & Gurevych 2019, section 4.4, after Dor et al. 2018, with Euclidean distance.

    Raises:
        SentportError: For an unknown similarity.
    """
    count = len(triplets)
    vectors = embed([*triplets.anchors, *triplets.positives, *triplets.negatives])  # [3N, D]
    anchors, positives, negatives = vectors[:count], vectors[count : 2 * count], vectors[2 * count :]  # [N, D] each
    near = pair_similarity(anchors, positives, similarity)  # [N]
    far = pair_similarity(anchors, negatives, similarity)  # [N]
    return 100 * float((near > far).mean())
