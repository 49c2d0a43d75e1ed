"""Server-sent events: ids that say where in the data they stand, and a return to another process."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from people_site import Site
from served_site import ServedSite

from graynode.service.api.access import Gate
from graynode.service.api.feed import Event, Feed, Place
from graynode.service.api.problems import Problem
from graynode.service.api.stream import _Told


def now() -> datetime:
    """When the test runs: a feed begins with what has happened lately."""
    return datetime.now(UTC)


class Request:
    """As much of a request as a listener needs."""

    def __init__(self, gate: Any) -> None:
        self.app = type("App", (), {"state": type("State", (), {"gate": gate})()})()


class Open:
    """Lets in everybody, until it does not."""

    known = True

    def caller(self, _request: Any, _now: datetime) -> None:
        if not self.known:
            raise Problem(401, "gone")


def parsed(raw: bytes) -> dict[str, str]:
    lines = [line.partition(": ") for line in raw.decode().strip().split("\n")]
    return {key: value for key, _, value in lines}


async def heard(feed: Feed, last: str, most: int, meanwhile: Any = None, gate: Any = None) -> list[dict[str, str]]:
    """What one listener is told, up to ``most`` pieces; ``meanwhile`` happens once it listens."""
    feed.listeners += 1
    told: list[dict[str, str]] = []
    run = asyncio.create_task(feed.run())
    await asyncio.sleep(0.05)
    go: Any = _Told(feed.served, feed, Request(gate or Open()), last).go()  # type: ignore[arg-type]
    try:
        async with asyncio.timeout(20):
            async for raw in go:
                told.append(parsed(raw))
                if len(told) == 2 and meanwhile is not None:
                    await asyncio.to_thread(meanwhile)
                if len(told) >= most:
                    break
    finally:
        await go.aclose()
        run.cancel()
    return told


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path)
    made.nodes(["n1"], now() - timedelta(hours=1))
    made.incident("aaaa", "n1", now() - timedelta(minutes=2))
    return made


@pytest.fixture
def served(site: Site) -> Any:
    made = ServedSite(site.folder / "served", Path(site.config.lake.path))
    yield made
    made.close()


def test_a_listener_hears_the_fleet_and_then_each_change_of_an_incident(site: Site, served: ServedSite) -> None:
    """First how often to come back, then the fleet as it is, then what changes."""
    feed = Feed(served.served, every_s=0.05)
    new = asyncio.run(heard(feed, "", 3, lambda: site.incident("bbbb", "n1", now(), title="<new>")))
    assert new[0] == {"retry": "3000"}
    assert (new[1]["event"], json.loads(new[1]["data"])["nodes"]) == ("fleet", {"suspect": 1})
    assert (new[2]["event"], json.loads(new[2]["data"])["incident_id"]) == ("incident", "bbbb")
    assert feed.listeners == 0


def test_who_comes_back_to_another_process_is_told_what_it_missed(site: Site, served: ServedSite) -> None:
    """By the id of the last event alone: nothing of the first process is left."""
    first = asyncio.run(heard(Feed(served.served, every_s=0.05), "", 3, lambda: site.incident("bbbb", "n1", now())))
    site.incident("cccc", "n1", now() + timedelta(seconds=1))
    again = asyncio.run(heard(Feed(served.served, every_s=0.05), first[-1]["id"], 3))
    names = [json.loads(piece["data"]).get("incident_id") for piece in again[1:]]
    assert "cccc" in names
    assert "fleet" not in [piece.get("event") for piece in again]


def test_a_revoked_token_ends_the_stream(served: ServedSite) -> None:
    """At the next beat."""
    feed, gate = Feed(served.served, every_s=0.05), Open()

    def revoke() -> None:
        gate.known = False
        feed.close()

    told = asyncio.run(heard(feed, "", 50, revoke, gate))
    assert len(told) <= 3


def test_a_strange_id_is_none() -> None:
    """It is heard as one that never was there."""
    for text in ("", "x", "1.2.3", "9" * 40 + ".0", "1.<script>", "99999999999999999999.a"):
        assert Place.of(text) is None


@given(st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1)), st.from_regex(r"[0-9a-f]{1,16}", fullmatch=True))
def test_an_id_is_read_back(told: datetime, version: str) -> None:
    """To the microsecond."""
    place = Place(told.replace(tzinfo=UTC), version)
    assert Place.of(place.id) == place


def test_a_listener_that_is_far_behind_is_told_to_load_anew(served: ServedSite) -> None:
    """Nothing is kept for it: what is kept is bounded for all of them together."""
    feed = Feed(served.served)
    for number in range(700):
        feed._put("incident", {"n": number})
    assert len(feed._events) == 500
    assert feed.after(3) is None
    assert feed.after(699) == [Event(700, "incident", feed.place.id, b'{"n":699}')]


def test_of_the_fleet_only_the_newest_is_told(served: ServedSite) -> None:
    """A slow listener is not told each of a hundred pictures."""
    feed = Feed(served.served)
    for number in range(100):
        feed._put("fleet", {"n": number})
    assert [event.data for event in feed.after(0) or []] == [b'{"n":99}']


def test_only_so_many_listen(served: ServedSite) -> None:
    """``serve.streams``; the next is told 503 and when to come back."""
    served.app.state.feed.listeners = served.app.state.feed.most
    with served.client(served.token()) as client:
        answer = client.get("/api/v1/stream")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "30")
    served.app.state.feed.listeners = 0
    assert isinstance(served.app.state.gate, Gate)
