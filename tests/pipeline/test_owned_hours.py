"""``owned_hours``: what is stored of GPU-hours is what they are reckoned to be, and is made again when that changes."""

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest
from deltalake import write_deltalake
from lake_files import LakeFiles
from owned_gpus import Owned, at

from graynode.pipeline import owned_hours
from graynode.pipeline.lake import Lake
from graynode.pipeline.lake_format import conform
from graynode.pipeline.maintenance import Maintainer
from graynode.pipeline.owned_hours import OwnedHours
from graynode.pipeline.queries import Queries
from graynode.service.cost_days import Days

SUMS = ("gpu_hours", "util_percent_h", "sm_active_ratio_of_h", "power_w_h")


class Landed(Lake):
    """A lake that takes rows as ``Owned`` gives them."""

    def put(self, table: str, rows: list[dict[str, Any]]) -> None:
        """As the pipeline writes them."""
        self.write(table, conform(table, pl.DataFrame(rows, infer_schema_length=None)))


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Owned]:
    """A day and a half of four GPUs on two nodes: work, an idle job, a drained node, a GPU nobody sees."""
    made = Owned(tmp_path, Landed(str(tmp_path)))  # type: ignore[arg-type]  # what Owned needs of a lake it has
    for node in ("n1", "n2"):
        for i in range(2):
            made.gpu(f"{node}-{i}", node)
    for hour in range(36):
        made.hour("n1-0", hour, sm=0.7)
        made.hour("n1-1", hour, mem_used_bytes_mean=int(6e10))
        if hour % 5:
            made.hour("n2-0", hour, "n2", samples=1800)
    made.job("long", ["n1-0"], 2.25, 33.5)
    made.job("idle", ["n1-1"], 20, 30.75, user="bob", account="chemistry")
    made.put("node_state", 26.5, "n2", scheduler_state="DRAIN", reason="look")
    made.put("node_state", 30.5, "n2", scheduler_state="IDLE")
    made.write()
    yield made
    made.queries.close()


def _clock(hours: float) -> OwnedHours | Any:
    return lambda: at(hours).timestamp()


def _fill(fleet: Owned, hours: float = 100.0) -> int:
    return OwnedHours(fleet.lake, clock=_clock(hours)).fill()  # type: ignore[arg-type]


def _reckoned(fleet: Owned, since: datetime, until: datetime) -> pl.DataFrame:
    """The same of a lake without the table."""
    with_it = fleet.queries
    lake = LakeFiles(Path(fleet.lake.path) / "none")
    for table in ("gpu_1h", "host_1h", "job", "node_state", "inventory", "incident"):
        lake._files[table] = with_it.files(table)
        lake._changes[table] = 0
    lake.path = fleet.lake.path
    queries = Queries(lake)
    try:
        return _sorted(Days().between(queries, since, until))
    finally:
        queries.close()


def _sorted(rows: pl.DataFrame) -> pl.DataFrame:
    keys = [name for name, kind in rows.schema.items() if kind == pl.String or name == "day"]
    numbers = [pl.col(name).round(6) for name in SUMS]
    return rows.group_by(keys).agg(pl.col(SUMS).sum()).with_columns(numbers).sort(keys, nulls_last=True)


def _stored(fleet: Owned, since: datetime, until: datetime) -> pl.DataFrame:
    return _sorted(Days().between(fleet.queries, since, until))


def test_stored_days_are_what_is_reckoned(fleet: Owned) -> None:
    """By day, model, category and job, with every sum; and four GPUs for 36 hours are 144 GPU-hours."""
    before = _reckoned(fleet, at(0), at(36))
    assert _fill(fleet) == 2
    stored = _stored(fleet, at(0), at(36))
    assert stored.equals(before)
    assert stored["gpu_hours"].sum() == pytest.approx(144.0)
    assert set(stored["category"]) == {
        "busy_useful",
        "allocated_idle",
        "held",
        "free",
        "stranded",
        "blind",
        "out_of_service",
    }


@pytest.mark.long
def test_hours_of_stored_days_add_up(fleet: Owned) -> None:
    """Any cut at whole hours gives two stretches that sum to the whole, and to what was owned in each."""
    _fill(fleet)
    for cut in (1, 24, 29):
        parts = [_stored(fleet, at(0), at(cut)), _stored(fleet, at(cut), at(36))]
        assert [part["gpu_hours"].sum() for part in parts] == pytest.approx([4.0 * cut, 4.0 * (36 - cut)])


@pytest.mark.long
def test_a_stretch_that_cuts_an_hour_is_reckoned(fleet: Owned) -> None:
    """Half an hour of a GPU is not in the table: the answer is the same with it and without it."""
    before = _reckoned(fleet, at(3.5), at(20.25))
    _fill(fleet)
    assert _stored(fleet, at(3.5), at(20.25)).equals(before)


def test_nothing_is_made_twice_and_joining_files_changes_nothing(fleet: Owned) -> None:
    """A second round writes nothing, nor does one after small files were joined and days sorted; nor a new process."""
    kept = OwnedHours(fleet.lake, clock=_clock(100))  # type: ignore[arg-type]
    assert (kept.fill(), kept.fill()) == (2, 0)
    for hour in range(70):
        fleet.put("node_state", 37 + hour / 100, "n9", scheduler_state="IDLE", reason=str(hour))
        fleet.write()
    kept = OwnedHours(fleet.lake, clock=_clock(100))  # type: ignore[arg-type]
    kept.fill()
    version = fleet.lake.version("owned_hours")
    maintainer = Maintainer(fleet.lake, clock=_clock(100))  # type: ignore[arg-type]
    done = maintainer.round()
    assert done.compacted + done.hours > 0
    assert (done.owned_days, _fill(fleet), fleet.lake.version("owned_hours")) == (0, 0, version)


