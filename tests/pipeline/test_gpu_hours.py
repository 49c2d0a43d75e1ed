"""Every owned GPU-hour in exactly one category: each rule, and the traps that other tools fell into."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lake_files import LakeFiles
from owned_gpus import H100, Owned

from graynode.pipeline.queries import Queries


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LakeFiles, Queries]]:
    lake = LakeFiles(tmp_path_factory.mktemp("lake"))
    queries = Queries(lake)
    yield lake, queries
    queries.close()


@pytest.fixture
def fleet(asked: tuple[LakeFiles, Queries], tmp_path: Path) -> Owned:
    lake, queries = asked
    lake.clear()
    return Owned(tmp_path, lake, queries)


def test_an_empty_lake_has_no_hours(fleet: Owned) -> None:
    """Nothing owned is nothing to tell, and no error; ten years of it neither."""
    assert fleet.split(0, 24) == {}
    assert fleet.split(0, 24 * 3650) == {}


def test_work_idleness_memory_and_nothing(fleet: Owned) -> None:
    """With a job: works or not. Without: memory or a process stays, or nothing is there. A lone job has no peers."""
    for gpu in ("g1", "g2", "g3", "g4", "g5"):
        fleet.gpu(gpu)
    fleet.hours("g1", 0, 10, sm=0.6)
    fleet.hours("g2", 0, 10, mem_used_bytes_mean=int(6e10), processes_mean=1.0)
    fleet.hours("g3", 0, 10, mem_used_bytes_mean=int(9e9))
    fleet.hours("g4", 0, 10, processes_mean=1.0)
    fleet.hours("g5", 0, 10)
    fleet.job("7", ["g1"], 0, 10)
    fleet.job("8", ["g2"], 0, 10)
    assert fleet.split(0, 10) == {"busy_useful": 10, "allocated_idle": 10, "held": 20, "free": 10}


def test_utilisation_alone_tells_nothing(fleet: Owned) -> None:
    """A hang shows 100 % and no SM activity: idle. 1 % of utilisation and an empty context (issue DCGM 241) are free.
    Utilisation with nothing beside it is no answer at all."""
    for gpu in ("hang", "probe", "only"):
        fleet.gpu(gpu)
    fleet.hours("hang", 0, 4, sm=0.0, gpu_util_percent_mean=100.0, power_w_mean=120.0)
    fleet.hours("probe", 0, 4, sm=0.008, gpu_util_percent_mean=1.4, mem_used_bytes_mean=int(1.4e9), processes_mean=0.02)
    fleet.hours("only", 0, 4, sm=None, gpu_util_percent_mean=97.0, power_w_mean=None, power_limit_enforced_w_last=None)
    fleet.job("7", ["hang"], 0, 4)
    fleet.job("8", ["only"], 0, 4)
    assert fleet.split(0, 4, gpu_uuid="hang") == {"allocated_idle": 4}
    assert fleet.split(0, 4, gpu_uuid="probe") == {"free": 4}
    assert fleet.split(0, 4, gpu_uuid="only") == {"blind": 4}


def test_power_speaks_where_sm_activity_is_not_measured(fleet: Owned) -> None:
    """Not measured, or 0 because a profiler holds the counters while the board draws power."""
    for gpu in ("old", "old-idle", "profiled"):
        fleet.gpu(gpu)
    fleet.hours("old", 0, 2, sm=None, gpu_util_percent_mean=90.0, power_w_mean=500.0)
    fleet.hours("old-idle", 0, 2, sm=None, gpu_util_percent_mean=0.0, power_w_mean=90.0)
    fleet.hours("profiled", 0, 2, sm=0.0, gpu_util_percent_mean=99.0, power_w_mean=600.0)
    fleet.job("7", ["old", "old-idle", "profiled"], 0, 2)
    assert [fleet.split(0, 2, gpu_uuid=g) for g in ("old", "profiled")] == [{"busy_useful": 2}] * 2
    assert fleet.split(0, 2, gpu_uuid="old-idle") == {"allocated_idle": 2}


def _peers(fleet: Owned, jobs: int, **last: Any) -> None:
    for i in range(jobs):
        fleet.gpu(f"g{i}")
        how = {"sm": 0.8} | (last if i == jobs - 1 else {})
        fleet.hours(f"g{i}", 0, 5, **how)
        fleet.job(str(i), [f"g{i}"], 0, 5)


def test_low_is_below_half_of_what_peers_reach(fleet: Owned) -> None:
    """A job that spins in a collective at 100 % utilisation works below its peers."""
    _peers(fleet, 5, sm=0.2, gpu_util_percent_mean=100.0)
    assert fleet.split(0, 5) == {"busy_useful": 20, "busy_low": 5}
    assert fleet.split(0, 5, job_id="4") == {"busy_low": 5}


def test_three_jobs_are_no_peers(fleet: Owned) -> None:
    """The same with three jobs in all: nothing to compare with."""
    _peers(fleet, 3, sm=0.2)
    assert fleet.split(0, 5) == {"busy_useful": 15}


def test_one_low_signal_of_three_condemns_nobody(fleet: Owned) -> None:
    """Low tensor activity alone is another precision, not less work."""
    _peers(fleet, 5, sm=0.8, tensor_active_ratio_mean=0.01)
    assert fleet.split(0, 5) == {"busy_useful": 25}


def test_jobs_are_compared_with_their_own_kind(fleet: Owned) -> None:
    """A notebook is not low because training is high."""
    _peers(fleet, 5)
    fleet.gpu("nb")
    fleet.hours("nb", 0, 5, sm=0.1)
    fleet.job("nb", ["nb"], 0, 5, work="notebook", partition="interactive")
    assert fleet.split(0, 5, job_id="nb") == {"busy_useful": 5}


def test_an_hour_is_split_where_the_job_began_and_ended(fleet: Owned) -> None:
    """Ten minutes of full work in an hour are ten minutes of work, not an hour of a sixth."""
    fleet.gpu("g")
    fleet.hours("g", 0, 3)
    fleet.hour("g", 3, sm=0.15, mem_used_bytes_mean=int(2.4e10))
    fleet.job("7", ["g"], 3.25, 3.4166666667, partition="p")
    fleet.put("job", 1, "n1", job_id="8", state="queued", queued_ts=fleet.rows["job"][0]["ts"], partition="x")
    told = fleet.split(0, 4)
    assert told["busy_useful"] == pytest.approx(1 / 6, abs=1e-5)
    assert told["free"] == pytest.approx(3 + 5 / 6, abs=1e-5)
    (row,) = [r for r in fleet.told(3, 4) if r["job_id"]]
    assert row["sm_active_ratio"] == pytest.approx(0.9, rel=0.01)


def test_drained_down_repaired_and_reserved(fleet: Owned) -> None:
    """Cordoned nodes work on what they have; nodes that are down do not; ours counts beside the scheduler's word."""
    for node in ("drain", "down", "repair", "resv", "maint", "k8s", "gone"):
        fleet.gpu(node, node)
        fleet.hours(node, 0, 4, node, sm=0.5 if node in ("drain", "k8s") else 0.0)
    fleet.job("7", ["drain"], 0, 3, node="drain")
    fleet.job("8", ["k8s"], 0, 3, node="k8s")
    fleet.put("node_state", 1, "drain", scheduler_state="MIXED+DRAIN", reason="kill task failed")
    fleet.put("node_state", 1, "down", scheduler_state="DOWN*+NOT_RESPONDING")
    fleet.put("node_state", 2, "down", scheduler_state="IDLE")
    fleet.put("node_state", 0, "repair", state="in_repair")
    fleet.put("node_state", 1, "repair", scheduler_state="IDLE")
    fleet.put("node_state", 3, "repair", state="healthy")
    fleet.put("node_state", 0, "resv", scheduler_state="IDLE+RESERVED")
    fleet.put("node_state", 2, "maint", scheduler_state="IDLE+MAINTENANCE+RESERVED")
    fleet.put("node_state", 1, "k8s", scheduler_state="Ready,SchedulingDisabled", who="kubernetes")
    fleet.put("node_state", 3, "gone", scheduler_state=None, reason="no longer in Slurm's configuration")
    by = {node: fleet.split(0, 4, node=node) for node in ("drain", "down", "repair", "resv", "maint", "gone")}
    assert by["drain"] == {"busy_useful": 3, "out_of_service": 1}
    assert by["down"] == {"free": 3, "out_of_service": 1}
    assert by["repair"] == {"out_of_service": 3, "free": 1}
    assert by["resv"] == {"reserved": 4}
    assert by["maint"] == {"free": 2, "out_of_service": 2}
    assert by["gone"] == {"free": 3, "out_of_service": 1}
    assert fleet.split(0, 4, node="k8s") == {"busy_useful": 3, "out_of_service": 1}


