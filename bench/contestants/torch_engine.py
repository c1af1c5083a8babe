"""Contestant ``torch``: our torch engine on a checkpoint folder."""

from __future__ import annotations

from pathlib import Path

from bench.contestants.engine import EngineContestant, Parts
from sentport.tokenizer import Tokenizer

NAME = "sentport torch"


def open_contestant(path: Path, threads: int, device: str) -> EngineContestant:
    """Open a checkpoint folder.

    Raises:
        SentportError: When the checkpoint or the device cannot be had.
    """
    from sentport.engines.torch import open_checkpoint

    spec, definition, engine = open_checkpoint(path, threads, device)
    return EngineContestant(NAME, Parts(engine, Tokenizer(definition, spec.max_tokens, threads), spec))
