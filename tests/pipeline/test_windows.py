"""Which sample is in time, when a window closes, and that polls of any size give the same rows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import landing_kit
import polars as pl
import pytest
from landing_kit import Log, at, gpu_row, host_row, message, ms
from polars.testing import assert_frame_equal

from graynode.pipeline.bus import Received
from graynode.pipeline.decode import decode
from graynode.pipeline.windows import Source, Windows


def feed(windows: Windows, received: Sequence[Received]) -> dict[str, Any]:
    sources = [Source(r.message.key, r.message.headers["table"], r.offset, r.arrived_ms) for r in received]
    return windows.take(decode(received).frames, sources)


def seconds(frame: pl.DataFrame | None) -> list[tuple[float, int]]:
    """Start (seconds of the tests' time) and samples of each window row."""
    if frame is None:
        return []
    return [
        ((ts - landing_kit.T0).total_seconds(), n) for ts, n in frame.select("ts", "samples").sort("ts").iter_rows()
    ]


def batch(first: int, count: int = 5, node: str = "n1", **values: Any) -> Any:
    return message([gpu_row(first + i, node, **values) for i in range(count)])


def test_a_window_closes_fifteen_seconds_after_its_end_by_its_machines_newest_sample() -> None:
    """Not a second before; another machine's samples do not matter, another table of the same machine does."""
    log, windows = Log(), Windows()
    feed(windows, [log.add(batch(s), s + 5) for s in range(0, 45, 5)])
    feed(windows, [log.add(batch(s, node="n2"), s + 5) for s in range(0, 30, 5)])
    assert windows.close() == {}
    assert windows.first_open("gpu") == 0
    feed(windows, [log.add(message([host_row(45)], table="host"), 46)])
    assert seconds(windows.close()["gpu"]) == [(0, 30)]
    assert windows.first_open("gpu") == 6


def test_a_silent_machines_window_closes_a_minute_after_its_end_by_arrival() -> None:
    """The bus's clock moves by other machines' messages, or by ``tick`` where nothing arrives."""
    log, windows = Log(), Windows()
    feed(windows, [log.add(batch(0), 5)])
    feed(windows, [log.add(batch(80, node="n2"), 84.9)])
    assert windows.close() == {}
    windows.tick(ms(89.9))
    assert windows.close() == {}
    windows.tick(ms(90))
    assert seconds(windows.close()["gpu"]) == [(0, 5)]


def test_a_closed_window_never_changes_and_what_comes_later_is_counted() -> None:
    """The late samples are in no window."""
    log, windows = Log(), Windows()
    feed(windows, [log.add(batch(s), s + 5) for s in range(0, 50, 5)])
    assert seconds(windows.close()["gpu"]) == [(0, 30)]
    feed(windows, [log.add(batch(20), 50), log.add(batch(35, 1, temp_c=1), 50)])
    assert windows.late == {"gpu": 5}
    windows.tick(ms(10_000))
    assert seconds(windows.close()["gpu"]) == [(30, 20)]


def test_a_backlog_closes_its_own_windows_as_it_passes() -> None:
    """An hour late, arriving at once: every window is whole, none waits for a clock."""
    log, windows = Log(), Windows()
    for s in range(0, 300, 5):
        feed(windows, [log.add(batch(s), 4000 + s / 1000)])
    assert seconds(windows.close()["gpu"]) == [(s, 30) for s in range(0, 270, 30)]
    assert windows.late == {}


def test_a_sample_far_ahead_does_not_close_the_present() -> None:
    """One message of a clock that jumped by two hours takes part in no window; what follows is in time."""
    log, windows = Log(), Windows()
    feed(windows, [log.add(batch(0), 5), log.add(batch(7300), 10), log.add(batch(10), 15)])
    windows.tick(ms(200))
    assert seconds(windows.close()["gpu"]) == [(0, 10)]
    assert windows.late == {"gpu": 5}


@pytest.mark.parametrize("skew", [-50, 50, 1800])
def test_a_skewed_clock_costs_nothing_but_time(skew: int) -> None:
    """Samples keep their own time, and windows close by their own clock."""
    log, windows = Log(), Windows()
    for s in range(0, 120, 5):
        feed(windows, [log.add(batch(s + skew), s + 5)])
    windows.tick(ms(400))
    assert sum(samples for _, samples in seconds(windows.close()["gpu"])) == 120
    assert windows.late == {}


def test_a_repeated_sample_is_named_and_counts_once() -> None:
    """The same entity and time in another message, while its window is open."""
    log, windows = Log(), Windows()
    feed(windows, [log.add(batch(0), 5)])
    again = feed(windows, [log.add(batch(3, 4), 8)])
    assert again["gpu"].tolist() == [True, True, False, False]
    windows.tick(ms(200))
    assert seconds(windows.close()["gpu"]) == [(0, 7)]


def test_closed_through_waits_for_every_machine_and_never_goes_back() -> None:
    """The oldest open window of any machine that is not behind."""
    log, windows = Log(), Windows()
    for s in range(0, 100, 5):
        feed(windows, [log.add(batch(s), s + 5)])
        if s < 40:
            feed(windows, [log.add(batch(s, node="n2"), s + 5)])
    windows.close()
    assert windows.closed_through() == at(30).timestamp()
    feed(windows, [log.add(batch(100), 130)])
    windows.close()
    assert windows.closed_through() == at(60).timestamp()
    feed(windows, [log.add(batch(5, node="n3"), 130)])  # a backlog of a third
    assert windows.closed_through() == at(60).timestamp()
    other = Windows()
    other.resume_closed_through(int(at(60).timestamp()))
    assert other.closed_through() == at(60).timestamp()


def traffic(random_: random.Random) -> list[Received]:
    """Three machines with gaps, a silence, a backlog, out-of-order messages and a reboot."""
    sent: list[tuple[float, Any]] = []
    for node in ("n1", "n2", "n3"):
        for s in range(0, 300, 5):
            if random_.random() < 0.1 or (node == "n2" and 90 < s < 200):
                continue
            delay = (
                random_.choice([5, 5, 5, 25, 70]) if node == "n1" else 5 + (100 if node == "n3" and 60 < s < 160 else 0)
            )
            boot = "boot-2" if node == "n3" and s >= 150 else "boot-1"
            sent.append((s + delay, batch(s, node=node, boot_id=boot, energy_mj=s if boot == "boot-1" else s - 150)))
    log = Log()
    for arrived, one in sorted(sent, key=lambda pair: pair[0]):
        log.add(one, arrived)
    return log.received


@pytest.mark.parametrize("seed", range(2))
def test_polls_of_any_size_give_the_same_rows(seed: int) -> None:
    """Late, silent, behind and rebooted machines: one poll, or many with closes in between."""
    random_ = random.Random(seed)
    received = traffic(random_)
    results = []
    for chunks in ([len(received)], [random_.randint(1, 12) for _ in range(200)], [1] * len(received)):
        windows, made = Windows(), []
        for some in landing_kit.polls(received, chunks):
            feed(windows, some)
            made += windows.close().values()
        windows.tick(ms(1000))
        made += windows.close().values()
        results.append((pl.concat(made).sort("node_id", "ts"), dict(windows.late)))
    for rows, late in results[1:]:
        assert_frame_equal(rows, results[0][0])
        assert late == results[0][1]
    assert results[0][1]["gpu"] > 0
