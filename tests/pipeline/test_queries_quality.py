"""``quality`` answers: since when and why a value is null, what a model does not give, how long we were blind."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from lake_files import LakeFiles

from graynode.pipeline.queries import Queries
from graynode.pipeline.schema import TABLES

NOW = datetime.now(UTC).replace(microsecond=0)
T = (NOW - timedelta(hours=3)).replace(minute=0, second=0)
END = T + timedelta(hours=2)


def at(minutes: float) -> datetime:
    return T + timedelta(minutes=minutes)


class History:
    """What agents and the normaliser have written, and questions about it."""

    def __init__(self, folder: Path) -> None:
        self.lake = LakeFiles(folder)
        self.queries = Queries(self.lake)

    def said(
        self,
        minutes: float,
        entity: str,
        field: str,
        state: str,
        reason: str = "",
        table: str = "gpu",
        node: str = "n1",
    ) -> None:
        row = {"table_name": table, "entity": entity, "field": field, "state": state, "reason": reason}
        self.lake.put("quality", [{"ts": at(minutes), "cluster": "c", "node_id": node, "node": f"host-{node}", **row}])

    def gpus(self, minutes: float, *gpus: str, node: str = "n1", model: str = "NVIDIA H100 80GB HBM3") -> None:
        who = {"ts": at(minutes), "cluster": "c", "node_id": node, "node": f"host-{node}"}
        for i, gpu in enumerate(gpus):
            row = {"kind": "gpu", "entity": gpu, "model": model, "slot": f"0000:{i:02x}:00.0", "driver_version": "580"}
            self.lake.put("inventory", [{**who, **row}])

    def heard(self, first: float, last: float, node: str = "n1", table: str = "host_30s", **more: Any) -> None:
        count = round((last - first) * 2)
        who = {"cluster": "c", "node_id": node, "node": f"host-{node}", "samples": 30, **more}
        self.lake.put(table, [{"ts": at(first + i / 2), **who} for i in range(count)])

    def blind(self, since: datetime = T, until: datetime = END) -> dict[str | None, dict[str, Any]]:
        return {row["node_id"]: row for row in self.queries.rows(f"FROM blind('{since}', '{until}')")}

    def why(self, gpu: str, field: str) -> list[tuple[Any, ...]]:
        rows = self.queries.rows(f"FROM why_null('{gpu}', '{field}')")
        return [(row["scope"], row["state"], row["since"], row["reason"]) for row in rows]


@pytest.fixture(scope="module")
def module_history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    made = History(tmp_path_factory.mktemp("lake"))
    yield made
    made.queries.close()


@pytest.fixture
def history(module_history: History) -> History:
    module_history.lake.clear()
    return module_history


# --- since when and why -------------------------------------------------------------------------------------


def test_a_restart_of_the_agent_does_not_move_the_beginning(history: History) -> None:
    """The agent says again what it knew; the state holds since it first was so."""
    for start in (0, 30, 60):
        history.said(start, "GPU-a", "*", "measured", "first seen")
        history.said(start, "GPU-a", "mem_temp_c", "unsupported", "NVML: Not Supported")
    assert history.why("GPU-a", "mem_temp_c") == [("field", "unsupported", at(0), "NVML: Not Supported")]
    [now] = history.queries.rows("FROM quality_now WHERE field = 'mem_temp_c'")
    assert (now["ts"], now["state"]) == (at(0), "unsupported")


def test_a_lost_gpu_explains_every_field_until_it_is_back(history: History) -> None:
    """``*`` stands for all fields; what was unsupported before stays so afterwards."""
    history.said(0, "GPU-a", "*", "measured", "first seen")
    history.said(0, "GPU-a", "mem_temp_c", "unsupported", "no HBM")
    history.said(10, "GPU-a", "*", "lost", "GPU is lost")
    assert history.why("GPU-a", "temp_c") == [("gpu", "lost", at(10), "GPU is lost")]
    assert [row[:2] for row in history.why("GPU-a", "mem_temp_c")] == [("gpu", "lost"), ("field", "unsupported")]
    history.said(20, "GPU-a", "*", "measured", "")
    assert history.why("GPU-a", "temp_c")[0][:2] == ("field", "measured")
    assert history.why("GPU-a", "mem_temp_c") == [("field", "unsupported", at(0), "no HBM")]
    spells = history.queries.rows("SELECT state, since, until FROM quality_spells WHERE field = '*' ORDER BY since")
    assert [tuple(s.values()) for s in spells] == [
        ("measured", at(0), at(10)), ("lost", at(10), at(20)), ("measured", at(20), None),
    ]  # fmt: skip


def test_what_the_normaliser_says_is_not_ended_by_what_the_collector_says(history: History) -> None:
    """The call succeeds and the value is nonsense: both are true, and the worse counts."""
    history.said(0, "GPU-a", "energy_mj", "implausible", "normaliser: 0 mJ from a GPU that draws power")
    history.said(5, "GPU-a", "energy_mj", "measured", "")
    assert [row[1:3] for row in history.why("GPU-a", "energy_mj")] == [("implausible", at(0))]
    history.said(9, "GPU-a", "energy_mj", "measured", "normaliser: plausible again")
    assert history.why("GPU-a", "energy_mj")[0][1] == "measured"


def test_a_field_of_a_slow_class_is_null_between_its_readings(history: History) -> None:
    """Nothing is wrong with it, and the answer says so."""
    history.gpus(0, "GPU-a")
    [(scope, state, since, reason)] = history.why("GPU-a", "ecc_mode")
    assert (scope, state, since) == ("class", "measured", None)
    assert "60 s" in reason


def test_a_silent_machine_explains_its_gpus(history: History) -> None:
    """Nothing has been heard of it, while others were."""
    history.gpus(0, "GPU-a")
    history.heard(0, 60)
    history.heard(0, 120, node="n2")
    assert history.why("GPU-a", "temp_c") == [("node", "lost", at(60), "nothing has been heard of this machine since")]


def test_a_machine_silent_for_days_is_known_by_its_hours(history: History) -> None:
    """Only hours are looked at that far back: the end of its last one is said."""
    history.gpus(0, "GPU-a")
    ts = (NOW - timedelta(days=5)).replace(minute=0, second=0)
    history.lake.put("host_1h", [{"ts": ts, "cluster": "c", "node_id": "n1", "node": "host-n1", "samples": 3600}])
    history.heard(0, 120, node="n2")
    assert [row[:3] for row in history.why("GPU-a", "temp_c")] == [("node", "lost", ts + timedelta(hours=1))]


def test_what_is_said_of_all_gpus_of_a_node_explains_each(history: History) -> None:
    """A source that knows no GPU by name speaks of the node's id, or of ``*``."""
    history.gpus(0, "GPU-a")
    history.said(1, "n1", "job_id", "not_permitted", "slurm: environments may not be read")
    history.said(2, "*", "*", "paused", "planned: NVML is let go of")
    assert [row[:3] for row in history.why("GPU-a", "job_id")] == [
        ("gpu", "paused", at(2)), ("field", "not_permitted", at(1)),
    ]  # fmt: skip


