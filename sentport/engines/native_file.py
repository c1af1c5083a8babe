"""``native/<precision>.safetensors``: an encoder's arrays under our own names, and in its metadata what they make.

The format is Hugging Face's: eight bytes with the length of a JSON header, the header, the arrays. It is read through
a memory map, so that processes with the same bundle share the largest array, the words' table.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sentport.errors import GraphError

METADATA = "sentport"
_LONGEST_HEADER = 1 << 26
# bf16 as the 16 bits that it is: numpy has no such type.
_TYPES: dict[str, type[np.generic]] = {"F32": np.float32, "BF16": np.uint16, "I8": np.int8}


class NativeFile(NamedTuple):
    """The content of a file.

    Attributes:
        description: What the arrays make: layers, heads, activation, epsilon, pad_id, pooling, modules.
        arrays: By name; they lie in the file.
    """

    description: Mapping[str, Any]
    arrays: dict[str, NDArray[Any]]

    @property
    def linear_types(self) -> dict[str, np.dtype[Any]]:
        """Element types of the linear layers on tokens, by their names in order."""
        weights = {name.removesuffix(".weight"): array for name, array in self.arrays.items() if array.ndim == 2}
        named = ("layers.", "embeddings.projection")
        return {name: weights[name].dtype for name in sorted(weights) if name.startswith(named)}

    @property
    def int8_layers(self) -> list[str]:
        """Names of the linear layers in 8 bits."""
        return [name for name, kind in self.linear_types.items() if kind == np.int8]

    @property
    def numbers_sha256(self) -> str:
        """SHA-256 over all that quantisation made: weights in 8 bits, their scales, smoothing."""
        digest = hashlib.sha256()
        for layer in self.int8_layers:
            for part in ("weight", "scale", "smoothing"):
                if (array := self.arrays.get(f"{layer}.{part}")) is not None:
                    digest.update(f"{layer}.{part}\0".encode() + array.tobytes())
        return digest.hexdigest()


def read_native(file: Path) -> NativeFile:
    """Read a file; what it holds is checked as far as memory goes, its meaning by whoever uses it.

    Raises:
        GraphError: When it is damaged.
    """
    try:
        data = np.memmap(file, np.uint8, "r")
        length = int.from_bytes(data[:8].tobytes(), "little")
        if not 2 <= length <= min(_LONGEST_HEADER, len(data) - 8) or length % 8:  # arrays lie on their own sizes
            raise ValueError(f"its header has {length} bytes")
        header = json.loads(data[8 : 8 + length].tobytes())
        description = json.loads(header.pop("__metadata__")[METADATA])
        body = data[8 + length :]
        return NativeFile(description, {name: _array(body, **record) for name, record in header.items()})
    except (ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError) as error:
        raise GraphError(f"{file} is damaged ({type(error).__name__}: {error}); export the checkpoint again") from None


def _array(body: NDArray[np.uint8], dtype: str, shape: list[int], data_offsets: list[int]) -> NDArray[Any]:
    kind = np.dtype(_TYPES[dtype])
    start, end = data_offsets
    if not 0 <= start <= end <= len(body) or start % kind.itemsize or min(shape, default=1) < 0:
        raise ValueError(f"an array at bytes {start} to {end} of {len(body)}")
    if end - start != math.prod(shape) * kind.itemsize:
        raise ValueError(f"an array {shape} of {dtype} in {end - start} bytes")
    return body[start:end].view(kind).reshape(shape)
