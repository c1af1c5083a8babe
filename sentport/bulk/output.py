"""Where a bulk run's vectors go, and how they get there: the output is put in place whole, at the end."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from sentport.bulk.blocks import BadRow
from sentport.bulk.inputs import FORMATS, STDIN, Inputs
from sentport.bulk.journal import JOURNAL_FILE, Journal, foreign, is_publishing, remove
from sentport.bulk.manifest import Made, Manifest, Part, StoreError, read_manifest
from sentport.bulk.parts import join_npy, join_parquet
from sentport.bulk.store import MANIFEST_FILE, sidecar
from sentport.bundle import sha256_of
from sentport.errors import SentportError
from sentport.files import replace_folder
from sentport.inputs import counted

BAD_ROWS_FILE = "_bad-rows.jsonl"
_PART_NAME = re.compile(r"part-\d{5,}\.parquet")
_OTHER_FILES = frozenset({*FORMATS, ".txt", ".json", ".npz", ".gz", ".zip", ".h5", ".feather", ".arrow"}) - {".parquet"}


@dataclass(frozen=True, slots=True)
class Output:
    """A ``.npy`` file, a ``.parquet`` file, or a folder of Parquet files.

    Attributes:
        path: Where it will be; links are followed.
        kind: ``npy``, ``parquet`` or ``folder``.
        to_stdout: Whether the file is a passing one, on its way to standard output.
    """

    path: Path
    kind: str
    to_stdout: bool = False

    @property
    def job_folder(self) -> Path:
        """Where a run's parts lie until it is finished."""
        return self.path.with_name(f".{self.path.name}.job")

    @property
    def bad_rows(self) -> Path:
        """The side file with the rows that could not be encoded."""
        return self.path / BAD_ROWS_FILE if self.kind == "folder" else Path(f"{self.path}.bad.jsonl")

    @property
    def beside(self) -> tuple[Path, ...]:
        """What is written beside a file."""
        return {"npy": (sidecar(self.path), self.bad_rows), "parquet": (self.bad_rows,)}.get(self.kind, ())


def find_output(name: str | Path) -> Output:
    """The output that a name stands for, by its end.

    Raises:
        SentportError: For the end of another kind of file, which is hardly meant to be a folder, and for the root.
    """
    path = Path(name).resolve()
    if not path.name:
        raise SentportError(f"{path} cannot be replaced; name a .npy or .parquet file, or a new folder for shards")
    if path.suffix.lower() in _OTHER_FILES and not path.exists():
        raise SentportError(f"{path.name} cannot be written; expected a .npy or .parquet file, or a folder for shards")
    return Output(path, {".npy": "npy", ".parquet": "parquet"}.get(path.suffix, "folder"))


def refuse_taken(output: Output, inputs: Inputs, *, force: bool) -> None:
    """Refuse, before anything is encoded, an output that must not or may not be replaced.

    Raises:
        SentportError: When it holds something, unless ``force``; when it is not ours to replace in any case.
    """
    path = output.path
    if not path.parent.is_dir():
        raise SentportError(f"{path.parent} is not a folder, so {path} cannot be written; make it first")
    _refuse_inputs(output, inputs)
    _clear_job(output.job_folder)
    if not path.exists():
        taken = [one for one in output.beside if one.exists()]
        if taken and not force and not is_publishing(output.job_folder):
            raise SentportError(f"{taken[0]} exists, which {path} would replace; add --force, or name another file")
        return
    if output.kind == "folder":
        _refuse_folder(path, force=force)
        inside = [name for name in inputs.files if name != STDIN and path in Path(name).resolve().parents]
        if inside:
            raise SentportError(f"{inside[0]} is an input in the output folder {path}; name another output")
    elif not path.is_file():
        raise SentportError(f"{path} is not a file that can be replaced; name another, or - for standard output")
    elif not force and not is_publishing(output.job_folder):
        raise SentportError(f"{path} exists; add --force to replace it, or name another file")


def _refuse_inputs(output: Output, inputs: Inputs) -> None:
    """Refuse an output that would replace what it is made of."""
    for name in inputs.files:
        if name != STDIN and any(one.exists() and one.samefile(name) for one in (output.path, *output.beside)):
            raise SentportError(f"{name} is the input itself, which the output would replace; name another output")


def _clear_job(folder: Path) -> None:
    """Remove what a run that was killed at its very end has left; the journal goes first."""
    if folder.is_symlink() or folder.is_file():
        raise SentportError(f"{folder}, where a run keeps its parts, is no folder; remove it, or name another output")
    if not folder.is_dir() or (folder / JOURNAL_FILE).is_file():
        return
    if foreign(folder):
        raise SentportError(
            f"{folder}, where a run keeps its parts, holds other things; move it, or name another output"
        )
    remove(folder)


