"""Who is told: the first route that fits, quiet hours where the receiver sleeps, and pages that nobody may lose."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graynode.pipeline.schema import CAUSES, OWNERS, SEVERITIES
from graynode.responders.hours import DAYS, QuietHours, clock_time, next_digest, zone
from graynode.responders.routes import Decision, Route, Routes

NOON = datetime(2026, 12, 2, 12, 0, tzinfo=UTC)
"""A Wednesday."""
LEAST = {"oncall": "page", "desk": "ticket", "chat": "digest"}


def route(name: str, *receivers: str, **other: Any) -> Route:
    wanted = {k: other.pop(k) for k in ("severity", "cause", "partition", "owner", "cluster", "rack") if k in other}
    return Route(name, receivers, wanted, **other)


def about(severity: str = "page", cause: str = "gpu_lost", **other: Any) -> dict[str, Any]:
    return {"severity": severity, "cause": cause, "cluster": "prod", "owner": "vendor", **other}


def told(routes: Routes, incident: dict[str, Any], now: datetime = NOON, **place: str) -> list[tuple[str, str, str]]:
    return [(d.receiver, d.deliver, d.route) for d in routes.decide(incident, place, now)]


def test_the_first_route_that_fits_decides() -> None:
    """By severity, cause, owner and partition; patterns as of file names."""
    routes = Routes(
        (
            route("memory", "desk", cause=("memory_*",)),
            route("train", "oncall", "desk", partition=("train*",)),
            route("rest", "chat", deliver="digest"),
        ),
        LEAST,
    )
    assert told(routes, about(cause="memory_errors"), partition="train-a") == [("desk", "page", "memory")]
    assert told(routes, about(), partition="train-a") == [("oncall", "page", "train"), ("desk", "page", "train")]
    assert told(routes, about("ticket"), partition="train-a") == [("desk", "ticket", "train")], "least holds"
    assert told(routes, about("ticket"), partition="debug") == [("chat", "digest", "rest")]
    assert told(routes, about("ticket")) == [("chat", "digest", "rest")], "an unknown partition is no other's"


def test_a_route_that_goes_on_adds_and_never_takes_away() -> None:
    """A receiver that two routes name is told as the first of them says."""
    routes = Routes(
        (
            route("all", "chat", deliver="digest", go_on=True),
            route("pages", "oncall", "chat", severity=("page",)),
        ),
        LEAST,
    )
    assert told(routes, about()) == [("chat", "digest", "all"), ("oncall", "page", "pages")]
    assert told(routes, about("ticket")) == [("chat", "digest", "all")]


def test_a_page_that_no_route_fits_is_told_to_everybody() -> None:
    """A mistake in the routes costs sleep, not a page; what is no page is nobody's then."""
    routes = Routes((route("mine", "desk", cluster=("other",)),), LEAST)
    assert [(r, d) for r, d, _ in told(routes, about())] == [("oncall", "page"), ("desk", "page"), ("chat", "page")]
    assert [r for r, _, _ in told(routes, about(severity="?"))] == ["oncall", "desk", "chat"], "unknown is urgent"
    assert told(routes, about("ticket")) == []


def test_without_routes_everybody_hears_from_their_least_on() -> None:
    """People get the digest's incidents together, programs one by one."""
    routes = Routes((), {**LEAST, "hook": "digest"}, frozenset({"hook"}))
    assert [(r, d) for r, d, _ in told(routes, about("ticket"))] == [
        ("desk", "ticket"), ("chat", "ticket"), ("hook", "ticket"),
    ]  # fmt: skip
    assert [(r, d) for r, d, _ in told(routes, about("digest"))] == [("chat", "digest"), ("hook", "ticket")]


def test_quiet_hours_hold_what_is_no_page() -> None:
    """Over midnight, in the zone of the route; pages pass unless it says otherwise."""
    quiet = QuietHours.parse("22:00-07:00", "Europe/Berlin")
    routes = Routes((route("night", "desk", quiet=quiet),), LEAST)
    night, morning = datetime(2026, 12, 2, 23, 30, tzinfo=UTC), datetime(2026, 12, 3, 6, 0, tzinfo=UTC)
    assert routes.decide(about("ticket"), {}, night) == [Decision("desk", "ticket", "night", morning)]
    assert routes.decide(about("ticket"), {}, morning)[0].held_until is None
    assert routes.decide(about("page"), {}, night)[0].held_until is None
    strict = Routes((route("night", "desk", quiet=quiet, quiet_pages=True),), LEAST)
    assert strict.decide(about("page"), {}, night)[0].held_until == morning


