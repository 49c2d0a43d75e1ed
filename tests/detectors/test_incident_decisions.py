"""What waiting costs, when the next step is due, whom a page wakes, and the picture beside the numbers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest
from finding_rows import T0, at, event, finding
from hypothesis import given
from hypothesis import strategies as st
from window_rounds import Cluster

from graynode.detectors import trend
from graynode.detectors.context import Context, Work
from graynode.detectors.event_rules import from_events
from graynode.detectors.incidents import Incidents
from graynode.detectors.pages import Budget
from graynode.detectors.waiting import Terms, due, waiting

ROUND = next(Cluster(nodes=8, gpus=8, nodes_per_job=4).rounds(1))
TERMS = Terms({"H100": 2.0, "H100 80GB": 2.5, "*": 1.0}, "USD")


def slow(seconds: float, node: int = 1, **other: Any) -> dict[str, Any]:
    where = {"node_id": f"id-node{node:03d}", "node": f"node{node:03d}", "gpu_uuid": f"GPU-{node:03d}-3"}
    return finding(seconds, "slow_gpu", **where, **{"effect": 0.05, **other})


def test_a_slow_gpu_costs_its_share_of_all_gpus_of_its_job() -> None:
    """5 % of 32 GPUs for a day are 38.4 GPU-hours, 96 dollars at 2.5, and the basis says how it was reckoned."""
    incidents = Incidents("test", terms=TERMS)
    incidents.see(ROUND)
    (told,) = incidents.add([slow(0)], T0)
    assert told["job_id"] == "job-0"
    assert told["wait_gpu_h_per_day"] == pytest.approx(38.4)
    assert (told["wait_cost_per_day"], told["currency"]) == (pytest.approx(96.0), "USD")
    assert told["wait_basis"] == "all 32 GPUs of the job run 5.0% slower, if it is synchronous, at 2.5 USD per GPU-hour"


def test_without_a_price_waiting_is_told_in_gpu_hours() -> None:
    """No price is no money, not zero money."""
    incidents = Incidents("test")
    incidents.see(ROUND)
    (told,) = incidents.add([slow(0)], T0)
    assert told["wait_gpu_h_per_day"] == pytest.approx(38.4)
    assert (told["wait_cost_per_day"], told["currency"]) == (None, None)
    assert "no price is configured for NVIDIA H100" in told["wait_basis"]


@pytest.mark.parametrize(
    ("cause", "entry", "work", "gpu_h", "said"),
    [
        ("slow_gpu", {"effect": 0.1}, Work(8, "H100", None, None), 2.4, "no job is known"),
        ("slow_gpu", {"effect": None}, Work(8, "H100", "j", 64), None, "has not been measured"),
        ("fleet_shift", {"effect": 0.1, "of_cause": "slow_gpu"}, Work(None, None, "j", 64), 153.6, "all 64 GPUs"),
        ("fleet_shift", {"effect": 0.1, "of_cause": "slow_gpu"}, Work(), None, "not known for this cause"),
        ("gpu_lost", {"hold": True}, Work(8, "H100"), 192.0, "8 GPUs stand still"),
        ("gpu_lost", {"hold": True}, Work(), None, "not known"),
        ("link_down", {"signal": "outage_30s"}, Work(8, "H100", "j", 512), 256.0, "once a day"),
        ("link_down", {"signal": "outage_30s"}, Work(8, "H100"), None, "no job"),
        ("monitoring_blind", {}, Work(8, "H100", "j", 64), None, "not known for this cause"),
    ],
)
def test_what_is_not_known_costs_nothing_that_could_be_told(
    cause: str, entry: dict[str, Any], work: Work, gpu_h: float | None, said: str
) -> None:
    """A figure has a basis, or is null and the basis says why."""
    found = waiting(cause, [entry], work, TERMS)
    assert found.gpu_h_per_day == (None if gpu_h is None else pytest.approx(gpu_h))
    assert said in found.basis


def test_work_is_that_of_the_gpu_where_a_node_has_several_jobs() -> None:
    """The node's largest job, but the GPU's own where it is named."""
    jobs = ["a", "a", "b", None, None, None, None, None]
    round_ = next(Cluster(nodes=1, gpus=8).rounds(1))
    shared = Context(type(round_)(**{f: getattr(round_, f) for f in round_.__slots__} | {
        "gpu": round_.gpu.with_columns(job_id_last=__import__("polars").Series(jobs))}))  # fmt: skip
    assert shared.work("id-node000") == Work(8, "NVIDIA H100 80GB HBM3", "a", 2)
    assert shared.work("id-node000", "GPU-000-2") == Work(8, "NVIDIA H100 80GB HBM3", "b", 1)
    assert shared.work("elsewhere") == Work()
    assert shared.work("job:a") == Work(None, None, "a", 2)


def test_due_by_severity_sooner_where_waiting_is_dear_and_never_later_again() -> None:
    """A page within the hour, a ticket within the day, or when it would have cost a GPU's day; four hours at least."""
    assert due("page", T0, 1000.0, [], TERMS) == T0 + timedelta(hours=1)
    assert due("ticket", T0, None, [], TERMS) == T0 + timedelta(hours=24)
    assert due("ticket", T0, 72.0, [], TERMS) == T0 + timedelta(hours=8)
    assert due("ticket", T0, 10_000.0, [], TERMS) == T0 + timedelta(hours=4)
    assert due("ticket", T0, None, [{"due_h": 6.0}], TERMS) == T0 + timedelta(hours=6)
    incidents = Incidents("test")
    told = incidents.add([slow(0)], T0) + incidents.add([slow(3600)], at(3600)) + incidents.tick(at(90_000))
    assert [r["due_ts"] for r in told] == [at(86_400), at(86_400), None]


