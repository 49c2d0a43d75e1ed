"""``graynode replay`` over months that are there as hour windows, and how long before people noticed."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from people_site import CLUSTER, Site
from window_rounds import START, Cluster, Columns

from graynode.pipeline.lake import Lake
from graynode.service.config import ConfigError
from graynode.service.noticed import Notices, Told
from graynode.service.prometheus.command import Options
from graynode.service.prometheus.command import run as import_run
from graynode.service.replay_windows import history
from graynode.service.replaying import run

HOURS = 48
BROKEN = 20
OLD = (datetime.now(UTC) - timedelta(days=30)).replace(hour=0, minute=0, second=0, microsecond=0)


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


@pytest.mark.parametrize("told_late_h", [0, 1])
def test_programs_errors_that_stay_on_one_gpu_are_told_from_the_rows_up_to_then(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str], told_late_h: int
) -> None:
    """Three users' jobs: a ticket about the GPU; a placement that is told only after the error tells nothing."""
    who = {"node_id": "id-node000", "node": "node000", "boot_id": "b"}
    for n, user in enumerate(("ann", "ben", "eve")):
        began = START + timedelta(hours=3 * n + 1)
        job = {**who, "job_id": f"j{n}", "user": user, "allocated_ts": began, "gpu_uuids": '["GPU-000-0"]'}
        late = timedelta(hours=told_late_h if user == "eve" else 0)
        over = began + timedelta(minutes=40)
        site.write("job", [{**job, "ts": began + late, "state": "running"}])
        site.write("job", [{**job, "ts": over + late, "state": "failed", "end_ts": over}])
        site.write("event", [{**who, "ts": began + timedelta(minutes=30), "event_id": f"e{n}", "kind": "xid",
                              "code": 31, "source": "kernel_log", "gpu_uuid": "GPU-000-0"}])  # fmt: skip
    assert replay(site, tmp_path / "out") == 0
    assert ("application errors that stay on one GPU" in capsys.readouterr().out) == (not told_late_h)


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


def _series(
    number: int, metric: str, value: Callable[[int], float]
) -> tuple[dict[str, str], list[tuple[float, float]]]:
    node = f"n{number // 8}"
    said = {
        "__name__": metric, "gpu": str(number % 8), "UUID": f"GPU-{number:04d}", "Hostname": node,
        "modelName": "NVIDIA H100 80GB HBM3", "instance": f"{node}:9400", "job": "dcgm-exporter",
    }  # fmt: skip
    begin = int(OLD.timestamp())
    return said, [(begin + 60.0 * i + 7.0, value(i)) for i in range(HOURS * 60)]


def test_what_was_imported_from_prometheus_is_replayed(
    shared_metrics_server: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A month-old history: the import keeps windows only, and the replay names the node whose row remap failed."""
    made = []
    for g in range(16):
        made.append(_series(g, "DCGM_FI_DEV_SM_CLOCK", lambda i, g=g: 1700.0 + g))
        made.append(_series(g, "DCGM_FI_DEV_GPU_UTIL", lambda i: 98.0))
        failed = 9 if g == 11 else -1
        made.append(_series(g, "DCGM_FI_DEV_ROW_REMAP_FAILURE", lambda i, h=failed: float(0 <= h * 60 <= i)))
    server = shared_metrics_server("VictoriaMetrics", made)
    site = Site(tmp_path)
    asked = Options(url=server.url, since=OLD.isoformat(), until=(OLD + timedelta(hours=HOURS)).isoformat(),
                    rate=1000.0, step_s=300.0)  # fmt: skip
    import_run(site.config, asked)
    assert site.lake.read("gpu").height == 0
    assert site.lake.read("gpu_1h").height
    capsys.readouterr()
    assert replay(site, tmp_path / "out") == 0
    said = capsys.readouterr().out
    (told,) = [line for line in said.splitlines() if line.startswith("20") and "page" in line]
    assert told.startswith(f"{OLD + timedelta(hours=10):%Y-%m-%d %H:%M:%S}  page   n1: ")
    assert "not known: this history holds no repair" in said
