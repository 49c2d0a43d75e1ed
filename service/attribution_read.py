"""What the lake knows around one placement of a job, as the frames that ``detectors.attribution`` judges.

Only the contract's tables are asked, each pruned on its dates; what is not there is said. Nodes that go by the
scheduler's names are told by the machines that bore them (view ``job_placements``).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

import polars as pl
from polars import selectors

from graynode.detectors.attribution import Case
from graynode.detectors.attribution_hang import Standing, last_step, standing
from graynode.detectors.attribution_job import Placement, placements
from graynode.detectors.attribution_log import waited_since
from graynode.detectors.attribution_machines import heard
from graynode.pipeline.lake import Lake
from graynode.pipeline.queries import Queries

_HISTORY: Final = timedelta(days=30)
_OTHERS: Final = timedelta(days=7)
_USUAL: Final = timedelta(minutes=50)
"""Windows before the end that say what a job usually draws."""
_LOOKED_AT: Final = 20_000
_BY_NAME: Final = r"^(slurm|kubernetes)(:|$)"
"""``node_id`` of rows that only name a node, as in ``pipeline.job_views``."""
_AROUND: Final = timedelta(minutes=2)
_XIDS_OF_PROGRAMS: Final = ("xid", "application_error")
_GPU: Final = (
    "ts", "cluster", "node_id", "boot_id", "gpu_uuid", "pci_bus_id_last", "job_id_last", "gpu_util_percent_mean",
    "power_w_mean", "job_rank_last",
)  # fmt: skip
_HOST: Final = ("ts", "cluster", "node_id", "node", "boot_id", "clock_skew_s_mean")
_JOB: Final = ("ts", "cluster", "job_id", "node_id", "node", "state", "user", "end_ts", "allocated_ts", "requeues")
_ASKED: Final = ("event", "job_log", "step", "finding", "node_state", "gpu_30s", "host_30s")
TRAINING: Final = ("training", "fine_tuning", None)
"""Kinds of work in which a job that stands still hangs: a notebook or a server may wait for its user."""


@dataclass(slots=True)
class Reader:
    """Reads cases from one lake. ``LakeError`` and ``QueryError``: not now."""

    lake: Lake
    _queries: Queries | None = field(default=None, init=False)

    def close(self) -> None:
        """Let the database go."""
        if self._queries is not None:
            self._queries.close()
            self._queries = None

    # --- jobs ---------------------------------------------------------------------------------------------

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
        """Its placements, by rows from ``since`` on; nodes that a scheduler names are the machines behind them."""
        rows = self.lake.read("job", since, None)
        rows = rows.filter(pl.col("cluster") == cluster, pl.col("job_id") == job_id)
        if rows.get_column("node_id").str.contains(_BY_NAME).any():
            rows = self._ask(f"FROM job_placements WHERE job_id = {_quoted(job_id)} AND cluster = {_quoted(cluster)}")
        return placements(rows) if rows.height else []

    def ended(self, cluster: str, since: datetime, until: datetime) -> dict[str, datetime]:
        """Jobs of more than one machine a placement of which ended then, other than well, with their last end."""
        rows = self._table("job", cluster, since, until, [*_JOB, "nodes"])
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
        windows = self._table("gpu_30s", cluster, now - _USUAL, now, _GPU).filter(pl.col("job_id_last").is_in(running))
        steps = self._table(
            "step", cluster, now - timedelta(hours=12), now, ["ts", "cluster", "job_id", "rank", "step", "seconds"]
        )
        by_job = _by(steps, "job_id"), _by(_of_jobs(windows), "job_id_last")
        empty = pl.DataFrame()
        found = {j: standing(by_job[0].get(j, empty), by_job[1].get(j, empty), now) for j in running}
        return {job: still for job, still in found.items() if still is not None}

    def _running(self, cluster: str, now: datetime) -> list[str]:
        rows = self._table("job", cluster, now - timedelta(days=14), now, [*_JOB, "nodes", "work"])
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

    # --- one placement ------------------------------------------------------------------------------------

    def case(self, placed: Placement, now: datetime) -> Case:
        """All that is known around it."""
        end, cluster = placed.end or now, placed.cluster
        log = self._log(placed, now)
        steps = self._steps(placed, end)
        usual = self._table("gpu_30s", cluster, end - _USUAL, end, _GPU, list(placed.machines))
        usual = usual.filter(pl.col("job_id_last").is_null() | (pl.col("job_id_last") == placed.job_id))
        still = standing(steps, _of_jobs(usual), end) if placed.work in TRAINING else None
        began = [t for t in (still.since if still else None, waited_since(log)) if t is not None]
        placed = placed.standing_since(min(began, default=None))
        since, until = placed.window(now)
        around = (since - _AROUND, min(until, now) + _AROUND)
        hosts = self._table("host_30s", cluster, *around, _HOST, list(placed.machines))
        gpus = self._table("gpu_30s", cluster, end - timedelta(minutes=15), until, _GPU, list(placed.machines))
        events = self._of_machines("event", placed, *around)
        known = last_step(steps)
        return Case(
            placement=placed,
            now=now,
            events=events,
            log=log,
            findings=self._of_machines("finding", placed, *around).unique("finding_id", maintain_order=True),
            states=self._of_machines("node_state", placed, *around),
            gpus=gpus,
            hosts=hosts,
            history=self._history(placed, events),
            same_image=self._same_image(placed, end),
            others=self._others(placed, end),
            standing=still,
            last_step=known[0] if known else None,
            missing=tuple(self._missing(placed, log, steps, heard(placed, hosts, gpus))),
        )

    def _log(self, placed: Placement, now: datetime) -> pl.DataFrame:
        since, until = placed.window(now)
        rows = self._table("job_log", placed.cluster, since - timedelta(hours=1), until)
        return rows.filter(pl.col("job_id") == placed.job_id)

    def _steps(self, placed: Placement, end: datetime) -> pl.DataFrame:
        since = max(placed.start or end - timedelta(hours=12), end - timedelta(hours=12))
        columns = ["ts", "cluster", "job_id", "rank", "step", "seconds"]
        rows = self._table("step", placed.cluster, since, end + timedelta(minutes=1), columns)
        return rows.filter(pl.col("job_id") == placed.job_id)

    def _of_machines(self, table: str, placed: Placement, since: datetime, until: datetime) -> pl.DataFrame:
        """Rows of its machines, by id or by the name that the scheduler gives them; then under the machine's id."""
        rows = self._table(table, placed.cluster, since, until)
        return _bound(rows, placed)

    def _others(self, placed: Placement, end: datetime) -> pl.DataFrame:
        rows = self._table("job", placed.cluster, end - _OTHERS, end + timedelta(minutes=5), _JOB)
        return _bound(rows.filter(pl.col("end_ts").is_not_null(), pl.col("job_id") != placed.job_id), placed)

    def _same_image(self, placed: Placement, end: datetime) -> pl.DataFrame:
        if placed.image_digest is None:
            return pl.DataFrame()
        columns = ["ts", "cluster", "job_id", "node_id", "state", "end_ts", "image_digest", "code_revision"]
        rows = self._table("job", placed.cluster, end - _HISTORY, end + timedelta(days=1), columns)
        return rows.filter(pl.col("image_digest") == placed.image_digest, pl.col("end_ts").is_not_null())

    def _history(self, placed: Placement, events: pl.DataFrame) -> pl.DataFrame:
        """Xids of programs on the GPUs that showed one now, of the last weeks, with the job that ran there then."""
        now_here = _program_xids(events)
        if now_here.is_empty():
            return pl.DataFrame()
        end = now_here.get_column("ts").max()
        assert isinstance(end, datetime)  # noqa: S101 (a time, by the column's type)
        machines = sorted(set(now_here.get_column("node_id")))
        earlier = _program_xids(self._table("event", placed.cluster, end - _HISTORY, end, None, machines))
        jobs = self._table("job", placed.cluster, end - _HISTORY - timedelta(days=14), end + _OTHERS, _JOB)
        return _with_jobs(earlier, _bound(jobs, placed))

    def _missing(
        self, placed: Placement, log: pl.DataFrame, steps: pl.DataFrame, machines: Iterable[str]
    ) -> Iterable[str]:
        absent = [table for table in _ASKED if not self.lake.exists(table)]
        for table in absent:
            yield f"{table}: the lake has no such table"
        if log.is_empty() and "job_log" not in absent:
            yield "job_log: no telling line of this job (reading outputs is opt-in: [job_log] paths)"
        if steps.is_empty() and "step" not in absent:
            yield "step: no step times of this job (docs/steps.md)"
        if placed.end is not None and placed.state is None:
            yield "job: no scheduler said how it ended; an agent only saw it go"
        if not placed.machines:
            yield "job: on which machines it ran is not known"
        unheard = sorted(set(placed.machines) - set(machines))
        if unheard:
            names = ", ".join(str(placed.machines[n] or n) for n in unheard[:5])
            more = ", …" if len(unheard) > 5 else ""
            of = f"{len(unheard)} of {len(placed.machines)} machines"
            yield f"windows: {of} were not heard of around its end: {names}{more}"

    # --- tables -------------------------------------------------------------------------------------------

    def _table(
        self,
        table: str,
        cluster: str,
        since: datetime,
        until: datetime,
        columns: Sequence[str] | None = None,
        machines: Sequence[str] | None = None,
    ) -> pl.DataFrame:
        rows = self.lake.read(table, since, until, columns, machines)
        return rows.filter(pl.col("cluster") == cluster)

    def _ask(self, sql: str) -> pl.DataFrame:
        frame = pl.from_arrow(self._open().arrow(sql))
        assert isinstance(frame, pl.DataFrame)  # noqa: S101 (a table gives a frame; narrows the type)
        return frame.with_columns(selectors.datetime().dt.convert_time_zone("UTC"))  # DuckDB calls it Etc/UTC

    def _open(self) -> Queries:
        if self._queries is None:
            self._queries = Queries(self.lake, memory_limit="1GB", threads=1)
        return self._queries