def test_unknown_fields_and_gpus_are_said(history: History) -> None:
    """A misspelt field is no measured one; a GPU nobody knows gives no row."""
    history.gpus(0, "GPU-a")
    assert history.why("GPU-a", "temp")[0][1] == "unknown"
    assert history.why("GPU-zz", "temp_c") == []


def test_the_contract_is_a_table(history: History) -> None:
    """Every field with unit, kind and class."""
    assert history.queries.rows("SELECT count(*) AS n FROM fields") == [
        {"n": sum(len(t.fields) for t in TABLES.values())}
    ]
    [row] = history.queries.rows("FROM fields WHERE table_name = 'gpu' AND field = 'power_w'")
    assert (row["unit"], row["kind"], row["dcgm"], row["lo"], row["hi"]) == ("W", "gauge", 155, 0.0, 4000.0)


# --- what a model does not give ------------------------------------------------------------------------------


def test_what_a_model_does_not_give(history: History) -> None:
    """Per field and state: on how many of the model's GPUs, since when, and why; moved GPUs count once."""
    history.gpus(0, "GPU-a", "GPU-b")
    history.gpus(0, "GPU-l", node="n2", model="NVIDIA L40S")
    for gpu in ("GPU-a", "GPU-b"):
        history.said(1, gpu, "mem_temp_c", "not_permitted", "no permission")
    history.said(2, "GPU-b", "row_remap_failed", "unsupported", "MIG is on")
    history.said(3, "GPU-l", "mem_temp_c", "unsupported", "no HBM", node="n2")
    history.said(4, "GPU-b", "*", "lost", "gone")
    rows = history.queries.rows("SELECT field, state, gpus, of_gpus, since FROM fields_missing('h100')")
    assert [tuple(row.values()) for row in rows] == [
        ("mem_temp_c", "not_permitted", 2, 2, at(1)), ("row_remap_failed", "unsupported", 1, 2, at(2)),
    ]  # fmt: skip
    assert [row["reason"] for row in history.queries.rows("FROM fields_missing('L40S')")] == ["no HBM"]
    history.gpus(50, "GPU-b", node="n3")  # moved: its new machine has not said anything of its fields
    assert [row["gpus"] for row in history.queries.rows("FROM fields_missing('h100')")] == [1]


