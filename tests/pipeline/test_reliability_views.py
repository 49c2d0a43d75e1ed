"""``failures`` and ``node_time``: what is a failure, when it begins, is noticed and ends, and where node time went."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from failing_fleet import at, heard, incident, job, land, machines

from graynode.pipeline.lake import Lake
from graynode.pipeline.queries import Queries


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake(str(tmp_path / "lake"))
    machines(made, ["a", "b"])
    return made


def ask(lake: Lake, macro: str, since: float = 0, until: float = 168) -> list[dict[str, Any]]:
    queries = Queries(lake)
    span = f"TIMESTAMPTZ '{at(since).isoformat()}', TIMESTAMPTZ '{at(until).isoformat()}'"
    try:
        return queries.rows(f"FROM {macro}({span})")
    finally:
        queries.close()


def test_an_empty_lake_has_no_failure_and_no_time(tmp_path: Path) -> None:
    """Both macros answer with no row."""
    empty = Lake(str(tmp_path / "none"))
    assert ask(empty, "failures") == []
    assert ask(empty, "node_time") == []


def test_what_overlaps_or_follows_at_once_is_one_failure(lake: Lake) -> None:
    """Two incidents and a hard event of one node are one failure: first evidence, first word, last end, worst cause."""
    land(lake, "incident", *incident("a", "i1", 10, 11, 20), *incident("a", "i2", 20.1, 21, 25, cause="pcie_errors"))
    land(lake, "event", {"ts": at(9.9), "node_id": "a", "kind": "gpu_off_bus", "event_id": "e1"})
    (row,) = ask(lake, "failures")
    assert (row["began"], row["detected"], row["repaired"]) == (at(9.9), at(11), at(25))
    assert (row["cause"], row["incident_id"], row["witnesses"], row["outcome"]) == ("gpu_lost", "i1", 3, "over")
    assert row["seconds_to_detect"] == pytest.approx(1.1 * 3600)
    assert row["seconds_to_repair"] == pytest.approx(15.1 * 3600)


def test_eleven_minutes_apart_are_two(lake: Lake) -> None:
    """A return that lasted longer than ten minutes was one."""
    land(lake, "incident", *incident("a", "i1", 10, 11, 20), *incident("a", "i2", 20.2, 21, 25))
    assert [r["began"] for r in ask(lake, "failures")] == [at(10), at(20.2)]


def test_what_is_no_hardware_or_only_a_digest_is_none(lake: Lake) -> None:
    """The application's errors, blindness and digests are no failures; planned maintenance is none either."""
    land(
        lake, "incident",
        *incident("a", "i1", 10, 11, 20, cause="application_error"),
        *incident("a", "i2", 30, 31, 40, severity="digest"),
        *incident("a", "i3", 50, 51, 60, subject="cluster"),
    )  # fmt: skip
    land(
        lake, "node_state",
        {"ts": at(70), "node_id": "a", "scheduler_state": "DOWN+MAINT", "reason": "maintenance", "who": "slurm"},
        {"ts": at(80), "node_id": "a", "scheduler_state": "IDLE", "who": "slurm"},
    )  # fmt: skip
    assert ask(lake, "failures") == []


@pytest.mark.parametrize(
    ("scope", "name", "left"),
    [("node", "a", ["b"]), ("all", None, []), ("rack", "r7", ["a"]), ("rack", "r8", ["a", "b"]),
     ("partition", "train", ["a"])],
)  # fmt: skip
def test_what_begins_in_announced_maintenance_is_no_failure(
    scope: str, name: str | None, left: list[str], lake: Lake
) -> None:
    """By node, rack, partition or all; what began before the window is one; a window that was called off is none."""
    land(lake, "incident", *(row for n in "ab" for row in incident(n, f"i{n}", 10, 11, 20)))
    land(lake, "event", *({"ts": at(40), "node_id": n, "kind": "gpu_off_bus", "event_id": n} for n in "ab"))
    row = {"ts": at(30), "node_id": "x", "scope": scope, "name": name, "since": at(39), "until": at(45), "who": "kim"}
    land(lake, "maintenance", row | {"maintenance_id": "m1"}, row | {"maintenance_id": "m2", "scope": "all"})
    land(lake, "maintenance", row | {"maintenance_id": "m2", "scope": "all", "ts": at(31), "until": at(31)})
    land(
        lake, "inventory", {"ts": at(1), "node_id": "b", "kind": "node", "entity": "b", "attributes": '{"rack": "r7"}'}
    )
    land(lake, "job", {"ts": at(1), "node_id": "b", "job_id": "1", "state": "running", "partition": "train"})
    found = [(r["node_id"], r["began"]) for r in ask(lake, "failures")]
    assert sorted(found) == sorted([("a", at(10)), ("b", at(10)), *((n, at(40)) for n in left)])


