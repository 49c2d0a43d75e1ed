"""The fleet as it is now: states by one rule, at the time of the data, and a picture that stays when the lake goes."""

import shutil
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from graynode.pipeline.lake import Lake
from graynode.pipeline.lake_format import frame_schema
from graynode.service import nodes as command
from graynode.service.config import Config, parse
from graynode.service.fleet_now import FleetNow, FleetWatch
from graynode.service.fleet_now_frames import GPUS, NODES

AT = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)


def ago(minutes: float) -> datetime:
    return AT - timedelta(minutes=minutes)


class Site:
    """A lake, and a watch that looks when it is told to."""

    def __init__(self, folder: Path, **detect: Any) -> None:
        self.folder = folder / "lake"
        self.config: Config = parse({"cluster": "c", "lake": {"path": str(self.folder)}, "detect": detect}, "test")
        self.now = AT
        self.watch = FleetWatch(self.config, clock=lambda: self.now)

    def put(self, table: str, *rows: dict[str, Any]) -> None:
        told = [{"cluster": "c", "node": f"host-{row['node_id']}", **row} for row in rows]
        Lake(str(self.folder)).write(table, pl.DataFrame(told, schema=frame_schema(table), orient="row"))

    def windows(self, node: str, back: float, gpus: int = 1, **values: Any) -> None:
        """A 30 s window that ended so many minutes ago."""
        ts = ago(back + 0.5)
        self.put("host_30s", {"ts": ts, "node_id": node, "driver_version_last": "570"})
        told = [{"ts": ts, "node_id": node, "gpu_uuid": f"{node}-{i}", "gpu_index": i, **values} for i in range(gpus)]
        self.put("gpu_30s", *told)

    def inventory(self, node: str, gpus: int, **attributes: str) -> None:
        text = str(attributes).replace("'", '"')
        self.put(
            "inventory", {"ts": ago(9000), "node_id": node, "kind": "node", "entity": node, "attributes": text},
            *({"ts": ago(9000), "node_id": node, "kind": "gpu", "entity": f"{node}-{i}", "expected": gpus,
               "model": "H100", "slot": f"0000:{i}"} for i in range(gpus)),
        )  # fmt: skip

    def incident(self, node: str, **columns: Any) -> None:
        row = {"ts": ago(5), "node_id": node, "incident_id": f"{node}-{columns}", "revision": 0, "state": "open",
               "subject": "gpu", "cause": "slow_gpu", "severity": "ticket", "title": "GPU is slow", "since": ago(60),
               **columns}  # fmt: skip
        self.put("incident", row)

    def look(self) -> FleetNow:
        picture = self.watch.refresh()
        assert (picture.nodes.schema, picture.gpus.schema) == (pl.Schema(NODES), pl.Schema(GPUS))
        return picture


@pytest.fixture
def site(tmp_path: Path) -> Any:
    made = Site(tmp_path)
    yield made
    made.watch.stop()


def by(frame: pl.DataFrame, key: str, *columns: str) -> dict[Any, Any]:
    rows = frame.select(key, *columns).rows()
    return {row[0]: row[1] if len(columns) == 1 else row[1:] for row in rows}


def test_states_are_those_of_graynode_nodes(site: Site) -> None:
    """Written, silent, suspect, on probation, healthy: the same words, times and reasons as the command's."""
    for node, back in zip("abcdef", (0, 0, 0, 0, 0, 45), strict=True):
        site.inventory(node, 1)
        site.windows(node, back)
    site.incident("b")
    gone = {"ts": ago(1200), "node_id": "c", "incident_id": "i", "subject": "node", "cause": "gpu_lost",
            "severity": "page", "since": ago(2400), "title": "lost"}  # fmt: skip
    site.put("incident", {**gone, "ts": ago(2400), "revision": 0, "state": "open"},
             {**gone, "revision": 1, "state": "resolved", "resolved_ts": ago(1200)})  # fmt: skip
    site.put("node_state", {"ts": ago(30), "node_id": "e", "state": "in_repair", "reason": "fan", "who": "person"})
    picture = site.look()
    told = by(picture.nodes, "node_id", "state", "since", "why")
    assert {n: told[n][0] for n in "abcdef"} == {
        "a": "healthy", "b": "suspect", "c": "probation", "d": "healthy", "e": "in_repair", "f": "unknown",
    }  # fmt: skip
    _, rows = command.read(site.watch._queries, "c", AT)
    assert {r["node_id"]: r["state"] for r in rows} == {n: t[0] for n, t in told.items()}
    assert {r["node_id"]: (r["since"], r["why"]) for r in rows if r["state"] != "unknown"} == {
        n: t[1:] for n, t in told.items() if t[0] != "unknown"
    }
    assert picture.at == AT
    assert by(picture.nodes, "node_id", "gpus", "last_seen")["f"] == (None, ago(45))