# --- how long were we blind ----------------------------------------------------------------------------------


def test_a_machine_that_is_always_heard_is_not_blind(history: History) -> None:
    """No spell, no row: neither for the node nor for the fleet."""
    history.heard(0, 120)
    history.gpus(0, "GPU-a")
    history.said(0, "GPU-a", "*", "measured", "first seen")
    assert history.blind() == {}


def test_silence_is_blindness_of_the_node_and_of_each_of_its_gpus(history: History) -> None:
    """Ten minutes without a window, twice."""
    history.heard(0, 30)
    history.heard(40, 60)
    history.heard(70, 120)
    history.gpus(0, "GPU-a", "GPU-b")
    row = history.blind()["n1"]
    assert (row["blind_s"], row["planned_s"], row["longest_s"], row["spells"]) == (1200, 0, 600, 2)
    assert row["gpu_blind_s"] == 2400


def test_a_lost_gpu_blinds_itself_only(history: History) -> None:
    """Lost for 15 minutes and back, while its node was heard all the time."""
    history.heard(0, 120)
    history.gpus(0, *(f"GPU-{i}" for i in range(8)))
    history.said(10, "GPU-3", "*", "lost", "GPU is lost")
    history.said(25, "GPU-3", "*", "measured", "")
    row = history.blind()["n1"]
    assert (row["blind_s"], row["gpu_blind_s"]) == (900, 900)


def test_planned_blindness_is_apart(history: History) -> None:
    """A release for a reset: planned while it lasts, unplanned where it was overrun and something else is wrong."""
    history.heard(0, 120)
    history.gpus(0, "GPU-a", "GPU-b")
    for gpu in ("GPU-a", "GPU-b"):
        history.said(30, gpu, "*", "paused", "planned: released for 30 m by root")
    history.said(60, "GPU-a", "*", "measured", "")
    history.said(60, "GPU-b", "*", "lost", "did not come back")
    history.said(70, "GPU-b", "*", "measured", "")
    row = history.blind()["n1"]
    assert (row["planned_s"], row["blind_s"]) == (1800, 600)
    assert (row["gpu_planned_s"], row["gpu_blind_s"]) == (3600, 600)


def test_one_moment_is_never_counted_twice(history: History) -> None:
    """A GPU is lost, its node falls silent meanwhile, and part of it was planned."""
    history.heard(0, 20)
    history.heard(40, 120)
    history.gpus(0, "GPU-a")
    history.said(10, "GPU-a", "*", "lost", "gone")
    history.said(50, "GPU-a", "*", "measured", "")
    history.said(30, "n1", "*", "paused", "planned: reboot", table="host")
    history.said(35, "n1", "*", "measured", "", table="host")
    row = history.blind()["n1"]
    assert (row["blind_s"], row["planned_s"]) == (35 * 60, 5 * 60)
    assert (row["gpu_blind_s"], row["gpu_planned_s"]) == (35 * 60, 5 * 60)


def test_the_fleet_is_the_sum_of_its_nodes(history: History) -> None:
    """The row without node comes first."""
    history.heard(0, 120)
    history.heard(0, 60, node="n2")
    history.heard(0, 90, node="n3")
    rows = history.queries.rows(f"FROM blind('{T}', '{END}')")
    assert [(row["node_id"], row["node"], row["blind_s"]) for row in rows] == [
        (None, None, 5400), ("n2", "host-n2", 3600), ("n3", "host-n3", 1800),
    ]  # fmt: skip


def test_only_the_time_asked_for_counts(history: History) -> None:
    """Spells are cut at both ends, and one that began before still counts."""
    history.heard(0, 10)
    history.heard(80, 120)
    history.gpus(0, "GPU-a")
    assert history.blind(at(30), at(60))["n1"]["blind_s"] == 1800
    assert history.blind(at(90), at(110)) == {}


def test_what_is_not_stored_yet_is_not_blindness(history: History) -> None:
    """Up to the newest window of the cluster; and nobody is blind before they were first seen."""
    history.heard(60, 100)
    assert history.blind(at(-600), NOW + timedelta(days=1)) == {}


def test_a_machine_whose_name_another_has_taken_is_waited_for_no_longer(history: History) -> None:
    """The VM was replaced: its silence ends where its successor begins."""
    for minutes, node_id in ((0, "old"), (40, "new")):
        row = {"kind": "node", "entity": node_id, "node": "vm", "node_id": node_id}
        history.lake.put("inventory", [{"ts": at(minutes), "cluster": "c", **row}])
    history.heard(0, 30, node="old")
    history.heard(40, 120, node="new")
    assert history.blind()["old"]["blind_s"] == 600


