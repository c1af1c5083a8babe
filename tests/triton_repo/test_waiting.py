"""The line in which a model's requests wait, without a server."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from sentport.errors import SentportError
from triton_repo import settings
from triton_repo.config import Batching
from triton_repo.requests import TextRequest
from triton_repo.waiting import Limits, Line, Waiting

PATIENCE = 20.0


def asked(*names: str, rows: int = 1, timeout_us: int = 0) -> list[Waiting]:
    """Requests that go by the name of who waits for the answer."""
    return [Waiting(name, TextRequest([b""] * rows, {}, timeout_us), 5.0) for name in names]


class Desk:
    """Answers what the line brings, when it is told to."""

    def __init__(self) -> None:
        self.answered: list[list[str]] = []
        self.may_go_on = threading.Semaphore(0)
        self.came = threading.Semaphore(0)

    def answer(self, requests: Sequence[Waiting]) -> None:
        self.came.release()
        assert self.may_go_on.acquire(timeout=PATIENCE)
        self.answered.append([one.sender for one in requests])
        if "fault" in self.answered[-1]:
            raise ValueError("a fault")


@contextmanager
def line(most: int, seconds: float = 1.0) -> Iterator[tuple[Desk, Line]]:
    """A line whose first request is being answered, so that those after it wait; at the end all are answered."""
    desk = Desk()
    opened = Line(desk.answer, 4, Limits(most, seconds))
    try:
        assert opened.take(asked("first")) == []
        assert desk.came.acquire(timeout=PATIENCE)
        yield desk, opened
    finally:
        desk.may_go_on.release(100)
        opened.close()


def test_as_many_as_fit_are_answered_in_one_go() -> None:
    with line(100) as (desk, opened):
        for one in (asked("a", "b"), asked("c", rows=2), asked("d"), asked("large", rows=9), asked("e")):
            assert opened.take(one) == []
    assert desk.answered == [["first"], ["a", "b", "c"], ["d"], ["large"], ["e"]]


def test_who_finds_it_full_is_turned_away() -> None:
    with line(3) as (desk, opened):
        assert opened.take(asked("a", "b")) == []
        assert [one.sender for one in opened.take(asked("c", "d", "e"))] == ["d", "e"]
        assert [one.sender for one in opened.take(asked("f"))] == ["f"]
        desk.may_go_on.release()
        assert desk.came.acquire(timeout=PATIENCE)  # the three are at the desk
        assert opened.take(asked("g")) == []
    assert desk.answered == [["first"], ["a", "b", "c"], ["g"]]


def test_a_fault_is_told_and_the_next_are_answered(capfd: pytest.CaptureFixture[str]) -> None:
    with line(100) as (desk, opened):
        opened.take(asked("fault"))
        desk.may_go_on.release(2)
        assert desk.came.acquire(timeout=PATIENCE)
        opened.take(asked("a"))
    assert ["a"] in desk.answered
    assert "ValueError: a fault" in capfd.readouterr().err


def test_patience_is_the_lines_or_a_shorter_one() -> None:
    with line(100, seconds=30.0) as (_, opened):
        requests = [*asked("a"), *asked("b", timeout_us=250_000), *asked("c", timeout_us=60_000_000)]
        requests.append(Waiting("cannot be read", SentportError("no"), 5.0))
        opened.take(requests)
        assert [one.until for one in requests] == [35.0, 5.25, 35.0, 35.0]


def test_the_first_ones_wait_as_long_as_it_takes() -> None:
    desk = Desk()
    desk.may_go_on.release(100)
    opened = Line(desk.answer, 4, Limits(100, 30.0), patient=3)
    requests = asked("a", "b", "c", "d", "e")
    opened.take(requests[:1])
    opened.take(requests[1:])
    opened.close()
    assert [one.until for one in requests] == [math.inf, math.inf, math.inf, 35.0, 35.0]


def test_limits_from_a_batching_to_a_model() -> None:
    batching = Batching(max_queue=9, timeout_ms=2**31 - 1)
    assert batching.own_line
    assert settings.limits(config(settings.line(batching))) == Limits(9, 2147483.647)
    assert settings.limits(config({})) is None


@pytest.mark.parametrize("batching", [Batching(max_queue=0), Batching(priorities=2), Batching(shares="cores")])
def test_no_line_where_tritons_queue_has_none_or_more_than_limits(batching: Batching) -> None:
    assert not batching.own_line


def test_limits_that_cannot_be_read() -> None:
    with pytest.raises(SentportError, match="one of the parameters max_queue and queue_timeout_ms; give both"):
        settings.limits(config({"max_queue": "7"}))
    with pytest.raises(SentportError, match=r"parameter max_queue of config\.pbtxt is '0'; expected a whole number"):
        settings.limits(config({"max_queue": "0", "queue_timeout_ms": "5"}))


def config(values: dict[str, str]) -> dict[str, Any]:
    return {"parameters": {name: {"string_value": value} for name, value in values.items()}}
