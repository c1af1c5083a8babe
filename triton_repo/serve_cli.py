"""``sentport serve``: a bundle behind a Triton server on this machine, until Ctrl-C."""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from sentport.cli.options import add_layout_argument, add_precision_argument
from sentport.errors import SentportError
from sentport.hardware import cuda_devices
from triton_repo.repository_cli import add_batching, batching

DESCRIPTION = "Serve a bundle with a Triton server on this machine, until Ctrl-C or SIGTERM."
EXAMPLE = "sentport serve my-model.bundle --http-port 8000 --threads 4"

# Libraries that the server looks for on every machine, and reports as an error on one without a GPU.
_NOT_MISSED = ("CudaDriverHelper", "NVML")
_RUN_KIND = "sentport-serve"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="the folder that `sentport export` wrote")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s: this machine)")
    for service, port in (("http", 8000), ("grpc", 8001), ("metrics", 8002)):
        parser.add_argument(
            f"--{service}-port", type=int, default=port, metavar="N", help="default %(default)s; 0 takes a free one"
        )
    parser.add_argument("--name", help="the model's name on the server (default: the bundle folder's)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default %(default)s")
    parser.add_argument("--form", choices=("text",), default="text", help="default %(default)s")
    add_layout_argument(parser)
    add_precision_argument(parser)
    parser.add_argument("--threads", type=int, metavar="N", help="threads of the engine in all (default: all cores)")
    add_batching(parser)
    parser.add_argument(
        "--server-env", type=Path, metavar="DIR", help="the server's Python environment (default: in the user's cache)"
    )
    parser.add_argument("--exit-timeout", type=float, default=10.0, metavar="S", help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> int:
    """Serve until told to stop: 0 when that was after the server was ready."""
    from triton_repo import server

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

    if arguments.device == "cuda" and not cuda_devices():  # before its gigabytes are installed
        raise SentportError(
            "device cuda was asked for, but no CUDA device or driver was found; `sentport doctor` says more"
        )
    if not arguments.quiet:
        logging.getLogger("triton_repo").setLevel(logging.DEBUG if arguments.verbose else logging.INFO)
    # Before the environment, which can take minutes: a bundle that is none is said at once.
    repository = write_repository(
        arguments.bundle,
        folder / "models",
        name=arguments.name or _model_name(arguments.bundle),
        form=arguments.form,
        device=arguments.device,
        layout=arguments.layout,
        precision=arguments.precision,
        threads=arguments.threads,
        batching=batching(arguments),
    )
    server = TritonServer(
        repository,
        prepare_environment(arguments.server_env, arguments.device),
        host=arguments.host,
        http_port=arguments.http_port,
        grpc_port=arguments.grpc_port,
        metrics_port=arguments.metrics_port,
        exit_timeout=arguments.exit_timeout,
        on_log=_forward_errors if arguments.quiet else _forward,
    )
    with server:
        server.wait_ready()
        try:
            print(_addresses(server.models, server.http_url, server.grpc_url, server.metrics_url), flush=True)
            if not arguments.quiet:
                _forward("sentport: ready; Ctrl-C stops the server")
            server.wait()
        except KeyboardInterrupt:
            return 0
    raise SentportError(f"the Triton server ended: {server.failure()}")


def _addresses(models: list[str], http_url: str, grpc_url: str, metrics_url: str) -> str:
    return f"model    {', '.join(models)}\nhttp     http://{http_url}\ngrpc     {grpc_url}\nmetrics  {metrics_url}"


def _model_name(bundle: Path) -> str:
    return bundle.resolve().name.removesuffix(".bundle")


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