def lost(node: int, seconds: float = 0) -> list[dict[str, Any]]:
    return from_events([event(seconds, code=79, node_id=f"n{node}", node=f"gpu-{node:02d}")])


def paging(revisions: Iterable[dict[str, Any]]) -> list[str]:
    return [r["node_id"] for r in revisions if r["severity"] == "page" and r["state"] != "resolved"]


def test_one_page_a_shift_and_the_rest_under_it() -> None:
    """Three GPUs lost within an hour wake once; the page says what else waits; nothing is dropped."""
    incidents, told = Incidents("test", budget=Budget(1)), []
    for n in range(3):
        told += incidents.add(lost(n, n * 600), at(n * 600))
    assert [(r["node_id"], r["severity"], r["state"]) for r in told] == [
        ("n0", "page", "open"), ("n1", "ticket", "open"), ("n0", "page", "updated"), ("n2", "ticket", "open"),
        ("n0", "page", "updated"),
    ]  # fmt: skip
    leader = told[-1]
    assert {r["grouped_under"] for r in told if r["node_id"] != "n0"} == {leader["incident_id"]}
    assert "(and 2 more that would page)" in leader["title"]
    assert "gpu-01: a GPU is gone" in leader["next_step"]
    assert len(json.loads(leader["evidence"])[-1]["incidents"]) == 2
    assert incidents.pages_within(at(1200)) == 1
    assert [r["due_ts"] for r in told if r["state"] == "open"] == [at(3600), at(600 + 3600), at(1200 + 3600)]


def test_a_page_whose_speaker_is_over_pages_by_itself() -> None:
    """Grouped is not forgotten."""
    incidents = Incidents("test", budget=Budget(1))
    incidents.add(lost(0), T0)
    incidents.add(lost(1, 60), at(60))
    told = incidents.repaired("n0", at(120))
    assert [(r["node_id"], r["state"], r["severity"], r["grouped_under"]) for r in told] == [
        ("n0", "resolved", "page", None),
        ("n1", "updated", "page", None),
    ]


def test_the_next_shift_pages_again_and_without_a_budget_all_do() -> None:
    """Twelve hours later it is another person's night."""
    incidents = Incidents("test", budget=Budget(1))
    told = incidents.add(lost(0), T0) + incidents.add(lost(1, 43_300), at(43_300))
    assert paging(told) == ["n0", "n1"]
    free = Incidents("test")
    assert paging([r for n in range(4) for r in free.add(lost(n), T0)]) == ["n0", "n1", "n2", "n3"]


