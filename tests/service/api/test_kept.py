"""Answers that are kept for a while."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import pytest

from graynode.service.api.kept import Kept


@dataclass
class Clock:
    """Monotonic seconds, as they are said; a machine that has just started is at zero."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def test_an_answer_is_made_once_until_it_is_old() -> None:
    """Also on a machine that has just started, and where none at all is an answer."""
    clock, made = Clock(), []
    kept = Kept(clock=clock)
    for at, count in ((0.0, 1), (9.0, 1), (10.0, 2)):
        clock.now = at
        kept.get("a", 10.0, lambda: made.append(1), stale_s=0.0)
        assert len(made) == count


def test_an_old_answer_is_given_while_the_new_one_is_made() -> None:
    """Nobody waits; the next who asks has the new one."""
    clock = Clock()
    kept = Kept(clock=clock)
    assert kept.get("a", 10.0, lambda: "old", stale_s=100.0) == "old"
    clock.now = 11.0
    go = threading.Event()

    def slow() -> str:
        go.wait(10)
        return "new"

    began = time.monotonic()
    assert kept.get("a", 10.0, slow, stale_s=100.0) == "old"
    assert time.monotonic() - began < 5
    go.set()
    kept.close()
    assert kept.get("a", 10.0, lambda: "newer", stale_s=100.0) == "new"


def test_a_making_that_fails_keeps_the_old_answer_and_the_error_is_for_who_waits() -> None:
    """What could not be made is not kept."""
    clock = Clock()
    kept = Kept(clock=clock)
    kept.get("a", 10.0, lambda: "old", stale_s=5.0)
    clock.now = 11.0
    assert kept.get("a", 10.0, lambda: str(1 / 0), stale_s=5.0) == "old"
    kept.close()
    clock.now = 30.0
    with pytest.raises(ZeroDivisionError):
        kept.get("a", 10.0, lambda: str(1 / 0), stale_s=5.0)
    assert kept.get("a", 10.0, lambda: "new") == "new"


def test_many_who_ask_at_once_have_one_making() -> None:
    """The others wait for it."""
    kept, made = Kept(), []

    def slow() -> int:
        made.append(1)
        time.sleep(0.1)
        return 7

    answers: list[int] = []
    threads = [threading.Thread(target=lambda: answers.append(kept.get("a", 60.0, slow))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (answers, made) == ([7] * 8, [1])


def test_only_so_many_are_kept() -> None:
    """Callers choose keys by their ranges: the oldest go."""
    kept = Kept(most=3)
    for number in range(10):
        kept.get(str(number), 60.0, lambda: 1)
    assert len(kept._slots) == 3
