"""``graynode explain --job ID``: was it the code or the machine? From the lake alone, also weeks later.

The job is judged anew from what the lake has now; what was said at the time is shown where it differs. Where the lines
and windows of an old job are gone and the stored verdict says more, that one is shown.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TextIO

from graynode.collectors.base import utc_now
from graynode.dashboards.pieces import clean
from graynode.pipeline.lake import Lake, LakeError, LakeTooNew
from graynode.pipeline.queries import QueryError
from graynode.service.config import Config
from graynode.service.explain import other_lake
from graynode.service.wiring import make_lake

if TYPE_CHECKING:
    from graynode.detectors.attribution_job import Placement
    from graynode.service.attribution_jobs import Jobs

_HOUR: Final = timedelta(hours=1)
_LONGEST_ID: Final = 400
_KEPT: Final = timedelta(days=90)
"""Lines of outputs and 30 s windows stay so long: older jobs are judged by less than was there."""


@dataclass(frozen=True, slots=True)
class Told:
    """What is shown of one job."""

    row: Mapping[str, Any]
    then: Mapping[str, Any] | None = None
    slow: list[dict[str, Any]] = field(default_factory=list)
    attempts: int = 1
    names: Mapping[str, str | None] = field(default_factory=dict)


def run(
    config: Config,
    job: str,
    *,
    as_json: bool = False,
    out: TextIO | None = None,
    clock: Callable[[], datetime] = utc_now,
) -> int:
    """Explain the last placement of a job. 0 explained, 1 no such job, or the lake cannot be asked."""
    from graynode.dashboards.explain_job import as_json as to_json
    from graynode.dashboards.explain_job import explain_job

    asked = job.strip()
    try:
        told = told_of(config, asked, clock())
    except (QueryError, LakeError, LakeTooNew, OSError) as error:
        print(f"graynode explain: the lake {config.lake.path} cannot be asked: {error}", file=sys.stderr)
        return 1
    if isinstance(told, str):
        print(told, file=sys.stderr)
        return 1
    sink = out or sys.stdout
    if as_json:
        print(to_json(told.row, then=told.then, slow=told.slow, attempts=told.attempts), file=sink)
        return 0
    from rich.console import Console

    console = Console(file=sink, highlight=False, soft_wrap=False, width=None if sink.isatty() else 80)
    shown = explain_job(
        told.row,
        then=told.then,
        slow=told.slow,
        attempts=told.attempts,
        names=told.names,
        lake=other_lake(config),
    )
    console.print(shown)
    return 0


def told_of(config: Config, asked: str, now: datetime) -> Told | str:
    """What to show, or what to say where there is no one such job."""
    from graynode.service.attribution_jobs import Jobs

    jobs = Jobs(make_lake(config))
    try:
        found = jobs.named(asked) if 0 < len(asked) <= _LONGEST_ID else []
        chosen = _chosen(config, asked, found)
        if chosen is None:
            return _no_such(jobs, asked)
        return chosen if isinstance(chosen, str) else _judged(config, jobs, *chosen, now)
    finally:
        jobs.close()


def _chosen(config: Config, asked: str, found: list[tuple[str, str]]) -> tuple[str, str] | str | None:
    """The one job meant: the configured cluster's where several have one of this id."""
    ours = [one for one in found if one[0] == config.cluster] or found
    if len(ours) == 1:
        return ours[0]
    if not ours:
        return None
    lines = [f"graynode explain: {len(ours)} jobs go by {asked!r}; name one of them:"]
    lines += [f"  {clean(job)} of cluster {clean(cluster)}" for cluster, job in ours[:10]]
    return "\n".join([*lines, "  (GRAYNODE_CLUSTER or cluster in the configuration chooses the cluster)"])


def _judged(config: Config, jobs: Jobs, cluster: str, job_id: str, now: datetime) -> Told:
    from graynode.detectors.attribution import judge
    from graynode.detectors.attribution_rows import changed, row
    from graynode.detectors.policy import shipped
    from graynode.service.attribution_read import Reader

    attempts = jobs.attempts(cluster, job_id)
    placed, lake = attempts[-1], jobs.lake
    policy = shipped().for_site({int(code): severity for code, severity in config.detect.xid_severity.items()})
    fresh = row(judge(Reader(lake).case(placed, now), policy), now)
    stored = _stored(lake, fresh)
    if placed.end is None and fresh["verdict"] == "neither":
        fresh["phase"] = "running"  # asked about before its end, and nothing says that it stands still
    shown, then = fresh, stored
    if stored is not None and placed.end is not None and now - placed.end > _KEPT and fresh["verdict"] == "unknown":
        shown, then = stored, None
    if then is not None and not changed(then, shown):
        then = None
    return Told(shown, then, _slow(lake, placed, now), len(attempts), placed.machines)


def _stored(lake: Lake, fresh: Mapping[str, Any]) -> dict[str, Any] | None:
    """The last judgement that was stored of this placement."""
    rows = lake.read("attribution", fresh["end_ts"] or fresh["start_ts"], None)
    ours = [r for r in rows.iter_rows(named=True) if r["attribution_id"] == fresh["attribution_id"]]
    return max(ours, key=lambda r: (r["revision"], r["ts"]), default=None)


def _slow(lake: Lake, placed: Placement, now: datetime) -> list[dict[str, Any]]:
    """Which ranks held it up, by its steps' busy times where it tells them: the last hour of steps."""
    import polars as pl

    from graynode.detectors.straggler import REASONS
    from graynode.detectors.stragglers import of_steps

    end = placed.end or now
    steps = lake.read("step", max(placed.start or end - _HOUR, end - _HOUR), end + timedelta(minutes=1))
    steps = steps.filter(pl.col("cluster") == placed.cluster, pl.col("job_id") == placed.job_id)
    if steps.is_empty():
        return []
    told = []
    for found in of_steps(steps).get(placed.job_id, []):
        excess = f" by {found.excess:.1%}" if found.excess is not None else ""
        ranks = ", ".join(map(str, found.ranks[:8])) + (" …" if len(found.ranks) > 8 else "")
        why = REASONS.get(found.reason, found.reason)
        said = f"{found.where} of ranks {ranks} is slower{excess}: {found.cause} ({why})"
        told.append(
            {"where": found.where, "ranks": list(found.ranks), "cause": found.cause, "reason": found.reason,
             "excess": found.excess, "message": said}
        )  # fmt: skip
    return told


def _no_such(reader: Jobs, asked: str) -> str:
    """There is no such job: which ids are near, and what the lake has."""
    jobs, since, until = reader.span()
    head = f"graynode explain: the lake has no job {clean(asked)[:100]!r}"
    if not jobs:
        return f"{head}; it has no job at all yet (docs/slurm.md and docs/kubernetes.md say how jobs get there)"
    lines = [f"{head}; it has {jobs} from {_time(since)} to {_time(until)}. Near, or the latest that ended:"]
    for row in reader.near(asked):
        end = f"ended {_time(row['end_ts'])}" if row["end_ts"] else "not ended"
        lines.append(f"  {clean(row['job_id'])}  {end}, cluster {clean(row['cluster'])}")
    return "\n".join(lines)


def _time(value: datetime | None) -> str:
    return f"{value.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if value is not None else "?"
