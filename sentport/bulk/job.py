"""A bulk run: blocks of the input through the engine into parts, and the parts into the output.

Beside an output ``OUT`` lies the folder ``.OUT.job`` while the run lasts. Parts are written there aside and renamed; a
part is noted in the journal after that. A killed run goes on with the parts that are noted, once the input rows that
they were made of have proved to be the same, and the parts to be what was written.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sentport.bulk.blocks import BadRow, Block, Prepared, cut_blocks, one_ahead, prepare
from sentport.bulk.inputs import STDIN, Inputs
from sentport.bulk.journal import Job, Journal, PartRecord, open_journal
from sentport.bulk.manifest import Manifest, StoreError
from sentport.bulk.output import Output, publish
from sentport.bulk.parts import parquet_part, raw_part
from sentport.bundle import sha256_of
from sentport.encoder import Encoder, EncoderInfo
from sentport.errors import SentportError, list_rows
from sentport.files import file_written_aside
from sentport.inputs import check_dim, counted, prompt_text
from sentport.progress import Progress
from sentport.vectors import VECTOR_TYPES

logger = logging.getLogger(__name__)

PART_ROWS = 65_536
# Rows that are named where many are counted.
_NAMED_ROWS = 8


class InputChanged(SentportError):
    """The input differs from what an unfinished run has encoded of it."""


@dataclass(frozen=True, slots=True)
class Options:
    """How texts are encoded and stored.

    Attributes:
        prompt: Name of a saved prompt; None = the default one, "" = none.
        dim: Cut vectors to this many values; None = all.
        stored: ``float32``, ``float16``, ``int8`` or ``binary``.
        texts: Store the texts too.
        part_rows: Input rows of a shard.
        on_truncate: ``warn`` tells how many texts are cut, ``error`` makes them bad rows, ``allow`` says nothing.
        stop_on_bad: Stop at the first bad row, instead of listing it in the side file.
    """

    prompt: str | None = None
    dim: int | None = None
    stored: str = "float32"
    texts: bool = False
    part_rows: int = PART_ROWS
    on_truncate: str = "warn"
    stop_on_bad: bool = False

    def check(self, output: Output, inputs: Inputs) -> None:
        """Refuse what cannot be made, before anything is opened.

        Raises:
            SentportError: For a value that is unknown, or that the kind of output cannot hold.
        """
        if self.stored not in VECTOR_TYPES:
            raise SentportError(f"stored type {self.stored!r} is unknown; known: {', '.join(VECTOR_TYPES)}")
        if self.on_truncate not in ("warn", "error", "allow"):
            raise SentportError(f"on_truncate is {self.on_truncate!r}; expected one of warn, error, allow")
        if self.part_rows < 1:
            raise SentportError(f"--shard-rows is {self.part_rows}; expected 1 or more")
        beyond = self.texts or inputs.id_column is not None or self.stored in ("int8", "binary")
        if output.kind == "npy" and beyond:
            raise SentportError(
                f"{output.path.name} cannot hold texts, ids, int8 or binary vectors; name a .parquet file or a folder"
            )


def describe_job(info: EncoderInfo, source: str, graph: str, inputs: Inputs, output: Output, options: Options) -> Job:
    """What a run will make.

    Args:
        info: The encoder's conditions.
        source: Name of the model.
        graph: SHA-256 of the graph that runs.
        inputs: The texts.
        output: Where the vectors go.
        options: How.

    Raises:
        SentportError: For an unknown prompt, or a dim that the model does not have.
    """
    prompt_text(info.prompts, info.default_prompt, options.prompt)  # raises for an unknown one
    return Job(
        fingerprint=info.fingerprint,
        source=source,
        similarity=info.similarity,
        dim=check_dim(options.dim, info.dim),
        precision=info.precision,
        engine=info.engine,
        layout=info.layout,
        device=info.device,
        stored=options.stored,
        prompt=(info.default_prompt or "") if options.prompt is None else options.prompt,
        graph=graph,
        threads=f"{info.sessions} x {info.threads}",
        kind=output.kind,
        column=inputs.column,
        ids=inputs.id_column,
        text_ids=inputs.text_ids,
        texts=options.texts,
        part_rows=options.part_rows,
        refuse_long=options.on_truncate == "error",
    )


def encode_files(
    encoder: Encoder, inputs: Inputs, output: Output, options: Options, *, force: bool = False, progress: bool = False
) -> Manifest:
    """Encode all rows of the inputs into an output, going on where a killed run of the same job has stopped.

    Args:
        encoder: What encodes; its own ``on_truncate`` plays no part.
        inputs: The texts.
        output: Where the vectors go; see ``refuse_taken``.
        options: How.
        force: Drop an unfinished run of another job, or over other texts.
        progress: Show a progress line.

    Raises:
        SentportError: When the inputs cannot be read or have changed under an unfinished run, or the disk is full.
    """
    job = describe_job(encoder.info, encoder.spec.source, encoder.graph, inputs, output, options)

    def encode_parts(journal: Journal, bar: Progress) -> None:
        ready = make_ready(unfinished(journal, inputs, bar), encoder, inputs, job, stop_on_bad=options.stop_on_bad)
        for number, blocks in groupby(ready, key=lambda one: one.block.part):
            journal.append(write_part(journal.part_path(number), blocks, job, encoder, bar.advance))

    told_limit = encoder.info.max_tokens if options.on_truncate == "warn" else None
    return run_job(job, inputs, output, encode_parts, told_limit, force=force, progress=progress)


def run_job(
    job: Job,
    inputs: Inputs,
    output: Output,
    encode_parts: Callable[[Journal, Progress], None],
    told_limit: int | None,
    *,
    force: bool,
    progress: bool,
) -> Manifest:
    """Have the missing parts encoded, by whatever does it, and put the output in place.

    ``told_limit`` is the length limit to tell about texts that lost their end; None = that is not told.

    Raises:
        SentportError: As ``encode_files`` does.
    """
    # What came through a pipe cannot be read a second time, so it is not compared with what came before either.
    fresh = force and STDIN in inputs.files
    with (
        _disk_full_told(output),
        open_journal(output.job_folder, job, force=force, fresh=fresh) as journal,
        _stop_told(journal, output),
    ):
        if journal.records:
            rows = counted(journal.input_rows, "row")
            logger.warning("going on with the unfinished run in %s, which has done %s", journal.folder, rows)
        with Progress("encoding", None, "sentences", shown=progress) as bar:
            try:
                encode_parts(journal, bar)
            except InputChanged:
                if not force:
                    raise
                journal.restart(force=True)
                encode_parts(journal, bar)
        manifest = publish(output, journal, inputs, force=force)
        if manifest.bad_rows:
            _warn_of_bad_rows(journal, manifest, output)
        if manifest.truncated and told_limit is not None:
            _warn_of_truncation(journal, manifest, told_limit)
        return manifest


def _warn_of_bad_rows(journal: Journal, manifest: Manifest, output: Output) -> None:
    first = next(bad for _, record in sorted(journal.records.items()) for bad in record.bad)
    logger.warning(
        "%s cannot be encoded (first: %s line %d, %s): %s, listed in %s",
        counted(manifest.bad_rows, "row"),
        first.file,
        first.line,
        first.reason,
        "NaN in the output" if output.kind == "npy" else "left out of the output",
        "the lines below" if output.to_stdout else output.bad_rows,
    )


def _warn_of_truncation(journal: Journal, manifest: Manifest, limit: int) -> None:
    rows = [row for _, record in sorted(journal.records.items()) for row in record.first_truncated][:_NAMED_ROWS]
    count = manifest.truncated
    more = f" and {count - len(rows)} more" if count > len(rows) else ""
    logger.warning(
        "%s of %d lost %s end to the limit of %d tokens: %s%s",
        counted(count, "text"),
        manifest.rows,
        "its" if count == 1 else "their",
        limit,
        _named(rows),
        more,
    )


def _named(rows: list[int]) -> str:
    return f"input {'row' if len(rows) == 1 else 'rows'} {list_rows(rows)}"


@contextmanager
def _stop_told(journal: Journal, output: Output) -> Iterator[None]:
    """Say on Ctrl-C, and where the process is asked to end, what is left to go on from."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        if journal.records and not output.to_stdout:
            logger.warning("stopped with %s done; the same command goes on", counted(journal.input_rows, "row"))
        else:
            logger.warning("stopped; nothing is left behind")
        raise


