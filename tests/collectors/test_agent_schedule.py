from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from graynode.collectors.schedule import Schedule


def test_first_round_has_every_class() -> None:
    """What is known only once a minute is known at once after a start."""
    assert Schedule(0.0).take(0.0) == {1, 10, 60}


def test_classes_follow_their_cadence() -> None:
    """In two minutes of punctual ticks the 1 s class is due 121 times, 10 s thirteen times, 60 s three times."""
    schedule = Schedule(5.0)
    due = [schedule.take(schedule.next_at) for _ in range(121)]
    assert [sum(c in d for d in due) for c in (1, 10, 60)] == [121, 13, 3]


def test_late_rounds_do_not_shift_the_grid() -> None:
    """A round that starts late does not make the next one late: no drift."""
    schedule = Schedule(100.0)
    for _ in range(1000):
        schedule.take(schedule.next_at + 0.3)
    assert schedule.next_at == 1100.0


def test_sleep_of_the_machine_gives_one_round_not_a_burst() -> None:
    """After an hour asleep there is one round with every class, then the grid goes on."""
    schedule = Schedule(0.0)
    schedule.take(0.0)
    assert schedule.take(3600.4) == {1, 10, 60}
    assert schedule.next_at == 3601.0
    assert schedule.take(3601.0) == {1}


def test_a_wake_up_a_hair_early_is_the_same_tick() -> None:
    """Clocks and timers differ in the last digits; that must not double or skip a tick."""
    schedule = Schedule(0.0)
    for n in range(30):
        assert schedule.next_at == float(n)
        schedule.take(n - 1e-6)


@given(st.lists(st.floats(min_value=0, max_value=200), min_size=1, max_size=60))
def test_a_slow_class_is_postponed_never_lost(delays: list[float]) -> None:
    """However late the rounds are, a class is due in exactly those that are the first since one of its multiples."""
    schedule = Schedule(0.0)
    at, before = 0.0, -1
    for delay in delays:
        at = max(schedule.next_at, at + delay)
        due = schedule.take(at)
        tick = int(at + 1e-3)
        assert due == {c for c in (1, 10, 60) if any(n % c == 0 for n in range(before + 1, tick + 1))}
        assert at < schedule.next_at <= at + 1.001
        before = tick
