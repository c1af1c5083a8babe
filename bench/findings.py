"""Headline figures: what a reader should take away from a report, each with what it was computed from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.records import BENCHMARK
from bench.rows import PACKED, Row, Section, pace
from sentport.scheduler import BatchPolicy


@dataclass(frozen=True, slots=True)
class Finding:
    """A headline figure: what a reader should take away, with what it was computed from."""

    label: str
    value: str
    note: str


def findings(parts: Sequence[Section]) -> list[Finding]:
    """The headline figures of a report; each needs its rows and is left out where they are missing."""
    found = [finding(part) for part in parts if part.kind == BENCHMARK for finding in (_sorting, _packing)]
    main = next((part for part in parts if part.kind == BENCHMARK), None)
    if main is not None:
        found = [_best(main), *found, *_precisions(main), *_peers(main), _through_server(main)]
    rows = [row for part in parts for row in part.rows if row.worst_cosine is not None]
    # Where there are lower precisions or peers, each row of the table tells its own.
    measured = [row for row in rows if row.precision == "fp32" and not row.peer] or rows
    if measured:
        worst = min(row.worst_cosine for row in measured if row.worst_cosine is not None)
        found.append(
            Finding(
                "worst cosine to the source",
                f"{worst:.7f}",
                f"over all answers of {len(measured)} {_common(measured)}rows",
            )
        )
    remarks = [remark for part in parts for remark in part.remarks]
    if remarks:
        found.insert(0, Finding("this report", "incomplete", f"{len(remarks)} remarks under the tables say what lacks"))
    return [finding for finding in found if finding is not None]


def _in_process(part: Section) -> list[Row]:
    return [row for row in part.rows if row.rate and row.tokenisation_inside and row.transport == "in process"]


def _best(part: Section) -> Finding | None:
    rows = [row for row in _in_process(part) if row.ratio and not row.baseline]
    if not rows:
        return None
    best = max(rows, key=pace)
    return Finding(
        "fastest over the baseline", f"{best.ratio:.2f}×", f"{best.contestant}, {best.policy}, on {part.corpus}"
    )


def _sorting(part: Section) -> Finding | None:
    """Smart batching over arrival order for one engine and one batch size: the fastest engine that has both.

    Of those that pad, since it is padding that sorting saves.
    """
    rates = {(row.contestant, row.policy, row.batch): row.rate for row in _in_process(part) if row.layout != "packed"}
    pairs = [
        (name, batch, rate, rates[name, BatchPolicy.ARRIVAL.value, batch])
        for (name, policy, batch), rate in rates.items()
        if policy == BatchPolicy.SMART.value and (name, BatchPolicy.ARRIVAL.value, batch) in rates
    ]
    if not pairs:
        return None
    name, batch, smart, arrival = max(pairs, key=lambda pair: pair[2] or 0.0)
    if not smart or not arrival:
        return None
    return Finding("smart over arrival order", f"{smart / arrival:.2f}×", f"{name}, {batch} a batch, on {part.corpus}")


def _packing(part: Section) -> Finding | None:
    """A packed graph over the padded one, same engine and batches: in arrival order first, where most padding is.

    Of the fastest packed one that has both.
    """
    rates = {(row.contestant, row.policy): row.rate for row in _in_process(part) if row.rate}
    pairs = [
        (rate, name, policy, rate / padded)
        for (name, policy), rate in rates.items()
        if name.endswith(PACKED) and (padded := rates.get((name.removesuffix(PACKED), policy)))
    ]
    if not pairs:
        return None
    _, best, _, _ = max(pairs)
    ratios = [(policy, ratio) for _, name, policy, ratio in pairs if name == best]
    (first, ratio), *others = sorted(ratios, key=lambda pair: pair[0] != BatchPolicy.ARRIVAL.value)
    note = ", ".join([best, *(f"{policy} {other:.2f}×" for policy, other in others), f"on {part.corpus}"])
    return Finding(f"packed over padded, {first}", f"{ratio:.2f}×", note)


def _precisions(part: Section) -> list[Finding]:
    """The fastest of our rows in each lower precision, over our fastest in fp32."""
    best = _fastest(row for row in _in_process(part) if not row.baseline)
    full = best.pop("fp32", None)
    return [] if full is None else [_over(f"{precision} over fp32", row, full) for precision, row in best.items()]


def _peers(part: Section) -> list[Finding]:
    """The fastest of our rows over the fastest of the peers' of the same precision."""
    ours, theirs = _fastest(_in_process(part)), _fastest(row for row in part.rows if row.rate and row.peer)
    pairs = [(ours[precision], row) for precision, row in theirs.items() if precision in ours]
    return [_over(f"{row.precision} over the peers'", row, peer) for row, peer in pairs]


def _fastest(rows: Iterable[Row]) -> dict[str, Row]:
    """By precision."""
    return {row.precision: row for row in sorted(rows, key=pace)}


def _over(label: str, row: Row, other: Row) -> Finding:
    names = [f"{each.contestant}, {each.batch}" for each in (row, other)]
    return Finding(label, f"{(row.rate or 0.0) / (other.rate or 1.0):.2f}×", " over ".join(names))


def _common(rows: Sequence[Row]) -> str:
    """The precision of all rows, where it is one, as a word in front of them."""
    precisions = {row.precision for row in rows}
    return f"{precisions.pop()} " if len(precisions) == 1 else ""


def _through_server(part: Section) -> Finding | None:
    """Our server's best row over our best one in a process, of the same precision."""
    served = [row for row in part.rows if row.rate and row.request and not row.peer]
    best = max(served, key=pace, default=None)
    ours = _fastest(row for row in _in_process(part) if not row.baseline)
    if best is None or best.precision not in ours:
        return None
    local = ours[best.precision]
    share = 100 * (best.rate or 0.0) / (local.rate or 1.0)
    return Finding("through Triton", f"{share:.0f} %", f"of {local.contestant} in a process: {best.transport}")
