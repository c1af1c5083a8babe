"""``sentport encode``."""

from __future__ import annotations

import argparse
import os
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
    from sentport.errors import SentportError

    if arguments.output != "-" and Path(arguments.output).exists() and not arguments.force:
        raise SentportError(f"{arguments.output} exists; add --force to replace it, or name another file")
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


def read_lines(name: str) -> list[str]:
    r"""Lines of a UTF-8 file or of standard input; only ``\n`` (or ``\r\n``) ends a line.

    Raises:
        SentportError: When the file cannot be read, or listing the lines that are not UTF-8.
    """
    from sentport.errors import InputError, SentportError, list_rows

    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise SentportError(f"{name} cannot be read ({error.strerror}); expected a text file or -") from error
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if lines[-1] == b"":  # the last line's own end
        lines.pop()
    texts, bad = [], []
    for number, line in enumerate(lines, start=1):
        try:
            texts.append(line.removesuffix(b"\r").decode())
        except UnicodeDecodeError:
            bad.append(number)
    if bad:
        raise InputError(f"{name} is not UTF-8 in lines {list_rows(bad)}; convert it first", tuple(bad))
    return texts


def _write(vectors: NDArray[np.float32], output: str) -> None:
    import numpy as np

    if output == "-":
        np.save(sys.stdout.buffer, vectors)
        return
    path = Path(output)
    aside = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        with aside.open("wb") as file:
            np.save(file, vectors)
        aside.rename(path)
    finally:
        aside.unlink(missing_ok=True)
