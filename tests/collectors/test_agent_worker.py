from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from agent_fakes import Hands, Source
from structlog.testing import capture_logs

from graynode.collectors.base import NoSource, Round, Rows
from graynode.collectors.worker import Worker

ALL = frozenset({1, 10, 60})
FAST = frozenset({1})


class Heard:
    """Remembers what was delivered."""

    def __init__(self) -> None:
        self.rows: list[tuple[Rows, datetime]] = []

    def __call__(self, rows: Rows, ts: datetime) -> None:
        self.rows.append((rows, ts))


def _worker(source: Source, hands: Hands, deliver: Any = None) -> Worker:
    return Worker(source, deliver or Heard(), hands.monotonic)


def _take(worker: Worker, hands: Hands, due: frozenset[int]) -> bool:
    offered = worker.offer(hands.now(), due)
    worker.run()
    return offered


def test_rows_come_with_the_rounds_timestamp() -> None:
    """The time of a row is the round's, whenever a thread got to it."""
    source, hands, heard = Source(), Hands(), Heard()
    worker = _worker(source, hands, heard)
    began = hands.wall
    assert worker.offer(hands.now(), ALL)
    hands.wall += timedelta(seconds=0.7)
    worker.run()
    assert heard.rows == [({"host": [{"load1": 1.0}]}, began)]
    worker.run()  # nothing was offered: nothing is read
    assert len(source.rounds) == 1
    worker.close()
    assert source.closed == 1


def test_elapsed_is_monotonic_time_between_good_rounds() -> None:
    """Null at first; then what passed on the monotonic clock, even if the wall clock was set back."""
    source, hands = Source(), Hands()
    worker = _worker(source, hands)
    for step in (0.0, 1.5, 2.0):
        hands.at += step
        hands.wall = hands.wall.replace(year=2020)
        _take(worker, hands, FAST)
    assert [r.elapsed_s for r in source.rounds] == [None, 1.5, 2.0]


def test_busy_source_misses_rounds_and_gets_their_slow_classes_later() -> None:
    """A source that is still reading is left alone: rounds are counted as missed, none queue up, and the
    60 s class that fell into a missed round is read in the next one."""
    hands = Hands()

    def read(round_: Round) -> Rows:
        if len(source.rounds) == 1:  # while it reads, the loop goes on
            hands.at += 3.0
            assert worker.busy_s() == 3.0
            assert not worker.offer(hands.now(), ALL)
            assert not worker.offer(hands.now(), FAST)
        return {}

    source = Source(read)
    worker = _worker(source, hands)
    _take(worker, hands, FAST)
    assert worker.tally.errors == 0
    assert worker.busy_s() == 0.0
    _take(worker, hands, FAST)
    assert [r.due for r in source.rounds] == [FAST, ALL]
    assert (worker.tally.expected, worker.tally.taken, worker.tally.missed) == (4, 2, 2)


def test_round_not_begun_gives_way_to_the_next() -> None:
    """No thread had time for a round: it is counted as missed, and the next one reads its classes too, with its own
    time."""
    source, hands = Source(), Hands()
    worker = _worker(source, hands)
    worker.offer(hands.now(), ALL)
    hands.wall += timedelta(seconds=1)
    assert worker.offer(hands.now(), FAST)
    worker.run()
    assert [(r.ts, r.due) for r in source.rounds] == [(hands.wall, ALL)]
    assert (worker.tally.expected, worker.tally.taken, worker.tally.missed) == (2, 1, 1)


def test_failures_back_off_up_to_a_minute_and_recover() -> None:
    """A failing source is asked again after 0, 1, 3, 7 … at most 60 s, keeps its due classes, and the first
    success resets the pause."""
    hands, broken = Hands(), True

    def read(round_: Round) -> Rows:
        if broken:
            raise OSError("device says no")
        return {"host": [{}]}

    source = Source(read)
    worker = _worker(source, hands)
    asked = []
    for second in range(400):
        if _take(worker, hands, ALL if second == 0 else FAST):
            asked.append(second)
        hands.at += 1.0
    pauses = [b - a for a, b in pairwise(asked)]
    assert pauses == [1, 1, 3, 7, 15, 31, 60, 60, 60, 60, 60]
    assert (worker.tally.errors, worker.tally.skipped, worker.tally.taken) == (12, 388, 0)
    assert all(r.due == ALL for r in source.rounds)
    broken = False
    hands.at += 60.0
    assert _take(worker, hands, FAST)
    assert _take(worker, hands, FAST)
    assert [r.due for r in source.rounds[-2:]] == [ALL, FAST]


def test_no_source_is_said_once_and_never_asked_again() -> None:
    """A machine without the source costs one line and no further rounds, and is not an error."""

    def read(round_: Round) -> Rows:
        raise NoSource("no such driver here")

    source, hands = Source(read), Hands()
    worker = _worker(source, hands)
    with capture_logs() as logged:
        _take(worker, hands, ALL)
    assert [line["reason"] for line in logged] == ["no such driver here"]
    assert not any(_take(worker, hands, FAST) for _ in range(5))
    assert worker.gone == "no such driver here"
    assert (worker.tally.expected, worker.tally.errors) == (1, 0)


def test_one_error_is_logged_once_until_it_changes() -> None:
    """The log tells changes; how often is counted."""
    texts = iter(["first", "first", "first", "second"])

    def read(round_: Round) -> Rows:
        raise ValueError(next(texts))

    source, hands = Source(read), Hands()
    worker = _worker(source, hands)
    with capture_logs() as logged:
        for _ in range(4):
            hands.at += 100.0
            _take(worker, hands, FAST)
    said = [line["error"] for line in logged if line["log_level"] == "warning"]
    assert said == ["ValueError: first", "ValueError: second"]


def test_slowest_round_is_told_once() -> None:
    """``take_max_ms`` empties what it tells."""
    hands = Hands()

    def read(round_: Round) -> Rows:
        hands.at += 0.25
        return {}

    worker = _worker(Source(read), hands)
    _take(worker, hands, FAST)
    assert worker.take_max_ms() == pytest.approx(250)
    assert worker.take_max_ms() == 0.0


def test_a_source_that_will_not_close_is_only_said() -> None:
    """The end goes on whatever a source does."""

    class Stubborn(Source):
        def close(self) -> None:
            raise OSError("busy")

    with capture_logs() as logged:
        _worker(Stubborn(), Hands()).close()
    assert [line["error"] for line in logged] == ["OSError: busy"]


def test_a_source_of_slow_classes_is_left_in_peace_between_them() -> None:
    """With ``every_s = 10`` a round of the 1 s class alone is none of its, and none that it missed."""
    source, hands = Source(), Hands()
    source.every_s = 10
    worker = _worker(source, hands)
    taken = [_take(worker, hands, due) for due in (ALL, FAST, FAST, frozenset({1, 10}), FAST)]
    assert taken == [True, False, False, True, False]
    assert [r.due for r in source.rounds] == [ALL, frozenset({1, 10})]
    assert (worker.tally.expected, worker.tally.taken, worker.tally.missed) == (2, 2, 0)
