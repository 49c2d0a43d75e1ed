"""``pipeline.series``: the right table for a step, the right numbers from it, and a way out of every wrong question."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from graynode.pipeline.fleet_hours import fill
from graynode.pipeline.lake import Lake
from graynode.pipeline.lake_format import conform
from graynode.pipeline.queries import Queries
from graynode.pipeline.series import ENTITIES, MOST_POINTS, SeriesError, metrics, series

END = datetime(2026, 3, 10, 12, tzinfo=UTC)
DAY = timedelta(days=1)


class Site:
    """A lake whose windows are said row by row."""

    def __init__(self, folder: Path) -> None:
        self.lake = Lake(str(folder))
        self.queries = Queries(self.lake)

    def put(self, table: str, *rows: dict[str, Any]) -> None:
        told = [{"cluster": "c", "node_id": "id-n1", "node": "n1", **row} for row in rows]
        self.lake.write(table, conform(table, pl.DataFrame(told, infer_schema_length=None)))

    def gpu(self, table: str, back: timedelta, gpu: str = "GPU-0", **values: Any) -> None:
        window = {} if table == "gpu" else {"samples": 10, "samples_expected": 10}
        self.put(table, {"ts": END - back, "gpu_uuid": gpu, **window, **values})


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def values(site: Site, *question: Any) -> list[tuple[Any, ...]]:
    return series(site.queries, *question).frame.select("id", "value", "low", "high").rows()


def test_the_step_chooses_the_table(site: Site) -> None:
    """Samples below 30 s, 30 s windows below an hour, hours above, and the fleet's own hours for the fleet."""
    for hours in (1, 2, 3):
        site.gpu("gpu", timedelta(hours=hours), power_w=1.0)
        site.gpu("gpu_30s", timedelta(hours=hours), power_w_mean=2.0)
        site.gpu("gpu_1h", timedelta(hours=hours), power_w_mean=3.0)
    fill(site.lake)
    since = END - timedelta(hours=3)
    asked = {
        (entity, step): series(site.queries, "power_w", entity, ids, since, END, step)
        for entity, ids in (("gpu", ["GPU-0"]), ("fleet", []))
        for step in (1, 30, 3599, 3600, 86400)
    }
    assert {key: found.table for key, found in asked.items()} == {
        ("gpu", 1): "gpu", ("gpu", 30): "gpu_30s", ("gpu", 3599): "gpu_30s", ("gpu", 3600): "gpu_1h",
        ("gpu", 86400): "gpu_1h", ("fleet", 1): "gpu", ("fleet", 30): "gpu_30s", ("fleet", 3599): "gpu_30s",
        ("fleet", 3600): "fleet_1h", ("fleet", 86400): "fleet_1h",
    }  # fmt: skip
    assert {found.unit for found in asked.values()} == {"W"}
    assert asked["gpu", 3599].step_s == 3600  # of whole windows, and said
    assert asked["gpu", 3599].notes == ["step 3600 s: the windows that answer are 30 s long"]
    assert asked["fleet", 3600].frame["value"].to_list() == [3.0] * 3


def test_where_the_fine_table_does_not_reach_the_hours_answer(site: Site) -> None:
    """Of last month there are hours only: they answer, and the answer says so."""
    site.gpu("gpu_30s", timedelta(hours=1), power_w_mean=2.0)
    site.gpu("gpu_1h", 20 * DAY, power_w_mean=3.0)
    found = series(site.queries, "power_w", "gpu", ["GPU-0"], END - 20 * DAY, END, 60)
    assert (found.table, found.step_s, found.frame["value"].to_list()) == ("gpu_1h", 3600, [3.0])
    assert "does not reach back so far" in found.notes[0]
    assert series(site.queries, "power_w", "gpu", ["GPU-0"], END - DAY / 24, END, 60).table == "gpu_30s"


def test_means_are_weighted_and_counters_added(site: Site) -> None:
    """A window of half the samples weighs half; a counter's value is its increase in the step; null adds nothing."""
    site.gpu("gpu_1h", 2 * DAY, power_w_mean=100.0, power_w_min=90.0, power_w_max=110.0, energy_mj_delta=5, samples=30)
    site.gpu("gpu_1h", 2 * DAY - timedelta(hours=1), power_w_mean=200.0, power_w_min=10.0, energy_mj_delta=None)
    site.gpu("gpu_1h", 2 * DAY - timedelta(hours=2), power_w_mean=None, energy_mj_delta=7)
    at = (END - 2 * DAY, END, 86400)
    since = (END - 2 * DAY).replace(hour=0)
    power = values(site, "power_w", "gpu", ["GPU-0"], since, END, 86400)
    assert power == [("GPU-0", pytest.approx(125.0), 10.0, 110.0)]
    assert values(site, "energy_mj", "gpu", ["GPU-0"], *at) == [("GPU-0", 12.0, None, None)]
    assert values(site, "mem_temp_c", "gpu", ["GPU-0"], *at) == []


