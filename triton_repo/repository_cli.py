"""``sentport repository``."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sentport.cli.options import add_layout_argument, add_precision_argument

if TYPE_CHECKING:
    from triton_repo.repository import Batching

DESCRIPTION = "Write a Triton model repository from a bundle."
EXAMPLE = "sentport repository my-model.bundle --out models --form text"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="the folder that `sentport export` wrote")
    parser.add_argument("--out", metavar="DIR", type=Path, required=True, help="repository folder to make")
    parser.add_argument("--form", default="text", help="text: one model from texts to vectors (text)")
    parser.add_argument("--name", help="the model's name on the server (default: the bundle folder's)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (cpu)")
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
    parser.add_argument("--max-batch", type=int, metavar="ROWS", help="rows of one execution (512)")
    parser.add_argument("--queue-delay-us", type=int, metavar="US", help="how long a request waits for company (500)")
    parser.add_argument("--max-queue", type=int, metavar="N", help="requests that may wait (1024)")
    parser.add_argument("--queue-timeout-ms", type=int, metavar="MS", help="how long a request may wait (30000)")


def run(arguments: argparse.Namespace) -> int:
    """Write and report."""
    from sentport.errors import SentportError
    from triton_repo.model_text import Fixed
    from triton_repo.repository import model_name, write_repository

    fixed = None
    choices = (arguments.fixed_prompt, arguments.fixed_dim, arguments.fixed_truncate)
    if arguments.cache:
        fixed = Fixed(arguments.fixed_prompt, arguments.fixed_dim, arguments.fixed_truncate or "allow")
    elif any(choice is not None for choice in choices):
        raise SentportError("--fixed-prompt, --fixed-dim and --fixed-truncate belong to --cache; add it")
    out = write_repository(
        arguments.bundle,
        arguments.out,
        name=arguments.name,
        form=arguments.form,
        device=arguments.device,
        layout=arguments.layout,
        precision=arguments.precision,
        threads=arguments.threads,
        batching=batching(arguments),
        fixed=fixed,
        force=arguments.force,
    )
    cache = " --cache-config local,size=268435456" if arguments.cache else ""
    print(f"repository  {out}")
    print(f"model       {arguments.name or model_name(arguments.bundle)}")
    print(f"next        tritonserver --model-repository {out}{cache}  (with sentport in the server's Python)")
    print(f"            or, all in one: sentport serve {arguments.bundle}")
    return 0


def batching(arguments: argparse.Namespace) -> Batching:
    """What the options of ``add_batching`` say, the defaults where they say nothing."""
    from triton_repo.repository import Batching

    asked = {
        "max_batch": arguments.max_batch,
        "delay_us": arguments.queue_delay_us,
        "max_queue": arguments.max_queue,
        "timeout_ms": arguments.queue_timeout_ms,
    }
    return replace(Batching(), **{name: value for name, value in asked.items() if value is not None})
