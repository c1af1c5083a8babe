"""The systems that a command compares: a bundle, a checkpoint folder, or a model on a running server."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sentport.errors import SentportError

if TYPE_CHECKING:
    from sentport.encoder import TextEncoder

# By name, as in the table of commands: the core imports no other package.
_CLIENT_MODULE = "triton_repo.client"
_PROTOCOLS = ("http", "grpc")


@dataclass(frozen=True, slots=True)
class System:
    """What to open, and how.

    Attributes:
        source: A folder, or ``http://host:port/model`` or ``grpc://host:port/model``.
        engine: As for ``sentport.Encoder``, like the four below; a server has its own of all of them.
        precision: Of the graph.
        layout: Of the batches.
        device: Where it runs.
        threads: Compute threads in all; None = the cores allowed.
    """

    source: str
    engine: str
    precision: str
    layout: str
    device: str
    threads: int | None

    @property
    def kind(self) -> str:
        """``server``, ``bundle`` or ``checkpoint``."""
        from sentport.bundle import is_bundle

        if self.source.partition("://")[0] in _PROTOCOLS:
            return "server"
        return "bundle" if is_bundle(Path(self.source)) else "checkpoint"

    def open(self) -> AbstractContextManager[TextEncoder]:
        """The encoder, which closes with the context.

        Raises:
            SentportError: When it cannot be had as asked for.
        """
        if self.kind == "server":
            return self._connect()
        from sentport.encoder import Encoder

        return Encoder(
            self.source,
            engine=self.engine,
            precision=self.precision,
            layout=self.layout,
            device=self.device,
            threads=self.threads,
        )

    def _connect(self) -> AbstractContextManager[TextEncoder]:
        chosen = {"engine": self.engine, "precision": self.precision, "layout": self.layout, "device": self.device}
        for name, value in chosen.items():
            if value != "auto":
                raise SentportError(
                    f"{name} {value} cannot be chosen for {self.source}, which runs its own; leave it out"
                )
        protocol, _, rest = self.source.partition("://")
        address, _, model = rest.partition("/")
        if not model.strip("/"):
            raise SentportError(f"{self.source} names no model; expected {protocol}://host:port/model")
        try:
            client: Any = import_module(_CLIENT_MODULE).Client
        except ModuleNotFoundError as error:
            raise SentportError(
                f"a server needs {error.name}, which is not installed: pip install 'sentport[triton]'"
            ) from None
        opened: AbstractContextManager[TextEncoder] = client(address, model=model.strip("/"), protocol=protocol)
        return opened


def try_to_open(systems: Sequence[System]) -> None:
    """Open each once and close it again, so that what cannot be had is told before hours of work on another.

    Raises:
        SentportError: As ``System.open`` does.
    """
    for system in systems:
        with system.open():
            pass
