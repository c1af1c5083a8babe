"""What an unfinished run is and which of its parts are done: one line each, appended, so that a kill loses at most one.

The first line describes the job, every other line a finished part. A last line without its end is not there.
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from sentport.bulk.blocks import BadRow
from sentport.bulk.manifest import Made
from sentport.errors import SentportError

JOURNAL_FILE = "job.jsonl"
_PUBLISHING = {"publishing": True}


@dataclass(frozen=True, slots=True)
class Job(Made):
    """Everything that decides what a run makes of its input.

    Attributes:
        layout: How the engine lays a batch out; vectors differ by it in their last digits.
        kind: ``npy``, ``parquet`` or ``folder``.
        column: Column of the text.
        text_ids: Whether ids are text.
        part_rows: Input rows of a part.
        refuse_long: Whether a text over the length limit is a bad row.
    """

    layout: str
    kind: str
    column: str
    text_ids: bool
    part_rows: int
    refuse_long: bool

    def part_name(self, number: int) -> str:
        """File name of a part."""
        return f"part-{number:05d}.{'raw' if self.kind == 'npy' else 'parquet'}"


@dataclass(frozen=True, slots=True)
class PartRecord:
    """A finished part.

    Attributes:
        part: Its number.
        rows: Vectors in it.
        size: Its bytes.
        sha256: Over the input rows that it was made of.
        truncated: Texts that lost their end.
        tokens: Tokens of its texts.
        bad: Input rows without a vector.
    """

    part: int
    rows: int
    size: int
    sha256: str
    truncated: int
    tokens: int
    bad: tuple[BadRow, ...]

    @property
    def input_rows(self) -> int:
        """Rows of the input that it covers."""
        return self.rows + len(self.bad)

    def to_json(self) -> str:
        """The record as one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str | bytes) -> PartRecord:
        """Read a line."""
        values = json.loads(line)
        return cls(**{**values, "bad": tuple(BadRow(*bad) for bad in values["bad"])})


class Journal:
    """The journal of a run, open and locked; see ``open_journal``."""

    def __init__(self, folder: Path, job: Job, file: IO[bytes]) -> None:
        self.folder, self.job, self._file = folder, job, file
        self.records: dict[int, PartRecord] = {}

    def append(self, record: PartRecord) -> None:
        """Note a part whose file is in place."""
        self._write(record.to_json())
        self.records[record.part] = record

    def mark_publishing(self) -> None:
        """Note that the output itself is about to be touched."""
        self._write(json.dumps(_PUBLISHING))

    def part_path(self, number: int) -> Path:
        """Where a part lies."""
        return self.folder / self.job.part_name(number)

    def sweep(self) -> None:
        """Remove all that is neither the journal nor a finished part."""
        kept = {JOURNAL_FILE, *map(self.job.part_name, self.records)}
        for path in self.folder.iterdir():
            if path.name not in kept:
                path.unlink()

    def resume(self, *, replace: bool) -> None:
        """Take up what an earlier run has left, where it was the same job.

        Raises:
            SentportError: When it was another, unless that is to be replaced.
        """
        *lines, _torn = self._file.read().split(b"\n")
        earlier = json.loads(lines[0]) if lines else None
        ours = asdict(self.job)
        if earlier is not None and earlier != ours and not replace:
            aspect = next(name for name in ours if earlier.get(name) != ours[name])
            raise SentportError(
                f"{self.folder} holds an unfinished run with {aspect} {str(earlier.get(aspect))[:12]}, this one has "
                f"{str(ours[aspect])[:12]}; add --force to drop that one, or name another output"
            )
        if earlier != ours:
            self.restart()
        else:
            self._file.truncate(sum(len(line) + 1 for line in lines))
            found = [PartRecord.from_json(line) for line in lines[1:] if json.loads(line) != _PUBLISHING]
            # A record is written after its part; a part of another size was damaged by something else.
            self.records = {record.part: record for record in found if self._is_whole(record)}
        self.sweep()

    def restart(self) -> None:
        """Forget all that is done."""
        self._file.truncate(0)
        self._write(json.dumps(asdict(self.job)))
        self.records = {}
        self.sweep()

    def _is_whole(self, record: PartRecord) -> bool:
        path = self.part_path(record.part)
        return path.is_file() and path.stat().st_size == record.size

    def _write(self, line: str) -> None:
        self._file.write(line.encode() + b"\n")
        self._file.flush()


@contextmanager
def open_journal(folder: Path, job: Job, *, replace: bool, fresh: bool = False) -> Iterator[Journal]:
    """The journal of a run that this process alone works on; a run that fails with nothing done leaves nothing.

    Args:
        folder: The job's folder; made when it is not there.
        job: What is to be made.
        replace: Whether an unfinished run of another job is dropped.
        fresh: Whether any unfinished run is.

    Raises:
        SentportError: When another process works there, or an unfinished run of another job lies there.
    """
    folder.mkdir(exist_ok=True)
    with (folder / JOURNAL_FILE).open("a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SentportError(f"another run is at work in {folder}; wait for it, or name another output") from None
        file.seek(0)
        journal = Journal(folder, job, file)
        if fresh:
            journal.restart()
        else:
            journal.resume(replace=replace)
        try:
            yield journal
        except BaseException:
            if not journal.records:
                remove(folder)
            raise


def is_publishing(folder: Path) -> bool:
    """Whether a killed run had begun to put its output in place."""
    journal = folder / JOURNAL_FILE
    return journal.is_file() and json.dumps(_PUBLISHING).encode() in journal.read_bytes().splitlines()[1:]


def remove(folder: Path) -> None:
    """Remove a job's folder, the journal first: without it the rest is known to be rubbish."""
    (folder / JOURNAL_FILE).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
