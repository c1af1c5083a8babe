"""``sentport bench report`` and ``sentport bench compare``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from bench.cli_checks import check_finite, check_folder
from sentport.cli.steps import Steps, add_step
from sentport.errors import SentportError

_EXAMPLE = "sentport bench compare bench/records/readme bench-out"
_REPORT_EXAMPLE = "sentport bench report --raw bench-out/*.jsonl --out bench-out"


def add(steps: Steps[argparse.ArgumentParser]) -> None:
    """Declare both steps."""
    parser = add_step(steps, "report", "raw records to tables and a page", _REPORT_EXAMPLE, _report)
    add = parser.add_argument
    add("--raw", metavar="FILE", type=Path, nargs="+", required=True, help="raw files of `sentport bench`, or folders")
    add("--merge", metavar="FILE", type=Path, nargs="+", default=[], help="records of bench.gpu_check, beside them")
    add("--out", metavar="DIR", type=Path, required=True, help="folder for report.html, report.md and csv/")
    add("--json", action="store_true", help="print the rows as JSON")

    parser = add_step(steps, "compare", "two runs of one grid: exit code 1 where a row got slower", _EXAMPLE, _compare)
    parser.add_argument("before", metavar="A", type=Path, help="a raw file, or a folder of them")
    parser.add_argument("after", metavar="B", type=Path, help="likewise")
    parser.add_argument(
        "--least", metavar="SHARE", type=float, default=0.05, help="a smaller change is none (%(default)s)"
    )


def _report(arguments: argparse.Namespace) -> int:
    """Report; with ``--json`` the rows go to stdout, else the tables."""
    check_folder(arguments.out)
    raw = [file for path in (*arguments.raw, *arguments.merge) for file in _files(path)]
    print_report(raw, arguments.out, as_json=arguments.json)
    return 0


def _compare(arguments: argparse.Namespace) -> int:
    """Compare; the table goes to stdout, and the exit code says whether a row got slower or was lost."""
    from bench.compare import REGRESSIONS, board, compare
    from bench.metrics import sections
    from bench.records import read_records
    from bench.report import render_board

    check_finite("least", arguments.least)
    before, after = (sections(read_records(_files(path))) for path in (arguments.before, arguments.after))
    changes = compare(before, after, arguments.least)
    machines = [{part.conditions.get("machine", "") for part in parts} for parts in (before, after)]
    if machines[0] != machines[1]:
        there, here = (", ".join(sorted(each)) for each in machines)
        print(f"not the same machine: {there} before, {here} after; ratios to the baseline may differ for that alone\n")
    print(render_board(board(changes, arguments.least)))
    worse = sum(change.verdict in REGRESSIONS for change in changes)
    print(f"\n{len(changes)} rows compared, {worse} slower or lost")
    return 1 if worse else 0


def _files(path: Path) -> list[Path]:
    """Raw files of a folder, or the one that is named.

    Raises:
        SentportError: When the folder has none.
    """
    found = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not found:
        raise SentportError(f"{path} holds no raw file; expected .jsonl files of `sentport bench`")
    return found


def print_report(raw: Sequence[Path], out: Path, *, as_json: bool = False) -> None:
    """Write the report of raw files, and print its tables or its rows."""
    from bench.all_boards import all_boards
    from bench.findings import findings
    from bench.metrics import sections
    from bench.records import read_records
    from bench.report import headlines, render_board, write_report

    records = read_records(raw)
    boards, found = all_boards(records), findings(parts := sections(records))
    if not boards:
        raise SentportError(f"{', '.join(map(str, raw))}: no case was measured in there; give `bench run` again")
    written = write_report(boards, found, out)
    if as_json:
        files = {"page": str(written.page), "table": str(written.markdown)}
        print(json.dumps({**files, "sections": [asdict(part) for part in parts]}))
        return
    for board in boards:
        print(f"{board.title}\n{render_board(board)}\n")
    for line in headlines(found):
        print(line)
    print(f"page     {written.page}\ntable    {written.markdown}\ncsv      {out / 'csv'}", flush=True)
