"""``sentport encode``."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from sentport.cli.options import MOST_THREADS, add_layout_argument, add_precision_argument, whole

if TYPE_CHECKING:
    from sentport.bulk.inputs import Inputs
    from sentport.bulk.job import Options
    from sentport.bulk.manifest import Manifest
    from sentport.bulk.output import Output

DESCRIPTION = """\
Turn texts into vectors: a few lines, or millions.

Inputs are plain lines of UTF-8, .csv, .tsv, .jsonl or .parquet, by their names. Outputs are a .npy file with a row a
line, a .parquet file, or a folder of Parquet shards; what made them lies beside the vectors. A run that is killed goes
on where it was when the same command is given again. Rows that cannot be encoded (no text, over 1,000,000 bytes) are
listed in a side file, or on stderr where the vectors go to stdout; where none can, the exit code is 1. An empty line is
encoded as an empty text."""
EXAMPLE = "sentport encode minilm.bundle --input 'texts/*.csv' --column sentence --output vectors/"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("source", metavar="BUNDLE", help="bundle folder, or a checkpoint folder (engine torch)")
    reading = parser.add_argument_group("input")
    reading.add_argument(
        "--input", metavar="FILE", nargs="+", required=True, help="files or quoted patterns, in order; - = stdin"
    )
    reading.add_argument("--format", choices=("lines", "csv", "tsv", "jsonl", "parquet"), help="default: by name")
    reading.add_argument("--column", metavar="NAME", help="column of the text (default: text)")
    reading.add_argument("--id-column", metavar="NAME", help="column of the ids (default: input positions from 0)")
    reading.add_argument("--on-bad", default="skip", choices=("skip", "stop"), help="rows that cannot be encoded")
    reading.add_argument("--on-truncate", default="warn", help="warn, error (over-long texts are bad rows) or allow")
    writing = parser.add_argument_group("output")
    writing.add_argument(
        "--output", metavar="PATH", required=True, help=".npy, .parquet, or a folder; - = .npy to stdout"
    )
    writing.add_argument("--store", default="float32", help="float32, float16, int8 or binary")
    writing.add_argument("--keep-text", action="store_true", help="store the texts beside the vectors")
    writing.add_argument(
        "--shard-rows", metavar="N", type=whole(1), default=65_536, help="input rows of a shard (default: 65536)"
    )
    writing.add_argument("--force", action="store_true", help="replace an existing output, drop another unfinished run")
    encoding = parser.add_argument_group("encoding")
    encoding.add_argument("--prompt", help='name of a saved prompt; "" = none (default: the default prompt)')
    encoding.add_argument("--dim", metavar="N", type=whole(1), help="cut vectors to this many values")
    encoding.add_argument("--engine", default="auto", help="auto, native, onnxruntime, openvino, tensorrt or torch")
    add_layout_argument(encoding)
    add_precision_argument(encoding)
    encoding.add_argument("--device", default="auto", help="auto, cpu or cuda")
    encoding.add_argument("--threads", metavar="N", type=whole(1, MOST_THREADS), help="default: the cores allowed")
    encoding.add_argument(
        "--ray",
        metavar="ADDRESS",
        nargs="?",
        const="local",
        help="encode on a Ray cluster (extra scale), or on a local one without an address; all machines see the paths",
    )
    encoding.add_argument(
        "--workers", metavar="N", type=whole(1), help="encoders on the Ray cluster (default: one a machine, or a GPU)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Encode and write."""
    from dataclasses import replace

    from sentport.bulk.inputs import find_inputs
    from sentport.bulk.job import Options
    from sentport.bulk.output import find_output
    from sentport.errors import SentportError

    inputs = find_inputs(arguments.input, kind=arguments.format, column=arguments.column, id_column=arguments.id_column)
    options = Options(
        prompt=arguments.prompt,
        dim=arguments.dim,
        stored=arguments.store,
        texts=arguments.keep_text,
        part_rows=arguments.shard_rows,
        on_truncate=arguments.on_truncate,
        stop_on_bad=arguments.on_bad == "stop",
    )
    if arguments.ray is not None and arguments.output == "-":
        raise SentportError("workers cannot write to this process's standard output; name a file or folder")
    if arguments.output != "-":
        return _encode(arguments, inputs, find_output(arguments.output), options)
    with TemporaryDirectory(prefix="sentport-") as folder:
        output = replace(find_output(Path(folder) / "stdout.npy"), to_stdout=True)
        code = _encode(arguments, inputs, output, options)
        if output.bad_rows.exists():
            sys.stderr.write(output.bad_rows.read_text(encoding="utf-8"))
        with output.path.open("rb") as vectors:
            shutil.copyfileobj(vectors, sys.stdout.buffer)
        return code


def _encode(arguments: argparse.Namespace, inputs: Inputs, output: Output, options: Options) -> int:
    from sentport.bulk.output import refuse_taken
    from sentport.inputs import counted

    options.check(output, inputs)
    refuse_taken(output, inputs, force=arguments.force)
    manifest, where = (_encode_here if arguments.ray is None else _encode_on_ray)(arguments, inputs, output, options)
    if not arguments.quiet:
        print(
            f"{counted(manifest.rows, 'vector')} of {manifest.dim}: engine {manifest.engine}, {manifest.precision}, "
            f"{manifest.device}, {where}, fingerprint {manifest.fingerprint[:12]}",
            file=sys.stderr,
        )
    return 1 if manifest.bad_rows and not manifest.rows else 0


def _encode_here(
    arguments: argparse.Namespace, inputs: Inputs, output: Output, options: Options
) -> tuple[Manifest, str]:
    from sentport.bulk.job import encode_files
    from sentport.encoder import Encoder

    with Encoder(
        arguments.source,
        engine=arguments.engine,
        layout=arguments.layout,
        precision=arguments.precision,
        threads=arguments.threads,
        device=arguments.device,
    ) as encoder:
        progress = not arguments.quiet
        manifest = encode_files(encoder, inputs, output, options, force=arguments.force, progress=progress)
        return manifest, f"{encoder.info.sessions} x {encoder.info.threads} threads"


def _encode_on_ray(
    arguments: argparse.Namespace, inputs: Inputs, output: Output, options: Options
) -> tuple[Manifest, str]:
    from sentport.bulk.ray_job import Opening, encode_files_on_ray
    from sentport.inputs import counted

    opening = Opening(
        source=str(Path(arguments.source).resolve()),
        engine=arguments.engine,
        layout=arguments.layout,
        precision=arguments.precision,
        threads=arguments.threads,
        device=arguments.device,
    )
    manifest, workers = encode_files_on_ray(
        opening,
        inputs,
        output,
        options,
        address=arguments.ray,
        workers=arguments.workers,
        force=arguments.force,
        progress=not arguments.quiet,
    )
    return manifest, counted(workers, "worker")
