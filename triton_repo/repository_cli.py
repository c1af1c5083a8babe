"""``sentport repository``."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sentport.cli.options import add_layout_argument, add_precision_argument

QUEUE_OPTIONS = ("max_batch", "queue_delay_us", "max_queue", "queue_timeout_ms", "priorities", "shares")
PORTS = {"http": 8000, "grpc": 8001, "metrics": 8002}
_CACHE_BYTES = 256 << 20

if TYPE_CHECKING:
    from triton_repo.config import Batching
    from triton_repo.requests import Fixed
    from triton_repo.wanted import Wanted

DESCRIPTION = "Write a Triton model repository from a bundle."
EXAMPLE = "sentport repository my-model.bundle --out models --form text"
FORM_HELP = (
    "text: one model from texts to vectors, on any Triton; ragged: an ensemble with the packed graph on Triton's "
    "onnxruntime backend, plan: one with a TensorRT plan, both for NVIDIA's container (text)"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="the folder that `sentport export` wrote")
    parser.add_argument("--out", metavar="DIR", type=Path, required=True, help="repository folder to make")
    parser.add_argument("--form", default="text", help=FORM_HELP)
    parser.add_argument("--name", help="the model's name on the server (default: the bundle folder's)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda; ragged: tensorrt too; plan: cuda alone (cpu)")
    parser.add_argument(
        "--engine",
        choices=("onnxruntime", "native"),
        default="onnxruntime",
        help="native: form text on a CPU, where the server's Python has sentport-native (default %(default)s)",
    )
    add_layout_argument(parser)
    add_precision_argument(parser)
    parser.add_argument("--threads", type=int, metavar="N", help="compute threads in all (default: the server's cores)")
    add_batching(parser)
    parser.add_argument(
        "--cache",
        action="store_true",
        help="let the server cache answers: prompt, dim and truncation are fixed, there is one output, and request "
        "parameters are not looked at",
    )
    parser.add_argument("--fixed-prompt", metavar="NAME", help="with --cache: the prompt (default: the model's own)")
    parser.add_argument("--fixed-dim", type=int, metavar="N", help="with --cache: values of a vector (default: all)")
    parser.add_argument("--fixed-truncate", metavar="POLICY", help="with --cache: allow or error (allow)")
    parser.add_argument("--force", action="store_true", help="replace an existing repository")


def add_batching(parser: argparse.ArgumentParser) -> None:
    """Declare how requests wait and are put together; read again by ``batching``."""
    parser.add_argument("--max-batch", type=int, metavar="ROWS", help="rows of one execution (512, other forms 64)")
    parser.add_argument("--queue-delay-us", type=int, metavar="US", help="how long a request waits for company (500)")
    parser.add_argument("--max-queue", type=int, metavar="N", help="requests that may wait (1024); 0: no limits")
    parser.add_argument("--queue-timeout-ms", type=int, metavar="MS", help="how long a request may wait (30000)")
    parser.add_argument("--priorities", type=int, metavar="N", help="levels that requests may ask for, 1 first (none)")
    parser.add_argument(
        "--shares", metavar="NAME", help="what one model of the server has at a time, e.g. its cores (nothing)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Write and report."""
    from sentport.errors import SentportError
    from triton_repo.flags import ServerFlags, address_options
    from triton_repo.releases import NEWEST, container_commands, release_named
    from triton_repo.repository import write_repository
    from triton_repo.requests import Fixed

    fixed = None
    choices = (arguments.fixed_prompt, arguments.fixed_dim, arguments.fixed_truncate)
    if arguments.cache:
        fixed = Fixed(arguments.fixed_prompt, arguments.fixed_dim, arguments.fixed_truncate or "allow")
    elif any(choice is not None for choice in choices):
        raise SentportError("--fixed-prompt, --fixed-dim and --fixed-truncate belong to --cache; add it")
    wanted = asked_for(arguments, arguments.engine, fixed)
    out = write_repository(wanted, arguments.out, force=arguments.force)
    flags = ServerFlags(rate_limit=arguments.shares is not None, cache_bytes=_CACHE_BYTES if arguments.cache else 0)
    options = [*address_options("127.0.0.1", PORTS), *flags.options()]
    print(f"repository  {out}")
    print(f"model       {wanted.model}")
    if wanted.form == "text":
        command = shlex.join(["tritonserver", "--model-repository", str(out), *options])
        kernels = " and sentport-native" if wanted.engine == "native" else ""
        print(f"next        {command}  (with sentport{kernels} in the server's Python)")
        print(f"            or, all in one: {shlex.join(['sentport', 'serve', str(wanted.bundle)])}")
        return 0
    commands = container_commands(out, release_named(NEWEST), options, gpu=wanted.device != "cpu")
    for head, command in zip(("next", ""), commands, strict=True):
        print(f"{head:12}{command}")
    return 0


def asked_for(arguments: argparse.Namespace, engine: str, fixed: Fixed | None = None) -> Wanted:
    """What the options that ``repository`` and ``serve`` have in common say."""
    from triton_repo.wanted import Wanted

    return Wanted(
        arguments.bundle,
        name=arguments.name,
        form=arguments.form,
        device=arguments.device,
        engine=engine,
        layout=arguments.layout,
        precision=arguments.precision,
        threads=arguments.threads,
        batching=batching(arguments),
        fixed=fixed,
    )


def batching(arguments: argparse.Namespace) -> Batching:
    """What the options of ``add_batching`` say, the defaults where they say nothing."""
    from triton_repo.config import MAX_BATCH, Batching

    asked = {
        "max_batch": arguments.max_batch,
        "delay_us": arguments.queue_delay_us,
        "max_queue": arguments.max_queue,
        "timeout_ms": arguments.queue_timeout_ms,
        "priorities": arguments.priorities,
        "shares": arguments.shares,
    }
    defaults = Batching(max_batch=MAX_BATCH.get(arguments.form, MAX_BATCH["text"]))
    return replace(defaults, **{name: value for name, value in asked.items() if value is not None})
