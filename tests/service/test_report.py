"""``graynode report``: a week of which all is known, in three forms; and what is said where little is known."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jsonschema
import polars as pl
import pytest
from failing_fleet import HOSTILE, MONDAY, WEEK, at, heard, incident, job, land, machines

from graynode.dashboards.render import RenderError
from graynode.dashboards.report import as_json, html, markdown
from graynode.dashboards.report.model import Report, Table
from graynode.pipeline.lake import Lake
from graynode.pipeline.queries import Queries
from graynode.service import report as role
from graynode.service.config import Config, ConfigError, parse
from graynode.service.report_week import Asked, week_of

NOW = MONDAY + timedelta(days=20)
NODES = ["a", "b", "c", HOSTILE]


def no_picture(spec: Any) -> str:
    """A picture that says which it is."""
    return f"<svg role='img'><title>{spec['title']}</title></svg>"


def settings(lake: Path, **more: Any) -> Config:
    return parse({"cluster": "prod", "lake": {"path": str(lake)}, **more}, "test")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four nodes for three weeks: three failures in the week, jobs, a repair that came back, labels, silence."""
    path = tmp_path_factory.mktemp("report") / "lake"
    lake = Lake(str(path))
    machines(lake, NODES)
    heard(lake, NODES, at(-14 * 24), 28 * 24, silent={"c": range(340, 350)})
    land(
        lake, "incident",
        *incident("a", "i1", 10, 12.5, 30), *incident("b", "i2", 40, 41, 44, cause="slow_gpu", severity="ticket"),
        *incident(HOSTILE, "i3", 60, 61, None, title=f"{HOSTILE}: GPU lost"), *incident("a", "i0", -100, -99, -90),
    )  # fmt: skip
    land(lake, "job", job("a", "j1", 1, 12), job("b", "j2", 30, 60))
    land(lake, "attribution", {
        "ts": at(13), "node_id": "a", "attribution_id": "t", "revision": 0, "job_id": "j1", "phase": "ended",
        "verdict": "infrastructure", "end_ts": at(12), "start_ts": at(1), "kind": "gpu", "account": "vision",
    })  # fmt: skip
    land(lake, "repair", {"ts": at(-90), "node_id": "a", "what": "GPU 0 | reseated", "who": "kim"})
    land(lake, "label", {"ts": at(90), "node_id": "a", "incident_id": "i1", "verdict": "true", "who": "kim"},
         {"ts": at(91), "node_id": "b", "incident_id": "i2", "verdict": "false", "who": "kim"})  # fmt: skip
    return path


@pytest.fixture(scope="module")
def report(fleet: Path) -> Iterator[Report]:
    queries = Queries(Lake(str(fleet)))
    prices = {"per_gpu_hour": {"H100": 2.0}, "currency": "EUR"}
    yield role.read(queries, settings(fleet, cost=prices), week_of(WEEK, NOW), NOW, draw=no_picture)
    queries.close()


def table(report: Report, key: str) -> Table:
    return next(t for s in report.sections for t in s.tables if t.key == key)


def test_what_the_week_was(report: Report) -> None:
    """The first page has the figures that the fleet was made with."""
    told = {line.title: line.value for line in report.headlines}
    assert told["Failures of nodes"].startswith("3 (109 per 1,000 node-days")
    assert told["Caught before a job"] == "2 of 3"
    assert told["Noticed, repaired"].startswith("1 h")
    assert "EUR" in told["Capacity lost"]
    beside = {line.title: line.beside for line in report.headlines}["Capacity lost"]
    assert "nodes drained without one count under Availability" in beside
    assert told["Alarms that were right"] == "50.0 % of 2 judged"
    assert any("1 failures were not over" in line for line in report.unknown)
    assert any("1 of 4 alarms" in line or "2 of 4 alarms" in line for line in report.unknown)


def test_a_week_that_goes_on_says_what_its_figures_cover(fleet: Path) -> None:
    """Thirty hours and a half after its Monday: which stretch, and how much of 168 hours that is."""
    queries = Queries(Lake(str(fleet)))
    now = at(30.5)
    told = role.read(queries, settings(fleet), week_of(WEEK, now), now, draw=no_picture)
    queries.close()
    beside = {line.title: line.beside for line in told.headlines}["Available"]
    assert beside.endswith("from Mon 16 Nov 00:00 to Tue 17 Nov 06:30 UTC, 30.5 of 168 hours")


def test_losses_are_the_hours_times_the_price(report: Report) -> None:
    """20 h of a lost GPU, 4 h of one that is a quarter slower, one that is still lost; each × 2 EUR."""
    rows = {r["cause"]: r for r in table(report, "lost").rows}
    assert rows["slow_gpu"]["gpu_hours_lost"] == pytest.approx(1.0)
    assert rows["gpu_lost"]["gpu_hours_lost"] == pytest.approx(20 + 108)
    assert rows["gpu_lost"]["money"] == pytest.approx(256)


def test_a_repair_that_came_back_is_listed(report: Report) -> None:
    """Repaired four days before, failed again in the week."""
    (back,) = table(report, "came_back").rows
    assert (back["node"], back["what"], back["again"]) == ("a", "GPU 0 | reseated", at(10))
    kinds = {r["kind"]: r for r in table(report, "repairs").rows}
    assert (kinds["logged repair"]["old_7d"], kinds["logged repair"]["again_7d"]) == (1, 1)


