"""What a model has done, on the server's metrics page."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from triton_repo.requests import Counts

# Of each field of ``Counts`` the counter's name and what it counts. Rows and tokens of an execution, padding and tokens
# a second are quotients of their rates: counters alone can be added up over servers.
METRICS = {
    "executions": ("sentport_executions_total", "Times that the model answered requests, as many as went together"),
    "requests": ("sentport_requests_total", "Requests in these executions"),
    "refused": ("sentport_refused_total", "Requests that were answered with an error"),
    "rows": ("sentport_texts_total", "Texts of the requests that were answered"),
    "tokens": ("sentport_tokens_total", "Tokens of distinct texts, after the length limit"),
    "computed": ("sentport_computed_tokens_total", "The same tokens with the padding of their batches"),
    "truncated": ("sentport_truncated_total", "Texts that lost their end to the length limit"),
    "turned_away": ("sentport_turned_away_total", "Requests that found the queue full"),
    "queue_us": ("sentport_queue_us_total", "Microseconds that requests waited in the model's line, added up"),
    "compute_us": ("sentport_compute_us_total", "Microseconds of their executions, once for each request"),
}


class Metrics:
    """The counters of one model.

    Args:
        family: Triton's ``MetricFamily``.
        model: The model's name.
        version: Its version.
    """

    def __init__(self, family: Any, model: str, version: str) -> None:
        labels = {"model": model, "version": version}
        self._families = {
            field: family(name=name, description=text, kind=family.COUNTER) for field, (name, text) in METRICS.items()
        }
        self._counters = {field: each.Metric(labels=labels) for field, each in self._families.items()}
        self._reported = dict.fromkeys(METRICS, 0)

    def report(self, counts: Counts) -> None:
        """Bring the counters to what the model has done by now."""
        for field, value in asdict(counts).items():
            if value > self._reported[field]:  # each call goes to the server's process
                self._counters[field].increment(value - self._reported[field])
                self._reported[field] = value
