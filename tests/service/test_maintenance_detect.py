"""What ``detect`` does about nodes in a maintenance window: statistics look away, facts are marked, nobody is woken."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graynode.detectors import make
from graynode.detectors.incidents import Incidents
from graynode.detectors.pages import Budget
from graynode.pipeline.lake import Lake
from graynode.pipeline.lake_format import conform
from graynode.service import maintenance_nodes
from graynode.service.maintenance_nodes import Planned
from graynode.service.rounds import Rounds

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)


def window(scope: str, name: str | None, since: datetime, until: datetime, **other: Any) -> dict[str, Any]:
    """A row of table ``maintenance``."""
    row = {"ts": NOW - HOUR, "cluster": "prod", "node_id": name or scope, "maintenance_id": f"m-{scope}-{name}"}
    return {**row, "scope": scope, "name": name, "since": since, "until": until, "who": "Kim", "why": "fan", **other}


def lake_with(tmp_path: Path, **tables: list[Mapping[str, Any]]) -> Lake:
    lake = Lake(str(tmp_path / "lake"))
    for table, rows in tables.items():
        lake.write(table, conform(table, pl.DataFrame([{"cluster": "prod", **row} for row in rows])))
    return lake


def test_windows_by_what_they_are_of(tmp_path: Path) -> None:
    """Node, rack by inventory, partition by placements, all; the last word on a window counts; no other cluster's."""
    inventory = [{"ts": NOW - HOUR, "node_id": "b", "kind": "node", "entity": "b", "attributes": '{"rack": "r7"}'}]
    lake = lake_with(
        tmp_path,
        maintenance=[
            window("node", "a", NOW, NOW + HOUR),
            window("rack", "r7", NOW, NOW + 2 * HOUR),
            window("partition", "train", NOW, NOW + 3 * HOUR),
            window("all", None, NOW + 5 * HOUR, NOW + 6 * HOUR),
            window("node", "ended", NOW, NOW + HOUR),
            window("node", "ended", NOW, NOW - HOUR, ts=NOW),
            window("node", "else", NOW, NOW + HOUR, cluster="other"),
        ],
        inventory=inventory,
        job=[{"ts": NOW - HOUR, "node_id": "c", "job_id": "1", "partition": "train"}],
    )
    planned = maintenance_nodes.read(lake, "prod", lake.read("inventory", None, None), NOW)
    until = {n: planned.said(n, NOW).partition("until ")[2][:16] for n in ("a", "b", "c", "d", "ended", "else")}
    assert until == {"a": "2026-11-30 13:00", "b": "2026-11-30 14:00", "c": "2026-11-30 15:00", "d": "", "ended": "",
                     "else": ""}  # fmt: skip
    assert planned.said("d", NOW + 5 * HOUR).startswith("of all until 2026-11-30 18:00 UTC, says Kim")
    assert planned.said("a", NOW + HOUR) == ""


def test_no_window_leaves_a_round_as_it_is(tmp_path: Path) -> None:
    """No table of that name, no windows: the very same round, so that it costs nothing."""
    assert maintenance_nodes.read(Lake(str(tmp_path / "none")), "prod", pl.DataFrame(), NOW) is maintenance_nodes.NONE


_SPANS = st.lists(st.tuples(st.sampled_from([None, "a", "b"]), st.integers(0, 20), st.integers(1, 20)), max_size=5)


@given(spans=_SPANS, rows=st.lists(st.tuples(st.sampled_from("abc"), st.integers(-5, 45)), max_size=30))
def test_what_is_cut_is_what_a_window_touches(
    spans: list[tuple[str | None, int, int]], rows: list[tuple[str, int]]
) -> None:
    """Row by row, by the plain definition of overlap."""

    def at(minutes: int) -> datetime:
        return NOW + timedelta(minutes=minutes)

    told = [{"node_id": n, "since": at(s), "until": at(s + length), "said": ""} for n, s, length in spans]
    planned = Planned(pl.DataFrame(told, schema=maintenance_nodes.NONE.windows.schema))
    frame = pl.DataFrame(
        [{"node_id": n, "ts": at(m)} for n, m in rows],
        schema={"node_id": pl.String, "ts": pl.Datetime("us", "UTC")},
    )
    kept = [
        (n, m)
        for n, m in rows
        if not any(of in (None, n) and m * 60 + 30 > s * 60 and m < s + length for of, s, length in spans)
    ]
    assert planned.cut(frame, 30).rows() == [(n, at(m)) for n, m in kept]


def gpu_rows(start: datetime, count: int, step: timedelta, sick_from: datetime | None) -> list[dict[str, Any]]:
    """Eight GPUs of three nodes under load; node ``n1``'s first runs 10 % slower from then on."""
    rows = []
    for i in range(count):
        ts = start + i * step
        for node in ("n0", "n1", "n2"):
            for g in range(8):
                slow = node == "n1" and g == 0 and sick_from is not None and ts >= sick_from
                rows.append(
                    {"ts": ts, "node_id": node, "node": node, "gpu_uuid": f"{node}-{g}", "gpu_index": g,
                     "samples": int(step.total_seconds()),
                     "samples_expected": int(step.total_seconds()), "sm_clock_mhz_mean": 1980.0 * (0.8 if slow else 1),
                     "power_w_mean": 600.0, "gpu_util_percent_mean": 100.0, "gpu_idle_s": 0.0, "job_id_last": "7",
                     "hw_power_brake_s": 0.0, "hw_thermal_s": 0.0, "sw_thermal_s": 0.0, "temp_c_mean": 60.0}
                )  # fmt: skip
    return rows


