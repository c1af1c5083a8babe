"""``sentport serve``: a bundle behind a Triton server on this machine, until Ctrl-C."""

from __future__ import annotations

import argparse
import logging
import os
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from sentport.cli.options import add_layout_argument, add_precision_argument
from sentport.errors import SentportError
from sentport.hardware import cuda_devices
from triton_repo.repository_cli import FORM_HELP, PORTS, QUEUE_OPTIONS, add_batching, asked_for

if TYPE_CHECKING:
    from triton_repo.flags import ServerFlags

DESCRIPTION = "Serve a bundle with a Triton server on this machine, until Ctrl-C or SIGTERM."
EXAMPLE = "sentport serve my-model.bundle --http-port 8000 --threads 4"

# Libraries that the server looks for on every machine, and reports as an error on one without a GPU.
_NOT_MISSED = ("CudaDriverHelper", "NVML")
_RUN_KIND = "sentport-serve"
_LAST_PORT = 65535
_KEY_PLACE = "@key@"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="the folder that `sentport export` wrote")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s: this machine)")
    for service, port in PORTS.items():
        parser.add_argument(
            f"--{service}-port", type=int, default=port, metavar="N", help="default %(default)s; 0 takes a free one"
        )
    parser.add_argument("--name", help="the model's name on the server (default: the bundle folder's)")
    parser.add_argument("--device", choices=("cpu", "cuda", "tensorrt"), default="cpu", help="default %(default)s")
    parser.add_argument("--form", choices=("text", "ragged"), default="text", help=FORM_HELP)
    parser.add_argument(
        "--engine",
        choices=("auto", "onnxruntime", "native"),
        default="auto",
        help="auto: native where bundle, CPU and the server's Python have it, else onnxruntime (default %(default)s)",
    )
    add_layout_argument(parser)
    add_precision_argument(parser)
    parser.add_argument("--threads", type=int, metavar="N", help="threads of the engine in all (default: all cores)")
    add_batching(parser)
    parser.add_argument(
        "--follow", action="store_true", help="when BUNDLE is exported again, serve the new one without a break"
    )
    parser.add_argument(
        "--other-space", action="store_true", help="with --follow: also a bundle whose vectors are not comparable"
    )
    parser.add_argument(
        "--restrict",
        type=Path,
        metavar="KEYFILE",
        help="let nobody without this key control models, shared memory, traces or the log",
    )
    parser.add_argument(
        "--container", metavar="RELEASE", help="print the commands that serve it in NVIDIA's container (24.10), and end"
    )
    parser.add_argument(
        "--server-env", type=Path, metavar="DIR", help="the server's Python environment (default: in the user's cache)"
    )
    parser.add_argument("--exit-timeout", type=float, default=10.0, metavar="S", help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> int:
    """Serve until told to stop: 0 when that was after the server was ready."""
    from triton_repo import server

    if arguments.other_space and not arguments.follow:
        raise SentportError("--other-space belongs to --follow; add it")
    if arguments.container is not None:
        return _print_container(arguments)
    if arguments.form != "text":
        raise SentportError(
            f"form {arguments.form} needs the onnxruntime backend, which the server from PyPI does not have; "
            "--container 24.10 prints the commands that serve it in NVIDIA's container"
        )
    if not server.is_loopback(arguments.host):
        print(
            f"sentport: warning: {arguments.host} can be reached from other machines; the server asks for no password",
            file=sys.stderr,
        )
    with _interrupted_by_termination(), _run_folder() as folder:
        return _serve(arguments, folder)


def _serve(arguments: argparse.Namespace, folder: Path) -> int:
    from triton_repo.environment import prepare_environment
    from triton_repo.repository import write_repository
    from triton_repo.server import TritonServer
    from triton_repo.serving import Follower, keep_serving

    if arguments.device == "cuda" and not cuda_devices():  # before its gigabytes are installed
        raise SentportError(
            "device cuda was asked for, but no CUDA device or driver was found; `sentport doctor` says more"
        )
    if not arguments.quiet:
        logging.getLogger("triton_repo").setLevel(logging.DEBUG if arguments.verbose else logging.INFO)
    flags = _flags(arguments)
    # Before the environment, which can take minutes: a bundle that is none is said at once.
    wanted = asked_for(arguments, _engine(arguments))
    repository = write_repository(wanted, folder / "models")
    follower = Follower(wanted.bundle, wanted.model, arguments.other_space, _say) if arguments.follow else None
    environment = prepare_environment(arguments.server_env, arguments.device)
    asked = {service: getattr(arguments, f"{service}_port") for service in ("http", "grpc", "metrics")}

    def make(ports: dict[str, int]) -> TritonServer:
        chosen = ports or asked
        return TritonServer(
            repository,
            environment,
            host=arguments.host,
            http_port=chosen["http"],
            grpc_port=chosen["grpc"],
            metrics_port=chosen["metrics"],
            flags=flags,
            exit_timeout=arguments.exit_timeout,
            on_log=_forward_errors if arguments.quiet else _forward,
        )

    def ready(server: TritonServer) -> None:
        print(f"model    {', '.join(server.models)}\nengine   {wanted.engine}\nhttp     http://{server.http_url}")
        print(f"grpc     {server.grpc_url}\nmetrics  {server.metrics_url}", flush=True)
        if not arguments.quiet:
            _say("ready; Ctrl-C stops the server")

    keep_serving(make, ready, follower, _say)
    return 0


def _engine(arguments: argparse.Namespace) -> str:
    """The engine to serve with: what is asked for, and of ``auto`` the best that bundle, CPU and server have."""
    from sentport.bundle import read_bundle
    from sentport.engines.opening import best_engine
    from triton_repo.environment import find_interpreter, gets_native

    asked: str = arguments.engine
    if asked == "auto":
        best = best_engine(read_bundle(arguments.bundle), arguments.layout, arguments.precision, arguments.device)
        return best if best != "native" or gets_native() else "onnxruntime"
    if asked == "native" and not gets_native():
        raise SentportError(
            "engine native was asked for, but no kernels are installed here for the server's Python "
            f"{find_interpreter().python}; `make native` in the repository builds them, or use --engine onnxruntime"
        )
    return asked


def _flags(arguments: argparse.Namespace) -> ServerFlags:
    from triton_repo.flags import ServerFlags, read_key

    key = None if arguments.restrict is None else read_key(arguments.restrict)
    return ServerFlags(rate_limit=arguments.shares is not None, controlled=arguments.follow, key=key)


def _print_container(arguments: argparse.Namespace) -> int:
    """Print the shell commands that make the repository and the image, and run it; nothing is written."""
    from triton_repo.flags import address_options
    from triton_repo.releases import container_commands, release_named
    from triton_repo.repository import planned

    if arguments.follow:
        raise SentportError("--follow is for the server that sentport starts itself; leave out --container")
    if arguments.engine == "native":
        raise SentportError("the container has no kernels of engine native; leave out --engine, or --container")
    release = release_named(arguments.container)
    wanted = asked_for(arguments, "onnxruntime")
    planned(wanted, release)
    out = Path(f"{wanted.model}.models").absolute()
    flags = _flags(arguments)
    shown = flags if flags.key is None else replace(flags, key=_KEY_PLACE)
    ports = {service: getattr(arguments, f"{service}_port") for service in ("http", "grpc", "metrics")}
    for service, port in ports.items():
        if not 0 < port <= _LAST_PORT:
            raise SentportError(f"--{service}-port is {port}; expected one from 1 to {_LAST_PORT} with --container")
    options = [*address_options(arguments.host, ports), *shown.options()]
    commands = container_commands(out, release, options, gpu=arguments.device != "cpu")
    words = ["--out", str(out), *_repository_words(arguments)]
    print(shlex.join(["sentport", "repository", str(arguments.bundle), *words]))
    for command in commands:
        # The shell reads the key, so that it stands in no terminal's history.
        print(command.replace(_KEY_PLACE, f'"$(cat {shlex.quote(str(arguments.restrict))})"'))
    return 0


def _repository_words(arguments: argparse.Namespace) -> list[str]:
    """What was asked for, as options of ``sentport repository``."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    words = []
    for name in ("form", "name", "device", "layout", "precision", "threads", *QUEUE_OPTIONS):
        value = getattr(arguments, name)
        if value != parser.get_default(name):
            words += [f"--{name.replace('_', '-')}", str(value)]
    return words


def _say(message: str) -> None:
    _forward(f"sentport: {message}")


def _forward(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _forward_errors(line: str) -> None:
    told = line.startswith(("E", "error: ", "sentport: "))
    if told and not any(name in line for name in _NOT_MISSED):
        _forward(line)


@contextmanager
def _interrupted_by_termination() -> Iterator[None]:
    """Let SIGTERM and SIGHUP do what Ctrl-C does, so that both ways out are one; ``nohup`` keeps its effect."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before: dict[signal.Signals, Callable[[int, FrameType | None], object] | int | None] = {
        number: signal.signal(number, interrupt)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _run_folder() -> Iterator[Path]:
    """A folder for this run's model repository; those of runs that were killed are removed."""
    from triton_repo.supervisor import owner_tag, sweep

    parent = Path(tempfile.gettempdir())
    for leftover in sweep(parent, _RUN_KIND):
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"{_RUN_KIND}-{owner_tag(os.getpid())}-") as folder:
        yield Path(folder)
