"""How a contestant is named and opened, in this process or in one of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from bench.contestants import Contestant
from bench.peers import variants
from bench.peers.environments import ENVIRONMENTS
from sentport.errors import SentportError

BASELINE, TORCH, TRITON = "sentence-transformers", "torch", "triton"
GRAPHS = ("onnxruntime", "openvino", "native")
PEERS = tuple(variants())
KINDS = (BASELINE, TORCH, *GRAPHS, TRITON, *PEERS)


@dataclass(frozen=True, slots=True)
class Spec:
    """All that it takes to open a contestant.

    Attributes:
        kind: Of ``KINDS``.
        checkpoint: Folder of the source model.
        threads: Compute threads in all.
        device: ``cpu`` or ``cuda``.
        bundle: Its bundle, for those that run one.
        precision: Of the graph, with a flavour where it is named: ``int8-ort``.
        layout: Of the graph.
        sessions: Engine calls in flight at once; 0 = the engine's own choice.
        environments: Folder of the peers' environments.
        url: Of a server.
        model: Its name there.
        clients: Clients that send at the same time.
        texts_per_request: Texts of a request.
        one_of_many: Whether other servers are measured too.
    """

    kind: str
    checkpoint: str
    threads: int
    device: str = "cpu"
    bundle: str = ""
    precision: str = "auto"
    layout: str = "auto"
    sessions: int = 0
    environments: str = str(ENVIRONMENTS)
    url: str = ""
    model: str = ""
    clients: int = 16
    texts_per_request: int = 16
    one_of_many: bool = False

    def to_json(self) -> dict[str, Any]:
        """As a process takes it."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Spec:
        """From what ``to_json`` gave."""
        return cls(**{field.name: values[field.name] for field in fields(cls)})


def open_contestant(spec: Spec) -> Contestant:
    """Open what a spec names.

    Raises:
        PrecisionError: When an engine does not run the precision here.
        SentportError: When it cannot be had.
    """
    if spec.kind not in KINDS:
        raise SentportError(f"contestant {spec.kind} is unknown; known: {', '.join(KINDS)}")
    if spec.kind in GRAPHS:
        return _graph(spec)
    if spec.kind in PEERS:
        return _peer(spec)
    others: dict[str, Callable[[Spec], Contestant]] = {BASELINE: _baseline, TORCH: _torch, TRITON: _triton}
    return others[spec.kind](spec)


def _baseline(spec: Spec) -> Contestant:
    from bench.contestants.sentence_transformers import SentenceTransformersContestant

    return SentenceTransformersContestant(Path(spec.checkpoint), spec.threads, spec.device)


def _torch(spec: Spec) -> Contestant:
    from bench.contestants import torch_engine

    return torch_engine.open_contestant(Path(spec.checkpoint), spec.threads, spec.device)


def _graph(spec: Spec) -> Contestant:
    from bench.contestants import bundle_engine

    contestant = bundle_engine.open_contestant(
        Path(spec.bundle), spec.threads, spec.device, spec.layout, spec.precision, spec.kind
    )
    contestant.limit_sessions(spec.sessions)
    return contestant


def _peer(spec: Spec) -> Contestant:
    from bench.contestants import peer

    variant = variants()[spec.kind]
    checkpoint, environments = Path(spec.checkpoint), Path(spec.environments)
    if variant.command is None:
        return peer.open_contestant(spec.kind, checkpoint, spec.threads, environments)
    from bench.contestants.http_peer import HttpPeer

    python = peer.python_of(variant, environments)
    return HttpPeer(variant, python, checkpoint, spec.threads, spec.clients, spec.texts_per_request)


def _triton(spec: Spec) -> Contestant:
    from bench.contestants.triton import TritonContestant

    source = Path(spec.checkpoint).resolve().name
    return TritonContestant(
        spec.url, spec.model, source, spec.clients, spec.texts_per_request, one_of_many=spec.one_of_many
    )
