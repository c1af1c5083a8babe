"""How good vectors are: test sets and the figures computed on them."""

from __future__ import annotations

from sentport.evaluation.comparison import TextCosines, space_differences, text_cosines
from sentport.evaluation.metrics import cosine_pairs, pair_similarity, pearson, spearman
from sentport.evaluation.neighbours import NeighbourChurn, nearest_neighbours, neighbour_churn
from sentport.evaluation.scoring import sts_score
from sentport.evaluation.sts import StsPairs, read_sts, read_sts_task
from sentport.evaluation.tasks import Settings, TaskScore, evaluate

__all__ = [
    "NeighbourChurn",
    "Settings",
    "StsPairs",
    "TaskScore",
    "TextCosines",
    "cosine_pairs",
    "evaluate",
    "nearest_neighbours",
    "neighbour_churn",
    "pair_similarity",
    "pearson",
    "read_sts",
    "read_sts_task",
    "space_differences",
    "spearman",
    "sts_score",
    "text_cosines",
]