def test_a_restart_remembers_who_has_paged() -> None:
    """The budget, the groups and what was said survive; nothing is told anew."""
    before = Incidents("test", budget=Budget(1))
    told = before.add(lost(0), T0) + before.add(lost(1, 60), at(60))
    after = Incidents("test", budget=Budget(1))
    after.restore(told)
    assert after.tick(at(120)) == []
    assert paging(after.add(lost(2, 180), at(180))) == ["n0"]  # the leader's own revision
    assert [r["severity"] for r in after.current()] == ["page", "ticket", "ticket"]


def port(seconds: float, cause: str, signal: str, severity: str = "ticket", link: str = "mlx5_0/1") -> dict[str, Any]:
    return finding(seconds, cause, severity, signal=signal, link=link, gpu_uuid=None, subject="link", detector="links")


def test_one_cable_is_one_incident_whatever_it_shows() -> None:
    """Errors, then flaps, then an outage of one port: one incident, and the outage speaks."""
    incidents = Incidents("test")
    told = incidents.add([port(0, "link_errors", "errors")], at(0))
    told += incidents.add([port(60, "link_flap", "flap"), port(60, "link_down", "outage_30s", "page")], at(60))
    assert len({r["incident_id"] for r in told}) == 1
    assert told[-1]["severity"] == "page"
    assert "network link is down (link mlx5_0/1)" in told[-1]["title"]
    assert len(json.loads(told[-1]["evidence"])) == 3
    other = incidents.add([port(90, "link_flap", "flap", link="mlx5_5/1")], at(90))
    assert [r["state"] for r in other] == ["open"]


def test_the_picture_follows_the_value() -> None:
    """How the measured value went, as one line; restarts and hundreds of findings keep it."""
    incidents, told = Incidents("test"), []
    for i in range(10):
        told += incidents.add([slow(i * 600, value=1600.0 - 20 * i)], at(i * 600))
    (entry,) = json.loads(incidents.tick(at(90_000))[0]["evidence"])
    assert entry["picture"] == "█▇▆▆▅▄▃▃▂▁"
    again = Incidents("test")
    again.restore(told)
    assert json.loads(again.tick(at(90_000))[0]["evidence"])[0]["trend"][0] == 1600.0


@given(st.lists(st.floats(-1e9, 1e9) | st.none(), max_size=400))
def test_a_picture_is_short_even_and_shows_lowest_and_highest(values: list[float | None]) -> None:
    """At most 32 blocks; of many values a regular part; the ends of the scale are what was kept."""
    kept: list[float] = []
    for seen, value in enumerate(values):
        kept = trend.more(kept, value, seen)
    assert len(kept) <= 32
    assert set(kept) <= {v for v in values if v is not None}
    drawn = trend.drawn(kept)
    assert (drawn is None) == (len(kept) < 3)
    if drawn:
        assert len(drawn) == len(kept)
        assert "▁" in drawn
        assert max(kept) == min(kept) or "█" in drawn


@pytest.mark.parametrize(("state", "shown"), [("mixed", True), ("idle+drain", False), ("down*", False), ("", False)])
def test_what_the_scheduler_says_otherwise_is_shown(state: str, *, shown: bool) -> None:
    """A GPU is off the bus and the scheduler still gives the node work: a person sees both."""
    incidents = Incidents("test")
    incidents.scheduler_says([{"node_id": "n1", "scheduler_state": state}])
    (told,) = incidents.add(lost(1), T0)
    said = json.loads(told["evidence"])[0].get("disagree", {})
    assert ("scheduler" in said) == shown


def test_nvml_and_the_kernel_disagree_about_a_lost_gpu_and_both_are_shown() -> None:
    """One witness makes blindness; who says what stands in the evidence."""
    (told,) = Incidents("test").add(from_events([event(0, "gpu_lost", source="nvml", gpu_uuid="GPU-a")]), T0)
    assert told["cause"] == "monitoring_blind"
    assert json.loads(told["evidence"])[0]["disagree"] == {
        "NVML": "the GPU is lost", "kernel log and PCI bus": "say nothing of it",
    }  # fmt: skip