def test_a_failure_that_lasts_is_open_and_a_repair_ends_it(lake: Lake) -> None:
    """Open until somebody logs a repair; what is logged after the span is not known in it."""
    land(lake, "incident", *incident("a", "i1", 10, 11, None))
    land(lake, "repair", {"ts": at(30), "node_id": "a", "what": "riser reseated", "who": "kim"})
    (before,) = ask(lake, "failures", 0, 29)
    assert (before["outcome"], before["repaired"], before["seconds_to_repair"]) == ("open", None, None)
    (after,) = ask(lake, "failures")
    assert (after["outcome"], after["repaired"], after["repair"]) == ("over", at(30), "riser reseated")


def test_an_incident_that_opens_anew_is_a_second_failure(lake: Lake) -> None:
    """Same incident, resolved and opened again a day later: two failures, the second from its own beginning."""
    first = incident("a", "i1", 10, 11, 20)
    again = first[0] | {"ts": at(44), "revision": 2, "updated_ts": at(44)}
    over = first[1] | {"ts": at(50), "revision": 3, "resolved_ts": at(50)}
    land(lake, "incident", *first, again, over)
    assert [(r["began"], r["repaired"]) for r in ask(lake, "failures")] == [(at(10), at(20)), (at(44), at(50))]


def test_hard_events_alone_have_no_end_and_nobody_was_told(lake: Lake) -> None:
    """Their end is not known, which is neither open nor over; detection is null, not at once."""
    land(lake, "event", {"ts": at(5), "node_id": "a", "kind": "gpu_lost", "event_id": "e"})
    (row,) = ask(lake, "failures")
    assert (row["outcome"], row["repaired"], row["detected"], row["seconds_to_detect"]) == ("unknown", None, None, None)


def test_imported_records_count_and_take_the_node_out(lake: Lake) -> None:
    """A fault record of an import is a failure of its own class, and node time is out of service while it lasts."""
    land(lake, "event", {"ts": at(5), "node_id": "x", "kind": "fault_start", "message": "NIC: Lost", "event_id": "s"},
         {"ts": at(15), "node_id": "x", "kind": "fault_end", "message": "NIC: Lost", "event_id": "e"})  # fmt: skip
    (row,) = ask(lake, "failures")
    assert (row["node_id"], row["cause"], row["repaired"], row["gpu_hours_lost"]) == ("x", "NIC: Lost", at(15), None)
    mine = next(r for r in ask(lake, "node_time", 0, 168) if r["node_id"] == "x")
    assert mine["out_s"] == pytest.approx(10 * 3600)
    assert (mine["blind_s"], mine["watched"]) == (None, False)


def test_the_job_there_and_the_job_that_it_ended(lake: Lake) -> None:
    """``during_job`` is whether one ran when it began; ``hit`` is a job whose end was put down to the node."""
    land(lake, "job", job("a", "j1", 1, 12), job("b", "j2", 1, 12))
    land(lake, "incident", *incident("a", "i1", 10, 11, 20), *incident("b", "i2", 14, 15, 20))
    land(lake, "attribution", {
        "ts": at(13), "node_id": "a", "attribution_id": "t", "revision": 0, "job_id": "j1", "phase": "ended",
        "verdict": "infrastructure", "end_ts": at(12), "start_ts": at(1), "kind": "gpu",
    })  # fmt: skip
    hit, spared = ask(lake, "failures")
    assert (hit["during_job"], hit["job_id"], hit["hit_job_id"], hit["hit_ts"]) == (True, "j1", "j1", at(12))
    assert (spared["during_job"], spared["job_id"], spared["hit_job_id"]) == (False, None, None)