def _quoted(text: str) -> str:
    """A text as SQL writes it."""
    return "'" + text.replace("'", "''") + "'"


def _bound(rows: pl.DataFrame, placed: Placement) -> pl.DataFrame:
    """Rows of its machines, those under the scheduler's name of one under that machine's id."""
    names = {name: node_id for node_id, name in placed.machines.items() if name}
    known = pl.col("node_id").is_in(list(placed.machines))
    bound = (
        pl.when(known)
        .then("node_id")
        .otherwise(pl.col("node").replace_strict(names, default=None, return_dtype=pl.String))
    )
    return rows.with_columns(node_id=bound).filter(pl.col("node_id").is_not_null()) if rows.height else rows


def _of_jobs(windows: pl.DataFrame) -> pl.DataFrame:
    """One row a job and window: the least busy GPU and the mean power, which is all that a hang is told by."""
    return windows.group_by("job_id_last", "ts").agg(
        pl.col("gpu_util_percent_mean").min(), pl.col("power_w_mean").mean()
    )


def _by(rows: pl.DataFrame, column: str) -> dict[str, pl.DataFrame]:
    return {str(key[0]): part for key, part in rows.partition_by(column, as_dict=True).items()}


def _program_xids(events: pl.DataFrame) -> pl.DataFrame:
    """Xids that the policy calls the application's."""
    from graynode.detectors.policy import shipped

    codes = [code for code, xid in shipped().xids.items() if xid.cause == _XIDS_OF_PROGRAMS[1]]
    return (
        events.filter(pl.col("kind") == _XIDS_OF_PROGRAMS[0], pl.col("code").is_in(codes)) if events.height else events
    )


def _with_jobs(xids: pl.DataFrame, jobs: pl.DataFrame) -> pl.DataFrame:
    """Each Xid with the job that was on its machine then."""
    if xids.is_empty() or jobs.is_empty():
        return pl.DataFrame()
    stays = jobs.group_by("node_id", "job_id", pl.col("requeues").fill_null(0)).agg(
        pl.col("allocated_ts").min().alias("since"),
        pl.col("end_ts").max().alias("until"),
        pl.col("user").drop_nulls().first(),
    )
    seen = xids.select("ts", "node_id", "gpu_uuid", "pci_bus_id").join(stays, on="node_id")
    there = (pl.col("since") <= pl.col("ts")) & (
        pl.col("until").is_null() | (pl.col("ts") <= pl.col("until") + timedelta(minutes=1))
    )
    return seen.filter(there).select("node_id", "gpu_uuid", "pci_bus_id", "job_id", "user").unique()
