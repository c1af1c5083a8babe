"""Records: JSON lines that survive a kill, the conditions each carries, and the table on stdout."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
import transformers

Record = dict[str, Any]
FORMAT = 1


class Writer:
    """Writes records to ``<path>.partial``, flushed one by one, and renames it when the run is over."""

    def __init__(self, path: Path, conditions: Record) -> None:
        """``conditions`` goes into every record."""
        self.path = path
        self.partial = path.with_name(path.name + ".partial")
        self.conditions = {"format": FORMAT, "benchmark": "gpu_check", **conditions}
        self.rows: list[Record] = []
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.partial.open("w", encoding="utf-8")

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        # An interrupted run keeps its .partial: what was measured is there, and nobody takes it for a whole one.
        if kind is None:
            os.replace(self.partial, self.path)

    def write(self, kind: str, record: Record) -> None:
        """Appends one record; it has left this process when this returns, so a kill does not lose it."""
        whole = {"kind": kind, **record, **self.conditions}
        self._file.write(json.dumps(whole, allow_nan=False) + "\n")
        self._file.flush()
        if kind == "row":
            self.rows.append(whole)


def conditions(device: torch.device) -> Record:
    """Collects what every figure depends on outside the contestant: machine, device, versions."""
    found: Record = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _cpu_name(),
        "cpu_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "device": device.type,
        "device_name": _cpu_name(),
        "sessions": 1,
        "threads": torch.get_num_threads(),
        "tokenisation_inside": False,
        "versions": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "torch": str(torch.__version__),
            "transformers": str(transformers.__version__),
            "cuda": torch.version.cuda,
            "driver": None,
        },
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found["device_name"] = properties.name
        found["compute_capability"] = f"{properties.major}.{properties.minor}"
        found["multiprocessors"] = properties.multi_processor_count
        found["gpu_memory_gib"] = round(properties.total_memory / 2**30, 1)
        found["gpu_limits"] = _nvidia_smi("power.limit,clocks.max.sm,clocks.max.memory")
        found["versions"]["driver"] = _nvidia_smi("driver_version")
    return found


def _nvidia_smi(fields: str) -> str:
    """Asks the driver's own tool, which is the one place that knows the driver's version; says so where it fails."""
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader", "--id=0"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError) as problem:
        return f"unknown: {type(problem).__name__}"
    return answer.stdout.strip()


def _cpu_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()


def table(rows: list[Record]) -> str:
    """Formats the rows as text, one block a workload."""
    lines: list[str] = []
    for title in dict.fromkeys(_title(row) for row in rows):
        lines += ["", title, _HEADER, "-" * len(_HEADER)]
        lines += [_line(row) for row in rows if _title(row) == title]
    return "\n".join(lines)


_HEADER = (
    f"{'contestant':<54}{'sent/s device':>14}{'end to end':>12}{'Mtok/s':>9}{'waste %':>9}"
    f"{'TFLOP/s':>9}{'% ceil':>8}{'worst cosine':>14}"
)


def _title(row: Record) -> str:
    return f"{row['model']} on {row['corpus']} ({row['texts']} texts, {row['tokens']} tokens), {row['device_name']}"


def _line(row: Record) -> str:
    if row["status"] != "measured":
        return f"{row['contestant']:<54}  {row['status']}: {row['reason'][:90]}"
    return (
        f"{row['contestant']:<54}{row['sentences_per_s']['device']:>14,.0f}{row['sentences_per_s']['end_to_end']:>12,.0f}"
        f"{row['tokens_per_s']['device'] / 1e6:>9.3f}{row['padding_waste_percent']:>9.1f}"
        f"{row['useful_tflops']:>9.3g}{row['percent_of_ceiling']:>8.1f}{row['worst_cosine']:>14.8f}"
    )
