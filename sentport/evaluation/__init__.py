"""How good vectors are: test sets and the figures computed on them."""

from __future__ import annotations

from sentport.evaluation.metrics import cosine_pairs, spearman
from sentport.evaluation.sts import StsPairs, read_sts, read_sts_task

__all__ = ["StsPairs", "cosine_pairs", "read_sts", "read_sts_task", "spearman"]
