"""What ``pairs``, ``search`` and ``cluster`` share: stored vectors by name, texts beside them, words on stderr."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sentport.cli.options import MOST_THREADS, whole

if TYPE_CHECKING:
    from sentport.bulk.manifest import Manifest
    from sentport.search.collection import Collection


def add_vectors_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the stored vectors and the texts beside them."""
    parser.add_argument("vectors", metavar="VECTORS", help=".npy, .parquet or folder that `sentport encode` wrote")
    parser.add_argument("--texts", metavar="FILE", help="the texts, one a line, where they were not stored")
    add_threads_argument(parser)


def add_threads_argument(parser: argparse.ArgumentParser) -> None:
    """Declare ``--threads``."""
    parser.add_argument("--threads", metavar="N", type=whole(1, MOST_THREADS), help="default: the cores allowed")


def load_vectors(arguments: argparse.Namespace) -> tuple[Collection, Manifest]:
    """The stored vectors asked for, ready to be compared, and what they are."""
    from sentport.bulk.store import open_vectors
    from sentport.bundle import is_bundle
    from sentport.errors import SentportError
    from sentport.inputs import read_lines
    from sentport.search.collection import load

    if is_bundle(Path(arguments.vectors)):
        raise SentportError(f"{arguments.vectors} is a bundle; expected vectors, which `sentport encode` makes with it")
    stored = open_vectors(arguments.vectors)
    held = load(stored, read_lines(arguments.texts) if arguments.texts else None)
    tell_zeros(arguments, held)
    return held, stored.manifest


def tell_zeros(arguments: argparse.Namespace, held: Collection) -> None:
    """Name the rows whose vector is zero: they are compared like the others, and are near to nothing."""
    from sentport.errors import list_rows
    from sentport.inputs import counted

    if held.zeros:
        names = list_rows([held.ids[row] for row in held.zeros])
        say(arguments, f"{counted(len(held.zeros), 'vector')} zero, similar to nothing: ids {names}")


def say(arguments: argparse.Namespace, message: str) -> None:
    """A line on stderr, unless ``--quiet``."""
    if not arguments.quiet:
        print(message, file=sys.stderr, flush=True)


def one_line(text: str) -> str:
    """A text as one field of a line, whatever it holds."""
    return text if text.isprintable() else ascii(text)[1:-1]


def check_output(out: Path, force: bool, *, replaceable: bool) -> None:
    """Refuse an output that exists, unless it may and shall be replaced.

    Args:
        out: The file or folder to make.
        force: Whether to replace it.
        replaceable: Whether what is there is of the kind that is made.

    Raises:
        SentportError: When it cannot be made there.
    """
    from sentport.errors import SentportError

    if not out.absolute().parent.is_dir():
        raise SentportError(f"{out.absolute().parent} is not a folder, so {out} cannot be written; make it first")
    if out.exists() and not replaceable:
        raise SentportError(f"{out} exists and is not what this command makes, so it is never replaced; name another")
    if out.exists() and not force:
        raise SentportError(f"{out} exists; add --force to replace it, or name another")
