"""What an unfinished run is and which of its parts are done: one line each, appended, so that a kill loses at most one.

The first line describes the job, every other line a finished part; each carries a hash of itself. A last line without
its end is not there.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from sentport.bulk.blocks import BadRow
from sentport.bulk.manifest import Made, Part, seal, short, unseal
from sentport.bundle import sha256_of
from sentport.errors import SentportError

# Readers of a folder of Parquet files pass over names that begin with an underscore.
JOURNAL_FILE = "_job.jsonl"
_PUBLISHING = {"publishing": True}
# Names of what a run writes in its folder, finished or aside.
_OURS = re.compile(r"\.?part-\d{5,}\..*|whole|_(job|bad-rows)\.jsonl|_manifest\.json")
# What a user knows an aspect of a job by, where it is not its name.
_OPTIONS = {
    **{name: f"--{name}" for name in ("column", "device", "dim", "engine", "layout", "precision", "prompt", "threads")},
    **{"ids": "--id-column", "part_rows": "--shard-rows", "stored": "--store", "texts": "--keep-text"},
    "refuse_long": "--on-truncate error",
}


@dataclass(frozen=True, slots=True)
class Job(Made):
    """Everything that decides what a run makes of its input.

    Attributes:
        graph: SHA-256 of the graph that runs; like the next two, it decides the last digits of a vector.
        threads: Engine calls at once x compute threads of each.
        kind: ``npy``, ``parquet`` or ``folder``.
        column: Column of the text.
        text_ids: Whether ids are text.
        part_rows: Input rows of a part.
        refuse_long: Whether a text over the length limit is a bad row.
    """

    graph: str
    threads: str
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
        sha256: Of its file.
        input_sha256: Over the input rows that it was made of.
        truncated: Texts that lost their end.
        first_truncated: Input positions of the first of them.
        tokens: Tokens of its texts.
        bad: Input rows without a vector.
    """

    part: int
    rows: int
    size: int
    sha256: str
    input_sha256: str
    truncated: int
    first_truncated: tuple[int, ...]
    tokens: int
    bad: tuple[BadRow, ...]

    @property
    def input_rows(self) -> int:
        """Rows of the input that it covers."""
        return self.rows + len(self.bad)

    def to_json(self) -> str:
        """The record as one line."""
        return seal(asdict(self))

    @classmethod
    def from_json(cls, line: str | bytes) -> PartRecord:
        """Read a line.

        Raises:
            ValueError, KeyError, TypeError: When it is none.
        """
        return cls._of(unseal(line))

    @classmethod
    def _of(cls, values: Mapping[str, Any]) -> PartRecord:
        bad = tuple(BadRow(*row) for row in values["bad"])
        return cls(**{**values, "bad": bad, "first_truncated": tuple(values["first_truncated"])})