def test_powered_down_words_are_no_fault(fleet: Owned) -> None:
    """A word that only contains another (POWERED_DOWN, DRAINFOO) is none of ours."""
    fleet.gpu("g")
    fleet.hours("g", 0, 2)
    fleet.put("node_state", 0, "n1", scheduler_state="IDLE+POWERED_DOWN")
    assert fleet.split(0, 2) == {"free": 2}


def test_what_was_not_measured_is_blind_and_still_the_jobs(fleet: Owned) -> None:
    """Hours without windows, and the part of an hour without samples; a late sample is no blindness."""
    fleet.gpu("g")
    fleet.hours("g", 0, 2, sm=0.5)
    fleet.hour("g", 5, sm=0.5, samples=1800)
    fleet.hour("g", 6, sm=0.5, samples=3590)
    fleet.job("7", ["g"], 0, 7)
    assert fleet.split(0, 7) == {"busy_useful": 3.5, "blind": 3.5}
    assert fleet.split(0, 7, job_id="7") == {"busy_useful": 3.5, "blind": 3.5}


def test_a_scheduler_that_counts_no_gpus_takes_none_away(fleet: Owned) -> None:
    """A device plugin restarts and the node has 0 GPUs for a while (kubecost 1978): the inventory stays what it was."""
    for gpu in ("g1", "g2"):
        fleet.gpu(gpu, expected=2)
        fleet.hours(gpu, 0, 6)
    fleet.put("inventory", 2, "n1", kind="node", entity="m-n1", expected=0)
    fleet.put("node_state", 3, "n1", scheduler_state="Ready", who="kubernetes")
    told = fleet.split(0, 6)
    assert told == {"free": 12}
    assert all(row["hours"] > 0 for row in fleet.told(0, 6))


