"""One job: its placements, why it ended, what it used."""

from __future__ import annotations

from graynode.dashboards.grafana import tables
from graynode.dashboards.grafana.board import PARTITION, Board, Choice, actions_mark, incidents_mark
from graynode.dashboards.grafana.panels import RANGE, Col, Placed, Series, metric, num, rows

USER = Choice(
    "user", "User", "/api/v1/jobs", "user", params={**RANGE, "limit": "5000"}, all_of=True, about="whose jobs"
)
JOB = Choice(
    "job", "Job", "/api/v1/jobs", "job_id",
    params={**RANGE, "user": "$user", "partition": "$partition", "limit": "1000"},
    about="newest first, of the user and partition chosen",
)  # fmt: skip
_ONE = "/api/v1/jobs/${job:percentencode}"
_METRICS = (
    ("gpu_util_percent", "Utilisation"), ("sm_active_ratio", "SMs active"),
    ("tensor_active_ratio", "Tensor pipes active"), ("power_w", "Power"),
    ("sm_clock_mhz", "SM clock"), ("mem_used_bytes", "Memory used"),
)  # fmt: skip
_EMPTY = "no job is chosen: choose one above, or a longer range"


def board() -> Board:
    """The dashboard."""
    lines = [
        metric(Series(name, title, "fleet", ids="job_id=$job"), width=8, empty="the job had no GPU in this range")
        for name, title in _METRICS
    ]
    return Board(
        "job", "graynode: one job", "A job from queue to end: where it ran, what it used, why it ended.",
        [
            ("The job", [_facts(), _verdict()]),
            ("Placements", [_timeline(), _owed()]),
            ("Its GPUs over time (mean)", lines),
            ("Jobs", [tables.jobs("Jobs of user and partition", {"user": "$user", "partition": "$partition"})]),
        ],
        variables=[PARTITION, USER, JOB], since="now-24h", marks=[incidents_mark(), actions_mark()],
    )  # fmt: skip


def _facts() -> Placed:
    columns = [
        Col("job_id", "Job", width=110),
        Col("user", "User", width=110),
        Col("account", "Account", width=110),
        Col("partition", "Partition", width=110),
        Col("work", "Work", width=130),
        Col("state", "State", width=110),
        num("gpus", "GPUs", width=70),
        num("nodes", "Nodes", width=70),
        Col("queued_ts", "Queued", width=170),
        Col("allocated_ts", "Began", width=170),
        Col("first_step_ts", "First step", width=170),
        Col("end_ts", "Ended", width=170),
        num("wait_s", "Waited", width=100),
        num("run_s", "Ran", width=100),
        num("exit_code", "Exit code", width=90),
        Col("node_names", "Nodes it ran on"),
    ]
    return rows("What it is", "As the scheduler tells it.", _ONE, columns, root="", empty=_EMPTY, height=4)


def _verdict() -> Placed:
    columns = [
        Col("verdict", "Whose fault", width=130),
        Col("kind", "Kind", width=150),
        num("confidence", "Confidence", width=110, empty="none given"),
        Col("message", "Why it ended"),
        Col("action", "Advice"),
        Col("owner", "Whose", width=110),
    ]
    about = "What its end is put down to, from hardware, events, steps and output; unknown where nothing tells."
    return rows("Why it ended", about, _ONE, columns, root="attribution", empty=_EMPTY, height=4)


def _timeline() -> Placed:
    columns = [
        num("attempt", "Attempt", width=80),
        Col("state", "State", width=110),
        Col("machines", "Nodes"),
        Col("allocated_ts", "Began", width=170),
        Col("end_ts", "Ended", width=170),
        num("wait_s", "Waited", width=100),
        num("preparation_s", "Prepared", width=100),
        num("work_s", "Worked", width=100),
        num("repeated_s", "Repeated", width=100),
        num("resume_s", "Until it ran again", width=130),
        num("gpu_hours", "Took", decimals=1, width=110),
        num("lost_gpu_hours", "Lost", decimals=1, width=110),
        Col("owed_to", "Owed to", width=120),
        Col("lost_basis", "How that is known"),
    ]
    about = "Each attempt: waiting, preparation (allocated to first step), work, and work lost to a failure."
    return rows("Attempts", about, _ONE, columns, root="timeline", empty=_EMPTY, width=16)


def _owed() -> Placed:
    columns = [
        Col("owed_to", "Owed to"),
        num("lost_gpu_hours", "Lost", decimals=1),
        num("failures", "Failures"),
    ]
    about = "GPU-hours lost to failures, and to whom they are owed."
    return rows("Lost, and to whom it is owed", about, _ONE, columns, root="owed", empty="nothing was lost", width=8)
