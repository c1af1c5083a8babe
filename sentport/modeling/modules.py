"""The module chain of a checkpoint folder, in order, and what is asked for on top of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from sentport.errors import CheckpointError
from sentport.modeling.chain import ChainModule, Normalize, Truncate
from sentport.modeling.module_folders import read_module
from sentport.modeling.pooling import Pooling
from sentport.modeling.simcse import plain_chain
from sentport.modeling.source_files import inside, module_type


@dataclass(frozen=True)
class ChainOptions:
    """What is asked of a chain beyond what the checkpoint saves.

    Attributes:
        pooling: How to pool, for a plain checkpoint: modes joined by ``+``, or one of SimCSE's poolers.
        normalize: Append L2 normalisation; None = as saved, or on for a plain checkpoint.
        dim: Cut vectors to their first values, before a last Normalize; None = leave them whole.
    """

    pooling: str | None = None
    normalize: bool | None = None
    dim: int | None = None


def read_chain(
    folder: Path, modules: list[dict[str, Any]] | None, hidden: int, options: ChainOptions
) -> list[ChainModule]:
    """The modules after the transformer.

    Args:
        folder: The checkpoint.
        modules: Its modules.json; None for a plain checkpoint.
        hidden: Width of its token vectors.
        options: What is asked for.

    Raises:
        CheckpointError: When something in the chain, or asked of it, cannot be done.
    """
    if modules is not None and options.pooling is not None:
        raise CheckpointError(f"{folder} says itself how to pool (modules.json); leave --pooling out")
    chain = plain_chain(folder, hidden, options.pooling) if modules is None else _saved_chain(folder, modules, hidden)
    if options.normalize is False and isinstance(chain[-1], Normalize):
        raise CheckpointError(f"{folder} ends in Normalize itself; --no-normalize would change the model")
    wanted = modules is None if options.normalize is None else options.normalize
    if wanted and not isinstance(chain[-1], Normalize):
        chain.append(Normalize())
    return chain if options.dim is None else _cut(chain, options.dim)


def width(chain: Sequence[ChainModule], in_dim: int) -> int:
    """Width of the vectors that come out of a chain."""
    return next((cast(int, module.out_dim) for module in reversed(chain) if hasattr(module, "out_dim")), in_dim)


def _saved_chain(folder: Path, modules: list[dict[str, Any]], hidden: int) -> list[ChainModule]:
    chain: list[ChainModule] = []
    for entry in modules[1:]:
        path = inside(folder, entry)
        module = read_module(path, module_type(entry), width(chain, hidden))
        if module is None:
            continue
        pooled = any(isinstance(before, Pooling) for before in chain)
        if module.on_tokens == pooled:
            kind = type(module).__name__
            raise CheckpointError(
                f"{path} is module {kind} on {'token' if pooled else 'sentence'} vectors, "
                f"{'after' if pooled else 'before'} pooling; expected one Pooling, and after it sentence vectors only"
            )
        chain.append(module)
    if not any(isinstance(module, Pooling) for module in chain):
        raise CheckpointError(f"{folder / 'modules.json'} has no Pooling module; expected one after the transformer")
    return chain


def _cut(chain: list[ChainModule], dim: int) -> list[ChainModule]:
    whole = width(chain, 0)
    if not 1 <= dim <= whole:
        raise CheckpointError(f"dim {dim} was asked for, but this model's vectors have {whole} values")
    if dim == whole:
        return chain
    end = len(chain) - isinstance(chain[-1], Normalize)
    return [*chain[:end], Truncate(dim), *chain[end:]]