def test_a_gpu_that_moved_or_was_replaced_counts_once(fleet: Owned) -> None:
    """It is owned on one machine at a time; the one that took its slot from then on; a node without GPUs has no hours
    (cost-analyzer 1389)."""
    fleet.gpu("g", "n1", 0)
    fleet.hours("g", 0, 3, "n1")
    fleet.gpu("g", "n2", 3)
    fleet.hours("g", 3, 8, "n2")
    fleet.gpu("new", "n1", 4, slot="g")
    fleet.hours("new", 4, 8, "n1")
    fleet.put("host_1h", 2, "n3", samples=3600, samples_expected=3600)
    assert fleet.split(0, 8, gpu_uuid="g") == {"free": 8}
    assert fleet.split(0, 8, gpu_uuid="new") == {"free": 4}
    assert fleet.split(0, 8, node="n3") == {}


def test_a_machine_that_is_gone_ends_after_a_fortnight(fleet: Owned) -> None:
    """Silent for two weeks it is blind; after that it is nobody's."""
    for gpu, node in (("g", "n1"), ("still", "n2")):
        fleet.gpu(gpu, node)
        fleet.hour(gpu, 0, node)
    fleet.hour("still", 24 * 30, "n2")
    assert fleet.split(0, 24 * 30 + 1, gpu_uuid="g") == {"free": 1, "blind": 14 * 24}


def test_what_nobody_has_looked_at_yet_is_not_blind(fleet: Owned) -> None:
    """The stretch ends with the newest hour that was rolled up."""
    fleet.gpu("g")
    fleet.hours("g", 0, 3)
    assert fleet.split(0, 48) == {"free": 3}


