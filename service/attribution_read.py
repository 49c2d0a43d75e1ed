"""What the lake knows around one placement of a job, as the frames that ``detectors.attribution`` judges.

Only the contract's tables are asked, each pruned on its dates; what is not there is said.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import polars as pl

from graynode.detectors.attribution import Case
from graynode.detectors.attribution_hang import Standing, last_step, standing
from graynode.detectors.attribution_job import Placement
from graynode.detectors.attribution_log import waited_since
from graynode.detectors.attribution_machines import heard
from graynode.detectors.placements import Placements
from graynode.detectors.policy import shipped
from graynode.detectors.repeats import WITHIN, codes
from graynode.pipeline.lake import Lake
from graynode.service.attribution_jobs import LONGEST_HANG, STEP, TRAINING, USUAL, Jobs

_LONGEST: Final = timedelta(days=14)
"""A job that began so long before its Xid is still known."""
_OTHERS: Final = timedelta(days=7)
_AROUND: Final = timedelta(minutes=2)
_GPU: Final = (
    "ts", "cluster", "node_id", "boot_id", "gpu_uuid", "pci_bus_id_last", "job_id_last", "gpu_util_percent_mean",
    "power_w_mean", "job_rank_last",
)  # fmt: skip
_HOST: Final = ("ts", "cluster", "node_id", "node", "boot_id", "clock_skew_s_mean")
_JOB: Final = ("ts", "cluster", "job_id", "node_id", "node", "state", "user", "end_ts", "allocated_ts", "requeues")
_PLACED: Final = (*_JOB, "gpu_uuids")
_XID: Final = ("ts", "cluster", "node_id", "kind", "code", "gpu_uuid", "pci_bus_id")
_ASKED: Final = ("event", "job_log", "step", "finding", "node_state", "gpu_30s", "host_30s")


@dataclass(slots=True)
class Reader:
    """Reads cases from one lake. ``LakeError`` and ``QueryError``: not now."""

    lake: Lake

    def case(self, placed: Placement, now: datetime) -> Case:
        """All that is known around it."""
        end, cluster = placed.end or now, placed.cluster
        log = self._log(placed, now)
        steps = self._steps(placed, end)
        still = self._standing(placed, steps, end)
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
            incidents=self._of_machines("incident", placed, since - _OTHERS, around[1]),
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

    def _standing(self, placed: Placement, steps: pl.DataFrame, end: datetime) -> Standing | None:
        """Whether it stood still at its end. Of one that was ended from outside, hours may have passed since."""
        if placed.work not in TRAINING:
            return None
        waited = placed.state not in ("failed", "node_fail", "completed")
        since = max(end - (LONGEST_HANG if waited else USUAL), placed.start or end - LONGEST_HANG)
        return standing(steps, Jobs(self.lake).drawn(placed.cluster, since, end, [placed.job_id]), end)

    def _log(self, placed: Placement, now: datetime) -> pl.DataFrame:
        since, until = placed.window(now)
        rows = self._table("job_log", placed.cluster, since - timedelta(hours=1), until)
        return rows.filter(pl.col("job_id") == placed.job_id)

    def _steps(self, placed: Placement, end: datetime) -> pl.DataFrame:
        since = max(placed.start or end - LONGEST_HANG, end - LONGEST_HANG)
        rows = self._table("step", placed.cluster, since, end + timedelta(minutes=1), STEP)
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
        rows = self._table("job", placed.cluster, end - WITHIN, end + timedelta(days=1), columns)
        return rows.filter(pl.col("image_digest") == placed.image_digest, pl.col("end_ts").is_not_null())

    def _history(self, placed: Placement, events: pl.DataFrame) -> pl.DataFrame:
        """Xids of programs on the GPUs that showed one now, of the last weeks, with the job that ran there then."""
        now_here = _program_xids(events)
        if now_here.is_empty():
            return pl.DataFrame()
        end = now_here.get_column("ts").max()
        assert isinstance(end, datetime)  # noqa: S101 (a time, by the column's type)
        jobs = _named(self._table("job", placed.cluster, end - WITHIN - _LONGEST, end + _OTHERS, _PLACED), placed)
        machines = set(now_here.get_column("node_id"))
        here = self._xids(placed.cluster, machines, end, jobs)
        # whether those jobs had such errors on other machines of theirs too
        theirs = jobs.filter(pl.col("job_id").is_in(here.get_column("job_id").unique().to_list()))
        others = set(theirs.get_column("node_id").drop_nulls()) - machines
        return pl.concat([here, self._xids(placed.cluster, others, end, jobs)]) if others else here

    def _xids(self, cluster: str, machines: Collection[str], end: datetime, jobs: pl.DataFrame) -> pl.DataFrame:
        """Programs' Xids of those machines, one a minute and GPU, each with the job that had the GPU then."""
        rows = _program_xids(self._table("event", cluster, end - WITHIN, end, _XID, sorted(machines)))
        minute = pl.col("ts").dt.truncate("1m").alias("minute")
        rows = rows.sort("ts").with_columns(minute).unique(
            ["node_id", "gpu_uuid", "pci_bus_id", "code", "minute"], keep="first", maintain_order=True
        )  # fmt: skip
        placements = Placements(per_node=jobs.height)
        placements.note(jobs.filter(pl.col("node_id").is_in(sorted(machines))).sort("ts").iter_rows(named=True))
        then = [placements.at(row["node_id"], row["gpu_uuid"], row["ts"]) for row in rows.iter_rows(named=True)]
        return rows.with_columns(
            pl.Series("job_id", [p.job_id if p else None for p in then], pl.String),
            pl.Series("user", [p.user if p else None for p in then], pl.String),
        ).select(*_XID, "job_id", "user")

    def _missing(
        self, placed: Placement, log: pl.DataFrame, steps: pl.DataFrame, machines: Iterable[str]
    ) -> Iterable[str]:
        absent = [table for table in _ASKED if not self.lake.exists(table)]
        if absent:
            yield f"tables that the lake does not have: {', '.join(absent)}"
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


def _bound(rows: pl.DataFrame, placed: Placement) -> pl.DataFrame:
    """Rows of its machines, those under the scheduler's name of one under that machine's id."""
    return _named(rows, placed).filter(pl.col("node_id").is_in(list(placed.machines))) if rows.height else rows


def _named(rows: pl.DataFrame, placed: Placement) -> pl.DataFrame:
    """Rows under the scheduler's name of one of its machines, under that machine's id; the others as they are."""
    names = {name: node_id for node_id, name in placed.machines.items() if name}
    known = pl.col("node_id").is_in(list(placed.machines))
    by_name = pl.col("node").replace_strict(names, default=None, return_dtype=pl.String)
    return rows.with_columns(pl.when(known).then("node_id").otherwise(pl.coalesce(by_name, "node_id")).alias("node_id"))


def _program_xids(events: pl.DataFrame) -> pl.DataFrame:
    """Xids that the policy calls the application's and that are told of the GPU where they stay (``repeats``)."""
    return (
        events.filter(pl.col("kind") == "xid", pl.col("code").is_in(sorted(codes(shipped()))))
        if events.height
        else events
    )