@contextmanager
def _disk_full_told(output: Output) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        way_out = "" if output.to_stdout else ", which goes on with the shards that are finished"
        raise SentportError(
            f"the disk of {output.path} is full; free some space and run the same command again{way_out}"
        ) from error


def make_ready(
    blocks: Iterator[Block], encoder: Encoder, inputs: Inputs, job: Job, *, stop_on_bad: bool
) -> Iterator[Prepared]:
    """Blocks tokenised, one ahead of the engine."""
    work = partial(
        prepare,
        encoder=encoder,
        inputs=inputs,
        prompt=job.prompt,
        refuse_long=job.refuse_long,
        stop_on_bad=stop_on_bad,
    )
    return one_ahead(blocks, work)


def unfinished(journal: Journal, inputs: Inputs, bar: Progress) -> Iterator[Block]:
    """The blocks that are still to be encoded; the rows of finished parts are compared with what those were made of.

    Raises:
        SentportError: When they are not the same.
    """
    weights = inputs.weights()
    part_count = 0
    for number, blocks in groupby(cut_blocks(inputs.rows(), journal.job.part_rows), key=lambda block: block.part):
        part_count += 1
        record = journal.records.get(number)
        for block in blocks:
            if weights is not None:
                bar.expect((block.start + len(block.rows)) / _share_read(block, weights))
            if record is None:
                yield block
        if record is not None:
            bar.skip(record.input_rows)
            if record.input_sha256 != block.sha256:
                raise _changed(journal, block.start)
    if part_count < len(journal.records):
        raise _changed(journal, part_count * journal.job.part_rows)


