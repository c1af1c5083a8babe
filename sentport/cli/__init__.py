"""The command line: a static table of commands, and the manners that all of them share.

The table names modules by string: showing ``--help`` imports none of them, so it stays under 0.3 s, and the core
depends on no other package. A command module has ``DESCRIPTION``, ``EXAMPLE``, ``add_arguments(parser)`` and
``run(arguments) -> exit code``; it imports what it needs inside ``run``.
"""

from __future__ import annotations

import argparse
import io
import logging
import os
import signal
import sys
import threading
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import FrameType, ModuleType
from typing import NamedTuple, NoReturn

from sentport import __version__
from sentport.errors import SentportError


class Command(NamedTuple):
    """One row of the table: where a command lives, the extra it needs, and its help line."""

    module: str
    extra: str
    help: str


COMMANDS = {
    "export": Command("export.cli", "export", "turn a checkpoint into a verified bundle"),
    "build": Command("export.build_cli", "tensorrt-rtx", "build TensorRT plans of a bundle's graphs"),
    "train": Command("training.cli", "train", "train a sentence encoder: SBERT and SimCSE, by recipe"),
    "verify": Command("export.verify_cli", "cpu or gpu", "repeat the parity gate on a bundle"),
    "inspect": Command("sentport.cli.inspect", "", "show what a bundle holds"),
    "diff": Command("sentport.cli.diff", "cpu or gpu", "compare two encoders: same space or not, and what changes"),
    "evaluate": Command("sentport.cli.evaluate", "evaluate", "score encoders on STS and transfer tasks, side by side"),
    "encode": Command("sentport.cli.encode", "cpu or gpu", "turn texts into vectors, a few or millions"),
    "pairs": Command("sentport.cli.pairs", "search", "find the most similar pairs among vectors or lines of text"),
    "search": Command("sentport.cli.search", "search", "build an index of vectors, and query it with texts"),
    "cluster": Command("sentport.cli.cluster", "search", "group vectors: k-means, agglomerative, communities"),
    "repository": Command("triton_repo.repository_cli", "", "write a Triton model repository from a bundle"),
    "serve": Command("triton_repo.serve_cli", "", "serve a bundle with a Triton server on this machine"),
    "lint": Command("triton_repo.lint_cli", "lint", "check a Triton model repository without a server"),
    "bench": Command("bench.cli", "bench", "measure sentences per second, and report it honestly"),
    "load-test": Command("bench.load_cli", "triton", "send texts to a running server, and report how it answers"),
    "doctor": Command("sentport.cli.doctor", "", "say what this machine can run, and what is missing"),
}

# Top-level packages of this distribution whose plain names a user's own folder may shadow.
SIBLING_PACKAGES = ("export", "training", "triton_repo", "bench")


class _Parser(argparse.ArgumentParser):
    """argparse with errors as one line and exit code 2."""

    def error(self, message: str) -> NoReturn:
        raise SentportError(f"{message}; see `{self.prog} --help`")


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 the answer is no, 2 could not run as asked, 130 Ctrl-C."""
    arguments = sys.argv[1:] if argv is None else argv
    verbose = "-v" in arguments or "--verbose" in arguments
    _prepare_streams()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminate)  # so that what is half-written is removed
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()
        return code
    except SystemExit as stop:  # argparse's way out of --help and --version
        return int(stop.code or 0)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader closed the pipe: point stdout at nothing so that the interpreter's last flush is quiet too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SentportError as error:
        return _fail(str(error), error.exit_code)
    except OSError as error:
        where = f"{error.filename}: " if error.filename is not None else ""
        return _fail(f"{where}{error.strerror or error} ({type(error).__name__})", 2)
    except MemoryError as error:
        return _fail(f"MemoryError: {error}", 2)
    except Exception as error:
        if verbose:
            raise
        return _fail(f"this is a bug in sentport: {type(error).__name__}: {error}; run again with -v for its trace", 2)


def _prepare_streams() -> None:
    """A stream that the caller closed is None in Python; what an encoding does not have is written as an escape."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - open for the rest of the process
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _terminate(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _fail(message: str, code: int) -> int:
    print(f"sentport: {' '.join(message.split())}", file=sys.stderr)
    return code


def _dispatch(arguments: list[str]) -> int:
    refuse_shadowed_packages()
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_overview())
        return 0
    if arguments[0] == "--version":
        print(f"sentport {__version__}")
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        raise SentportError(f"unknown command {name!r}{_nearest(name)}; `sentport --help` lists all")
    module = _load(name)
    parser = _parser(name, module.DESCRIPTION, module.EXAMPLE)
    module.add_arguments(parser)
    options = parser.parse_args(rest)
    _set_up_logging(logging.DEBUG if options.verbose else logging.ERROR if options.quiet else logging.WARNING)
    return int(module.run(options))


def _set_up_logging(level: int) -> None:
    """Our own packages at the level asked for; libraries only when something is wrong."""
    logging.basicConfig(level=logging.ERROR, format="%(name)s: %(message)s", stream=sys.stderr)
    for package in ("sentport", *SIBLING_PACKAGES):
        logging.getLogger(package).setLevel(level)


def _load(name: str) -> ModuleType:
    command = COMMANDS[name]
    try:
        return import_module(command.module)
    except ModuleNotFoundError as error:
        extra = f" (pip install 'sentport[{command.extra}]')" if command.extra else ""
        raise SentportError(f"`sentport {name}` needs the module {error.name}, which is not installed{extra}") from None


def _parser(name: str, description: str, example: str) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=f"sentport {name}",
        description=description,
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"sentport {__version__}")
    loudness = parser.add_mutually_exclusive_group()
    loudness.add_argument("-v", "--verbose", action="store_true", help="say more, and show the trace of a bug")
    loudness.add_argument("-q", "--quiet", action="store_true", help="say only what failed")
    return parser


def _overview() -> str:
    rows = "\n".join(f"  {name:<10} {command.help}" for name, command in COMMANDS.items())
    return (
        f"sentport {__version__}: sentence encoders from training to production\n\n"
        f"usage: sentport COMMAND [options]\n\n{rows}\n\n"
        "`sentport COMMAND --help` shows a command's options and an example.\n\n"
        "example:\n  sentport export ./my-model --out my-model.bundle"
    )


def _nearest(name: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, COMMANDS, n=1, cutoff=0.5)
    return f", did you mean `{near[0]}`?" if near else ""


def refuse_shadowed_packages() -> None:
    """Refuse to run where another folder would be imported under the name of one of our packages.

    ``python -m`` puts the current folder first on the import path, so a user's own ``training/`` would run
    instead of ours.

    Raises:
        SentportError: naming the folder that shadows ours.
    """
    home = Path(__file__).resolve().parents[2]
    for name in SIBLING_PACKAGES:
        spec = find_spec(name)
        if spec is None or spec.origin is None:  # absent, or a folder without __init__.py, which never wins
            continue
        folder = Path(spec.origin).resolve().parent
        if folder.parent != home:
            raise SentportError(
                f"the folder {folder} shadows sentport's own package `{name}`; run the `sentport` command "
                "(or `python -P -m sentport`), or start it from another folder"
            )