@pytest.mark.parametrize("planned", [True, False])
def test_statistics_look_away_and_remember_what_they_knew(tmp_path: Path, *, planned: bool) -> None:
    """A GPU that runs at four fifths for the hours of a window is no finding, and nothing of it is remembered."""
    history = NOW - timedelta(days=20)
    lake = lake_with(
        tmp_path,
        gpu_1h=gpu_rows(history, 24 * 13, HOUR, None),
        gpu_30s=gpu_rows(NOW, 60, timedelta(seconds=30), NOW),
        **({"maintenance": [window("node", "n1", NOW, NOW + 4 * HOUR)]} if planned else {}),
    )
    rounds = Rounds(lake, "prod", {"slow": make("slow")})
    rounds.prime(NOW)
    found = pl.concat([rounds.score(r).findings for r in rounds.rounds(NOW, NOW + timedelta(minutes=30))])
    known = rounds.states["slow"]["gpu"].get_column("key").str.contains("n1-0")
    assert (found.height > 0) is not planned
    assert known.any() is not planned


@pytest.mark.parametrize("planned", [True, False])
def test_history_of_a_window_is_not_learned(tmp_path: Path, *, planned: bool) -> None:
    """Days of a burn-in at four fifths become nobody's normal after a start without stored state."""
    since = NOW - timedelta(days=20)
    lake = lake_with(
        tmp_path,
        gpu_1h=gpu_rows(since, 24 * 10, HOUR, NOW - timedelta(days=15)),
        **({"maintenance": [window("rack", "r7", NOW - timedelta(days=15), NOW)]} if planned else {}),
        inventory=[{"ts": since, "node_id": "n1", "kind": "node", "entity": "n1", "attributes": '{"rack": "r7"}'}],
    )
    rounds = Rounds(lake, "prod", {"slow": make("slow")})
    rounds.prime(NOW)
    days = rounds.states["slow"]["history"].filter(pl.col("key").str.contains("n1-0"))
    assert days.height == (6 if planned else 11)  # calendar days, the first and the last of twelve hours


def finding(node: str, number: int, **other: Any) -> dict[str, Any]:
    """A lost GPU, as the hard-event path tells it."""
    row = {"ts": NOW, "cluster": "prod", "node_id": node, "node": node, "finding_id": f"f{number}", "detector": "rules"}
    row |= {"subject": "gpu", "gpu_uuid": f"{node}-0", "cause": "gpu_lost", "signal": "xid 79", "severity": "page"}
    return {**row, "live": True, "message": "lost", "evidence": json.dumps({"hold": True}), **other}


def test_an_incident_of_a_window_says_so_and_costs_nobody_a_page() -> None:
    """A page of a node in maintenance takes nothing of the budget: another node's pages by itself meanwhile."""
    incidents = Incidents("prod", budget=Budget(most=1))
    incidents.planned = lambda node, at: "of node n1 until 14:00" if node == "n1" and at < NOW + HOUR else ""
    (first,) = incidents.add([finding("n1", 1)], NOW)
    assert json.loads(first["evidence"])[0]["maintenance"] == "of node n1 until 14:00"
    (second,) = incidents.add([finding("n2", 2)], NOW + timedelta(minutes=5))
    assert (second["severity"], second["grouped_under"]) == ("page", None)
    assert "maintenance" not in json.loads(second["evidence"])[0]
    assert incidents.pages_within(NOW + timedelta(minutes=6)) == 1
    again = Incidents("prod", budget=Budget(most=1))
    again.restore([first, second])
    later = again.add([finding("n1", 3, gpu_uuid="n1-1", ts=NOW + 2 * HOUR)], NOW + 2 * HOUR)
    assert [e.get("maintenance") for r in later for e in json.loads(r["evidence"])] == [None] * 2


_ACTS = st.lists(
    st.tuples(st.sampled_from(["add", "clear", "tick", "repair", "restore"]), st.integers(-90, 90), st.integers(0, 2)),
    min_size=2, max_size=25,
)  # fmt: skip


@given(acts=_ACTS)
def test_revisions_of_an_incident_never_go_back_in_time(acts: list[tuple[str, int, int]]) -> None:
    """Rounds speak of their window's end and events of this moment, clocks are set, a process starts anew."""
    incidents, now, told = Incidents("prod", resolve_after_s=600), NOW, list[dict[str, Any]]()
    for number, (act, minutes, gpu) in enumerate(acts):
        now += timedelta(minutes=minutes)
        about = {"gpu_uuid": f"n1-{gpu}", "ts": now, "evidence": json.dumps({"hold": act == "add" and gpu == 0})}
        if act == "add":
            told += incidents.add([finding("n1", number, **about)], now)
        elif act == "tick":
            told += incidents.tick(now)
        elif act == "repair":
            told += incidents.repaired("n1", now, at=now)
        elif act == "restore":
            incidents = Incidents("prod", resolve_after_s=600)
            incidents.restore(told)
        else:
            told += incidents.add([finding("n1", number, **about | {"evidence": '{"clears": ["xid 79"]}'})], now)
    latest: dict[str, dict[str, Any]] = {}
    for revision in told:
        before = latest.get(revision["incident_id"])
        if before is not None:
            assert revision["revision"] == before["revision"] + 1
            assert revision["ts"] >= before["ts"]
            assert revision["updated_ts"] >= before["updated_ts"]
        assert revision["resolved_ts"] in (None, revision["ts"])
        latest[revision["incident_id"]] = revision
