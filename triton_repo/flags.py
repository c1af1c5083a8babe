"""Options of ``tritonserver`` beyond its addresses: model control, rate limits, what needs a key.

Of limits on HTTP headers, messages and connections this server (2.51) has none to set; ``tritonserver --help`` lists
what there is. What bounds a request are our models (rows, bytes of a text) and their queues.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sentport.errors import SentportError

# Loading and unloading models, reading and writing the server's memory, files it writes, its log: nothing that a
# client of ours needs.
RESTRICTED_APIS = ("model-repository", "shared-memory", "trace", "logging")
KEY_HEADER = "sentport-key"
# gRPC takes the key under this name.
GRPC_KEY_HEADER = f"triton-grpc-protocol-{KEY_HEADER}"

_LEAST_KEY = 16
_KEY_CHARACTERS = frozenset(string.ascii_letters + string.digits + "-_.")
_OTHERS_MAY = 0o077


@dataclass(frozen=True, slots=True)
class ServerFlags:
    """What a server is started with.

    Attributes:
        rate_limit: Whether models that share something take turns (``Batching.shares``).
        controlled: Whether models can be loaded again while it runs.
        key: What a client must send to use the APIs in ``RESTRICTED_APIS``; None = nothing is asked for.
        cache_bytes: Size of the response cache, for models that say that their answers may be kept; 0 = none.
    """

    rate_limit: bool = False
    controlled: bool = False
    key: str | None = None
    cache_bytes: int = 0

    def options(self) -> list[str]:
        """The options of ``tritonserver``."""
        options: list[str] = []
        if self.rate_limit:
            options.append("--rate-limit=execution_count")
        if self.controlled:
            options += ["--model-control-mode=explicit", "--load-model=*"]
        if self.key is not None:
            restricted = f"{','.join(RESTRICTED_APIS)}:{KEY_HEADER}={self.key}"
            options += [f"--http-restricted-api={restricted}", f"--grpc-restricted-protocol={restricted}"]
        if self.cache_bytes:
            options.append(f"--cache-config=local,size={self.cache_bytes}")
        return options


def address_options(host: str, ports: Mapping[str, int]) -> list[str]:
    """The options that say where the three services listen."""
    return [
        f"--{service}-{what}={value}"
        for service, port in ports.items()
        for what, value in (("address", host), ("port", port))
    ]


def read_key(file: Path) -> str:
    """The key in a file that its owner alone can read.

    Raises:
        SentportError: When the file is missing or open to others, or holds no usable key.
    """
    if file.exists() and not file.is_file():
        raise SentportError(f"key file {file} is not a file; give one that holds the key")
    try:
        mode = file.stat().st_mode
        text = file.read_text(encoding="ascii").strip()
    except OSError as error:
        raise SentportError(f"key file {file} cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        text = ""
    if mode & _OTHERS_MAY:
        raise SentportError(f"key file {file} is open to other users; run `chmod 600 {file}`")
    if len(text) < _LEAST_KEY or not set(text) <= _KEY_CHARACTERS:
        raise SentportError(
            f"key file {file} holds no key: expected one line of {_LEAST_KEY} or more letters, digits, '-', '_', '.'; "
            f"`openssl rand -hex 32 > {file}` makes one"
        )
    return text
