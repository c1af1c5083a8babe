"""What is measured: each contestant is one short file, and answers only; the harness judges and times it.

Dimension letters used in this package: N texts, dim the width of a vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sentport.engines import TOKEN_BUDGETS
from sentport.scheduler import BatchPolicy

Vectors = NDArray[np.float32]

OWN = "own"
ROWS_PER_BATCH = 32


@dataclass(frozen=True, slots=True)
class Work:
    """How a contestant is asked to go about a corpus.

    Attributes:
        policy: How rows are grouped into batches, or None for whatever the contestant does by itself.
        tokenised: Whether texts are tokenised before the clock starts.
        rows_per_batch: Rows of a batch for ``arrival`` and ``smart``, and for contestants that ask for it themselves.
        token_budget: Computed tokens of a batch for ``token-budget``.
    """

    policy: BatchPolicy | None
    tokenised: bool = False
    rows_per_batch: int = ROWS_PER_BATCH
    token_budget: int = TOKEN_BUDGETS["cpu"]

    @property
    def policy_name(self) -> str:
        """As recorded."""
        return self.policy.value if self.policy else OWN


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a contestant's figures depend on, as it found it by running, not as it was asked for.

    Attributes:
        engine: What computes.
        model: Name of the source model.
        precision: ``fp32``, ``bf16``, ``fp16`` or ``int8``.
        layout: ``padded`` or ``packed``.
        device: Device of the nodes that really ran.
        sessions: Engine calls in flight at once.
        threads: Compute threads of each.
        own_policy: How it groups rows when left to itself, in a few words, ``{rows}`` for the rows of a batch; empty
            where it has no way of its own.
        transport: How texts reach it; ``in process`` or a protocol with clients and texts a request.
        peer: Whether it is somebody else's, which promised no cosine: it is timed, and shown as wrong.
        peer_versions: What is installed where it runs, if that is a Python of its own.
    """

    engine: str
    model: str
    precision: str
    layout: str
    device: str
    sessions: int
    threads: int
    own_policy: str = ""
    transport: str = "in process"
    peer: bool = False
    peer_versions: str = ""


class Contestant(Protocol):
    """Turns texts into vectors; holds no judgement and no clock.

    Attributes:
        name: Unique within a run.
        policies: The batch policies it can be asked for; None is its own way.
        own_rows: Rows of a batch that its own way is measured with, a row of the table each.
        tokenises_apart: Whether it can take its tokenisation out of the timed call.
    """

    name: str
    policies: tuple[BatchPolicy | None, ...]
    own_rows: tuple[int, ...]
    tokenises_apart: bool

    def conditions(self) -> Conditions:
        """What its figures depend on."""
        ...

    def prepare(self, texts: Sequence[str], work: Work) -> None:
        """Take the texts, outside the clock; tokenise them where ``work`` says so, and nothing more."""
        ...

    def run(self, work: Work) -> Vectors:
        """Vectors ``[N, dim]`` of the texts taken last, in their order. This one call is what is timed."""
        ...

    def computed_tokens(self) -> int | None:
        """Tokens that the last ``run`` computed, pads included; None where that cannot be seen."""
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...


def batch_size(work: Work, conditions: Conditions) -> str:
    """What bounds a batch, with its unit, as recorded."""
    if work.policy is None:
        return conditions.own_policy.replace("{rows}", str(work.rows_per_batch))
    if work.policy is BatchPolicy.ONE_BY_ONE:
        return "1 row"
    if work.policy is BatchPolicy.TOKEN_BUDGET:
        return f"{work.token_budget} tokens"
    return f"{work.rows_per_batch} rows"
