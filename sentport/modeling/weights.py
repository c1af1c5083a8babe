"""Weights of a folder by name: safetensors first, ``.bin`` only through torch's weights-only loader."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from sentport.errors import CheckpointError

UNPICKLING = "{file} holds more than weights, or is damaged; unpickling stays off, save it as safetensors"


def read_weights(folder: Path, prefixes: tuple[str, ...] = ("",)) -> dict[str, Tensor]:
    """The tensors of a folder, all shards of them, whose names start with one of ``prefixes``.

    Raises:
        CheckpointError: When there are none, or reading them would need unpickling.
    """
    files = weight_files(folder)
    read = _read_safetensors if files[0].suffix == ".safetensors" else _read_bin
    return {name: tensor for file in files for name, tensor in read(file, prefixes).items()}


def weight_files(folder: Path) -> list[Path]:
    """The files of a folder's weights, one or all shards, of the form that goes first.

    Raises:
        CheckpointError: When there are none.
    """
    for names in ("model.safetensors", "model-*-of-*.safetensors", "pytorch_model.bin", "pytorch_model-*-of-*.bin"):
        if files := sorted(folder.glob(names)):
            return files
    raise CheckpointError(f"{folder} has no model.safetensors and no pytorch_model.bin")


def _read_safetensors(file: Path, prefixes: tuple[str, ...]) -> dict[str, Tensor]:
    with safe_open(file, framework="pt") as held:
        return {name: held.get_tensor(name) for name in held.keys() if name.startswith(prefixes)}  # noqa: SIM118


def _read_bin(file: Path, prefixes: tuple[str, ...]) -> dict[str, Tensor]:
    try:
        held = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises UnpicklingError and others
        raise CheckpointError(UNPICKLING.format(file=file)) from error
    return {name: tensor for name, tensor in held.items() if name.startswith(prefixes)}
