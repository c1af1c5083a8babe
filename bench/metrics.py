"""Raw records to rows: everything that the table and the page show is derived here, after the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from bench.fields import FALLEN, OBSERVATION, QUALITY
from bench.records import BENCHMARK, GPU_BENCHMARK, Record

MEASURED = "measured"

_COMMON = ("contestant", "policy", "batch", "tokenisation_inside", "baseline")
_DETAILS = ("precision", "layout", "device", "sessions", "threads", "transport")
PACKED = " packed"  # what tells a contestant's name from that of the same engine with layout padded
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
        worst_cosine: Of all answers that were kept, timed or not.
        wrong: Whether that is under the gate of its precision, as it may be with a peer.
        peer: Whether it is somebody else's.
        spearman: With the human scores of sentence pairs, x 100; None where it was not asked for.
        alone_cosine: The worst of a text's vector alone with its vector in company; likewise.
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
    wrong: bool = False
    peer: bool = False
    spearman: float | None = None
    alone_cosine: float | None = None
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
    full = max(records, key=len)
    title = f"{full['corpus']}, {full.get('model', 'model unknown')}, {full.get('device_name', full['cpu'])}"
    rows = _with_ratios([_row(group) for group in groups.values()])
    return Section(title, full["corpus"], tuple(rows), _conditions(records), BENCHMARK)


def _row(records: list[Record]) -> Row:
    first = records[0]
    fields: dict[str, Any] = {name: first[name] for name in (*_COMMON, *_DETAILS) if name in first}
    fallen = [record for record in records if record["kind"] in FALLEN]
    if fallen:  # figures taken before a row fell out are not to be trusted either
        return Row(**fields, status=fallen[-1]["kind"], reason=fallen[-1]["reason"])
    timed = [record for record in records if record["kind"] == OBSERVATION]
    quality = next((record for record in records if record["kind"] == QUALITY), {})
    rates = [record["texts"] / record["seconds"] for record in timed]
    computed = first["computed_tokens"]
    worst = min(record["worst_cosine"] for record in records)
    return Row(
        **fields,
        status=MEASURED,
        rate=median(rates),
        slowest=min(rates),
        fastest=max(rates),
        waste=100.0 * (1.0 - first["tokens"] / computed) if computed else None,
        worst_cosine=worst,
        wrong=worst < first.get("cosine_gate", -1.0),
        peer=first.get("peer", False),
        spearman=quality.get("spearman"),
        alone_cosine=quality.get("alone_cosine"),
        repeats=len(timed),
        repeats_planned=first["repeats"],
    )


def _with_ratios(rows: list[Row]) -> list[Row]:
    base = next((row.rate for row in rows if row.baseline and row.rate), None)
    if base is None:
        return rows
    return [replace(row, ratio=row.rate / base) if row.rate else row for row in rows]


def _conditions(records: list[Record]) -> dict[str, str]:
    record = max(records, key=len)  # rows that could not be run know less than the others
    lines = {
        "machine": f"{record['cpu']}, {record['cpu_cores']} cores; {', '.join(record['gpus']) or 'no GPU'}",
        "corpus": _corpus_line(record),
    }
    if "order" in record:
        lines["method"] = f"{record['warmup']} warm-up, {record['repeats']} timed calls a row, {record['order']}"
        lines["cosine to"] = record["reference"]
    lines |= _peers(records)
    return {**lines, **_versions_and_date(record), "run": record["run"]}


def _peers(records: list[Record]) -> dict[str, str]:
    """What is installed where peers run, and what the quality figures are taken from."""
    lines = {f"{record['contestant']}": record["peer_versions"] for record in records if record.get("peer_versions")}
    asked = next((record for record in records if record["kind"] == QUALITY), None)
    if asked:
        lines["quality"] = (
            f"Spearman x 100 with the scores of {asked['sts']}; the worst cosine of {asked['alone_texts']} of its "
            "texts encoded alone with the same texts encoded all in one call"
        )
    return lines


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
