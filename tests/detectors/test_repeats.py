"""An application's Xid that stays on one GPU whoever runs there; and which job had a GPU when."""

from __future__ import annotations

import json
from typing import Any

import pytest
from finding_rows import at, event

from graynode.detectors.event_rules import EventRules
from graynode.detectors.placements import Placements

GPU = "GPU-a"


def job(job_id: str, seconds: float, user: str | None, gpus: list[str] | None = None, **more: Any) -> dict[str, Any]:
    return {
        "ts": at(seconds), "node_id": "n1", "job_id": job_id, "user": user, "state": "running",
        "allocated_ts": at(seconds), "gpu_uuids": json.dumps(gpus) if gpus else None, "end_ts": None, **more,
    }  # fmt: skip


def xid(seconds: float, code: int = 31, gpu: str = GPU, **more: Any) -> dict[str, Any]:
    return event(seconds, code=code, gpu_uuid=gpu, **more)


def play(rules: EventRules, *steps: dict[str, Any]) -> list[dict[str, Any]]:
    """Job rows and events in their order; the suspicions."""
    found: list[dict[str, Any]] = []
    for step in steps:
        if "kind" in step:
            found += rules.findings([step])
        else:
            rules.placed([step])
    return [f for f in found if f["signal"] == "app_xid_one_gpu"]


def ended(row: dict[str, Any], seconds: float) -> dict[str, Any]:
    return {**row, "ts": at(seconds), "state": "failed", "end_ts": at(seconds)}


A, B = job("a", 0, "ann", [GPU, "GPU-b"]), job("b", 7200, "ben", [GPU, "GPU-c"])
C = job("c", 14_400, "ann", [GPU])
FIRST = (A, xid(100), ended(A, 120), B, xid(7300, code=13), ended(B, 7320))
"""Two of the three jobs that it takes."""


def test_three_jobs_of_two_users_that_fail_on_one_gpu_alone_make_it_suspect() -> None:
    """Xid 31 and 13 in three jobs of two users, on this GPU and no other of theirs: a ticket about the GPU."""
    assert play(EventRules(), *FIRST) == []
    (said,) = play(EventRules(), *FIRST, C, xid(14_500))
    assert (said["severity"], said["cause"], said["gpu_uuid"], said["value"]) == ("ticket", "unusual", GPU, 3.0)
    assert "Xid 13 and 31 ended 3 jobs of 2 users on this GPU and on no other GPU of theirs" in said["message"]
    assert json.loads(said["evidence"])["jobs"] == ["a", "b", "c"]
    assert said["since"] == at(100)


def test_one_user_s_jobs_prove_nothing() -> None:
    """A program that is being debugged fails again and again on the GPU that the scheduler gives first."""
    jobs = [job(f"j{i}", 7200 * i, "ann", [GPU]) for i in range(6)]
    steps = [s for i, j in enumerate(jobs) for s in (j, xid(7200 * i + 60), ended(j, 7200 * i + 120))]
    assert play(EventRules(), *steps) == []


def test_a_job_that_fails_on_several_gpus_is_an_application() -> None:
    """In the second job another GPU had the error too."""
    assert play(EventRules(), *FIRST[:4], xid(7290, gpu="GPU-c"), xid(7300), ended(B, 7320), C, xid(14_500)) == []


def test_without_users_three_jobs_are_asked_for_and_without_jobs_nothing_is_concluded() -> None:
    """What is not known is not held against the GPU."""
    jobs = [job(f"j{i}", 7200 * i, None, [GPU]) for i in range(3)]
    steps = [s for i, j in enumerate(jobs) for s in (j, xid(7200 * i + 60), ended(j, 7200 * i + 120))]
    assert play(EventRules(), *steps[:6]) == []
    assert len(play(EventRules(), *steps)) == 1
    assert play(EventRules(), *[xid(7200 * i) for i in range(9)]) == []


def test_more_than_thirty_days_apart_and_lines_of_programs_do_not_count() -> None:
    """Old hits are forgotten; a line that a program wrote is not the kernel's; 45 follows whatever ended a process."""
    late = job("c", 31 * 86_400, "ann", [GPU])
    assert play(EventRules(), *FIRST, late, xid(31 * 86_400 + 100)) == []
    within = job("c", 29 * 86_400, "ann", [GPU])
    assert len(play(EventRules(), *FIRST, within, xid(29 * 86_400 + 100))) == 1
    assert play(EventRules(), *FIRST, C, xid(14_500, attributes={"facility": 1})) == []
    assert play(EventRules(), *FIRST, C, xid(14_500, code=45)) == []


def test_the_unit_is_named_where_it_is_always_the_same() -> None:
    """The same processing cluster each time is a strong sign."""
    unit = {"gpc": 3, "tpc": 1}
    steps = [{**s, "attributes": unit} if "kind" in s else s for s in (*FIRST, C, xid(14_500))]
    (said,) = play(EventRules(), *steps)
    assert "always in GPC 3, TPC 1" in said["message"]


def test_a_restart_remembers_by_reading_past_events() -> None:
    """The first two jobs failed before the restart; the many that ran there since do not hide whose they were."""
    rules = EventRules()
    since = [job(f"x{n}", 7400 + n, "eve", ["GPU-z"]) for n in range(100)]
    rows = [s for s in FIRST if "kind" not in s]
    rules.remember([s for s in FIRST if "kind" in s], [*rows, *since])
    assert len(play(rules, C, xid(14_500))) == 1


def test_a_replay_knows_at_each_event_the_rows_up_to_it_and_no_later_ones() -> None:
    """In one stretch: rows between the events count for those after them; a placement told later does not."""
    steps = [*FIRST, C, xid(14_500)]
    events, jobs = [s for s in steps if "kind" in s], [s for s in steps if "kind" not in s]
    assert "app_xid_one_gpu" in [f["signal"] for f in EventRules().replayed(events, reversed(jobs))]
    late = [{**s, "ts": at(20_000)} if s is C else s for s in jobs]
    assert "app_xid_one_gpu" not in [f["signal"] for f in EventRules().replayed(events, late)]


def test_flood_of_one_job_is_one_job() -> None:
    """A thousand lines of one job are one failure of it, and push nobody else's out."""
    assert play(EventRules(), A, *[xid(100 + i * 6) for i in range(50)]) == []
    flood = [xid(7300 + i * 6) for i in range(50)]
    assert len(play(EventRules(), *FIRST[:4], *flood, ended(B, 7700), C, xid(14_500))) == 1


@pytest.mark.parametrize(
    ("uuid", "seconds", "job_id"),
    [(GPU, 50, "a"), ("GPU-z", 50, None), (GPU, 500, None), (GPU, 130, "a"), (None, 50, None), (GPU, -10, None)],
)
def test_which_job_had_a_gpu(uuid: str | None, seconds: float, job_id: str | None) -> None:
    """Its own GPUs while it ran, and five minutes of teardown; else nobody is named."""
    placed = Placements()
    placed.note([ended(A, 120), A])
    found = placed.at("n1", uuid, at(seconds))
    assert (found.job_id if found else None) == job_id


def test_two_jobs_that_do_not_say_their_gpus_are_no_answer() -> None:
    """One such job is; of two nobody knows."""
    placed = Placements()
    placed.note([job("a", 0, "ann")])
    assert placed.at("n1", GPU, at(10)) is not None
    placed.note([job("b", 5, "ben")])
    assert placed.at("n1", GPU, at(10)) is None
