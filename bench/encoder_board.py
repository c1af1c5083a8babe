"""Sections of rows as boards: the table, its bars, what a row wastes and is worth, and how cost grows with length."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from bench.boards import Board, Cell, Column, Table, brief, number, percent
from bench.charts import Bar, Bars, Chart, Plot, Series
from bench.rows import MEASURED, Probe, Row, Section, ahead_of_ours, pace

RATE = "sentences/s (min-max)"
_NUMBERS = (RATE, "× baseline", "GFLOP/s", "of the most", "padding waste", "worst cosine", "rounds")
HEADINGS = (
    *("contestant", "batch policy", "tokenisation", RATE, "× baseline", "GFLOP/s", "of the most"),
    *("padding waste", "worst cosine", "rounds", "runs on"),
)
COLUMNS = tuple(Column(name, name in _NUMBERS) for name in HEADINGS)
# Where quality was asked for, and where contestants were looked at in processes of their own.
_QUALITY = tuple(
    Column(name, name != "contestant")
    for name in ("contestant", "sentences/s", "Spearman", "worst cosine", "neighbours kept", "alone / in company")
)
_APART = tuple(
    Column(name, name != "contestant")
    for name in ("contestant", "start-up s", "peak memory MB", "one text p50 ms", "one text p99 ms")
)


def encoder_boards(parts: Sequence[Section]) -> list[Board]:
    """A board for every section, and one over those of a model that have different lengths."""
    names = list(dict.fromkeys(row.contestant for part in parts for row in part.rows))
    hues = {name: place for place, name in enumerate(names)}
    return [*(board_of(part, hues) for part in parts), *_lengths(parts)]


def board_of(part: Section, hues: dict[str, int] | None = None) -> Board:
    """One section.

    Args:
        part: Its rows.
        hues: A colour for each contestant, the same over a report.
    """
    main = Table(
        COLUMNS,
        tuple(cells(row, ahead=ahead_of_ours(row, part.rows)) for row in part.rows),
        frozenset(place for place, row in enumerate(part.rows) if row.baseline),
    )
    return Board(
        part.title,
        (main, *_quality(part), *_apart(part.probes)),
        tuple(_charts(part, hues or {})),
        part.conditions,
        (*_fallen(part), *part.remarks),
    )


def cells(row: Row, *, ahead: bool = False) -> tuple[Cell, ...]:
    """A row, one cell for each of ``COLUMNS``.

    Args:
        row: The row.
        ahead: Whether it is a peer's that is faster than ours at equal quality, which its name then says.
    """
    policy = ", ".join(part for part in (row.policy, row.batch) if part)
    who = title_of(row, ahead=ahead)
    tokenisation = "inside" if row.tokenisation_inside else "outside"
    if row.status != MEASURED:
        blank = [Cell("")] * 6
        return (Cell(who), Cell(policy), Cell(tokenisation), Cell(row.status), *blank, Cell(row.device))
    rounds = f"{row.repeats}" if row.repeats >= row.repeats_planned else f"{row.repeats} of {row.repeats_planned}"
    return (
        Cell(who),
        Cell(policy),
        Cell(tokenisation),
        rate_cell(row),
        ratio_cell(row),
        number(row.flops and row.flops / 1e9, ",.0f", missing="—"),
        percent(row.ceiling, ".0f"),
        waste_cell(row),
        cosine_cell(row),
        Cell(rounds, row.repeats),
        Cell(f"{row.device} {row.precision}, {row.sessions} × {row.threads} threads"),
    )


def title_of(row: Row, *, ahead: bool) -> str:
    """Who it is, and how it stands."""
    return f"{row.contestant}{' (baseline)' if row.baseline else ''}{' (ahead of ours)' if ahead else ''}"


def rate_cell(row: Row) -> Cell:
    """Texts a second: the median, and the slowest and the fastest call."""
    slowest, fastest = row.slowest or 0.0, row.fastest or 0.0
    return Cell(f"{brief(row.rate or 0)} ({brief(slowest)}-{brief(fastest)})", row.rate, (slowest, fastest))


def ratio_cell(row: Row) -> Cell:
    """How many times faster than the baseline, with the interval."""
    if row.ratio is None or row.ratio_low is None or row.ratio_high is None or row.baseline:
        return number(row.ratio, ".2f")
    shown = f"{row.ratio:.2f} ({row.ratio_low:.2f}-{row.ratio_high:.2f})"
    return Cell(shown, row.ratio, (row.ratio_low, row.ratio_high))


def cosine_cell(row: Row) -> Cell:
    """The worst cosine, and whether that is wrong."""
    return Cell(f"{row.worst_cosine:.7f}{', wrong' if row.wrong else ''}", row.worst_cosine)


def waste_cell(row: Row) -> Cell:
    """Padding waste, a dash where it cannot be seen."""
    return percent(row.waste)


def _fallen(part: Section) -> dict[str, None]:
    """Why rows were not measured, each reason once: a peer's rows fall together."""
    fallen = [row for row in part.rows if row.status != MEASURED]
    return {f"{row.contestant}, {row.policy}: {row.status}: {row.reason}": None for row in fallen}


