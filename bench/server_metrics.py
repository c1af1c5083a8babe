"""What a server says of itself on its metrics page: Triton's own counters, and those of our models."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Mapping
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from bench.records import Record
from sentport.errors import SentportError

Counters = dict[str, float]

# Of each counter, in microseconds and numbers, what makes it up on the page: the first way that is there, added up.
# Our models' own are in triton_repo/metrics.py: to Triton a request ends when the model takes it into its line.
COUNTERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "requests": (("sentport_requests_total",), ("nv_inference_request_success",)),
    "executions": (("sentport_executions_total",), ("nv_inference_exec_count",)),
    "queue_us": (("nv_inference_queue_duration_us", "sentport_queue_us_total"), ("nv_inference_queue_duration_us",)),
    "compute_us": (("sentport_compute_us_total",), ("nv_inference_compute_infer_duration_us",)),
    "rows": (("sentport_texts_total",),),
    "tokens": (("sentport_tokens_total",),),
    "computed_tokens": (("sentport_computed_tokens_total",),),
}
_LINE = re.compile(r'^(\w+)\{[^}]*model="([^"]*)"[^}]*\} ([0-9.eE+-]+)$')
_SECONDS = 5.0
_TRIES, _PAUSE_S = 5, 0.2


def read_counters(page: str, model: str) -> Counters:
    """A model's counters by our names.

    Args:
        page: ``http://host:port``, or the page's whole address.
        model: The model's name.

    Raises:
        SentportError: When the page cannot be read, or has no such model.
    """
    address = page if page.rstrip("/").endswith("/metrics") else f"{page.rstrip('/')}/metrics"
    try:
        # Else a server on this very machine is asked for at the proxy that the environment names.
        with build_opener(ProxyHandler({})).open(address, timeout=_SECONDS) as answer:
            text = answer.read().decode(errors="replace")
    except (URLError, OSError, ValueError) as error:
        raise SentportError(
            f"the metrics page {address} cannot be read ({error}); give the address that `sentport serve` prints"
        ) from None
    found = parse_counters(text, model)
    if not found:
        raise SentportError(f"the metrics page {address} has nothing about model {model!r}")
    return found


def counters_at_rest(page: str, model: str) -> Counters:
    """The same once they stand still, since the server counts a request after it has answered it.

    Where others ask the server they never do: after a second they are taken as they are.

    Raises:
        SentportError: When the page cannot be read, or has no such model.
    """
    found = read_counters(page, model)
    for _ in range(_TRIES):
        time.sleep(_PAUSE_S)
        before, found = found, read_counters(page, model)
        if found == before:
            break
    return found


def parse_counters(text: str, model: str) -> Counters:
    """The counters of a model on a page of Prometheus' text form, added up over its versions."""
    page: dict[str, float] = defaultdict(float)
    for line in text.splitlines():
        match = _LINE.match(line)
        if match and match[2] == model:
            page[match[1]] += float(match[3])
    known = (
        (name, next((parts for parts in ways if set(parts) <= page.keys()), ())) for name, ways in COUNTERS.items()
    )
    return {name: sum(page[part] for part in parts) for name, parts in known if parts}


def what_happened(before: Mapping[str, float], after: Mapping[str, float]) -> Record:
    """The growth of each counter; empty where the page was not read."""
    return {name: value - before.get(name, 0.0) for name, value in after.items()}