def test_a_gpu_that_no_inventory_knows_is_owned_while_it_is_seen(fleet: Owned) -> None:
    """As after an import of somebody's metrics."""
    fleet.hours("g", 2, 5)
    assert fleet.split(0, 24) == {"free": 3}


def test_the_same_hour_written_twice_counts_once(fleet: Owned) -> None:
    """A batch that was landed again."""
    fleet.gpu("g")
    fleet.hour("g", 0, sm=0.5)
    fleet.hour("g", 0, sm=0.5)
    fleet.job("7", ["g"], 0, 1)
    assert fleet.split(0, 1) == {"busy_useful": 1}


def test_mig_instances_share_their_gpu(fleet: Owned) -> None:
    """3g and 2g of seven slices: each its part, what none has is free, the parent's own row counts nothing."""
    fleet.gpu("g")
    fleet.hour("g", 0, sm=0.5, mig_profile_last="3g.40gb,2g.20gb", gpu_util_percent_mean=None)
    fleet.hour("g", 0, sm=0.9, mig_instance="1", mig_profile_last="3g.40gb", job_id_last="7", power_w_mean=None)
    fleet.hour("g", 0, sm=0.0, mig_instance="2", mig_profile_last="2g.20gb", job_id_last="8", power_w_mean=None)
    fleet.put("job", 0, "n1", job_id="7", state="running", user="ada", allocated_ts=fleet.rows["gpu_1h"][0]["ts"])
    assert fleet.split(0, 1) == {
        "busy_useful": round(3 / 7, 6), "allocated_idle": round(2 / 7, 6), "free": round(2 / 7, 6),
    }  # fmt: skip
    assert {r["user"] for r in fleet.told(0, 1) if r["job_id"] == "7"} == {"ada"}


def test_a_gpu_that_jobs_share_is_theirs_in_equal_parts(fleet: Owned) -> None:
    """Time slicing: two jobs at a time, then one."""
    fleet.gpu("g")
    fleet.hours("g", 0, 2, sm=0.5)
    fleet.job("1", ["g"], 0, 2)
    fleet.job("2", ["g"], 0, 1)
    assert fleet.split(0, 2, job_id="1") == {"busy_useful": 1.5}
    assert fleet.split(0, 2, job_id="2") == {"busy_useful": 0.5}


def test_a_job_whose_end_nobody_told_gives_way_to_the_next(fleet: Owned) -> None:
    """The agent died with it."""
    fleet.gpu("g")
    fleet.hours("g", 0, 6, sm=0.5)
    fleet.job("1", ["g"], 0)
    fleet.job("2", ["g"], 4, 6)
    assert fleet.split(0, 6, job_id="1") == {"busy_useful": 4}
    assert fleet.split(0, 6, job_id="2") == {"busy_useful": 2}


def test_slurms_rows_without_gpus_take_whole_nodes_or_what_samples_say(fleet: Owned) -> None:
    """The head node does not know which GPUs: all, where it is all of them; else those whose samples name the job."""
    names = {"kind": "node_name", "entity": "slurm"}
    for node in ("n1", "n2"):
        fleet.put("inventory", 0, node, attributes=json.dumps({"name": node}), **names)
        for i in range(2):
            fleet.gpu(f"{node}-{i}", node)
    fleet.hours("n1-0", 0, 4, "n1", sm=0.5)
    fleet.hours("n1-1", 0, 4, "n1", sm=0.5)
    fleet.hours("n2-0", 0, 4, "n2", sm=0.5, job_id_last="one")
    fleet.hours("n2-1", 0, 4, "n2")
    fleet.job("all", [], 1, 3, node="n1", gpus=2, gpu_uuids=None, node_id="slurm:c/n1")
    fleet.job("one", [], 0, 4, node="n2", gpus=1, gpu_uuids=None, node_id="slurm:c/n2")
    assert fleet.split(0, 4, job_id="all") == {"busy_useful": 4}
    assert fleet.split(0, 4, job_id="one") == {"busy_useful": 4}