def test_gpus_and_why(site: Site) -> None:
    """Lost by an incident, unknown without a window lately, suspect where an incident names it, else healthy."""
    site.inventory("a", 5)
    site.put("inventory", {"ts": ago(9000), "node_id": "a", "kind": "node_name", "entity": "slurm",
                           "attributes": '{"name": "host-a"}'})  # fmt: skip
    site.windows("a", 0, gpus=4, power_w_mean=300.0, temp_c_mean=60.0, gpu_util_percent_mean=90.0, job_id_last="7")
    site.inventory("b", 1)
    site.windows("b", 30)
    site.incident("a", gpu_uuid="a-1", title="slow", cause="slow_gpu")
    lost = {"incident_id": "lost", "title": "gone", "cause": "gpu_lost", "severity": "page", "subject": "node"}
    site.incident("a", gpu_uuid="a-2", **lost)
    site.incident("a", revision=1, **lost)  # a finding about the whole node has joined: no GPU is named any more
    site.incident("a", gpu_uuid="a-3", title="odd", severity="digest")
    site.put("job", {"ts": ago(90), "node_id": "slurm:x/host-a", "node": "host-a", "job_id": "7", "user": "ada",
                     "state": "running", "partition": "train"})  # fmt: skip
    picture = site.look()
    assert by(picture.gpus, "gpu_uuid", "state", "why") == {
        "a-0": ("healthy", ""), "a-1": ("suspect", "slow"), "a-2": ("lost", "gone"), "a-3": ("healthy", ""),
        "a-4": ("unknown", "its node is heard, but nothing of this GPU"),
        "b-0": ("unknown", "nothing has been heard of its node"),
    }  # fmt: skip
    row = picture.gpus.row(by_predicate=pl.col("gpu_uuid") == "a-0", named=True)
    assert (row["power_w"], row["temp_c"], row["util_percent"], row["user"], row["job_id"], row["slot"]) == (
        300.0, 60.0, 90.0, "ada", "7", "0000:0",
    )  # fmt: skip
    silent = picture.gpus.row(by_predicate=pl.col("gpu_uuid") == "b-0", named=True)
    assert (silent["power_w"], silent["gpu_model"], silent["last_seen"]) == (None, "H100", None)
    node = picture.nodes.row(by_predicate=pl.col("node_id") == "a", named=True)
    assert (node["gpus"], node["gpus_expected"], node["open_incidents"], node["worst_severity"]) == (4, 5, 3, "page")
    assert (node["partition"], node["gpu_model"], node["driver_version"]) == ("train", "H100", "570")


def test_the_schedulers_word_is_beside_ours(site: Site) -> None:
    """Out of scheduling as the scheduler says, null where none speaks. What it calls down is suspect, drained not."""
    for node in "abcd":
        site.windows(node, 0)
    site.put("node_state", *({"ts": ago(9), "node_id": f"slurm:x/host-{n}", "node": f"host-{n}", "scheduler_state": s}
                             for n, s in (("a", "IDLE+DRAIN"), ("b", "MIXED"), ("c", "DOWN*"))))  # fmt: skip
    names = [{"ts": ago(900), "node_id": n, "kind": "node_name", "entity": "slurm",
              "attributes": f'{{"name": "host-{n}"}}'} for n in "abc"]  # fmt: skip
    site.put("inventory", *names)
    told = by(site.look().nodes, "node_id", "out_of_scheduling", "scheduler_state", "state", "why")
    assert told["a"][:3] == (True, "IDLE+DRAIN", "healthy")
    assert told["b"][:3] == (False, "MIXED", "healthy")
    assert told["c"] == (True, "DOWN*", "suspect", "down: scheduler: DOWN*")
    assert told["d"][:3] == (None, None, "healthy")


def test_places_from_the_inventory_and_from_the_sites_file(tmp_path: Path) -> None:
    """Rack by the inventory; where the site's file says more, as it says."""
    file = tmp_path / "places.csv"
    file.write_text("node,rack,switch\nhost-b,R9,leaf1\n")
    site = Site(tmp_path, places_file=str(file))
    for node in "ab":
        site.inventory(node, 1, rack="R1")
        site.windows(node, 0)
    told = by(site.look().nodes, "node_id", "rack", "switch")
    site.watch.stop()
    assert told == {"a": ("R1", None), "b": ("R9", "leaf1")}


