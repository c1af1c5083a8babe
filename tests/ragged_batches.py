"""What Triton makes of requests with ragged inputs, and how it gives the answer back; numpy alone.

The rule was recorded from a server with the onnxruntime backend: `test_ragged.py` checks it against the recording.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Tensors = Mapping[str, NDArray[np.int64]]


def merged(requests: Sequence[Tensors], kind: str = "BATCH_ITEM_SHAPE_FLATTEN") -> dict[str, NDArray[np.generic]]:
    """The feed of one execution: each ragged input end to end, pads included, and ``lengths`` of a kind.

    Args:
        requests: The inputs ``[n, L]`` of each request.
        kind: Of the batch input; the kinds that count elements do so for each request, and not for each row.
    """
    feed: dict[str, NDArray[np.generic]] = {
        name: np.concatenate([request[name].reshape(-1) for request in requests]) for name in requests[0]
    }
    shapes = [next(iter(request.values())).shape for request in requests]
    elements = [rows * length for rows, length in shapes]
    feed["lengths"] = {
        "BATCH_ITEM_SHAPE_FLATTEN": np.array([length for rows, length in shapes for _ in range(rows)], np.int32),
        "BATCH_ELEMENT_COUNT": np.array(elements, np.int32),
        "BATCH_ACCUMULATED_ELEMENT_COUNT": np.cumsum(elements, dtype=np.int32),
    }[kind]
    return feed


def given_back(vectors: NDArray[np.float32], requests: Sequence[Tensors]) -> list[NDArray[np.float32]]:
    """The answer ``[rows, dim]`` cut into those of the requests, by their rows alone."""
    ends = np.cumsum([next(iter(request.values())).shape[0] for request in requests])[:-1]
    return np.split(vectors, ends)
