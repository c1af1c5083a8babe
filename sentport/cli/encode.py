"""``sentport encode``."""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DESCRIPTION = "Turn lines of UTF-8 text into vectors: one row a line, in order, as a .npy file."
EXAMPLE = "sentport encode minilm.bundle --input texts.txt --output vectors.npy"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("source", metavar="BUNDLE", help="bundle folder, or a checkpoint folder (engine torch)")
    parser.add_argument("--input", metavar="FILE", required=True, help="UTF-8 text, one a line; - = standard input")
    parser.add_argument("--output", metavar="FILE", required=True, help=".npy file to make; - = standard output")
    parser.add_argument("--prompt", help='name of a saved prompt; "" = none (default: the default prompt)')
    parser.add_argument("--dim", type=int, help="cut vectors to this many values")
    parser.add_argument("--engine", default="auto", help="auto, onnxruntime or torch")
    parser.add_argument("--precision", default="auto", help="auto = fp32 where there is one")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--threads", type=int, help="compute threads (default: the cores allowed)")
    parser.add_argument("--on-truncate", default="warn", help="warn, error or allow")
    parser.add_argument("--force", action="store_true", help="replace an existing output file")


def run(arguments: argparse.Namespace) -> int:
    """Encode and write."""
    from sentport.encoder import Encoder
    from sentport.inputs import read_lines

    if arguments.output != "-":
        _check_output(Path(arguments.output), arguments.input, arguments.force)
    texts = read_lines(arguments.input)
    with Encoder(
        arguments.source,
        engine=arguments.engine,
        precision=arguments.precision,
        threads=arguments.threads,
        device=arguments.device,
        on_truncate=arguments.on_truncate,
    ) as encoder:
        vectors = encoder.encode(texts, prompt=arguments.prompt, dim=arguments.dim, progress=not arguments.quiet)
        info = encoder.info
    _write(vectors, arguments.output)
    if not arguments.quiet:
        print(
            f"{vectors.shape[0]} vectors of {vectors.shape[1]}: engine {info.engine}, {info.precision}, {info.device}, "
            f"{info.sessions} x {info.threads} threads, fingerprint {info.fingerprint[:12]}",
            file=sys.stderr,
        )
    return 0


def _check_output(output: Path, source: str, force: bool) -> None:
    from sentport.errors import SentportError

    if not output.parent.is_dir():
        raise SentportError(f"{output.parent} is not a folder, so {output} cannot be written; make it first")
    if not output.exists():
        return
    if not output.is_file():
        raise SentportError(f"{output} is not a file that can be replaced; name another, or - for standard output")
    if source != "-" and Path(source).exists() and output.samefile(source):
        raise SentportError(f"{output} is the input itself; name another file")
    if not force:
        raise SentportError(f"{output} exists; add --force to replace it, or name another file")


def _write(vectors: NDArray[np.float32], output: str) -> None:
    import numpy as np

    if output == "-":
        buffer = io.BytesIO()  # numpy's own writing to a file tells a closed pipe as lost bytes
        np.save(buffer, vectors)
        sys.stdout.buffer.write(buffer.getbuffer())
        return
    from sentport.files import file_written_aside

    with file_written_aside(Path(output).resolve()) as aside, aside.open("wb") as file:
        np.save(file, vectors)
