"""Times as callers and Grafana write them."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graynode.service.api.problems import Problem
from graynode.service.api.spans import LONGEST, length, moment, span

NOW = datetime(2026, 11, 26, 13, 45, 30, tzinfo=UTC)  # a Thursday
DAY = timedelta(days=1)


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("now", NOW),
        ("now-6h", NOW - timedelta(hours=6)),
        ("now-1d-30m", NOW - timedelta(days=1, minutes=30)),
        ("now/d", datetime(2026, 11, 26, tzinfo=UTC)),
        ("now-1d/d", datetime(2026, 11, 25, tzinfo=UTC)),
        ("now/w", datetime(2026, 11, 23, tzinfo=UTC)),
        ("now/M", datetime(2026, 11, 1, tzinfo=UTC)),
        ("now/Q", datetime(2026, 10, 1, tzinfo=UTC)),
        ("now/y", datetime(2026, 1, 1, tzinfo=UTC)),
        ("1795700000", datetime.fromtimestamp(1795700000, UTC)),
        ("1795700000000", datetime.fromtimestamp(1795700000, UTC)),
        ("1795700000.5", datetime.fromtimestamp(1795700000.5, UTC)),
        ("2026-11-26", datetime(2026, 11, 26, tzinfo=UTC)),
        ("2026-11-26T12:00:00Z", datetime(2026, 11, 26, 12, tzinfo=UTC)),
        ("2026-11-26T12:00:00.000Z", datetime(2026, 11, 26, 12, tzinfo=UTC)),
        ("2026-11-26T14:00:00 02:00", datetime(2026, 11, 26, 12, tzinfo=UTC)),  # a plus that a query string ate
    ],
)
def test_a_time_in_any_of_its_forms(text: str, means: datetime) -> None:
    """ISO 8601, epoch seconds and milliseconds, relative ones with rounding."""
    assert moment("from", text, NOW) == means


ENDS = {
    "now/d": datetime(2026, 11, 27, tzinfo=UTC),
    "now/M": datetime(2026, 12, 1, tzinfo=UTC),
    "now-1M/y": datetime(2027, 1, 1, tzinfo=UTC),
}


@pytest.mark.parametrize(("text", "means"), ENDS.items())
def test_a_rounded_end_is_the_end_of_its_unit(text: str, means: datetime) -> None:
    """Grafana's "today" is from now/d to now/d."""
    assert moment("to", text, NOW, end=True) == means


@pytest.mark.parametrize(
    "text",
    [
        "yesterday",
        "now-6x",
        "now+",
        "1e400",
        "-5",
        "99999999999999999",
        "now-999999y",
        "2026-13-01",
        "\0",
        "now-6h; DROP",
    ],
)
def test_no_time_is_refused_in_words(text: str) -> None:
    """400, naming the parameter and what is wanted."""
    with pytest.raises(Problem, match="from=") as refused:
        moment("from", text, NOW)
    assert refused.value.status == 400


@given(st.text(max_size=40))
def test_any_text_is_a_time_or_a_problem(text: str) -> None:
    """Nothing else is raised, whatever is sent."""
    with contextlib.suppress(Problem):
        assert moment("from", text, NOW).tzinfo is not None


@given(st.integers(0, 4_000_000_000))
def test_seconds_and_milliseconds_name_the_same_time(seconds: int) -> None:
    """From 1973 on, where milliseconds cannot be taken for seconds."""
    told = moment("from", str(seconds), NOW)
    assert told == datetime.fromtimestamp(seconds, UTC)
    if seconds > 100_000_000:
        assert moment("from", f"{seconds}000", NOW) == told


def test_a_range_that_ends_before_it_begins_is_refused() -> None:
    """And one of no length."""
    for from_, to in (("now", "now-1h"), ("now", "now")):
        with pytest.raises(Problem, match="is not before"):
            span(from_, to, "", NOW, DAY)


@pytest.mark.parametrize(
    ("from_", "to"), [("", "0001-01-01"), ("0001-01-01", "0001-01-02"), ("", "9999-12-31T23:59:59")]
)
def test_a_range_at_the_end_of_all_times_is_refused(from_: str, to: str) -> None:
    """Whoever adds a week to it or takes a day off must not fall off the calendar."""
    with pytest.raises(Problem, match="between the years") as refused:
        span(from_, to, "", NOW, DAY)
    assert refused.value.status == 400


def test_a_range_longer_than_ten_years_is_cut_and_says_so() -> None:
    """Nothing is scanned for what no lake keeps."""
    found = span("1970-01-01", "now", "", NOW, DAY)
    assert found.until - found.since == LONGEST
    assert found.notes


def test_without_a_range_it_is_the_usual_one() -> None:
    """And it is known that nobody named it."""
    found = span("", "", "", NOW, DAY)
    assert (found.since, found.until, found.said) == (NOW - DAY, NOW, False)


@pytest.mark.parametrize(
    ("text", "seconds"), [("30", 30), ("30s", 30), ("5m", 300), ("1h", 3600), ("500ms", 1), ("1d", 86400)]
)
def test_a_step_is_a_length_of_time(text: str, seconds: float) -> None:
    """As Grafana's $__interval has it; never under a second."""
    assert length("step", text) == seconds


@pytest.mark.parametrize("text", ["0", "-5s", "x", "1h30m", "nan", "9999999999h"])
def test_no_step_is_refused(text: str) -> None:
    """400."""
    with pytest.raises(Problem):
        length("step", text)
