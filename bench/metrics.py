"""Raw records to rows: everything that the table and the page show is derived here, after the run."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from bench.fields import BLOCK, CEILING, FALLEN, OBSERVATION, PROBE, QUALITY
from bench.gpu_rows import gpu_section
from bench.intervals import Call, Spread, speedups, spread_of
from bench.records import BENCHMARK, GPU_BENCHMARK, Record, versions_and_date
from bench.rows import MEASURED, Probe, Row, Section

_COMMON = ("contestant", "policy", "batch", "tokenisation_inside", "baseline")
_DETAILS = ("precision", "layout", "device", "sessions", "threads", "transport")
# What makes two records observations of the same row.
_IDENTITY = (*_COMMON, *_DETAILS)


def sections(records: Sequence[Record]) -> list[Section]:
    """Group records of any number of runs into comparable sections: runs as they stand, rows as in the grid.

    Runs of one grid on one machine make one section: their ratios are each to the baseline of their own round.
    """
    runs = {run: number for number, run in enumerate(dict.fromkeys(_run_of(record) for record in records))}
    ordered = sorted(records, key=lambda record: (runs[_run_of(record)], _place_of(record)))
    groups: dict[tuple[object, ...], list[Record]] = {}
    corpora: dict[str, set[str]] = {}
    for record in ordered:
        if record["kind"] in (BLOCK, CEILING, PROBE):
            continue
        if record["benchmark"] == GPU_BENCHMARK:
            if record["kind"] == "row":  # which sums up that benchmark's own observations
                key: tuple[object, ...] = (record["file"], record["date"], record["model"], record["corpus"])
                groups.setdefault(key, []).append(record)
        elif record["benchmark"] == BENCHMARK:
            groups.setdefault(_group_of(record), []).append(record)
            corpora.setdefault(_run_of(record), set()).add(record["corpus"])
    return [
        gpu_section(group)
        if group[0]["benchmark"] == GPU_BENCHMARK
        else _section(sorted(group, key=_place_of), _beside(group, ordered), corpora[_run_of(group[-1])])
        for group in groups.values()
    ]


def _group_of(record: Record) -> tuple[object, ...]:
    machine = (record["cpu"], record["cpu_cores"], tuple(record["gpus"]))
    block = (record.get("model_asked"), record.get("device_asked"), record.get("threads_asked"))
    return (record.get("grid") or record["run"], *machine, *block, record["corpus"], record["corpus_source"])


def _beside(group: list[Record], records: Sequence[Record]) -> list[Record]:
    """The ceilings and probes of the runs, the device and the threads of a group."""
    blocks = {(record["run"], record.get("device_asked"), record.get("threads_asked")) for record in group}
    return [
        record
        for record in records
        if record["benchmark"] == BENCHMARK
        and record["kind"] in (CEILING, PROBE)
        and (record["run"], record.get("device_asked"), record.get("threads_asked")) in blocks
    ]


def _incomplete(rows: Sequence[Row], records: list[Record], corpora: set[str]) -> tuple[str, ...]:
    """What a run that was cut short lacks: calls, rows, whole corpora, or the end of its file."""
    found = [
        f"{row.contestant}, {row.policy}, {row.batch}: {row.repeats} of {row.repeats_planned} timed calls"
        for row in rows
        if row.repeats < row.repeats_planned
    ]
    corpus = records[0]["corpus"]
    last = _run_of(max(records, key=lambda record: str(record["date"])))
    ran = [record for record in records if "rows_planned" in record and _run_of(record) == last]
    planned: dict[str, int] = ran[0]["rows_planned"] if ran else {}
    count = len({record["place"] for record in ran})
    if count < planned.get(corpus, 0):
        found.append(f"{count} of {planned[corpus]} rows")
    found += [f"no row on {corpus}" for corpus in planned if corpus not in corpora]
    if any(record.get("cut") for record in records):
        found.append("the raw file ends within a line, which was dropped")
    return tuple(f"incomplete: {line}" for line in found)


def _place_of(record: Record) -> int:
    return int(record.get("place", 0))


def _run_of(record: Record) -> str:
    return str(record.get("run") or record["file"])


def _section(records: list[Record], beside: list[Record], corpora: set[str]) -> Section:
    groups: dict[tuple[object, ...], list[Record]] = {}
    for record in records:
        if not _is_out_of_date(record, records):
            groups.setdefault(tuple(record.get(name) for name in _IDENTITY), []).append(record)
    full = max(records, key=len)
    title = f"{full['corpus']}, {full.get('model', 'model unknown')}, {full.get('device_name', full['cpu'])}"
    base = [record for record in records if record["baseline"] and record["kind"] == OBSERVATION]
    ceilings = {record["precision"]: record["flops"] for record in beside if record["kind"] == CEILING}
    rows = [_row(_last_word(group), _calls(base), ceilings) for group in groups.values()]
    probes = {record["contestant"]: _probe(record) for record in beside if record["kind"] == PROBE}
    conditions = _conditions(records) | _ceilings(ceilings)
    remarks = _incomplete(rows, records, corpora)
    return Section(
        title,
        full["corpus"],
        tuple(rows),
        conditions,
        BENCHMARK,
        remarks,
        tuple(probes.values()),
        full.get("model", ""),
        full["tokens"] / full["texts"] if "tokens" in full else None,
        str(full.get("grid") or full["run"]),
    )


def _is_out_of_date(record: Record, records: Sequence[Record]) -> bool:
    """Whether it says that a contestant could not be opened, which a later run did."""
    name = record["contestant"]
    return "model" not in record and any(
        later["kind"] == OBSERVATION and later["date"] > record["date"]
        for later in records
        if later["contestant"] == name or later["contestant"].startswith(f"{name}, ")
    )


def _last_word(records: list[Record]) -> list[Record]:
    """Of runs of a row, those from its last fall on: that one where it fell in its last run, else what came later."""
    falls = [place for place, record in enumerate(records) if record["kind"] in FALLEN]
    if not falls:
        return records
    last = max(record["date"] for record in records)
    kept = [record for record in records if record["date"] == last]
    return kept if any(record["kind"] in FALLEN for record in kept) else _without_fallen(records)


def _without_fallen(records: list[Record]) -> list[Record]:
    fallen = {record["run"] for record in records if record["kind"] in FALLEN}
    return [record for record in records if record["run"] not in fallen]


def _row(records: list[Record], base: list[Call], ceilings: dict[str, float]) -> Row:
    first = records[0]
    fields: dict[str, Any] = {name: first[name] for name in (*_COMMON, *_DETAILS) if name in first}
    fallen = [record for record in records if record["kind"] in FALLEN]
    if fallen:  # figures taken before a row fell out are not to be trusted either
        return Row(**fields, status=fallen[-1]["kind"], reason=fallen[-1]["reason"])
    timed = [record for record in records if record["kind"] == OBSERVATION]
    quality = next((record for record in records if record["kind"] == QUALITY), {})
    rates = [record["texts"] / record["seconds"] for record in timed]
    rate, computed = median(rates), first["computed_tokens"]
    ratio = Spread(1.0, 1.0, 1.0, len(rates)) if first["baseline"] else _ratio(_calls(timed), base)
    flops = first["flop"] * rate / first["texts"] if first.get("flop") else None
    highest = ceilings.get(first["precision"])
    worst = min(record["worst_cosine"] for record in records)
    return Row(
        **fields,
        status=MEASURED,
        rate=rate,
        slowest=min(rates),
        fastest=max(rates),
        ratio=ratio.middle if ratio else None,
        ratio_low=ratio.low if ratio else None,
        ratio_high=ratio.high if ratio else None,
        flops=flops,
        ceiling=100 * flops / highest if flops and highest else None,
        waste=100.0 * (1.0 - first["tokens"] / computed) if computed else None,
        worst_cosine=worst,
        wrong=worst < first.get("cosine_gate", -1.0),
        peer=first.get("peer", False),
        spearman=quality.get("spearman"),
        alone_cosine=quality.get("alone_cosine"),
        neighbours_kept=quality.get("neighbours_kept"),
        repeats=len({(record["run"], record["repeat"]) for record in timed}),
        repeats_planned=first["repeats"],
    )


def _calls(records: Sequence[Record]) -> list[Call]:
    return [Call((record["run"], record["repeat"]), record["turn"], record["seconds"]) for record in records]


def _ratio(calls: list[Call], base: list[Call]) -> Spread | None:
    found = speedups(calls, base)
    return spread_of(found) if found else None


def _probe(record: Record) -> Probe:
    singles = sorted(record["single_ms"])
    p50, p99 = (singles[min(len(singles) - 1, int(share * len(singles)))] for share in (0.5, 0.99))
    return Probe(record["contestant"], record["startup_s"], record["peak_mb"], p50, p99)


def _ceilings(found: dict[str, float]) -> dict[str, str]:
    if not found:
        return {}
    return {
        "at most": ", ".join(f"{name} {value / 1e9:,.0f} GFLOP/s" for name, value in found.items())
        + ": the fastest square product of this run"
    }


def _conditions(records: list[Record]) -> dict[str, str]:
    record = max(records, key=len)  # rows that could not be run know less than the others
    lines = {
        "machine": f"{record['cpu']}, {record['cpu_cores']} cores; {', '.join(record['gpus']) or 'no GPU'}",
        "corpus": _corpus_line(record),
    }
    if "order" in record:
        lines["method"] = f"{record['warmup']} warm-up, {record['repeats']} rounds or more, {record['order']}"
        lines["cosine to"] = record["reference"]
    lines |= _peers(records)
    runs = ", ".join(sorted({record["run"] for record in records}))
    return {**lines, **versions_and_date(record), "run": runs}


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