def test_a_gpu_that_was_moved_while_lost_is_not_lost_for_ever(history: History) -> None:
    """Where it sat last it is lost until it is seen elsewhere, or another sits in its slot."""
    history.heard(0, 120)
    history.heard(0, 120, node="n2")
    history.gpus(0, "GPU-a")
    history.said(10, "GPU-a", "*", "lost", "gone")
    history.gpus(40, "GPU-a", node="n2")
    assert history.blind()["n1"]["gpu_blind_s"] == 1800
    assert history.why("GPU-a", "temp_c")[0][1] == "measured"


def test_a_node_without_an_agent_is_watched_by_its_gpus(history: History) -> None:
    """Scraped from outside: there is no row of the host, and its GPUs' windows say when it was seen."""
    history.heard(0, 30, table="gpu_30s", gpu_uuid="GPU-a")
    history.heard(50, 60, table="gpu_30s", gpu_uuid="GPU-a")
    history.heard(0, 120, node="n2")
    assert history.blind()["n1"]["blind_s"] == (20 + 60) * 60


def test_hours_alone_say_that_a_machine_was_heard(history: History) -> None:
    """Windows of 30 s are kept for 90 days, those of an hour for two years."""
    rows = [{"ts": at(60 * h), "cluster": "c", "node_id": "n1", "node": "host-n1", "samples": 3600} for h in (0, 1)]
    history.lake.put("host_1h", [row for row in rows if row["ts"] < END])
    history.heard(120, 121)
    assert history.blind() == {}


def test_a_release_of_all_gpus_is_planned_on_each(history: History) -> None:
    """``*`` is every GPU of the node."""
    history.heard(0, 120)
    history.gpus(0, "GPU-a", "GPU-b")
    history.said(30, "*", "*", "paused", "planned: NVML is let go of until 12:00")
    history.said(40, "*", "*", "measured", "")
    row = history.blind()["n1"]
    assert (row["planned_s"], row["gpu_planned_s"], row["blind_s"]) == (600, 1200, 0)


def test_spells_say_what_and_why(history: History) -> None:
    """One row a spell, for who wants to know which."""
    history.heard(0, 60)
    history.heard(0, 120, node="n2")
    history.said(20, "GPU-a", "*", "error", "Unknown Error")
    history.said(25, "GPU-a", "*", "measured", "")
    rows = history.queries.rows(f"FROM blind_spells('{T}', '{END}') ORDER BY since")
    assert [(r["scope"], r["entity"], r["state"], r["seconds"]) for r in rows] == [
        ("gpu", "GPU-a", "error", 300), ("node", "n1", "lost", 3600),
    ]  # fmt: skip


def test_two_schedulers_speak_each_for_itself(history: History) -> None:
    """What Kubernetes says of its jobs neither hides nor ends what Slurm said of its own."""
    history.said(0, "n1", "*", "error", "slurm: squeue does not answer", table="job")
    history.said(1, "n1", "*", "error", "kubernetes: no API server", table="job")
    history.said(2, "n1", "*", "stale", "kubernetes_cluster: no answer for 300 s", table="job")
    history.said(3, "n1", "*", "measured", "kubernetes: the kubelet answers", table="job")
    now = history.queries.rows("SELECT state, reason FROM quality_now WHERE table_name = 'job' ORDER BY reason")
    assert [(row["state"], row["reason"].partition(":")[0]) for row in now] == [
        ("measured", "kubernetes"), ("stale", "kubernetes_cluster"), ("error", "slurm"),
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_blind_hours_of_days_are_those_in_which_nothing_was_heard(history: History, seed: int) -> None:
    """Whole days are looked at as one: the spells are still the runs of hours that lack, to the hour."""
    first = (NOW - timedelta(days=6)).replace(hour=0, minute=0, second=0)
    hours, rng = 5 * 24, random.Random(seed)
    heard = {h for h in range(hours) if rng.random() > (0.02, 0.2, 0.6)[seed]} | {0, hours - 1}
    row = {"cluster": "c", "node_id": "n1", "node": "host-n1", "samples": 3600}
    history.lake.put("host_1h", [{"ts": first + timedelta(hours=h), **row} for h in heard])
    end = first + timedelta(hours=hours)
    rows = history.queries.rows(f"FROM blind_spells('{first}', '{end}') ORDER BY since")
    told = {h for r in rows for h in range(hours) if r["since"] <= first + timedelta(hours=h) < r["until"]}
    assert told == set(range(hours)) - heard
    assert sum(r["seconds"] for r in rows) == 3600 * (hours - len(heard))