def _half_full(fleet: Owned, usual: int) -> None:
    """A node of four with one job on three of them, and a history of jobs of ``usual`` GPUs."""
    gpus = ["g0", "g1", "g2", "g3"]
    for gpu in gpus:
        fleet.gpu(gpu)
        fleet.hours(gpu, 0, 4, sm=0.0 if gpu == "g3" else 0.5)
    fleet.job("now", gpus[:3], 0, 4)
    for i in range(20):
        fleet.job(f"past{i}", gpus[:usual], -40 + i, -39.5 + i)


def test_too_few_free_gpus_for_anybody_are_stranded(fleet: Owned) -> None:
    """One of four is free where jobs take four, and hardly ever three."""
    _half_full(fleet, usual=4)
    assert fleet.split(0, 4, gpu_uuid="g3") == {"stranded": 4}
    (why,) = {row["why"] for row in fleet.told(0, 4) if row["category"] == "stranded"}
    assert why == "1 free together, the smallest shape asked for is 4"


def test_a_free_gpu_that_somebody_waits_for_is_not_stranded(fleet: Owned) -> None:
    """From the moment that a job of one GPU queues in the node's partition."""
    _half_full(fleet, usual=4)
    fleet.put(
        "job", 2, "head", job_id="w", state="queued", partition="train", queued_ts=fleet.rows["gpu_1h"][2]["ts"], gpus=1
    )
    told = fleet.split(0, 4, gpu_uuid="g3")
    assert told == {"stranded": 2, "free": 2}


def test_a_usual_shape_of_one_keeps_single_gpus_free(fleet: Owned) -> None:
    """Jobs of one GPU are usual in the partition."""
    _half_full(fleet, usual=1)
    assert fleet.split(0, 4, gpu_uuid="g3") == {"free": 4}


def test_a_broken_nvlink_and_a_model_nobody_asks_for_strand(fleet: Owned) -> None:
    """Free together on paper, of no use to a job of several GPUs; and the old model in a fleet that wants the new."""
    for gpu in ("b0", "b1"):
        fleet.gpu(gpu, "nb")
        fleet.hours(gpu, 0, 2, "nb")
    fleet.job("past", ["b0", "b1"], -5, -4, node="nb")
    link = {"incident_id": "i", "revision": 0, "state": "open", "severity": "page", "subject": "node"}
    fleet.put("incident", 0, "nb", cause="nvlink_fault", since=fleet.rows["gpu_1h"][1]["ts"], **link)
    fleet.gpu("old", "no", model="NVIDIA V100")
    fleet.hours("old", 0, 2, "no", gpu_model_last="NVIDIA V100")
    assert fleet.split(0, 2, node="nb") == {"free": 2, "stranded": 2}
    assert fleet.split(0, 2, node="no") == {"stranded": 2}


def test_without_a_scheduler_nothing_is_stranded(fleet: Owned) -> None:
    """Where no job is known at all there is no shape to miss."""
    fleet.gpu("g")
    fleet.hours("g", 0, 2)
    fleet.hour("g", 2, sm=0.5)
    assert fleet.split(0, 3) == {"free": 2, "busy_useful": 1}


def test_hostile_names_are_names(fleet: Owned) -> None:
    """Quotes, broken JSON and SQL in what jobs and nodes are called."""
    evil = "x'); DROP TABLE gpu; --<script>"
    fleet.gpu("g", evil)
    fleet.hours("g", 0, 2, evil, sm=0.5)
    fleet.job(evil, ["g"], 0, 2, node=evil, user=evil)
    fleet.job("broken", [], 0, 2, node=evil, gpu_uuids='["g"', gpus=None)
    assert {(r["user"], r["job_id"], r["node"]) for r in fleet.told(0, 2)} == {(evil, evil, evil)}


def test_a_model_is_told_as_the_inventory_has_it(fleet: Owned) -> None:
    """And the columns are those of the contract with others: reports and pages read them by name."""
    fleet.gpu("g")
    fleet.hour("g", 0)
    (row,) = fleet.told(0, 1)
    wanted = ("cluster", "node_id", "gpu_uuid", "gpu_model", "ts", "category", "hours", "job_id", "user", "account",
              "partition", "work")  # fmt: skip
    assert set(wanted) <= set(row)
    assert row["gpu_model"] == H100