def test_a_raw_counter_that_falls_has_begun_anew(site: Site) -> None:
    """Increase inside one boot and driver load; a fall is no negative increase."""
    for second, count in ((50, 100), (40, 130), (30, 5), (20, 9)):
        site.gpu("gpu", timedelta(seconds=second), energy_mj=count, boot_id="b", driver_load=1)
    assert values(site, "energy_mj", "gpu", ["GPU-0"], END - timedelta(minutes=1), END, 1) == [
        ("GPU-0", 30.0, None, None), ("GPU-0", 4.0, None, None),
    ]  # fmt: skip


def test_nodes_by_name_or_id_and_links(site: Site) -> None:
    """The series is called as it was asked for; host fields, and those of a node's GPUs and ports, are all a node's."""
    site.put("host_1h", {"ts": END - DAY, "samples": 1, "cpu_util_percent_mean": 30.0})
    site.gpu("gpu_1h", DAY, temp_c_mean=60.0)
    site.gpu("gpu_1h", DAY, "GPU-1", temp_c_mean=80.0)
    site.gpu("gpu_1h", DAY, "GPU-1", temp_c_mean=10.0, mig_instance="1")
    site.put("link_1h", {"ts": END - DAY, "link": "mlx5_0/1", "rx_bytes_delta": 8, "samples": 1})
    at = (END - DAY, END, 3600)
    assert values(site, "cpu_util_percent", "node", ["n1"], *at)[0][:2] == ("n1", 30.0)
    assert values(site, "temp_c", "node", ["id-n1"], *at)[0][:2] == ("id-n1", 70.0)
    assert values(site, "rx_bytes", "link", ["n1/mlx5_0/1"], *at) == [("n1/mlx5_0/1", 8.0, None, None)]
    assert values(site, "rx_bytes", "link", ["n1/mlx5_0/2", "n2/mlx5_0/1"], *at) == []


def test_parts_of_the_fleet(site: Site) -> None:
    """By model, job and so on, from its hours and from windows alike."""
    for table in ("gpu_1h", "gpu_30s"):
        site.gpu(table, timedelta(hours=1), power_w_mean=100.0, gpu_model_last="H100", job_id_last="1")
        site.gpu(table, timedelta(hours=1), "GPU-1", power_w_mean=300.0, gpu_model_last="A100", job_id_last="1")
    fill(site.lake)
    since, ids = END - timedelta(hours=1), ["gpu_model=A100", "job_id=1"]
    for step, expected in (
        (3600, [("gpu_model=A100", 300.0), ("job_id=1", 200.0)]),
        (60, [("gpu_model=A100", 300.0), ("job_id=1", 100.0)]),  # a row of windows counts for the first part that fits
    ):
        assert [row[:2] for row in values(site, "power_w", "fleet", ids, since, END, step)] == expected


def test_no_more_points_than_can_be_drawn(site: Site) -> None:
    """The step grows until the answer fits, over all series together, and says so."""
    site.gpu("gpu_1h", 3650 * DAY, power_w_mean=1.0)
    for count in (1, 20):
        ids = [f"GPU-{i}" for i in range(count)]
        found = series(site.queries, "power_w", "gpu", ids, END - 3650 * DAY, END, 1)
        assert 3650 * 86400 * count / found.step_s <= MOST_POINTS
        assert any("11,000 points" in note for note in found.notes)


@pytest.mark.parametrize(
    ("question", "said"),
    [
        (("powerw", "gpu", ["x"]), "did you mean power_w?"),
        (("power_w", "planet", []), "there are fleet, node, gpu, link"),
        (("gpu_model", "gpu", ["x"]), "none such"),
        (("power_w", "gpu", []), "say which"),
        (("power_w", "fleet", ["n1"]), "partition=…"),
        (('power_w"; DROP', "fleet", []), "none such"),
    ],
)
def test_a_wrong_question_is_refused_with_the_way_out(site: Site, question: Any, said: str) -> None:
    """Unknown metric, unknown entity, no id, an id that means nothing."""
    with pytest.raises(SeriesError, match=said.replace("?", r"\?")):
        series(site.queries, *question, END - DAY, END, 3600)
    with pytest.raises(SeriesError, match="is not before"):
        series(site.queries, "power_w", "fleet", [], END, END, 3600)


@pytest.mark.parametrize("id_", ["'; DROP TABLE x; --", 'partition=a" OR true --', "x' OR '1'='1", "\x1b[31m", ""])
def test_hostile_ids_find_nothing(site: Site, id_: str) -> None:
    """Quoted into the statement: no row, no error, nothing else."""
    site.gpu("gpu_1h", DAY, power_w_mean=1.0)
    fill(site.lake)
    for entity in ("node", "gpu", "link"):
        metric = "rx_bytes" if entity == "link" else "power_w"
        assert values(site, metric, entity, [id_], END - DAY, END, 3600) == []
    assert values(site, "power_w", "fleet", [f"partition={id_}"], END - DAY, END, 3600) == []


def test_an_empty_lake_gives_no_rows(site: Site) -> None:
    """Of every metric of every entity the statement holds good, by windows and by hours."""
    for entity in ENTITIES:
        ids = [] if entity == "fleet" else ["n/l"]
        for raw, f in metrics(entity)[::7]:
            for step in (1, 30, 3600):
                found = series(site.queries, f.name, entity, ids, END - DAY / 24, END, step)
                assert found.frame.is_empty(), (raw, f.name)
