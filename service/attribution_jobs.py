"""Jobs of a lake: found by id, their placements on machines, those that ended, and those that stand still."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

import polars as pl

from graynode.detectors.attribution_hang import Standing, standing
from graynode.detectors.attribution_job import Placement, placements
from graynode.pipeline.lake import Lake, LakeError
from graynode.pipeline.queries import Queries, quoted

USUAL: Final = timedelta(minutes=50)
"""Windows before now that say what a job usually draws."""
LONGEST_HANG: Final = timedelta(hours=12)
STEP: Final = ("ts", "cluster", "job_id", "rank", "step", "seconds")
TRAINING: Final = ("training", "fine_tuning", None)
"""Kinds of work in which a job that stands still hangs: a notebook or a server may wait for its user."""
_LOOKED_AT: Final = 20_000
_BY_NAME: Final = r"^(slurm|kubernetes)(:|$)"
"""``node_id`` of rows that only name a node, as in ``pipeline.job_views``."""
_JOB: Final = ("ts", "cluster", "job_id", "node_id", "state", "end_ts", "nodes", "work")


@dataclass(slots=True)
class Jobs:
    """Reads jobs from one lake. ``LakeError`` and ``QueryError``: not now."""

    lake: Lake
    _queries: Queries | None = field(default=None, init=False)

    def close(self) -> None:
        """Let the database go."""
        if self._queries is not None:
            self._queries.close()
            self._queries = None

    def named(self, job: str) -> list[tuple[str, str]]:
        """Cluster and id of the jobs of this id; by the other name (``123_4``) where no id is so."""
        rows = self.lake.read("job", None, None, ["cluster", "job_id", "job_alias"])
        for column in ("job_id", "job_alias"):
            found = rows.filter(pl.col(column) == job).select("cluster", "job_id").unique().sort("cluster", "job_id")
            if found.height:
                return list(found.iter_rows())
        return []

    def near(self, job: str, most: int = 5) -> list[dict[str, Any]]:
        """Jobs whose id looks alike, then the latest that ended: for a person who mistyped."""
        rows = self.lake.read("job", None, None, ["cluster", "job_id", "end_ts", "ts"]).drop_nulls("job_id")
        last = rows.group_by("cluster", "job_id").agg(pl.col("end_ts").max(), pl.col("ts").max())
        latest = last.sort("end_ts", "ts", "job_id", descending=True, nulls_last=True).head(_LOOKED_AT)
        alike = difflib.get_close_matches(job[:100], latest.get_column("job_id").to_list(), most, 0.7)
        order = {job_id: place for place, job_id in reversed(list(enumerate(alike)))}
        told = sorted(latest.iter_rows(named=True), key=lambda row: order.get(row["job_id"], most))
        return told[:most]

    def span(self) -> tuple[int, datetime | None, datetime | None]:
        """How many jobs the lake has, and from when to when."""
        rows = self.lake.read("job", None, None, ["ts", "cluster", "job_id"]).drop_nulls("job_id")
        if rows.is_empty():
            return 0, None, None
        count = rows.select("cluster", "job_id").unique().height
        since, until = rows.select(pl.col("ts").min().alias("since"), pl.col("ts").max().alias("until")).row(0)
        return count, since, until

    def attempts(self, cluster: str, job_id: str, since: datetime | None = None) -> list[Placement]:
        """The placements of one job, by rows from ``since`` on."""
        return self.attempts_of(cluster, [job_id], since).get(job_id, [])

    def attempts_of(
        self, cluster: str, job_ids: Collection[str], since: datetime | None = None
    ) -> dict[str, list[Placement]]:
        """The placements of each job, by rows from ``since`` on, with one reading of the table for all; nodes that a
        scheduler names are the machines behind them."""
        if not job_ids:
            return {}
        rows = self.lake.read("job", since, None)
        rows = rows.filter(pl.col("cluster") == cluster, pl.col("job_id").is_in(list(job_ids)))
        named = rows.filter(pl.col("node_id").str.contains(_BY_NAME)).get_column("job_id").unique().to_list()
        if named:
            bound = self._open().frame(
                f"FROM job_placements WHERE job_id IN ({', '.join(map(quoted, sorted(named)))}) "
                f"AND cluster = {quoted(cluster)}"
            )
            rows = rows.filter(~pl.col("job_id").is_in(named))
            return {**_placed(rows), **_placed(bound)}
        return _placed(rows)

    def ended(self, cluster: str, since: datetime, until: datetime) -> dict[str, datetime]:
        """Jobs of more than one machine a placement of which ended then, other than well, with their last end."""
        rows = self._of("job", cluster, since, until, _JOB)
        of = pl.col("job_id")
        rows = rows.with_columns(
            several=(pl.col("nodes").max().over(of).fill_null(0) > 1) | (pl.col("node_id").n_unique().over(of) > 1)
        )
        over = rows.filter(pl.col("end_ts").is_not_null(), pl.col("state").ne_missing("completed"), "several")
        last = over.drop_nulls("job_id").group_by("job_id").agg(pl.col("end_ts").max()).sort("job_id")
        return {str(job): end for job, end in last.iter_rows()}

    def stands_still(self, cluster: str, now: datetime) -> dict[str, Standing]:
        """Running jobs of more than one machine that make no progress, all looked at with one reading of each table."""
        running = self._running(cluster, now)
        if not running:
            return {}
        windows = self.drawn(cluster, now - USUAL, now, running)
        steps = self._of("step", cluster, now - LONGEST_HANG, now, STEP)
        by_job = _by(steps, "job_id"), _by(windows, "job_id_last")
        empty = pl.DataFrame()
        found = {j: standing(by_job[0].get(j, empty), by_job[1].get(j, empty), now) for j in running}
        return {job: still for job, still in found.items() if still is not None}

    def drawn(self, cluster: str, since: datetime, until: datetime, jobs: Sequence[str]) -> pl.DataFrame:
        """One row a job and window: the least busy GPU and the mean power, which is all that a hang is told by.

        Without holding the whole cluster's windows in memory.
        """
        files = self.lake.files("gpu_30s", since, until)
        if not files:
            return pl.DataFrame()
        try:
            rows = self.lake.scan("gpu_30s", files).filter(
                pl.col("cluster") == cluster, pl.col("ts").is_between(since, until, "left"),
                pl.col("job_id_last").is_in(list(jobs)),
            )  # fmt: skip
            of = rows.group_by("job_id_last", "ts")
            return of.agg(pl.col("gpu_util_percent_mean").min(), pl.col("power_w_mean").mean()).collect()
        except pl.exceptions.PolarsError as error:
            raise LakeError(f"{self.lake.uri('gpu_30s')}: {error}") from error

    def _running(self, cluster: str, now: datetime) -> list[str]:
        rows = self._of("job", cluster, now - timedelta(days=14), now, _JOB)
        if rows.is_empty():
            return []
        jobs = rows.sort("ts").group_by("job_id").agg(
            pl.col("state").last(), pl.col("end_ts").is_not_null().last().alias("over"), pl.col("work").last(),
            pl.col("nodes").max(), pl.col("node_id").n_unique().alias("seen"),
        )  # fmt: skip
        work = pl.col("work").is_null() | pl.col("work").is_in([w for w in TRAINING if w])
        several = (pl.col("nodes").fill_null(0) > 1) | (pl.col("seen") > 1)
        on = jobs.filter(~pl.col("over"), pl.col("state") == "running", work, several)
        return sorted(on.get_column("job_id"))

    def _of(self, table: str, cluster: str, since: datetime, until: datetime, columns: Sequence[str]) -> pl.DataFrame:
        return self.lake.read(table, since, until, columns).filter(pl.col("cluster") == cluster)

    def _open(self) -> Queries:
        if self._queries is None:
            self._queries = Queries(self.lake, memory_limit="1GB", threads=1)
        return self._queries


def _by(rows: pl.DataFrame, column: str) -> dict[str, pl.DataFrame]:
    if rows.is_empty():
        return {}
    return {str(key[0]): part for key, part in rows.partition_by(column, as_dict=True).items()}


def _placed(rows: pl.DataFrame) -> dict[str, list[Placement]]:
    return {job_id: placements(of) for job_id, of in _by(rows, "job_id").items()}