def test_every_table_is_found_again_by_its_own_statement(fleet: Path, report: Report) -> None:
    """The statement that a table names gives its rows, but for what is reckoned. Macros that several name alike,
    such as the failures of 27 weeks, are asked once: each costs seconds."""
    queries, tables = Queries(Lake(str(fleet))), [t for s in report.sections for t in s.tables]
    assert len(tables) >= 15
    asked = Asked(queries, settings(fleet), "prod", week_of(WEEK, NOW))
    for one in tables:
        names = [c.name for c in one.columns if not c.reckoned]
        answer = [{name: row[name] for name in names} for row in asked.rows(one.sql)]
        for row in one.rows:
            mine = {name: row[name] for name in names}
            assert any(same(mine, other) for other in answer), one.key
    queries.close()


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(one[k] == (pytest.approx(v) if isinstance(v, float) else v) for k, v in other.items())


def test_the_page_is_one_file_without_script_or_address(report: Report) -> None:
    """Nothing is fetched or run; hostile names are shown as they are and are no markup."""
    page = html.write(report)
    assert "<script" not in page
    assert not re.search(r'(?:src|href)="(?!#)', page)
    assert "url(" not in page.replace("url(#", "")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "\x1b" not in page
    for part in ("<title>prod: week 2026-W47</title>", 'lang="en"', "prefers-color-scheme: dark", "@media print"):
        assert part in page
    assert len(page.encode()) < 400_000


def test_markdown_keeps_cells_whole(report: Report) -> None:
    """Pipes and markup in names stay in their cell: every row of a table has as many cells as its head."""
    text = markdown.write(report)
    assert "GPU 0 \\| reseated" in text
    assert "\\<script\\>" in text
    lines = [line for line in text.split("```")[0::2] for line in line.splitlines() if line.startswith("| ")]
    widths: list[int] = []
    for line, rule in zip(lines, [*lines[1:], ""], strict=True):
        cells = len(re.findall(r"(?<!\\)\|", line))
        if set(rule) <= set("| -"):
            widths.append(cells)
        assert cells == widths[-1] if widths else True


def test_json_follows_its_schema_and_names_units(report: Report) -> None:
    """It validates, and what has a unit says it."""
    told = json.loads(as_json.write(report))
    jsonschema.validate(told, as_json.schema())
    columns = {(t["key"], c["name"]): c["unit"] for s in told["sections"] for t in s["tables"] for c in t["columns"]}
    assert columns["lost", "gpu_hours_lost"] == "GPU-h"
    assert columns["lost", "money"] == "EUR"
    assert columns["times", "repair_50"] == "s"
    assert told["whole"] is True


def test_an_empty_lake_and_one_node_are_answered(tmp_path: Path) -> None:
    """Nothing: it says that everything is unknown. One node heard for half a week that is not over: told up to now."""
    empty = Queries(Lake(str(tmp_path / "none")))
    nothing = role.read(empty, settings(tmp_path / "none"), week_of(WEEK, NOW), NOW, draw=no_picture)
    assert nothing.unknown[0] == "Everything: the lake has nothing of cluster 'prod'."
    assert "nothing to list" in html.write(nothing) or "no machine is known" in html.write(nothing)
    jsonschema.validate(json.loads(as_json.write(nothing)), as_json.schema())
    empty.close()
    lake = Lake(str(tmp_path / "one"))
    machines(lake, ["solo"])
    heard(lake, ["solo"], at(0), 80)
    queries = Queries(lake)
    half = role.read(queries, settings(tmp_path / "one"), week_of(WEEK, at(84)), at(84), draw=no_picture)
    queries.close()
    assert not half.whole
    assert half.unknown[0].startswith("The rest of the week: it is told up to 2026-11-19 12:00 UTC")
    assert half.headlines[1].value.startswith("0 (0 per 1,000 node-days, 0 to")
    assert any("too little to plan on" in line for line in half.unknown)


@pytest.mark.parametrize(
    ("text", "since", "until"),
    [
        ("2026-W47", datetime(2026, 11, 16, tzinfo=UTC), datetime(2026, 11, 23, tzinfo=UTC)),
        ("2020-W53", datetime(2020, 12, 28, tzinfo=UTC), datetime(2021, 1, 4, tzinfo=UTC)),
        ("2025-W01", datetime(2024, 12, 30, tzinfo=UTC), datetime(2025, 1, 6, tzinfo=UTC)),
        ("", datetime(2026, 11, 23, tzinfo=UTC), datetime(2026, 11, 30, tzinfo=UTC)),
    ],
)
def test_weeks_are_iso_weeks(text: str, since: datetime, until: datetime) -> None:
    """Monday to Monday in UTC, over the turn of the year and with week 53; without one the last whole week."""
    week = week_of(text, datetime(2026, 12, 2, tzinfo=UTC))
    assert (week.since, week.until, week.whole) == (since, until, True)


@pytest.mark.parametrize("text", ["2026-W54", "2025-W53", "2026-47", "last", "2026-W50", "2026-11-20", "0001-W01"])
def test_what_is_no_week_or_is_to_come_is_refused(text: str) -> None:
    """Named, with an example; a week that has not begun too."""
    with pytest.raises(ConfigError, match=f"--week {text}"):
        week_of(text, datetime(2026, 12, 2, tzinfo=UTC))


def test_a_picture_that_cannot_be_drawn_is_a_line(tmp_path: Path) -> None:
    """The report is written all the same, and says why there is no picture."""

    def broken(spec: Any) -> str:
        raise RenderError("the chart was not drawn within 20 s")

    empty = Queries(Lake(str(tmp_path / "lake")))
    told = role.read(empty, settings(tmp_path / "lake"), week_of(WEEK, NOW), NOW, draw=broken)
    empty.close()
    assert "not drawn within 20 s" in html.write(told)
    assert "no price is configured" in " ".join(told.unknown)


def test_rows_are_the_fleet_that_was_made(fleet: Path) -> None:
    """The lake of these tests holds what its builder says."""
    assert Lake(str(fleet)).read("host_1h").select(pl.len()).item() == 4 * 28 * 24 - 10
