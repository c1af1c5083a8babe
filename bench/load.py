"""Load on a running server, in closed loops and in open ones, each level bounded in requests and in time.

Closed: so many clients, each waiting for its answer. Open: requests come at random at a rate, whether or not the server
keeps up. There a latency counts from when the request was due, not from when a client was free to send it: a server
that falls behind shows it.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bench.corpus import Corpus
from bench.fields import LOAD
from bench.records import Record, Writer, run_conditions
from bench.run import Say
from bench.server_metrics import counters_at_rest, what_happened
from sentport.errors import SentportError
from triton_repo.client import Client

CLOSED, OPEN = "closed", "open"
# Of the most requests a second that a closed loop reached.
SHARES = (0.2, 0.4, 0.6, 0.8, 0.9, 1.0)
# Requests of an open loop that are under way at once, at most; more wait in line, and their latency counts that.
_IN_FLIGHT = 64
_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent.

    Attributes:
        address: ``http://host:port``, or ``host:port`` for gRPC.
        model: The model's name there.
        corpus: Texts, sent in random order, none twice as long as they last.
        concurrency: Levels of the closed loop.
        rates: Levels of the open loop, requests a second; None = shares of the most that the closed loop reached.
        texts_per_request: Texts of a request.
        seconds: Length of a level.
        requests: Requests of a level, at most.
        metrics: The server's metrics page; empty = what happened inside is not known.
        seed: Of texts and arrivals.
    """

    address: str
    model: str
    corpus: Corpus
    concurrency: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    rates: tuple[float, ...] | None = None
    texts_per_request: int = 1
    seconds: float = 5.0
    requests: int = 10_000
    metrics: str = ""
    seed: int = 5


@dataclass(slots=True)
class Level:
    """What one level gave; safe from several threads.

    Attributes:
        latency_ms: Of each request that was answered.
        errors: How often each kind of failure came.
        sent: Requests that were begun, or fell due.
    """

    latency_ms: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    sent: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, client: Client, texts: Sequence[str], due: float) -> None:
        """Send one request and note how it went."""
        try:
            client.encode(texts)
        except SentportError as problem:
            kind = " ".join(str(problem).split())[:80]
            with self._lock:
                self.errors[kind] += 1
        else:
            taken = 1000 * (time.perf_counter() - due)
            with self._lock:
                self.latency_ms.append(round(taken, 3))


class Requests:
    """The next texts in line, for any thread.

    Args:
        load: How many a request has, and where they come from.
    """

    def __init__(self, load: Load) -> None:
        order = random.Random(load.seed)
        self._texts = itertools.cycle(order.sample(load.corpus.texts, len(load.corpus.texts)))
        self._size, self._lock = load.texts_per_request, threading.Lock()

    def take(self) -> list[str]:
        """The texts of one request."""
        with self._lock:
            return list(itertools.islice(self._texts, self._size))


def measure(load: Load, out: Path, say: Say) -> Path:
    """Run all levels and write a raw record for each.

    Raises:
        SentportError: When no server answers, or it has no such model.
    """
    shared = run_conditions()
    with Writer(out, shared, LOAD) as writer, ExitStack() as stack:
        clients = [stack.enter_context(_client(load)) for _ in range(max((*load.concurrency, _IN_FLIGHT)))]
        info = clients[0].info
        about = {
            "model": load.model,
            "address": load.address,
            "engine": info.engine,
            "precision": info.precision,
            "corpus_source": load.corpus.source,
            "texts_per_request": load.texts_per_request,
        }
        requests = Requests(load)
        for client in clients[:4]:
            client.encode(requests.take())  # connections and the server's first batches are no part of any level

        def level(loop: str, value: float, run: Callable[[], Level]) -> float:
            record = _level(load, run)
            writer.write("level", {**about, "loop": loop, "level": value, **record})
            rate = len(record["latency_ms"]) / record["seconds"]
            say(f"{loop} {value:g}: {rate:,.1f} requests/s, {sum(record['errors'].values())} failed")
            return float(rate)

        reached = [
            level(CLOSED, count, partial(closed_loop, load, clients[:count], requests)) for count in load.concurrency
        ]
        rates = load.rates if load.rates is not None else [share * max(reached, default=0.0) for share in SHARES]
        for rate in rates:
            if rate > 0:
                level(OPEN, round(rate, 2), partial(open_loop, load, rate, clients, requests))
    return writer.path


def _client(load: Load) -> Client:
    protocol = "http" if load.address.startswith("http") else "grpc"
    return Client(
        load.address,
        model=load.model,
        protocol=protocol,
        rows_per_request=load.texts_per_request,
        in_flight=1,
        timeout=_TIMEOUT_S,
        retries=0,
        on_truncate="allow",
    )


def _level(load: Load, run: Callable[[], Level]) -> Record:
    before = counters_at_rest(load.metrics, load.model) if load.metrics else {}
    start = time.perf_counter()
    found = run()
    seconds = time.perf_counter() - start
    after = counters_at_rest(load.metrics, load.model) if load.metrics else {}
    return {
        "sent": found.sent,
        "latency_ms": found.latency_ms,
        "errors": dict(found.errors),
        "seconds": seconds,
        "server": what_happened(before, after),
    }


def closed_loop(load: Load, clients: Sequence[Client], requests: Requests) -> Level:
    """Each client sends its next request as soon as it has the last answer, until the level's time or count is over."""
    level, until = Level(), time.perf_counter() + load.seconds
    numbers = itertools.count()

    def work(client: Client) -> None:
        while next(numbers) < load.requests and (now := time.perf_counter()) < until:
            level.ask(client, requests.take(), now)

    with ThreadPoolExecutor(len(clients)) as pool:
        list(pool.map(work, clients))
    level.sent = len(level.latency_ms) + level.errors.total()
    return level


def open_loop(load: Load, rate: float, clients: Sequence[Client], requests: Requests) -> Level:
    """Requests fall due at random, ``rate`` a second on average (a Poisson process); a free client sends each."""
    level, start = Level(), time.perf_counter()
    free = list(clients)

    def send(due: float) -> None:
        client = free.pop()
        try:
            level.ask(client, requests.take(), due)
        finally:
            free.append(client)

    with ThreadPoolExecutor(len(clients)) as pool:
        waiting = []
        try:
            for after in arrivals(rate, load.seconds, load.requests, load.seed):
                time.sleep(max(0.0, start + after - time.perf_counter()))
                waiting.append(pool.submit(send, start + after))
            wait(waiting, timeout=load.seconds)
        finally:
            pool.shutdown(cancel_futures=True)  # a Ctrl-C does not wait for them either
    level.sent = len(waiting)
    if dropped := sum(future.cancelled() for future in waiting):
        level.errors["still in line when as much time again was over"] = dropped
    return level


def arrivals(rate: float, seconds: float, most: int, seed: int) -> Iterator[float]:
    """Seconds from the start at which requests of a Poisson process fall due, as long and as many as allowed."""
    draw, at = random.Random(seed), 0.0
    for _ in range(most):
        at += draw.expovariate(rate)
        if at > seconds:
            return
        yield at
