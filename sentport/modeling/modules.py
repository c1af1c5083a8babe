"""The module chain that a checkpoint folder saves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from sentport.errors import CheckpointError
from sentport.modeling.chain import (
    ChainModule,
    Normalize,
    Pooling,
    dense_from_config,
    parse_modes,
    pooling_from_config,
)
from sentport.modeling.source_files import inside, module_type, read_json


def read_chain(
    folder: Path, modules: list[dict[str, Any]] | None, hidden: int, pooling: str | None, normalize: bool | None
) -> list[ChainModule]:
    """The modules after the transformer, in the order of modules.json."""
    if modules is None:
        if pooling is None:
            raise CheckpointError(
                f"{folder} is a plain Hugging Face checkpoint, which does not say how to pool; "
                "add --pooling mean (or cls, max), as its model card says"
            )
        chain: list[ChainModule] = [Pooling(hidden, parse_modes(pooling.split("+"), "--pooling"))]
        return [*chain, Normalize()] if normalize is not False else chain
    if pooling is not None:
        raise CheckpointError(f"{folder} says itself how to pool (modules.json); leave --pooling out")
    chain = []
    dim = hidden
    for entry in modules[1:]:
        module = _read_module(inside(folder, entry), module_type(entry), dim, first=not chain)
        dim = getattr(module, "out_dim", dim)
        chain.append(module)
    if not chain:
        raise CheckpointError(f"{folder / 'modules.json'} has no Pooling module; expected one after the transformer")
    if normalize and not isinstance(chain[-1], Normalize):
        chain.append(Normalize())
    if normalize is False and isinstance(chain[-1], Normalize):
        raise CheckpointError(f"{folder} ends in Normalize itself; --no-normalize would change the model")
    return chain


def _read_module(path: Path, kind: str, in_dim: int, *, first: bool) -> ChainModule:
    if first != (kind == "Pooling"):
        raise CheckpointError(f"{path} is module {kind}; expected one Pooling, right after the transformer")
    if kind == "Pooling":
        return pooling_from_config(read_json(path / "config.json"), in_dim, str(path / "config.json"))
    if kind == "Normalize":
        config = read_json(path / "config.json", missing_ok=True) or {}
        if set(config.values()) - {"sentence_embedding", None}:
            raise CheckpointError(f"{path} normalises something other than the sentence vector: not supported yet")
        return Normalize()
    if kind == "Dense":
        dense = dense_from_config(read_json(path / "config.json"), in_dim, str(path / "config.json"))
        dense.load_state_dict(_module_weights(path))
        return dense
    raise CheckpointError(f"{path} is module {kind}, which is not supported; supported: Pooling, Dense, Normalize")


def _module_weights(path: Path) -> dict[str, torch.Tensor]:
    if (path / "model.safetensors").is_file():
        loaded: dict[str, torch.Tensor] = load_file(path / "model.safetensors")
        return loaded
    old = path / "pytorch_model.bin"
    if not old.is_file():
        raise CheckpointError(f"{path} has no model.safetensors and no pytorch_model.bin")
    try:
        weights: dict[str, torch.Tensor] = torch.load(old, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises UnpicklingError and others
        raise CheckpointError(f"{old} holds more than weights; unpickling stays off, save it as safetensors") from error
    return weights
