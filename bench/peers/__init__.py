"""What we are compared with: each peer is one file here, which runs in a Python of its own.

A peer's file is read by the benchmark and run by the peer's Python, so it imports nothing of ours but ``common``, and
its own packages inside of functions only. It has:

- ``ENVIRONMENT``: a folder's name, and ``REQUIREMENTS``: what is installed there; no requirements = this Python.
- ``VARIANTS``: by the contestant's name, what it is (see ``Variant``).
- ``open_model(checkpoint, variant, threads, folder)``: an object with ``encode(texts, rows) -> [N, dim]`` and
  ``computed``, the tokens of the last call or None; ``folder`` is its own, and is removed at the end. Or, for a server,
  ``command(checkpoint, variant, threads, port) -> argv`` and ``URL``, ``{port}`` in it, that takes OpenAI's requests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import ModuleType

from sentport.errors import SentportError

# The files of this folder that are peers.
FILES = (
    "sentence_transformers_torch",
    "sentence_transformers_onnx",
    "sentence_transformers_openvino",
    "optimum_onnx",
    "transformers_loop",
    "fastembed_onnx",
    "infinity_engine",
    "infinity_server",
    "fastapi_server",
)


@dataclass(frozen=True, slots=True)
class Variant:
    """One contestant of a peer.

    Attributes:
        kind: Its name on the command line.
        title: In the table.
        engine: What computes.
        precision: Of its weights.
        grouping: How it groups rows, in a few words, ``{rows}`` for the rows of a batch.
        rows: Rows of a batch, a row of the table each: its default, and what is fastest on a CPU.
        module: The peer's file.
    """

    kind: str
    title: str
    engine: str
    precision: str
    grouping: str
    rows: tuple[int, ...]
    module: ModuleType

    @property
    def environment(self) -> str:
        """The name of its environment; empty = this Python."""
        return str(self.module.ENVIRONMENT) if self.module.REQUIREMENTS else ""

    @property
    def command(self) -> Callable[[str, str, int, int], list[str]] | None:
        """What starts its server, given checkpoint, kind, threads and port; None where it is no server."""
        return getattr(self.module, "command", None)


@cache
def variants() -> dict[str, Variant]:
    """All variants of all peers, by their names on the command line."""
    modules = [import_module(f"bench.peers.{name}") for name in FILES]
    return {
        kind: Variant(kind, title, engine, precision, grouping, rows, module)
        for module in modules
        for kind, (title, engine, precision, grouping, rows) in module.VARIANTS.items()
    }


@cache
def requirements() -> dict[str, tuple[str, ...]]:
    """What each environment holds."""
    modules = [variant.module for variant in variants().values()]
    return {module.ENVIRONMENT: module.REQUIREMENTS for module in modules if module.REQUIREMENTS}


def environment_of(peer: str) -> str:
    """The environment that a variant or an environment's name means.

    Raises:
        SentportError: For an unknown one, or one that needs none.
    """
    if peer in requirements():
        return peer
    if peer in variants() and variants()[peer].environment:
        return variants()[peer].environment
    if peer in variants():
        raise SentportError(f"peer {peer} runs in this Python and needs no environment")
    raise SentportError(f"peer {peer!r} is unknown; known: {', '.join(dict.fromkeys((*requirements(), *variants())))}")
