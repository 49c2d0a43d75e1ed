"""Answers that are kept say as of when they are, and are not given when they are old."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from served_site import ServedSite

from graynode.service.api.kept import Kept
from graynode.service.fleet_now import FleetNow, FleetWatch

NOW = datetime.fromisoformat("2026-11-30T10:00:00+00:00")


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
