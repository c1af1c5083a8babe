"""Raw records to rows: everything that the table and the page show is derived here, after the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from bench.records import BENCHMARK, GPU_BENCHMARK, Record
from sentport.scheduler import BatchPolicy

MEASURED = "measured"

_COMMON = ("contestant", "policy", "batch", "tokenisation_inside", "baseline")
_DETAILS = ("precision", "layout", "device", "sessions", "threads", "transport")
_PACKED = " packed"  # what tells a contestant's name from that of the same engine with layout padded
# What makes two records observations of the same row.
_IDENTITY = (*_COMMON, *_DETAILS)


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
        ratio: ``rate`` over the baseline's of the same run and corpus; None without a baseline.
        waste: Percent of the computed tokens that were padding; None where that cannot be seen.
        worst_cosine: Of all timed answers.
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
    waste: float | None = None
    worst_cosine: float | None = None
    repeats: int = 0
    repeats_planned: int = 0
    baseline: bool = False


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
    """

    title: str
    corpus: str
    rows: tuple[Row, ...]
    conditions: dict[str, str]
    kind: str
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """A headline figure: what a reader should take away, with what it was computed from."""

    label: str
    value: str
    note: str


def sections(records: Sequence[Record]) -> list[Section]:
    """Group records of any number of runs into comparable sections: runs as they stand, rows as in the grid."""
    runs = {run: number for number, run in enumerate(dict.fromkeys(_run_of(record) for record in records))}
    ordered = sorted(records, key=lambda record: (runs[_run_of(record)], _place_of(record)))
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in ordered:
        if record["benchmark"] == GPU_BENCHMARK:
            if record["kind"] == "row":  # which sums up that benchmark's own observations
                key = (record["file"], record["date"], record["model"], record["corpus"])
                groups.setdefault(key, []).append(record)
        else:
            groups.setdefault((record["run"], record["corpus"]), []).append(record)
    parts = [(_gpu_section if group[0]["benchmark"] == GPU_BENCHMARK else _section)(group) for group in groups.values()]
    corpora = {
        run: {record["corpus"] for record in ordered if _run_of(record) == run and "corpus" in record} for run in runs
    }
    return [
        replace(part, remarks=_incomplete(part, group, corpora[_run_of(group[0])]))
        for part, group in zip(parts, groups.values(), strict=True)
    ]


def _incomplete(part: Section, records: list[Record], corpora: set[str]) -> tuple[str, ...]:
    """What a run that was cut short lacks: calls, rows, whole corpora, or the end of its file."""
    found = [
        f"{row.contestant}, {row.policy}, {row.batch}: {row.repeats} of {row.repeats_planned} timed calls"
        for row in part.rows
        if row.repeats < row.repeats_planned
    ]
    planned: dict[str, int] = next((record["rows_planned"] for record in records if "rows_planned" in record), {})
    rows = len({record["place"] for record in records if "rows_planned" in record})
    if rows < planned.get(part.corpus, 0):
        found.append(f"{rows} of {planned[part.corpus]} rows")
    found += [f"no row on {corpus}" for corpus in planned if corpus not in corpora]
    if any(record.get("cut") for record in records):
        found.append("the raw file ends within a line, which was dropped")
    return tuple(f"incomplete: {line}" for line in found)


def _place_of(record: Record) -> int:
    return 0 if record["benchmark"] == GPU_BENCHMARK else int(record["place"])


def _run_of(record: Record) -> str:
    return str(record.get("run") or record["file"])


def _section(records: list[Record]) -> Section:
    groups: dict[tuple[object, ...], list[Record]] = {}
    for record in records:
        groups.setdefault(tuple(record.get(name) for name in _IDENTITY), []).append(record)
    full = max(records, key=len)  # rows that could not be run know less than the others
    title = f"{full['corpus']}, {full.get('model', 'model unknown')}, {full.get('device_name', full['cpu'])}"
    rows = _with_ratios([_row(group) for group in groups.values()])
    return Section(title, full["corpus"], tuple(rows), _conditions(full), BENCHMARK)


def _row(records: list[Record]) -> Row:
    first = records[0]
    fields: dict[str, Any] = {name: first[name] for name in (*_COMMON, *_DETAILS) if name in first}
    fallen = [record for record in records if record["kind"] != "observation"]
    if fallen:  # figures taken before a row fell out are not to be trusted either
        return Row(**fields, status=fallen[-1]["kind"], reason=fallen[-1]["reason"])
    rates = [record["texts"] / record["seconds"] for record in records]
    computed = first["computed_tokens"]
    return Row(
        **fields,
        status=MEASURED,
        rate=median(rates),
        slowest=min(rates),
        fastest=max(rates),
        waste=100.0 * (1.0 - first["tokens"] / computed) if computed else None,
        worst_cosine=min(record["worst_cosine"] for record in records),
        repeats=len(records),
        repeats_planned=first["repeats"],
    )


