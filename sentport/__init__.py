"""sentport: sentence encoders from training to production.

``Encoder`` turns texts into vectors; everything else hangs on the two folders described in docs/architecture.md.
Names are resolved on first use, so that ``import sentport`` (and ``sentport --help``) loads no numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from sentport.errors import SentportError

if TYPE_CHECKING:
    from sentport.batch import TokenBatch
    from sentport.encoder import Encoder, EncoderInfo, TextEncoder
    from sentport.engines import Engine

__version__ = "0.1.0"

__all__ = ["Encoder", "EncoderInfo", "Engine", "SentportError", "TextEncoder", "TokenBatch", "__version__"]

_HOME = {
    "Encoder": "sentport.encoder",
    "EncoderInfo": "sentport.encoder",
    "Engine": "sentport.engines",
    "TextEncoder": "sentport.encoder",
    "TokenBatch": "sentport.batch",
}


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'sentport' has no attribute {name!r}")