def _charts(part: Section, hues: dict[str, int]) -> list[Chart]:
    measured = [row for row in part.rows if row.status == MEASURED]
    base = next((row.rate for row in measured if row.baseline), None)
    dashes = ", dashes = the baseline" if base else ""
    speed = Bars(
        f"sentences/s: bar = median, whisker = slowest to fastest call{dashes}",
        tuple(
            Bar(row.contestant, _detail(row), row.rate or 0, row.slowest, row.fastest, hues.get(row.contestant, 0))
            for row in measured
        ),
        base,
    )
    waste = Bars(
        "padding waste: percent of the computed tokens",
        tuple(
            Bar(row.contestant, _detail(row), row.waste, hue=hues.get(row.contestant, 0))
            for row in measured
            if row.waste is not None and row.tokenisation_inside
        ),
    )
    rated = [row for row in measured if row.spearman is not None]
    quality = Plot(
        "quality against speed: up and to the right is better",
        "sentences/s, the fastest row",
        "Spearman x 100, STS-B test",
        tuple(
            Series(row.contestant, ((_fastest(measured, row.contestant), row.spearman or 0.0),), joined=False)
            for row in rated
        ),
    )
    return [speed, quality, waste]


def _detail(row: Row) -> str:
    detail = ", ".join(text for text in (row.policy, row.batch) if text)
    tokens = "" if row.tokenisation_inside else "tokenised before"
    wrong = "wrong vectors" if row.wrong else ""
    return " · ".join(text for text in (detail, tokens, row.precision, wrong) if text)


def _fastest(rows: Sequence[Row], name: str) -> float:
    return max((row for row in rows if row.contestant == name and row.tokenisation_inside), key=pace).rate or 0.0


def _quality(part: Section) -> list[Table]:
    measured = [row for row in part.rows if row.status == MEASURED]
    rated = [row for row in measured if row.spearman is not None]
    if not rated:
        return []
    rows = [
        (
            Cell(row.contestant),
            number(_fastest(measured, row.contestant)),
            number(row.spearman, ".2f"),
            cosine_cell(row),
            percent(row.neighbours_kept and 100 * row.neighbours_kept, ".2f", missing=""),
            number(row.alone_cosine, ".7f"),
        )
        for row in rated
    ]
    return [Table(_QUALITY, tuple(rows), caption="What the vectors are worth")]


def _apart(probes: Sequence[Probe]) -> list[Table]:
    rows = [
        (
            Cell(probe.contestant),
            number(probe.startup_s, ".1f"),
            number(probe.peak_mb, ",.0f"),
            number(probe.p50_ms, ".2f"),
            number(probe.p99_ms, ".2f"),
        )
        for probe in probes
    ]
    return [Table(_APART, tuple(rows), caption="Each in a process of its own")] if rows else []


def _lengths(parts: Sequence[Section]) -> list[Board]:
    """Milliseconds a text over tokens a text, of the contestants' fastest rows, where corpora of a run differ."""
    groups: dict[tuple[str, str, str], list[Section]] = {}
    for part in parts:
        if part.tokens_per_text:
            groups.setdefault((part.model, part.conditions["machine"], part.run), []).append(part)
    boards = []
    for (model, machine, _), group in groups.items():
        if len({round(part.tokens_per_text or 0) for part in group}) < 2:
            continue
        ordered = sorted(group, key=lambda part: part.tokens_per_text or 0.0)
        names = dict.fromkeys(row.contestant for part in ordered for row in part.rows if row.rate)
        points = {name: _cost_points(ordered, name) for name in names}
        series = tuple(Series(name, tuple(points[name])) for name in names if len(points[name]) > 1)
        rows = tuple(
            (Cell(name), *(number(dict(points[name]).get(part.tokens_per_text or 0.0)) for part in ordered))
            for name in names
        )
        heads = (Column("contestant"), *(Column(_length_heading(part), True) for part in ordered))
        chart = Plot("cost against length", "tokens a text", "milliseconds a text", series, log_x=True, log_y=True)
        conditions = {"machine": machine, "unit": "ms a text, each at its fastest batches"}
        conditions["date"] = group[0].conditions["date"]
        boards.append(Board(f"Cost against length, {model}", (Table(heads, rows),), (chart,), conditions))
    return boards


def _length_heading(part: Section) -> str:
    return f"{part.corpus}, {part.tokens_per_text:.0f} tokens"


def _cost_points(parts: Sequence[Section], name: str) -> list[tuple[float, float]]:
    found: dict[float, list[float]] = {}
    for part in parts:
        rows = [row for row in part.rows if row.contestant == name and row.rate and row.tokenisation_inside]
        if rows:
            found.setdefault(part.tokens_per_text or 0.0, []).append(1000 / _fastest(rows, name))
    return [(tokens, mean(costs)) for tokens, costs in found.items()]