def _share_read(block: Block, weights: list[tuple[int, int]]) -> float:
    last = block.rows[-1]
    size, end = weights[last.file]
    before = sum(one for one, _ in weights[: last.file])
    return max(1.0, before + size * last.end / end) / sum(one for one, _ in weights)


def _changed(journal: Journal, position: int) -> InputChanged:
    first = position // journal.job.part_rows * journal.job.part_rows
    return InputChanged(
        f"the input is not what it was: rows from {first} on differ from those of the unfinished run in "
        f"{journal.folder}; add --force to drop that run, or name another output"
    )


def write_part(
    path: Path, blocks: Iterator[Prepared], job: Job, encoder: Encoder, done: Callable[[float, float], None]
) -> PartRecord:
    """Encode the blocks of one part and put its file in place.

    Args:
        path: The file.
        blocks: The part's blocks, in order.
        job: What is made.
        encoder: What encodes.
        done: Told of input rows and tokens as they are finished.
    """
    rows = tokens = 0
    input_sha256 = ""
    truncated: list[int] = []
    bad: list[BadRow] = []
    with file_written_aside(path) as aside:
        with aside.open("wb") as file, (raw_part if job.kind == "npy" else parquet_part)(file, job) as write:
            for block in blocks:
                vectors = _vectors(block, job, encoder, done)
                _refuse_unstorable(vectors, block, job)
                write(block, vectors)
                rows += len(block.ids)
                truncated += block.truncated
                tokens += block.token_count
                bad += block.bad
                input_sha256 = block.block.sha256
        size, sha256 = aside.stat().st_size, sha256_of(aside)
    return PartRecord(
        part=int(path.stem.removeprefix("part-")),
        rows=rows,
        size=size,
        sha256=sha256,
        input_sha256=input_sha256,
        truncated=len(truncated),
        first_truncated=tuple(truncated[:_NAMED_ROWS]),
        tokens=tokens,
        bad=tuple(bad),
    )


def _refuse_unstorable(vectors: NDArray[np.float32], block: Prepared, job: Job) -> None:
    """Refuse vectors ``[k, dim]`` that would be read back as something else."""
    for wrong, says in (
        (~np.isfinite(vectors).all(axis=1), "that is not finite; run the model in a higher --precision"),
        ((job.stored == "binary") & ~vectors.any(axis=1), "of zeros, which has no signs; use another --store"),
    ):
        if wrong.any():
            rows = [block.block.start + int(block.good[place]) for place in np.flatnonzero(wrong)]
            raise StoreError(f"the model has given {_named(rows)} a vector {says}, or leave that text out")


def _vectors(block: Prepared, job: Job, encoder: Encoder, done: Callable[[float, float], None]) -> NDArray[np.float32]:
    # A text that stands in the block more than once is computed once; progress counts it every time.
    distinct = max(1, len(block.tokens.rows))
    rows, tokens = len(block.block.rows) / distinct, block.token_count / distinct
    full = encoder.compute(block.tokens, done=lambda count: done(count * rows, count * tokens))  # [distinct, full dim]
    return encoder.shorten(full, job.dim)[block.inverse]  # [k, dim]