def test_quiet_days_join_with_the_nights_beside_them() -> None:
    """From Friday evening to Monday morning in one piece."""
    quiet = QuietHours.parse("18:00-08:00", "America/New_York", ("sat", "sun"))
    assert quiet is not None
    friday = datetime(2026, 12, 4, 23, 30, tzinfo=UTC)  # 18:30 in New York
    assert quiet.until(friday) == datetime(2026, 12, 7, 13, 0, tzinfo=UTC)
    assert quiet.until(datetime(2026, 12, 4, 20, 0, tzinfo=UTC)) is None


@pytest.mark.parametrize(("day", "utc"), [("2026-03-29", 5), ("2026-03-30", 5), ("2026-10-25", 6), ("2026-03-28", 6)])
def test_a_clock_that_is_put_forward_or_back_moves_the_end(day: str, utc: int) -> None:
    """Seven o'clock in Berlin is seven o'clock there, whatever the night has lost or won."""
    quiet = QuietHours.parse("22:00-07:00", "Europe/Berlin")
    assert quiet is not None
    midnight = datetime.fromisoformat(f"{day}T00:30").replace(tzinfo=ZoneInfo("Europe/Berlin"))
    assert quiet.until(midnight) == datetime.fromisoformat(f"{day}T{utc:02}:00+00:00")


@given(
    start=st.times(), end=st.times(), minutes=st.integers(0, 600_000),
    name=st.sampled_from(["UTC", "Europe/Berlin", "America/St_Johns", "Pacific/Kiritimati", "Australia/Lord_Howe"]),
    days=st.sets(st.sampled_from(DAYS), max_size=6),
)  # fmt: skip
def test_quiet_ends_in_the_future_and_it_is_not_quiet_then(
    start: Any, end: Any, minutes: int, name: str, days: set[str]
) -> None:
    """Whatever the hours, the zone and the day: nothing waits for ever, and nothing is held anew at the end."""
    quiet = QuietHours.parse(f"{start:%H:%M}-{end:%H:%M}", name, tuple(days))
    assert quiet is not None
    now = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=minutes)
    until = quiet.until(now)
    if until is not None:
        assert now < until <= now + timedelta(days=9)
        assert quiet.until(until) is None


def test_when_a_digest_goes_out() -> None:
    """Once a day by the receiver's clock, or on the hour."""
    assert next_digest(NOON, "08:00", "Europe/Berlin") == datetime(2026, 12, 3, 7, 0, tzinfo=UTC)
    assert next_digest(NOON, "14:30", "Europe/Berlin") == datetime(2026, 12, 2, 13, 30, tzinfo=UTC)
    assert next_digest(NOON + timedelta(minutes=5), "hourly", "UTC") == NOON + timedelta(hours=1)
    assert next_digest(NOON, "13:00", "Europe/Berlin") == NOON + timedelta(days=1), "not twice at its own minute"


@pytest.mark.parametrize(
    ("hours", "days", "zone_name", "said"),
    [
        ("22-7", (), "UTC", "write 22:00-07:00"),
        ("29:00-07:00", (), "UTC", "no time of day"),
        ("22:00-07:00", (), "Mars/Olympus", "no time zone 'Mars/Olympus'"),
        ("22:00-07:00", (), "../etc/passwd", "no time zone"),
        ("", ("someday",), "UTC", "no day of the week"),
    ],
)
def test_wrong_hours_are_answered_with_what_is_right(
    hours: str, days: tuple[str, ...], zone_name: str, said: str
) -> None:
    """And none are none."""
    with pytest.raises(ValueError, match=said):
        QuietHours.parse(hours, zone_name, days)
    assert QuietHours.parse("", "UTC") is None
    with pytest.raises(ValueError, match="08:00"):
        clock_time("8")
    assert zone("UTC").key == "UTC"


@given(
    severity=st.sampled_from([*SEVERITIES, "?", None]), cause=st.sampled_from(CAUSES), owner=st.sampled_from(OWNERS),
    lines=st.lists(
        st.tuples(st.sampled_from([*SEVERITIES, "*"]), st.sampled_from(["memory_*", "*", "gpu_lost"]), st.booleans()),
        max_size=5,
    ),
)  # fmt: skip
def test_no_page_is_ever_nobodys(severity: Any, cause: str, owner: str, lines: list[tuple[str, str, bool]]) -> None:
    """Whatever the routes, a page reaches somebody who wants pages, and nobody hears of one thing twice."""
    routes = Routes(
        tuple(route(str(i), "desk", severity=(s,), cause=(c,), go_on=g) for i, (s, c, g) in enumerate(lines)), LEAST
    )
    decisions = routes.decide(about(severity, cause, owner=owner), {}, NOON)
    names = [d.receiver for d in decisions]
    assert len(names) == len(set(names))
    if severity not in ("ticket", "digest"):
        assert names
