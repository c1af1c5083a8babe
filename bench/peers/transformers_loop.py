"""Peer: a plain loop over transformers' model, sorted by length and pooled by hand, as its model cards write it."""

from __future__ import annotations

from bench.peers.common import PooledLoop, length_limit

ENVIRONMENT = "this"
REQUIREMENTS: tuple[str, ...] = ()
SORTED = "sorted by tokens, {rows} rows"
VARIANTS = {
    "transformers": ("transformers", "torch", "fp32", SORTED, (32, 64)),
    "transformers-bf16": ("transformers bf16", "torch", "bf16", SORTED, (32, 64)),
}


def open_model(checkpoint: str, variant: str, threads: int, folder: str) -> PooledLoop:
    """With the attention that transformers chooses by itself."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    torch.set_num_threads(threads)
    dtype = torch.bfloat16 if variant.endswith("bf16") else torch.float32
    limit = length_limit(checkpoint)
    model = AutoModel.from_pretrained(checkpoint, dtype=dtype).eval()
    return PooledLoop(AutoTokenizer.from_pretrained(checkpoint), lambda batch: model(**batch).last_hidden_state, limit)
