"""How good vectors are: test sets and the figures computed on them."""

from __future__ import annotations

from sentport.evaluation.comparison import TextCosines, space_differences, text_cosines
from sentport.evaluation.metrics import cosine_pairs, spearman
from sentport.evaluation.neighbours import NeighbourChurn, nearest_neighbours, neighbour_churn
from sentport.evaluation.sts import StsPairs, read_sts, read_sts_task

__all__ = [
    "NeighbourChurn",
    "StsPairs",
    "TextCosines",
    "cosine_pairs",
    "nearest_neighbours",
    "neighbour_churn",
    "read_sts",
    "read_sts_task",
    "space_differences",
    "spearman",
    "text_cosines",
]
