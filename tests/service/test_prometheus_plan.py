"""What is asked in which order, and how a person hears how far it is."""

from __future__ import annotations

import io
import re
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graynode.service.prometheus.plan import Chunk, checked_step, chunks, matchers, parse_ago, shards
from graynode.service.prometheus.progress import progress

STEPS = [10, 15, 30, 60, 300, 600, 3600]


@given(st.integers(0, 10_000_000), st.integers(1, 40 * 86400), st.sampled_from(STEPS))
def test_chunks_are_the_whole_time_once(start: int, length: int, step: int) -> None:
    """Every whole hour is in one chunk; none has more points than a server gives, or crosses midnight; and a time that
    begins elsewhere has the same borders inside."""
    made = chunks(start, start + length)
    first, last = -(-start // 3600) * 3600, (start + length) // 3600 * 3600
    assert sum(c.end_s - c.start_s for c in made) == max(last - first, 0)
    assert all(a.end_s == b.start_s for a, b in pairwise(made))
    assert all(0 < c.points(step) <= 10_000 for c in made)
    assert all(c.start_s // 86400 == (c.end_s - 1) // 86400 for c in made)
    later = chunks(start + 7 * 3600, start + length)
    assert set(later[1:]) <= set(made)


def test_halves_end_at_an_hour() -> None:
    """A chunk is two of whole hours; an hour is not taken apart."""
    assert Chunk(0, 5 * 3600).halves() == (Chunk(0, 7200), Chunk(7200, 18000))
    assert Chunk(0, 3600).halves() is None


@given(st.lists(st.text(min_size=1, max_size=60), unique=True, max_size=300), st.integers(1, 10_000))
def test_shards_hold_every_instance_once(instances: list[str], points: int) -> None:
    """Few enough for memory and for a query's text, unless one alone is too long."""
    made = list(shards(instances, points))
    assert [name for shard in made for name in shard] == sorted(instances)
    assert all(len(matchers("instance", shard, "")) <= 6_100 or len(shard) == 1 for shard in made)


@given(st.text(alphabet=st.characters(blacklist_categories=["Cs"]), max_size=30))
def test_a_name_is_matched_literally(name: str) -> None:
    """Whatever an instance is called, the expression matches it and not its neighbours."""
    inside = re.fullmatch(r'instance=~"((?:[^"\\]|\\.)*)",a="b"', matchers("instance", [name], 'a="b"'), re.DOTALL)
    assert inside is not None
    pattern = re.sub(r"\\(.)", lambda said: "\n" if said[1] == "n" else said[1], inside[1], flags=re.DOTALL)
    assert re.fullmatch(pattern, name) is not None
    assert re.fullmatch(pattern, name + "x") is None


def test_steps_and_times() -> None:
    """What divides an hour is a step; what is ago is a number and a unit."""
    assert [checked_step(float(s)) for s in STEPS] == STEPS
    for wrong in (0.0, 5.0, 7.0, 300.5, 7200.0):
        with pytest.raises(ValueError, match="dividing an hour"):
            checked_step(wrong)
    assert parse_ago("90d") == timedelta(days=90)
    assert parse_ago("1.5h") == timedelta(minutes=90)
    for text in ("", "d", "-1d", "0d", "9999d", "1y"):
        with pytest.raises(ValueError, match="a time such as"):
            parse_ago(text)


def test_progress_is_told_in_lines() -> None:
    """Where no person looks, at most a line in ten seconds: the day, the share, the rate and what is left."""
    now, out = [0.0], io.StringIO()
    with progress(out, lambda: now[0]) as told:
        for second in range(0, 31, 3):
            now[0] = float(second)
            told(Chunk(86400, 2 * 86400), second / 60, second * 1000)
    lines = out.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[0] == "1970-01-02 00:00: 20%, 12,000 samples, 1,000 a second, about 1 min left"


def test_progress_is_a_bar_for_a_person() -> None:
    """On a terminal, with the samples beside it."""

    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Screen()
    with progress(out) as told:
        told(Chunk(0, 86400), 0.5, 1_234_567)
    assert "1,234,567 samples" in out.getvalue()
