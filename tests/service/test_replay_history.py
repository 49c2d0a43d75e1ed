"""``graynode replay`` over months that are there as hour windows, and how long before people noticed."""

from __future__ import annotations

import shutil
import threading
from datetime import timedelta
from pathlib import Path

import polars as pl
import pytest
from people_site import CLUSTER, Site
from window_rounds import START, Cluster, Columns

from graynode.pipeline.lake import Lake
from graynode.service.config import ConfigError
from graynode.service.noticed import Notices, Told
from graynode.service.replay_windows import history
from graynode.service.replaying import run

HOURS = 48
BROKEN = 20


def lanes(w: int, c: Columns) -> None:
    if w >= BROKEN:
        c["pcie_width_last"][11] = 8.0


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two days of four nodes in hour windows, as an import leaves them; one GPU loses lanes in the second day."""
    folder = tmp_path_factory.mktemp("history")
    made, rounds = Site(folder), list(Cluster(nodes=4, gpu_fault=lanes).rounds(HOURS, window_s=3600))
    for table in ("gpu", "host"):
        frame = pl.concat([getattr(round_, table) for round_ in rounds]).with_columns(cluster=pl.lit(CLUSTER))
        made.lake.write(f"{table}_1h", frame)
    return folder


@pytest.fixture
def site(lake: Path, tmp_path: Path) -> Site:
    """A site of its own over a copy."""
    shutil.copytree(lake / "lake", tmp_path / "lake")
    return Site(tmp_path)


def replay(site: Site, out: Path) -> int:
    return run(site.config, None, from_lake=str(site.folder / "lake"), out=out, stop=threading.Event())


def test_windows_of_an_import_are_replayed_and_the_lead_is_told(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Told in the second hour of the fault, a day before the repair that was logged; the history stays as it is."""
    repaired = START + timedelta(hours=BROKEN + 24)
    site.write("repair", [{"ts": repaired, "node_id": "id-node001", "node": "node001", "what": "riser reseated"}])
    site.write("repair", [{"ts": repaired, "node_id": "id-node003", "node": "node003", "what": "fan swapped"}])
    before = {t: site.lake.version(t) for t in ("gpu_1h", "incident", "finding")}
    assert replay(site, tmp_path / "out") == 0
    said = capsys.readouterr().out
    assert f"hour windows of cluster '{CLUSTER}', judged in hours, cluster '{CLUSTER}-replay'" in said
    assert "1 incidents told, 1 open at the end" in said
    assert "told 2026-03-03 04:00, 22.0 h earlier (a logged repair: riser reseated, 2026-03-04 02:00)" in said
    assert "told before people noticed: 1 of 1 with a notice; median 22.0 h earlier" in said
    assert "nothing was told in the four weeks before: 1" in said
    assert "id-node003: a logged repair: fan swapped" in said
    assert {t: site.lake.version(t) for t in before} == before
    kept = Lake(str(tmp_path / "out" / "lake")).read("incident")
    assert kept["cluster"].unique().to_list() == [f"{CLUSTER}-replay"]
    assert kept["node_id"].unique().to_list() == ["id-node001"]


def test_a_history_without_people_claims_nothing(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No repair, no drain, no failed node, no hard event: when people noticed is not known, and that is said."""
    assert replay(site, tmp_path / "out") == 0
    assert "not known: this history holds no repair" in capsys.readouterr().out


def test_a_cluster_is_asked_for_where_there_are_several(site: Site) -> None:
    """Two clusters in one lake are not mixed."""
    other = site.lake.read("gpu_1h").head(3).with_columns(cluster=pl.lit("other"))
    site.lake.write("gpu_1h", other)
    found = history(site.lake, CLUSTER, None, None)
    assert found is not None
    assert found.cluster == CLUSTER
    with pytest.raises(ConfigError, match="clusters other, prod"):
        history(site.lake, "third", None, None)


def test_raw_samples_are_replayed_where_they_reach_as_far(site: Site) -> None:
    """Hour windows serve only what raw samples no longer cover."""
    site.write("gpu", [{"ts": START + timedelta(hours=1), "node_id": "id-node000", "gpu_uuid": "GPU-000-0"}])
    assert history(site.lake, CLUSTER, None, None) is None
    assert history(site.lake, CLUSTER, START - timedelta(days=3), START) is None


def test_every_way_of_noticing_is_named_and_a_later_word_is_no_lead() -> None:
    """A drain, a failed node, a fault record, a label and the first hard event; told after them is told later."""
    noticed = Notices()
    who = {"cluster": "c", "node_id": "n", "node": "n", "boot_id": "b"}
    at = START
    noticed.add("node_state", [{**who, "ts": at, "scheduler_state": "DRAIN", "reason": "slow"}])
    noticed.add("job", [{**who, "ts": at + timedelta(hours=1), "state": "node_fail", "job_id": "7"}])
    noticed.add("job", [{**who, "ts": at + timedelta(hours=1), "state": "failed", "job_id": "8"}])
    noticed.add("label", [{**who, "ts": at + timedelta(hours=2), "verdict": "false", "why": "no"}])
    noticed.add("label", [{**who, "ts": at + timedelta(hours=3), "verdict": "true", "why": "yes"}])
    xid = {**who, "event_id": "e", "source": "kernel_log", "kind": "xid", "code": 79, "ts": at + timedelta(hours=4)}
    noticed.add("event", [{**xid, "pci_bus_id": "0000:01:00.0", "gpu_uuid": "G"}])
    noticed.add("event", [{**who, "ts": at + timedelta(hours=5), "kind": "fault_start", "message": "dimm"}])
    said = [n.what for n in sorted(noticed.found["n"])]
    assert [w.split(":")[0] for w in said] == [
        "taken out of scheduling", "job 7 ended because the node failed", "a person", "the first hard event",
        "a recorded fault",
    ]  # fmt: skip
    early, late = (Told(at + timedelta(minutes=m), "n", "n", "ticket", "t") for m in (-90, 20))
    ahead, behind = noticed.leads([early, late])
    assert ahead.ahead == timedelta(minutes=90)
    assert behind.ahead == timedelta(minutes=-20)
    assert noticed.untold([early]) == []
    assert [n.ts for n in noticed.untold([])] == [at]
