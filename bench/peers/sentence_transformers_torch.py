"""Peer: sentence-transformers on torch in other precisions than the baseline's, in this very Python."""

from __future__ import annotations

from bench.peers.common import SORTED, Counted

ENVIRONMENT = "this"
REQUIREMENTS: tuple[str, ...] = ()
VARIANTS = {
    "sentence-transformers-bf16": ("sentence-transformers bf16", "torch", "bf16", SORTED, (32, 64)),
    "sentence-transformers-fp32": ("sentence-transformers apart", "torch", "fp32", SORTED, (32,)),
}


def open_model(checkpoint: str, variant: str, threads: int, folder: str) -> Counted:
    """The model as its documentation says."""
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    dtype = torch.bfloat16 if variant.endswith("bf16") else torch.float32
    return Counted(SentenceTransformer(checkpoint, device="cpu", model_kwargs={"dtype": dtype}))