@pytest.mark.long
def test_late_windows_renew_their_day(fleet: Owned) -> None:
    """A node whose hours of the first day come on the third: that day and those after it are made again, and right."""
    _fill(fleet)
    blind = _stored(fleet, at(0), at(24)).filter(pl.col("category") == "blind")["gpu_hours"].sum()
    for hour in range(0, 24, 5):
        fleet.hour("n2-0", hour, "n2")
    fleet.write()
    assert _fill(fleet) == 2
    after = _stored(fleet, at(0), at(24))
    assert after.filter(pl.col("category") == "blind")["gpu_hours"].sum() == pytest.approx(blind - 5)
    assert after.equals(_reckoned(fleet, at(0), at(24)))


LATE: Final[tuple[tuple[str, int, dict[str, Any]], ...]] = (
    ("job", 1, {"state": "completed", "job_id": "late", "allocated_ts": at(30), "end_ts": at(34), "requeues": 0,
                "gpu_uuids": json.dumps(["n2-1"]), "gpus": 1, "nodes": 1, "user": "eve"}),
    ("node_state", 1, {"scheduler_state": "DOWN", "reason": "power"}),
    ("inventory", 1, {"kind": "gpu", "entity": "n2-9", "slot": "n2-9", "model": "H200"}),
    ("incident", 1, {"incident_id": "i", "revision": 0, "state": "open", "cause": "nvlink_fault", "since": at(5),
                     "severity": "page"}),
)  # fmt: skip


def test_late_facts_renew_what_they_are_about(fleet: Owned) -> None:
    """A job, a state, a GPU and a broken NVLink told afterwards: the days that they touch, no other, and rightly."""
    _fill(fleet)
    for table, days, row in LATE:
        fleet.put(table, 35, "n2", **row)
        fleet.write()
        assert (table, _fill(fleet)) == (table, days + (table == "incident"))
    assert _stored(fleet, at(0), at(36)).equals(_reckoned(fleet, at(0), at(36)))


@pytest.mark.long
def test_the_end_of_a_long_job_changes_the_day_on_which_it_ends(tmp_path: Path) -> None:
    """Told once it is known: the days before stay as they are."""
    made = Owned(tmp_path, Landed(str(tmp_path)))  # type: ignore[arg-type]
    made.gpu("g")
    made.hours("g", 0, 48, sm=0.5)
    made.job("7", ["g"], 1)
    made.write()
    assert _fill(made) == 2
    made.job("7", ["g"], 1, 42)
    made.write()
    version = made.lake.version("owned_hours")
    assert _fill(made) == 1
    assert made.lake.version("owned_hours") == version + 1
    assert _stored(made, at(24), at(48)).filter(job_id="7")["gpu_hours"].to_list() == [18.0]
    made.queries.close()


def test_the_day_that_goes_on_grows_by_the_hour(fleet: Owned) -> None:
    """It is made when an hour has come, not with every job that is told; what is not stored yet is reckoned."""
    kept = OwnedHours(fleet.lake, clock=_clock(36.5))  # type: ignore[arg-type]
    assert kept.fill() == 2
    fleet.job("new", ["n2-1"], 35.5, node="n2")
    fleet.write()
    assert OwnedHours(fleet.lake, clock=_clock(36.6)).fill() == 0  # type: ignore[arg-type]
    for gpu in ("n1-0", "n1-1"):
        fleet.hour(gpu, 36, sm=0.7)
    fleet.write()
    assert _stored(fleet, at(24), at(37))["gpu_hours"].sum() == pytest.approx(4 * 13)
    assert OwnedHours(fleet.lake, clock=_clock(37.1)).fill() == 1  # type: ignore[arg-type]
    assert _stored(fleet, at(24), at(37))["gpu_hours"].sum() == pytest.approx(4 * 13)


@pytest.mark.long
def test_what_was_made_stays_when_its_windows_are_gone(fleet: Owned) -> None:
    """Two years of windows are kept, and what they cost is known for as long as it is stored."""
    _fill(fleet)
    before = _stored(fleet, at(0), at(24))
    day = at(0).date().isoformat()
    for table in ("gpu_1h", "host_1h"):
        fleet.lake.table(table).delete(f"date = '{day}'")  # type: ignore[attr-defined]
    _fill(fleet)
    assert _stored(fleet, at(0), at(24)).equals(before)


@pytest.mark.long
def test_somebody_else_at_the_same_time_wins_and_nothing_doubles(fleet: Owned, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second maintainer's transaction in between makes ours fail; the day is right all the same."""
    real, others = write_deltalake, OwnedHours(fleet.lake, clock=_clock(100))  # type: ignore[arg-type]

    def late(*args: Any, **more: Any) -> None:
        monkeypatch.setattr(owned_hours, "write_deltalake", real)
        others.fill()
        real(*args, **more)

    monkeypatch.setattr(owned_hours, "write_deltalake", late)
    assert _fill(fleet) == 1
    assert _stored(fleet, at(0), at(36))["gpu_hours"].sum() == pytest.approx(144.0)


def test_an_empty_lake_has_nothing_to_make(tmp_path: Path) -> None:
    """No table appears, and no error."""
    lake = Lake(str(tmp_path))
    assert (owned_hours.fill(lake), lake.exists("owned_hours")) == (0, False)
