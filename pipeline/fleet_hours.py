"""Table ``fleet_1h``: made of ``gpu_1h`` by the lake's one maintainer, and at the end of a simulation or an import.

A day of it is one file, and every change is one transaction that replaces the day, so a kill leaves the day as it was
or as it should be. Rows of ``gpu_1h`` are never changed once written, so a day is whole exactly when the rows that it
was made of are as many as ``gpu_1h`` has: that count is kept in the same transaction (application id
``windows:<date>``). Machines that were late make the counts differ, and their hours are made anew. A second writer at
the same moment is refused by the transaction log (application id ``fleet_hours`` counts the commits).

Partition and rack are those that were known when the hour was made: of the job by table ``job``, else of the latest
job placed on the node; of the rack by table ``inventory``.
"""

from __future__ import annotations

import threading
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Final

import polars as pl
import structlog
from deltalake import Transaction

from graynode.pipeline.fleet_rows import GPU_COLUMNS, GROUP, merge, of_gpus
from graynode.pipeline.lake import Lake
from graynode.pipeline.lake_format import frame_schema
from graynode.pipeline.place_rows import of_inventory
from graynode.pipeline.whole_days import replace_day

_log = structlog.get_logger()

TABLE: Final = "fleet_1h"
SOURCE: Final = "gpu_1h"
_COMMITS: Final = "fleet_hours"
_WINDOWS: Final = "windows:"
_PLACED: Final = timedelta(days=14)
"""How old a placement may be that tells a node's partition."""
_DAY: Final = timedelta(days=1)
_JOB: Final = ["ts", "cluster", "node_id", "node", "job_id", "partition", "state"]
_INVENTORY: Final = ["ts", "cluster", "node_id", "kind", "entity", "domain", "attributes"]


def fill(lake: Lake, stop: threading.Event | None = None) -> int:
    """Make what is missing or has changed, the newest day first; gives how many hours were written.

    ``LakeError``: not now. A day that somebody else changed meanwhile is left for the next call.
    """
    source = _windows_by_day(lake)
    if not source:
        return 0
    made = lake.create(TABLE)
    due = [day for day in sorted(source, reverse=True) if made.transaction_version(_WINDOWS + day) != source[day]]
    if not due:
        return 0
    racks = _racks(lake)
    hours = 0
    for day in due:
        if stop is not None and stop.is_set():
            break
        hours += _make_day(lake, day, racks)
    return hours


def _windows_by_day(lake: Lake) -> Counter[str]:
    """Rows of ``gpu_1h`` by date, by the log's statistics: no file is opened."""
    found: Counter[str] = Counter()
    if not lake.exists(SOURCE):
        return found
    actions = lake.table(SOURCE).get_add_actions(flatten=True)
    days, rows = (actions.column(name).to_pylist() for name in ("partition.date", "num_records"))
    for day, count in zip(days, rows, strict=True):
        found[str(day)] += int(count or 0)
    return found


def _make_day(lake: Lake, day: str, racks: pl.DataFrame) -> int:
    """Replace a day by what it should be; 0 where somebody else did so meanwhile."""
    since = datetime.fromisoformat(day).replace(tzinfo=UTC)
    until = since + _DAY
    handle = lake.create(TABLE)
    uris = handle.file_uris(file_pruning_predicate=f"date = '{day}'")
    kept = lake.scan(TABLE, uris).collect() if uris else pl.DataFrame(schema=frame_schema(TABLE))
    there = lake.read(SOURCE, since, until, ["ts"]).group_by("ts").len()
    have = kept.group_by("ts").agg(pl.col("windows").sum())
    told = there.join(have, on="ts", how="left").filter(pl.col("len") != pl.col("windows").fill_null(0))
    hours = told.get_column("ts").sort()
    parts = [kept.filter(~pl.col("ts").is_in(hours.implode()))]
    if hours.len():
        rows = lake.read(SOURCE, hours[0], hours[-1] + timedelta(hours=1), GPU_COLUMNS)
        parts.append(merge(of_gpus(_placed(lake, rows.filter(pl.col("ts").is_in(hours.implode())), racks))))
    frame = pl.concat(parts).sort(list(GROUP), nulls_last=True)
    number, windows = (handle.transaction_version(_COMMITS) or 0) + 1, int(frame["windows"].sum() or 0)
    done = [Transaction(_COMMITS, number), Transaction(_WINDOWS + day, windows)]
    return hours.len() if replace_day(handle, TABLE, day, frame, done) else 0


# --- partition and rack -------------------------------------------------------------------------------------


def _racks(lake: Lake) -> pl.DataFrame:
    """The rack of each node as the inventory says it now."""
    rows = lake.read("inventory", columns=_INVENTORY).filter(pl.col("kind").is_in(["node", "gpu"]))
    made = [pl.DataFrame(schema={"cluster": pl.String, "node_id": pl.String, "rack": pl.String})]
    for (cluster,), some in rows.group_by("cluster"):
        racks = of_inventory(some, ports=False).filter(pl.col("kind") == "rack").sort("name")
        first = racks.group_by(pl.col("node").alias("node_id")).agg(pl.col("name").first().alias("rack"))
        made.append(first.select(pl.lit(cluster).alias("cluster"), "node_id", "rack"))
    return pl.concat(made)


def _placed(lake: Lake, rows: pl.DataFrame, racks: pl.DataFrame) -> pl.DataFrame:
    """Rows of ``gpu_1h`` with ``partition`` and ``rack``."""
    first, last = rows["ts"].min(), rows["ts"].max()
    if not isinstance(first, datetime) or not isinstance(last, datetime):
        return rows.with_columns(pl.lit(None, pl.String).alias(name) for name in ("partition", "rack"))
    jobs = lake.read("job", first - _PLACED, last + timedelta(hours=1), _JOB).drop_nulls(["partition", "ts"]).sort("ts")
    of_job = jobs.drop_nulls("job_id").group_by("cluster", job_id_last="job_id").agg(
        pl.col("partition").last().alias("of_job")
    )  # fmt: skip
    # A scheduler names nodes, not machines: the host name that the machine has here tells which is meant
    names = rows.select("cluster", "node", node_known="node_id").drop_nulls().unique(["cluster", "node"])
    placed = jobs.filter(pl.col("state").fill_null("") != "queued").join(names, on=["cluster", "node"], how="left")
    of_node = placed.select(
        "ts", "cluster", pl.coalesce("node_known", "node_id").alias("node_id"), pl.col("partition").alias("of_node")
    )
    told = (
        rows.with_columns((pl.col("ts") + timedelta(hours=1)).alias("_end"))
        .sort("_end")
        .join_asof(
            of_node, left_on="_end", right_on="ts", by=["cluster", "node_id"], strategy="backward",
            check_sortedness=False,
        )
        .join(of_job, on=["cluster", "job_id_last"], how="left")
        .join(racks, on=["cluster", "node_id"], how="left")
    )  # fmt: skip
    return told.with_columns(pl.coalesce("of_job", "of_node").alias("partition"))
