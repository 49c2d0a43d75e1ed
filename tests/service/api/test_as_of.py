"""Answers that are kept say as of when they are, and are not given when they are old."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from served_site import ServedSite

from graynode.service.api.kept import Kept
from graynode.service.fleet_now import FleetNow, FleetWatch, empty
from graynode.service.pages.fleet_numbers import numbers

NOW = datetime.fromisoformat("2026-11-30T10:00:00+00:00")


SERIES = "series?metric=power_w&entity=fleet"


class Moving:
    """The fleet's picture whose time is set."""

    def __init__(self, watch: FleetWatch) -> None:
        self.watch, self.at = watch, NOW

    def now(self) -> FleetNow:
        return replace(self.watch.now(), at=self.at)


@pytest.fixture
def site(small_lake: Path, tmp_path: Path) -> Iterator[ServedSite]:
    """A site of its own over the small lake: its clocks are moved."""
    made = ServedSite(tmp_path / "site", small_lake, now=lambda: NOW, cluster="simulated", deadline_s=60.0)
    yield made
    made.close()


def test_a_kept_answer_says_as_of_when_it_is(site: ServedSite) -> None:
    """Data goes on, the answer stays as it was, and its time with it; after an hour it is made anew first."""
    paths = {"lemons": "at", "cost": "at", "capacity?part=waiting": "at", "reliability": "at", "fleet": "reckoned"}
    paths |= dict.fromkeys(("fleet/history", "jobs", "users/nobody", f"{SERIES}&from=now-3d&step=1h"), "at")
    fleet, seconds = Moving(site.watch), [0.0]
    site.served.fleet, site.served.kept = fleet, Kept(clock=lambda: seconds[0])
    with site.client(site.token(now=NOW, days=30)) as client:

        def told() -> dict[str, datetime]:
            answers = {path: client.get(f"/api/v1/{path}").json() for path in paths}
            answers["fleet"] = answers["fleet"]["rows"][0]
            return {path: datetime.fromisoformat(answers[path][key]) for path, key in paths.items()}

        assert set(told().values()) == {NOW}
        fleet.at = NOW + timedelta(seconds=10)
        assert set(told().values()) == {NOW}
        seconds[0] += 3600.0
        assert set(told().values()) == {fleet.at}


def test_before_the_lake_was_read_nothing_is_said_rather_than_that_there_is_nothing(site: ServedSite) -> None:
    """503 with when to ask again; and once it was read, the answer at once."""
    watch, now = site.watch, NOW
    site.served.fleet = Unread()
    with site.client(site.token(now=now, days=30)) as client:
        for path in ("lemons", "fleet", "reliability", "cost"):
            answer = client.get(f"/api/v1/{path}")
            assert (answer.status_code, "being reckoned" in answer.json()["detail"]) == (503, True), path
        assert numbers(site.served) == {}, "the page says that they are being reckoned"
        site.served.fleet = watch
        assert client.get("/api/v1/lemons").status_code == 200


class Unread:
    """The picture before the first look."""

    def now(self) -> FleetNow:
        return empty(NOW)


def test_an_old_nothing_is_not_given_while_the_new_answer_is_made() -> None:
    """Who asks for lemons a minute after the first fault waits for the answer that has it."""
    seconds, faults = [0.0], [0]
    kept = Kept(clock=lambda: seconds[0])

    def ask() -> int:
        return kept.get("lemons", 60.0, lambda: faults[0], stale_s=900.0, stands=lambda old: old > 0)

    assert ask() == 0
    seconds[0], faults[0] = 61.0, 6
    assert ask() == 6


def test_a_range_of_days_that_moves_on_has_the_answer_that_is_kept(site: ServedSite) -> None:
    """A minute later the same hours are asked for; their first and last are said."""
    with site.client(site.token(now=NOW, days=30)) as client:
        told = [
            client.get(
                "/api/v1/fleet", params={"from": f"2026-11-27T09:{m}:00Z", "to": f"2026-11-30T09:{m}:00Z"}
            ).json()
            for m in ("10", "59")
        ]
        assert told[0]["rows"] == told[1]["rows"]
        [row] = told[0]["rows"]
        assert (row["from"], row["to"]) == ("2026-11-27T09:00:00Z", "2026-11-30T09:00:00Z")
        short = client.get(
            "/api/v1/fleet", params={"from": "2026-11-30T08:10:00Z", "to": "2026-11-30T09:10:00Z"}
        ).json()
        assert short["rows"][0]["to"] == "2026-11-30T09:10:00Z"