def _with_ratios(rows: list[Row]) -> list[Row]:
    base = next((row.rate for row in rows if row.baseline and row.rate), None)
    if base is None:
        return rows
    return [replace(row, ratio=row.rate / base) if row.rate else row for row in rows]


def _conditions(record: Record) -> dict[str, str]:
    lines = {
        "machine": f"{record['cpu']}, {record['cpu_cores']} cores; {', '.join(record['gpus']) or 'no GPU'}",
        "corpus": _corpus_line(record),
    }
    if "order" in record:
        lines["method"] = f"{record['warmup']} warm-up, {record['repeats']} timed calls a row, {record['order']}"
        lines["cosine to"] = record["reference"]
    return {**lines, **_versions_and_date(record), "run": record["run"]}


def _corpus_line(record: Record) -> str:
    tokens = f", {record['tokens']} tokens (longest {record['longest']})" if "tokens" in record else ""
    return f"{record['corpus_source']}; {record['texts']} distinct texts{tokens}"


def _versions_and_date(record: Record) -> dict[str, str]:
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items() if version)
    return {"versions": versions, "date": record["date"]}


def _gpu_section(records: list[Record]) -> Section:
    measured = next((record for record in records if record["status"] == MEASURED), None)
    first = measured or records[0]
    title = f"{first['corpus']}, {first['model']}, {first['device_name']}"
    conditions = {
        "machine": f"{first['device_name']} ({first.get('gpu_limits') or first['cpu']}), host {first['cpu']}",
        "corpus": f"{first['corpus_source']}; {first['texts']} texts, {first['tokens']} tokens, ids ready on the host",
        "cosine to": str(first.get("cosine_reference") or "not compared"),
        **_versions_and_date(first),
    }
    if measured:
        conditions["method"] = (
            f"{measured['warmup']} warm-up, {measured['repeats']} timed passes a row, {measured['order']}"
        )
    rows = _with_ratios([_gpu_row(record) for record in records])
    return Section(title, first["corpus"], tuple(rows), conditions, GPU_BENCHMARK)


def _gpu_row(record: Record) -> Row:
    row = Row(
        contestant=record["implementation"],
        policy=record["batch_policy"],
        batch=record["batch"],
        tokenisation_inside=record["tokenisation_inside"],
        baseline=record["implementation"] == "transformers" and record["precision"] == "fp32",
        status=record["status"],
        reason=record["reason"] or "",
        precision=record["precision"],
        layout=record["layout"],
        device=record["device"],
        sessions=record["sessions"],
        threads=record["threads"],
        transport="in process",
    )
    if row.status != MEASURED:
        return row
    seconds, texts = record["end_to_end_s"], record["texts"]
    return replace(
        row,
        rate=texts / seconds["median"],
        slowest=texts / seconds["max"],
        fastest=texts / seconds["min"],
        waste=record["padding_waste_percent"],
        worst_cosine=record["worst_cosine"],
        repeats=record["repeats"],
        repeats_planned=record["repeats"],
    )


def findings(parts: Sequence[Section]) -> list[Finding]:
    """The headline figures of a report; each needs its rows and is left out where they are missing."""
    found = [finding(part) for part in parts if part.kind == BENCHMARK for finding in (_sorting, _packing)]
    main = next((part for part in parts if part.kind == BENCHMARK), None)
    if main is not None:
        found = [_best(main), *found, _through_server(main)]
    measured = [row for part in parts for row in part.rows if row.worst_cosine is not None]
    if measured:
        worst = min(row.worst_cosine for row in measured if row.worst_cosine is not None)
        found.append(
            Finding("worst cosine to the source", f"{worst:.7f}", f"over all timed answers of {len(measured)} rows")
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
    best = max(rows, key=lambda row: row.rate or 0.0)
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
    """A packed graph over the padded one, same engine and batches: in arrival order first, where most padding is."""
    rates = {(row.contestant, row.policy): row.rate for row in _in_process(part) if row.rate}
    ratios = [
        (policy, rate / padded)
        for (name, policy), rate in rates.items()
        if name.endswith(_PACKED) and (padded := rates.get((name.removesuffix(_PACKED), policy)))
    ]
    if not ratios:
        return None
    (first, ratio), *others = sorted(ratios, key=lambda pair: pair[0] != BatchPolicy.ARRIVAL.value)
    note = ", ".join([*(f"{policy} {other:.2f}×" for policy, other in others), f"on {part.corpus}"])
    return Finding(f"packed over padded, {first}", f"{ratio:.2f}×", note)


def _through_server(part: Section) -> Finding | None:
    local = max((row.rate for row in _in_process(part) if row.rate and "onnxruntime" in row.contestant), default=None)
    served = [row for row in part.rows if row.rate and row.transport not in ("", "in process")]
    if local is None or not served:
        return None
    best = max(served, key=lambda row: row.rate or 0.0)
    share = 100 * (best.rate or 0.0) / local
    return Finding("through Triton", f"{share:.0f} %", f"of the fastest in-process row: {best.transport}")
