"""What travels between a client and a model, and between the steps of one: names, and how an error names rows.

Server and client import this module, so it needs nothing but the core.
"""

from __future__ import annotations

import re

# The model's tensors. INFO is answered only to a request with the parameter of that name.
TEXT = "TEXT"  # BYTES [n, 1]
EMBEDDING = "EMBEDDING"  # FP32 [n, dim]
TOKENS = "TOKENS"  # INT32 [n, 1], without the length limit
TRUNCATED = "TRUNCATED"  # BOOL [n, 1]
INFO = "INFO"  # BYTES [n, 1], JSON

# What the steps of forms ``ragged`` and ``plan`` hand on: INT64 [n, L] each, under the names of the graph's inputs.
INPUT_IDS = "input_ids"
ATTENTION_MASK = "attention_mask"
POOLING_MASK = "pooling_mask"
TOKEN_TYPE_IDS = "token_type_ids"  # zeros: a text alone is one segment
LENGTHS = "lengths"  # INT32, a row's padded length; the server makes it of the shape of INPUT_IDS

# The request parameters that the model knows.
PROMPT = "prompt"
DIM = "dim"
ON_TRUNCATE = "on_truncate"
ASK_INFO = "info"
REQUEST_PARAMETERS = (DIM, ASK_INFO, ON_TRUNCATE, PROMPT)
TRUNCATE_POLICIES = ("allow", "error")

# The key of config.pbtxt under which a repository describes its encoder, as JSON; by it a client knows our models.
ENCODER = "encoder"

_ROWS = re.compile(r"rows (\d+(?:, \d+)*)")


def shift_rows(message: str, start: int) -> tuple[str, tuple[int, ...]]:
    """A message about the rows of a request in the numbers of its caller, and these rows.

    Args:
        message: What the server said, naming rows as the library's errors do (``rows 1, 5``).
        start: The caller's row that is the request's row 0.
    """
    found: list[int] = []

    def shifted(match: re.Match[str]) -> str:
        rows = [int(row) + start for row in match[1].split(",")]
        found.extend(rows)
        return f"rows {', '.join(map(str, rows))}"

    return _ROWS.sub(shifted, message), tuple(found)