def test_a_job_that_two_failing_nodes_had_is_lost_once(lake: Lake) -> None:
    """To the node that the job's judgement names; without one to the strongest witness, then to the earliest."""
    land(
        lake, "incident",
        *incident("a", "i1", 10, 12.0, 14), *incident("b", "i2", 11.9, 12.1, 14), *incident("a", "i3", 40, 41, 44),
    )  # fmt: skip
    land(lake, "event", {"ts": at(39.9), "node_id": "b", "event_id": "e", "kind": "gpu_lost"})
    for node in ("a", "b"):
        for name, begins, ends in (("j1", 1, 12), ("j2", 30, 40)):
            land(lake, "job", *(row | {"state": "node_fail"} for row in [job(node, name, begins, ends)]))
    land(lake, "attribution", {
        "ts": at(13), "node_id": "b", "attribution_id": "t", "revision": 0, "job_id": "j1", "phase": "ended",
        "verdict": "infrastructure", "end_ts": at(12), "start_ts": at(1),
    })  # fmt: skip
    hits = [(row["node_id"], row["hit_job_id"]) for row in ask(lake, "failures") if row["hit_job_id"]]
    assert sorted(hits) == [("a", "j2"), ("b", "j1")]


def test_gpu_hours_lost_are_the_gpus_concerned_times_the_effect(lake: Lake) -> None:
    """A lost GPU: all of one; a slow one: its effect; a node down: all eight; a narrow bus: not known. Without a job
    in the lake, whether one ran there is not known."""
    land(
        lake, "incident",
        *incident("a", "i1", 10, 11, 20), *incident("a", "i2", 30, 31, 40, cause="slow_gpu"),
        *incident("a", "i3", 50, 51, 60, subject="node", cause="driver_fault", gpu_uuid=None),
        *incident("a", "i4", 70, 71, 80, cause="pcie_degraded"),
    )  # fmt: skip
    rows = ask(lake, "failures")
    assert [r["gpu_hours_lost"] for r in rows] == [pytest.approx(10), pytest.approx(2.5), pytest.approx(80), None]
    assert {r["during_job"] for r in rows} == {None}


def test_node_time_sums_to_what_is_owned_and_blind_time_is_not_up_time(lake: Lake) -> None:
    """Owned = usable + out + blind; a node that is down is not blind as well; what was planned is within out."""
    heard(lake, ["a", "b"], at(-24), 192, silent={"a": range(34, 44), "b": range(64, 74)})
    land(
        lake, "node_state",
        {"ts": at(35), "node_id": "b", "scheduler_state": "DOWN", "reason": "maintenance", "who": "slurm"},
        {"ts": at(45), "node_id": "b", "scheduler_state": "IDLE", "who": "slurm"},
    )  # fmt: skip
    a, b = (r for r in ask(lake, "node_time"))
    for row in (a, b):
        assert row["usable_s"] + row["out_s"] + (row["blind_s"] or 0) == pytest.approx(row["owned_s"])
    assert (a["owned_s"], a["blind_s"], a["out_s"]) == (168 * 3600, 10 * 3600, 0)
    assert (b["blind_s"], b["out_s"], b["planned_s"]) == (5 * 3600, 10 * 3600, 10 * 3600)
    assert a["gpus"] == 8


def test_a_span_cut_in_two_has_the_same_failures_and_time(lake: Lake) -> None:
    """Chunking changes nothing: halves add up to the whole."""
    heard(lake, ["a", "b"], at(0), 168, silent={"a": range(34, 44)})
    told = (incident("a", "i1", 10, 11, 20), incident("b", "i2", 82, 83, 86), incident("a", "i3", 90, 91, 92))
    land(lake, "incident", *(revision for one in told for revision in one))
    whole, parts = ask(lake, "failures"), ask(lake, "failures", 0, 84) + ask(lake, "failures", 84, 168)
    assert [r["began"] for r in whole] == [r["began"] for r in parts]
    times, halves = ask(lake, "node_time"), ask(lake, "node_time", 0, 84) + ask(lake, "node_time", 84, 168)
    for column in ("owned_s", "usable_s", "blind_s"):
        assert sum(r[column] for r in times) == pytest.approx(sum(r[column] for r in halves))


def test_before_it_was_there_a_machine_is_not_owned(lake: Lake) -> None:
    """Time counts from when a machine was first known."""
    heard(lake, ["a", "b"], at(0), 24)
    late = Lake(lake.path)
    land(late, "inventory", {"ts": at(12), "node_id": "c", "kind": "node", "entity": "c"})
    heard(late, ["c"], at(12), 12)
    mine = next(r for r in ask(lake, "node_time", 0, 24) if r["node_id"] == "c")
    assert mine["owned_s"] == 12 * 3600
