"""Raw records: one JSON line for every timed call, each complete in itself, in a new file for every run."""

from __future__ import annotations

import json
import platform
import secrets
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from bench.contestants import Conditions
from bench.fields import OTHERS, fault, gpu_fault, other_fault
from sentport.errors import SentportError
from sentport.hardware import available_cores, cpu_model, cuda_devices, installed_versions

Record = dict[str, Any]
FORMAT = 1
BENCHMARK = "encoders"
GPU_BENCHMARK = "gpu_check"

_PACKAGES = (
    "numpy",
    "tokenizers",
    "torch",
    "transformers",
    "sentence-transformers",
    "onnxruntime",
    "onnxruntime-gpu",
    "openvino",
    "sentport-native",
    "tritonclient",
)


class NotWritten(SentportError):
    """A raw file takes no more; what stands in it is whole."""


class Writer:
    """Writes a run's records as they are made; what a killed run had measured is on the disk.

    A file that got no record is removed at the end.

    Args:
        folder: Where raw files lie; made where it is missing.
        shared: What is the same for every record of the run.
        benchmark: Which benchmark they are of.
    """

    def __init__(self, folder: Path, shared: Record, benchmark: str = BENCHMARK) -> None:
        self._shared = {"format": FORMAT, "benchmark": benchmark, **shared}
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{shared['run']}.jsonl"
        try:
            self._file = self.path.open("xb", buffering=0)  # never over an earlier run
        except FileExistsError:
            raise SentportError(f"{self.path} exists; raw records are never replaced, so name another folder") from None

    def write(self, kind: str, record: Record) -> None:
        """Append one record of a kind that ``bench/fields.py`` knows.

        Raises:
            NotWritten: When the disk is full, or gone.
        """
        line = (json.dumps({"kind": kind, **record, **self._shared}, allow_nan=False) + "\n").encode()
        whole = self._file.tell()
        try:
            while line:
                line = line[self._file.write(line) :]
        except OSError as error:
            self._file.truncate(whole)  # a line's beginning would make the file unreadable
            self._file.seek(whole)
            raise NotWritten(
                f"{self.path} takes no more ({error.strerror}); what was measured stands in it; make room, and give "
                "the command again"
            ) from None

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if not self.path.stat().st_size:
            self.path.unlink()


def run_conditions() -> Record:
    """What every figure of a run depends on outside the contestants, and the run's own name."""
    now = datetime.now(UTC)
    return {
        "run": f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}",
        "date": now.isoformat(timespec="seconds"),
        "cpu": cpu_model(),
        "cpu_cores": available_cores(),
        "gpus": list(cuda_devices()),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": installed_versions(_PACKAGES),
    }


def contestant_conditions(conditions: Conditions, shared: Record) -> Record:
    """A contestant's conditions as a record, the device with its full name."""
    on_gpu = conditions.device == "cuda" and shared["gpus"]
    return {**asdict(conditions), "device_name": shared["gpus"][0] if on_gpu else shared["cpu"]}


def versions_and_date(record: Record) -> dict[str, str]:
    """What a report says of a record's versions and date."""
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items() if version)
    return {"versions": versions, "date": record["date"]}


def read_records(paths: Sequence[Path]) -> list[Record]:
    """Read raw files, of this benchmark or of ``bench.gpu_check``; a file named twice counts once.

    A killed run may leave half a line at the end. It is dropped, and every record of that file says so: ``cut``.

    Raises:
        SentportError: When a file cannot be read, a line of it is no record that this version knows, it has no row, or
            it is a copy of another.
    """
    records: list[Record] = []
    held: dict[tuple[str, str], Path] = {}
    for path in {path.resolve(): path for path in paths}.values():
        found = read_file(path)
        for run in {(record["benchmark"], record["run"]) for record in found if "run" in record}:
            if run in held:  # its calls would count twice
                raise SentportError(f"{held[run]} and {path} both hold run {run[1]}; name one of them")
            held[run] = path
        records += found
    if not records:
        names = ", ".join(str(path) for path in paths) or "no file"
        raise SentportError(f"{names}: no record in there; make some with `sentport bench run`")
    return records


def read_file(path: Path) -> list[Record]:
    """The records of one raw file, none of an empty one.

    Raises:
        SentportError: When it cannot be read, or a line of it is no record that this version knows.
    """
    try:
        *lines, last = path.read_text(encoding="utf-8").split("\n")  # what follows the last line's end: nothing
    except (OSError, UnicodeDecodeError) as error:
        raise SentportError(f"{path} cannot be read ({error}); expected JSON lines of `sentport bench`") from None
    cut = bool(last.strip())
    records = [
        {**_parse(line, path, number), "file": path.name, "cut": cut}
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    if records and not any(record["benchmark"] != GPU_BENCHMARK or record["kind"] == "row" for record in records):
        raise SentportError(f"{path} has no row; expected records of a whole run of `bench.gpu_check`, so run it again")
    return records


def _parse(line: str, path: Path, number: int) -> Record:
    try:
        record: Record = json.loads(line)
        known = record["format"] == FORMAT and record["benchmark"] in (BENCHMARK, GPU_BENCHMARK, *OTHERS)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise SentportError(
            f"{path}, line {number}: no record; expected JSON lines of `sentport bench run` or `bench.gpu_check`"
        ) from None
    if not known:
        raise SentportError(
            f"{path}, line {number}: format {record['format']} of benchmark {record['benchmark']!r}; this version "
            f"reads format {FORMAT} of {', '.join((BENCHMARK, GPU_BENCHMARK, *OTHERS))}; measure again, or use the "
            "version that wrote it"
        )
    judge = {BENCHMARK: fault, GPU_BENCHMARK: gpu_fault}.get(record["benchmark"], other_fault)
    wrong = judge(record)
    if wrong:
        raise SentportError(f"{path}, line {number}: {wrong}; measure again, or take the line out")
    return record
