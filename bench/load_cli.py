"""``sentport load-test``: how a running server answers under load."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.cli_checks import MOST_CLIENTS, check_counts, check_finite, check_folder, numbers, say_of, words

DESCRIPTION = (
    "Send texts to a Triton server in closed loops and in open ones, each level bounded in requests and in time, "
    "and report latency, throughput and what happened inside of the server."
)
EXAMPLE = "sentport load-test 127.0.0.1:8001 --model minilm --corpus texts.txt --metrics http://127.0.0.1:8002"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("address", metavar="ADDRESS", help="http://host:port, or host:port for gRPC, as `sentport serve` prints it")
    add("--model", metavar="NAME", required=True, help="the model's name there")
    add("--corpus", metavar="FILE", required=True, help="one text a line, or a recipe of `sentport bench run`")
    add("--loop", choices=("both", "closed", "open"), default="both", help="(%(default)s)")
    add("--concurrency", metavar="N,N", type=numbers, default=[1, 2, 4, 8, 16, 32], help="clients (1,2,4,8,16,32)")
    add("--rates", metavar="R,R", type=_rates, help="requests a second (20 to 100 %% of what the closed loop reached)")
    add("--texts-per-request", metavar="N", type=int, default=1, help="(%(default)s)")
    add("--seconds", metavar="S", type=float, default=5.0, help="of a level (%(default)s)")
    add("--requests", metavar="N", type=int, default=10_000, help="of a level, at most (%(default)s)")
    add("--metrics", metavar="URL", default="", help="the server's metrics page, for queue, compute, rows and tokens")
    add("--out", metavar="DIR", type=Path, default=Path("load-out"), help="raw records and the report (%(default)s)")
    add("--seed", metavar="N", type=int, default=5, help="of texts and arrivals (%(default)s)")


def run(arguments: argparse.Namespace) -> int:
    """Send, then print the table and where the page is."""
    from sentport.errors import SentportError

    for name in ("texts_per_request", "requests", "concurrency"):
        check_counts(name, getattr(arguments, name))
    rates = arguments.rates
    if max(arguments.concurrency) > MOST_CLIENTS:
        raise SentportError(f"--concurrency is {max(arguments.concurrency)}; expected {MOST_CLIENTS} at most")
    check_finite("seconds", arguments.seconds)
    check_finite("rates", rates)
    if arguments.loop == "closed" and rates is not None:
        raise SentportError("--rates are those of the open loop, and --loop asks for the closed one alone")
    if arguments.loop == "open" and rates is None:
        raise SentportError("an open loop alone has no closed one to take its rates from; add --rates")
    check_folder(arguments.out)
    from bench.load import Load, measure
    from bench.recipes import corpus_of
    from bench.report_cli import print_report

    load = Load(
        address=arguments.address,
        model=arguments.model,
        corpus=corpus_of(arguments.corpus),
        concurrency=() if arguments.loop == "open" else tuple(arguments.concurrency),
        rates=() if arguments.loop == "closed" else None if rates is None else tuple(rates),
        texts_per_request=arguments.texts_per_request,
        seconds=arguments.seconds,
        requests=arguments.requests,
        metrics=arguments.metrics,
        seed=arguments.seed,
    )
    raw = measure(load, arguments.out, say_of(arguments))
    print_report([raw], arguments.out)
    print(f"raw      {raw}")
    return 0


def _rates(value: str) -> list[float]:
    return [float(word) for word in words(value)]