def test_a_lake_whose_data_has_ended_is_shown_at_its_time(site: Site) -> None:
    """A week after a simulation nobody is silent who was heard at its end."""
    site.windows("a", 0)
    site.windows("b", 60)
    site.now = AT + timedelta(days=7)
    picture = site.look()
    assert (picture.at, picture.made) == (AT, site.now)
    assert by(picture.nodes, "node_id", "state") == {"a": "healthy", "b": "unknown"}


def test_hours_tell_where_there_is_nothing_finer(site: Site) -> None:
    """An imported history: the last hour's windows."""
    ts = ago(60)
    site.put("gpu_1h", {"ts": ts, "node_id": "a", "gpu_uuid": "a-0", "power_w_mean": 100.0})
    picture = site.look()
    assert (picture.at, picture.gpus["state"].to_list(), picture.nodes["gpus"].to_list()) == (AT, ["healthy"], [1])


def test_the_version_follows_the_content_and_only_that(site: Site) -> None:
    """Looking again at the same lake is the same version; a new window or an incident is another."""
    site.windows("a", 1)
    first = site.look()
    assert site.look().version == first.version
    site.windows("a", 0)
    second = site.look()
    site.incident("a")
    assert len({first.version, second.version, site.look().version}) == 3


def test_looking_again_is_as_good_as_looking_anew(site: Site) -> None:
    """What is remembered between looks gives the picture that a fresh reader makes."""
    for minute in range(12, -1, -3):
        for node in "abc"[: 3 if minute > 6 else 2]:
            site.windows(node, minute, gpus=2, power_w_mean=100.0 + minute)
        site.look()
    site.put("gpu_30s", {"ts": ago(1.5), "node_id": "a", "gpu_uuid": "a-late", "power_w_mean": 1.0})  # late by a minute
    again, fresh = site.look(), FleetWatch(site.config, clock=lambda: AT)
    anew = fresh.refresh()
    fresh.stop()
    late = ["last_seen"]  # of c, silent for longer than a fresh reader looks back, only the old one knows when
    assert again.gpus.drop(late).equals(anew.gpus.drop(late))
    assert again.gpus.filter(pl.col("gpu_uuid") == "a-late")["state"].to_list() == ["healthy"]
    assert again.nodes.filter(pl.col("node_id") != "c").equals(anew.nodes.filter(pl.col("node_id") != "c"))


def test_a_lake_that_goes_leaves_the_last_picture_with_its_age(site: Site) -> None:
    """The frames stay, the picture says why and how old it is; when the lake is back the reason goes."""
    site.windows("a", 0)
    good = site.look()
    away = site.folder.with_name("away")
    shutil.copytree(site.folder, away)
    for log in site.folder.glob("*/_delta_log/*"):
        log.write_bytes(b"not a log")
    for part in site.folder.glob("*/date=*"):
        shutil.rmtree(part)
    site.watch._lake.forget()
    site.now = AT + timedelta(minutes=5)
    kept = site.look()
    assert kept.problem
    assert (kept.version, kept.nodes.height, kept.made, kept.at) == (good.version, 1, AT, AT)
    assert kept.age_s(site.now) == 300.0
    shutil.rmtree(site.folder)
    shutil.move(away, site.folder)
    site.watch._lake.forget()
    assert site.look().problem == ""


def test_an_empty_lake_and_hostile_names(site: Site) -> None:
    """No table: no row and no trouble. Names are data, whatever is in them."""
    assert site.look().nodes.is_empty()
    hostile = "<script>'; DROP TABLE x; --\x1b[31m=1+1"
    site.windows(hostile, 0)
    site.incident(hostile, title=hostile)
    picture = site.look()
    assert picture.nodes.select("node_id", "state", "why").row(0) == (hostile, "suspect", hostile)
    assert site.look().problem == ""


def test_now_never_waits_and_wait_tells_of_a_change(site: Site) -> None:
    """Before the first look there is an empty picture that says so; the thread makes the first one soon."""
    before = site.watch.now()
    assert (before.at, before.nodes.height, before.problem) == (None, 0, "the lake has not been read yet")
    site.windows("a", 0)
    got: list[FleetNow] = []
    waiting = threading.Thread(target=lambda: got.append(site.watch.wait(before.version, 60.0)))
    waiting.start()
    with site.watch:
        waiting.join(60.0)
    assert got[0].nodes.height == 1
