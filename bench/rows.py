"""What is shown: rows, what contestants showed apart, and the sections that hold them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

MEASURED = "measured"
PACKED = " packed"  # what tells a contestant's name from that of the same engine with layout padded


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        contestant: Who.
        policy: How rows were grouped into batches.
        batch: What bounded a batch, with its unit.
        tokenisation_inside: Whether tokenisation is part of the figures.
        status: ``measured``, ``rejected`` or ``not run``.
        reason: Why, where it was not measured.
        precision: Of the weights.
        layout: ``padded`` or ``packed``.
        device: Device that ran, as the engine reports it.
        sessions: Engine calls in flight at once.
        threads: Compute threads of each.
        transport: How texts reached it.
        rate: Median sentences/s over the repeats.
        slowest: Smallest.
        fastest: Largest.
        ratio: How many times faster than the baseline around it, the median over the rounds; None without a baseline.
        ratio_low: Lower end of the interval of that median.
        ratio_high: Upper end.
        flops: Operations a second that the model needed, padding not counted; None where that is not known.
        ceiling: Percent that these are of what the machine multiplied at most in that precision in the same run.
        waste: Percent of the computed tokens that were padding; None where that cannot be seen.
        worst_cosine: Of all answers that were kept, timed or not.
        wrong: Whether that is under the gate of its precision, as it may be with a peer.
        peer: Whether it is somebody else's.
        spearman: With the human scores of sentence pairs, x 100; None where it was not asked for.
        alone_cosine: The worst of a text's vector alone with its vector in company; likewise.
        neighbours_kept: Share of each text's ten nearest that are the reference's; likewise.
        repeats: Timed calls.
        repeats_planned: As many as the settings ask for.
        baseline: Whether the others' ratios refer to it.
    """

    contestant: str
    policy: str
    batch: str
    tokenisation_inside: bool
    status: str
    reason: str = ""
    precision: str = ""
    layout: str = ""
    device: str = ""
    sessions: int = 0
    threads: int = 0
    transport: str = ""
    rate: float | None = None
    slowest: float | None = None
    fastest: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    flops: float | None = None
    ceiling: float | None = None
    waste: float | None = None
    worst_cosine: float | None = None
    wrong: bool = False
    peer: bool = False
    spearman: float | None = None
    alone_cosine: float | None = None
    neighbours_kept: float | None = None
    repeats: int = 0
    repeats_planned: int = 0
    baseline: bool = False

    @property
    def request(self) -> int:
        """Texts of a request to a server; 0 where there is none."""
        found = re.search(r"(\d+) texts? a request", self.transport)
        return int(found[1]) if found else 0


def pace(row: Row) -> float:
    """What tells the fastest of a contestant's rows: the ratio, in which the machine's drift cancels, if any."""
    return row.ratio or row.rate or 0.0


def ahead_of_ours(row: Row, rows: Sequence[Row]) -> bool:
    """Whether somebody else's row is faster than all of ours of its precision, by vectors that are worth as much.

    Servers are set beside servers that are asked alike, encoders in a process beside those.
    """
    wrong = any(each.wrong for each in rows if each.contestant == row.contestant)
    if wrong or not row.ratio or not (row.peer or row.baseline):
        return False
    ours = [
        each.ratio
        for each in rows
        if not (each.peer or each.baseline) and each.ratio and each.tokenisation_inside
        if (each.precision, each.request) == (row.precision, row.request)
    ]
    return bool(ours) and row.ratio > max(ours)


@dataclass(frozen=True, slots=True)
class Probe:
    """A contestant in a process of its own.

    Attributes:
        contestant: Who.
        startup_s: Seconds from the start of its process to its first vector.
        peak_mb: Resident memory at its highest, over one call with all texts.
        p50_ms: Milliseconds of a single text, the median.
        p99_ms: The 99th percentile.
    """

    contestant: str
    startup_s: float
    peak_mb: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Section:
    """Rows that may be compared with each other: one run on one corpus.

    Attributes:
        title: Corpus, model and machine.
        corpus: The corpus's name.
        rows: In the order of the grid.
        conditions: Name to value, what all rows share.
        kind: Which benchmark made it.
        remarks: What is missing in it.
        probes: What each contestant showed in a process of its own.
        model: What was run.
        tokens_per_text: On average, after the model's limit; None where no row was opened.
        run: Of which run or grid it is.
    """

    title: str
    corpus: str
    rows: tuple[Row, ...]
    conditions: dict[str, str]
    kind: str
    remarks: tuple[str, ...] = ()
    probes: tuple[Probe, ...] = ()
    model: str = ""
    tokens_per_text: float | None = None
    run: str = ""
