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
from triton_repo.waiting import Limits, Line, Waiting

PATIENCE = 20.0


def asked(*names: str, rows: int = 1) -> list[Waiting[str]]:
    return [Waiting(name, rows, 0.0, math.inf) for name in names]


class Desk:
    """Answers what the line brings, when it is told to."""

    def __init__(self) -> None:
        self.answered: list[list[str]] = []
        self.may_go_on = threading.Semaphore(0)
        self.came = threading.Semaphore(0)

    def answer(self, requests: Sequence[Waiting[str]]) -> None:
        self.came.release()
        assert self.may_go_on.acquire(timeout=PATIENCE)
        self.answered.append([one.asked for one in requests])
        if "fault" in self.answered[-1]:
            raise ValueError("a fault")


@contextmanager
def line(limits: Limits | None, most_rows: int = 4) -> Iterator[tuple[Desk, Line[str]]]:
    """A line whose first request is being answered, and those after it wait; at the end all are."""
    desk = Desk()
    opened = Line(desk.answer, most_rows, limits)
    try:
        if limits is not None:
            opened.take(asked("first"))
            assert desk.came.acquire(timeout=PATIENCE)
        yield desk, opened
    finally:
        desk.may_go_on.release(100)
        opened.close()


def test_all_that_wait_are_answered_in_one_go_as_many_as_fit() -> None:
    with line(Limits(100, 1.0)) as (desk, opened):
        assert opened.take(asked("a", "b")) == []
        assert opened.take(asked("c", rows=2)) == []
        assert opened.take(asked("d")) == []
        assert opened.take(asked("large", rows=9)) == []
        assert opened.take(asked("e")) == []
    assert desk.answered == [["first"], ["a", "b", "c"], ["d"], ["large"], ["e"]]


def test_who_finds_it_full_is_turned_away() -> None:
    with line(Limits(3, 1.0)) as (desk, opened):
        assert opened.take(asked("a", "b")) == []
        assert [one.asked for one in opened.take(asked("c", "d", "e"))] == ["d", "e"]
        assert [one.asked for one in opened.take(asked("f"))] == ["f"]
        desk.may_go_on.release()
        assert desk.came.acquire(timeout=PATIENCE)  # the three are at the desk
        assert opened.take(asked("g")) == []
    assert desk.answered == [["first"], ["a", "b", "c"], ["g"]]


def test_without_limits_each_execution_is_answered_before_the_next() -> None:
    with line(None) as (desk, opened):
        taken = threading.Thread(target=lambda: opened.take(asked("a", "b")))
        taken.start()
        assert desk.came.acquire(timeout=PATIENCE)
        assert taken.is_alive()
        desk.may_go_on.release()
        taken.join(PATIENCE)
        assert desk.answered == [["a", "b"]]


def test_a_fault_is_told_and_the_next_are_answered(capfd: pytest.CaptureFixture[str]) -> None:
    with line(Limits(100, 1.0)) as (desk, opened):
        opened.take(asked("fault"))
        desk.may_go_on.release(2)
        assert desk.came.acquire(timeout=PATIENCE)
        opened.take(asked("a"))
    assert ["a"] in desk.answered
    assert "ValueError: a fault" in capfd.readouterr().err


def test_patience_is_the_models_or_a_shorter_one() -> None:
    limits = Limits(1, 30.0)
    assert limits.until(5.0, 0) == 35.0
    assert limits.until(5.0, 250_000) == 5.25
    assert limits.until(5.0, 60_000_000) == 35.0


@pytest.mark.parametrize(
    ("batching", "expected"),
    [
        (Batching(max_queue=9, timeout_ms=70), Limits(9, 0.07)),
        (Batching(max_queue=0), None),
        (Batching(priorities=2), None),
        (Batching(shares="cores"), None),
    ],
)
def test_limits_from_a_batching_to_a_model(batching: Batching, expected: Limits | None) -> None:
    assert settings.limits(config(settings.line(batching))) == expected


def test_limits_that_cannot_be_read() -> None:
    with pytest.raises(SentportError, match="one of the parameters max_queue and queue_timeout_ms; give both"):
        settings.limits(config({"max_queue": "7"}))
    with pytest.raises(SentportError, match=r"parameter max_queue of config\.pbtxt is '0'; expected a whole number"):
        settings.limits(config({"max_queue": "0", "queue_timeout_ms": "5"}))


def config(values: dict[str, str]) -> dict[str, Any]:
    return {"parameters": {name: {"string_value": value} for name, value in values.items()}}
