"""What travels between a client and the model of form ``text``: names, limits, and how an error names rows.

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
