"""How jobs of the simulated fleet end: states, codes, Xids and telling lines, with their truth."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from graynode.collectors.simulated import ends, faults
from graynode.collectors.simulated.events import Told
from graynode.collectors.simulated.fleet import Fleet, Spec
from graynode.collectors.simulated.links import Outages
from graynode.pipeline.schema import JOB_ENDED

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def told(text: str = "", seed: int = 5, days: float = 14.0) -> tuple[Fleet, list[tuple[str, dict]]]:
    fleet = Fleet(Spec(NOW, 24, 8, seed, days, cluster="c"), faults.parse(text, "test", NOW))
    rows = list(Told(fleet, Outages(fleet)).between(fleet.seconds(NOW - timedelta(days=days)), fleet.now_s))
    return fleet, rows


@pytest.fixture(scope="module")
def healthy() -> tuple[Fleet, list[tuple[str, dict]]]:
    return told()


def test_shares_of_both_sides_add_up_to_one() -> None:
    """Every end is one of the named."""
    assert sum(k.share for k in ends.APPLICATION) == pytest.approx(1.0)
    assert sum(k.share for k in ends.HARDWARE) == pytest.approx(1.0)


def test_a_healthy_fleet_has_ends_of_programs_and_people_only(healthy: tuple[Fleet, list[tuple[str, dict]]]) -> None:
    """Nothing that a kernel says of hardware; the states and codes are the contract's."""
    _, rows = healthy
    assert {row["code"] for table, row in rows if table == "event" and row["kind"] == "xid"} <= {13, 31, 43}
    over = [row for table, row in rows if table == "job" and "end_ts" in row]
    assert {row["state"] for row in over} <= JOB_ENDED - {"node_fail"}
    assert {"failed", "timeout", "cancelled", "completed"} <= {row["state"] for row in over}
    assert {row["reason"] for row in over} >= {"OUT_OF_MEMORY", "TimeLimit", "NonZeroExitCode", None}
    assert all(row["exit_code"] == 0 and row["exit_signal"] is None for row in over if row["state"] == "completed")


def test_outputs_hold_what_frameworks_write_after_the_agent_s_own_choice(
    healthy: tuple[Fleet, list[tuple[str, dict]]],
) -> None:
    """Lines of machines of the job, by ranks of it, around its end; of a share of jobs only; never the code shown."""
    fleet, rows = healthy
    jobs = {str(job.number): job for job in fleet.jobs}
    lines = [row for table, row in rows if table == "job_log"]
    assert {"oom", "traceback", "signal", "nccl"} <= {row["kind"] for row in lines}
    for row in lines:
        job = jobs[row["job_id"]]
        assert fleet.node_ids[job.gpus[row["rank"]] // 8] == row["node_id"]
        assert abs((row["ts"] - fleet.moment(job.end)).total_seconds()) < 11.0
    assert not any(row["line"].startswith((" ", "Traceback")) for row in lines)
    failed = [job for job in fleet.jobs if job.state == "failed" and job.end < fleet.now_s]
    assert len({row["job_id"] for row in lines} & {str(j.number) for j in failed}) < len(failed)


def test_hardware_ends_come_only_where_asked_for_and_with_their_cascade() -> None:
    """All failed jobs by a machine: its Xid first, the other ranks' watchdogs later; the schedule stays the same."""
    fleet, rows = told("[ends]\nhardware_share = 1.0\n")
    assert told()[0].jobs == fleet.jobs
    truths = Counter(ends.end(5, job, 1.0).kind.truth for job in fleet.jobs if job.state == "failed")
    assert set(truths) == {"infrastructure"}
    assert {row["code"] for table, row in rows if table == "event" and row["kind"] == "xid"} >= {95, 74, 119}
    ecc = next(row for table, row in rows if table == "job_log" and "uncorrectable ECC" in row["line"])
    xid = next(row for table, row in rows if row.get("code") == 95 and row["node_id"] == ecc["node_id"])
    assert xid["ts"] < ecc["ts"]


def test_the_same_seed_ends_the_same_and_another_does_not(healthy: tuple[Fleet, list[tuple[str, dict]]]) -> None:
    """A function of seed, job and attempt."""
    fleet, rows = healthy
    assert told()[1] == rows
    assert [ends.end(5, j).kind for j in fleet.jobs] != [ends.end(6, j).kind for j in fleet.jobs]


@pytest.mark.parametrize(
    ("text", "said"),
    [("[ends]\nhardware_share = 2\n", "hardware_share"), ("[ends]\nshare = 1\n", "share"), ("ends = 3\n", "[ends]")],
)
def test_a_wrong_share_is_refused_with_what_is_allowed(text: str, said: str) -> None:
    """As every key of the file."""
    with pytest.raises(faults.FaultsError, match=said.replace("[", r"\[")):
        faults.parse(text, "test", NOW)