class Journal:
    """The journal of a run, open and locked; see ``open_journal``."""

    def __init__(self, folder: Path, job: Job, file: IO[bytes]) -> None:
        self.folder, self.job, self._file = folder, job, file
        self.records: dict[int, PartRecord] = {}

    @property
    def input_rows(self) -> int:
        """Input rows of all finished parts."""
        return sum(record.input_rows for record in self.records.values())

    def append(self, record: PartRecord) -> None:
        """Note a part whose file is in place."""
        self._write(record.to_json())
        self.records[record.part] = record

    def mark_publishing(self) -> None:
        """Note that the output itself is about to be touched."""
        self._write(seal(_PUBLISHING))

    def part_path(self, number: int) -> Path:
        """Where a part lies."""
        return self.folder / self.job.part_name(number)

    def parts(self) -> list[Part]:
        """The finished parts, in order."""
        records = (self.records[number] for number in sorted(self.records))
        return [Part(self.job.part_name(one.part), one.rows, one.size, one.sha256) for one in records]

    def damaged(self) -> list[int]:
        """Numbers of finished parts whose file is not what was written."""
        return [number for number, record in sorted(self.records.items()) if not self._is_whole(record)]

    def sweep(self, *, force: bool = False) -> None:
        """Remove all that is neither the journal nor a finished part.

        Raises:
            SentportError: When something lies there that no run has written, unless ``force``.
        """
        strange = foreign(self.folder)
        if strange and not force:
            raise SentportError(
                f"{self.folder}, where a run keeps its parts, holds {strange[0]}, which is of no run; move it, or add "
                "--force to remove it"
            )
        kept = {JOURNAL_FILE, *map(self.job.part_name, self.records)}
        for path in self.folder.iterdir():
            if path.name not in kept:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    def resume(self, *, force: bool) -> None:
        """Take up what an earlier run has left, where it was the same job.

        Raises:
            SentportError: When it was another, or its journal is damaged, unless that is to be dropped.
        """
        *lines, _torn = self._file.read().split(b"\n")
        try:
            held = [unseal(line) for line in lines]
            earlier = held[0] if held else None
            records = [PartRecord._of(values) for values in held[1:] if values != _PUBLISHING]
        except (ValueError, KeyError, TypeError) as error:
            if not force:
                raise SentportError(
                    f"{self.folder / JOURNAL_FILE} is damaged ({error}); add --force to begin that run again, or name "
                    "another output"
                ) from None
            earlier, records = None, []
        ours = asdict(self.job)
        if earlier is not None and earlier != ours and not force:
            raise self._other_job(earlier)
        if earlier != ours:
            self.restart(force=force)
        else:
            self._file.truncate(sum(len(line) + 1 for line in lines))
            self.records = {record.part: record for record in records}
            for number in self.damaged():
                del self.records[number]
            self.sweep(force=force)

    def restart(self, *, force: bool) -> None:
        """Forget all that is done."""
        self._file.truncate(0)
        self._write(seal(asdict(self.job)))
        self.records = {}
        self.sweep(force=force)

    def is_in_place(self) -> bool:
        """Whether the file that is locked is still the one that others would find."""
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), os.stat(self.folder / JOURNAL_FILE))
        except FileNotFoundError:
            return False

    def _other_job(self, earlier: Mapping[str, Any]) -> SentportError:
        ours = asdict(self.job)
        aspect = next((name for name in ours if earlier.get(name) != ours[name]), None)
        if aspect is None:
            told = "of another version of sentport"
        else:
            theirs, own = short(earlier.get(aspect)), short(ours[aspect])
            told = f"with {_OPTIONS.get(aspect, aspect)} {theirs}, this one has {own}"
        return SentportError(
            f"{self.folder} holds an unfinished run {told}; add --force to drop that one, or name another output"
        )

    def _is_whole(self, record: PartRecord) -> bool:
        path = self.part_path(record.part)
        return path.is_file() and path.stat().st_size == record.size and sha256_of(path) == record.sha256

    def _write(self, line: str) -> None:
        if not self.is_in_place():
            raise SentportError(f"{self.folder} was removed while this run was at work; give the command again")
        self._file.write(line.encode() + b"\n")
        self._file.flush()


@contextmanager
def open_journal(folder: Path, job: Job, *, force: bool, fresh: bool = False) -> Iterator[Journal]:
    """The journal of a run that this process alone works on; a run that fails with nothing done leaves nothing.

    Args:
        folder: The job's folder; made when it is not there.
        job: What is to be made.
        force: Whether an unfinished run of another job, and a damaged one, is dropped.
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
        journal = Journal(folder, job, file)
        if not journal.is_in_place():  # the run that held the lock has ended since the file was opened
            raise SentportError(f"another run has just ended in {folder}; see its output, or give the command again")
        file.seek(0)
        if fresh:
            journal.restart(force=True)
        else:
            journal.resume(force=force)
        try:
            yield journal
        except BaseException:
            if not journal.records and journal.is_in_place():
                remove(folder)
            raise


def is_publishing(folder: Path) -> bool:
    """Whether a killed run had begun to put its output in place."""
    journal = folder / JOURNAL_FILE
    return journal.is_file() and seal(_PUBLISHING).encode() in journal.read_bytes().splitlines()[1:]


def foreign(folder: Path) -> list[str]:
    """Names of what lies in a job's folder and no run has written."""
    return sorted(path.name for path in folder.iterdir() if not _OURS.fullmatch(path.name) or path.is_dir())


def remove(folder: Path) -> None:
    """Remove a job's folder, the journal first: without it the rest is known to be rubbish."""
    (folder / JOURNAL_FILE).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