def _refuse_folder(path: Path, *, force: bool) -> None:
    if not path.is_dir():
        raise SentportError(f"{path} is not a folder; name a .npy or .parquet file, or a new folder for shards")
    found = {child.name for child in path.iterdir()}
    if not found:
        return
    strangers = SentportError(f"{path} is a folder with other things in it; name a new folder")
    parts = {name for name in found if _PART_NAME.fullmatch(name)}
    if MANIFEST_FILE not in found or found - parts - {MANIFEST_FILE, BAD_ROWS_FILE, JOURNAL_FILE}:
        raise strangers
    try:
        described = path / MANIFEST_FILE
        held = read_manifest(described.read_bytes(), str(described))
    except StoreError as damage:
        if not parts:  # then it may as well be the manifest of something else
            raise strangers from damage
        if not force:
            raise
        return
    (path / JOURNAL_FILE).unlink(missing_ok=True)  # of a run that was killed at its very end
    if not force:
        raise SentportError(
            f"{path} holds {counted(held.rows, 'vector')} of {held.source} (fingerprint {held.fingerprint[:12]}); "
            "add --force to replace them, or name another folder"
        )


def publish(output: Output, journal: Journal, inputs: Inputs, *, force: bool) -> Manifest:
    """Put the finished parts in place as the output, and remove the job's folder.

    Raises:
        SentportError: When something has come to lie there since the run began, unless ``force``, or a part has been
            damaged.
    """
    if not force and not is_publishing(journal.folder):
        _refuse_newcomer(output)
    if damaged := journal.damaged():
        raise SentportError(f"{journal.part_path(damaged[0])} is not what was written; the same command makes it again")
    records = [journal.records[number] for number in sorted(journal.records)]
    bad = [row for record in records for row in record.bad]
    job, folder, parts = journal.job, journal.folder, journal.parts()
    manifest = Manifest(
        **{one.name: getattr(job, one.name) for one in fields(Made)},
        rows=sum(part.rows for part in parts),
        bad_rows=len(bad),
        truncated=sum(record.truncated for record in records),
        input={"files": list(inputs.files), "column": job.column},
        parts=tuple(parts) if output.kind == "folder" else (),
    )
    journal.sweep()
    journal.mark_publishing()
    if output.kind == "folder":
        _write_bad_rows(folder / BAD_ROWS_FILE, bad)
        (folder / MANIFEST_FILE).write_text(manifest.to_json() + "\n", encoding="utf-8")
        replace_folder(folder, output.path)
        (output.path / JOURNAL_FILE).unlink()
    else:
        manifest = _publish_file(output, [folder / part.file for part in parts], manifest, bad, text_ids=job.text_ids)
        remove(folder)
    return manifest


def _refuse_newcomer(output: Output) -> None:
    path = output.path
    if any(path.iterdir()) if output.kind == "folder" and path.is_dir() else path.exists():
        raise SentportError(f"{path} has come to exist while this run was at work; move it, and give the command again")


def _publish_file(
    output: Output, parts: Sequence[Path], manifest: Manifest, bad: Sequence[BadRow], *, text_ids: bool
) -> Manifest:
    whole = output.job_folder / "whole"
    beside = sidecar(output.path)
    if output.kind == "npy":
        with whole.open("wb") as file:
            join_npy(parts, file, manifest)
        held = Part(output.path.name, manifest.rows, whole.stat().st_size, sha256_of(whole))
        manifest = replace(manifest, parts=(held,))
        beside.unlink(missing_ok=True)  # vectors never stand beside the manifest of others
    else:
        join_parquet(parts, whole, manifest, text_ids=text_ids)
    listed = output.job_folder / BAD_ROWS_FILE
    if _write_bad_rows(listed, bad):
        listed.rename(output.bad_rows)
    else:
        output.bad_rows.unlink(missing_ok=True)
    whole.rename(output.path)
    if output.kind == "npy":
        described = output.job_folder / MANIFEST_FILE
        described.write_text(manifest.to_json() + "\n", encoding="utf-8")
        described.rename(beside)
    return manifest


def _write_bad_rows(path: Path, bad: Sequence[BadRow]) -> bool:
    """Write the side file, where there is something to tell."""
    if bad:
        lines = (json.dumps(row._asdict(), ensure_ascii=False) + "\n" for row in bad)
        path.write_text("".join(lines), encoding="utf-8", errors="replace")
    return bool(bad)
