"""Tables that more than one dashboard shows, with the links that their cells have."""

from __future__ import annotations

from collections.abc import Mapping

from graynode.dashboards.grafana.panels import RANGE, Col, Placed, hidden, num, rows, state

TO_NODE = ("node", {"node": "node_id"})
TO_INCIDENT = ("incident", {"incident": "incident_id", "from": "shown_from_ts", "to": "shown_until_ts"})
TO_JOB = ("job", {"job": "Job"})


def incidents(
    title: str, params: Mapping[str, str], *, empty: str, width: int = 24, height: int = 8, about: str = "",
    ranged: bool = False,
) -> Placed:  # fmt: skip
    """Incidents, newest first; each leads to its picture, its node and its job."""
    columns = [
        Col("opened_ts", "Opened", width=170),
        state("severity", "Severity", width=90),
        state("state", "State", width=120),
        Col("title", "What", link=TO_INCIDENT),
        Col("cause", "Cause", width=140),
        Col("node", "Node", link=TO_NODE, width=140),
        Col("owner", "Whose", width=100),
        Col("next_step", "Next step"),
        Col("job_id", "Job", link=TO_JOB, width=100),
        Col("resolved_ts", "Resolved", width=170),
        *hidden("incident_id", "node_id", "shown_from_ts", "shown_until_ts"),
    ]
    said = about or "Incidents in their latest revision, newest first. Their titles lead to their pictures."
    asked = {"limit": "200", **params, **(RANGE if ranged else {})}
    return rows(title, said, "/api/v1/incidents", columns, asked, empty=empty, width=width, height=height)


def actions(params: Mapping[str, str], *, width: int = 12, height: int = 8) -> Placed:
    """What was told and done."""
    columns = [
        Col("ts", "Time", width=170),
        Col("kind", "What", width=110),
        Col("outcome", "Outcome", width=110),
        Col("responder", "By", width=110),
        Col("node", "Node", link=TO_NODE, width=120),
        Col("reason", "Reason"),
        num("attempts", "Attempts", width=90),
        *hidden("node_id"),
    ]
    return rows(
        "Told and done", "Messages that left, nodes that were taken out or given back, and what was refused and why.",
        "/api/v1/actions", columns, {**params, **RANGE, "limit": "200"}, width=width, height=height,
        empty="nothing was told or done in this range; configure where to tell it in [respond]",
    )  # fmt: skip


def findings(params: Mapping[str, str], *, width: int = 24, height: int = 8) -> Placed:
    """What detectors found, with value, own baseline and peers."""
    columns = [
        Col("ts", "Time", width=170),
        Col("detector", "Detector", width=130),
        Col("node", "Node", link=TO_NODE, width=120),
        Col("gpu_uuid", "GPU"),
        Col("signal", "Signal", width=150),
        num("value", "Value", unit="", width=90),
        num("baseline", "Own baseline", unit="", width=110),
        num("peer_median", "Peers' median", unit="", width=120),
        num("peers", "Peers", width=70),
        Col("unit", "Unit", width=70),
        Col("message", "What it says"),
        *hidden("node_id"),
    ]
    return rows(
        "Findings", "What detectors found, each value beside the GPU's own baseline and its peers' median.",
        "/api/v1/findings", columns, {**params, **RANGE, "limit": "500"}, width=width, height=height,
        empty="no finding in this range: that is the usual case",
    )  # fmt: skip


def events(params: Mapping[str, str], *, title: str = "Events", width: int = 12, height: int = 8) -> Placed:
    """What the kernel, the driver, links and services said."""
    columns = [
        Col("ts", "Time", width=170),
        Col("source", "Source", width=110),
        Col("kind", "Kind", width=120),
        num("code", "Code", width=70),
        Col("node", "Node", link=TO_NODE, width=120),
        Col("message", "Message"),
        *hidden("node_id"),
    ]
    return rows(
        title, "What the kernel log, the driver, links and services said, newest first. A code is the Xid's number.",
        "/api/v1/events", columns, {**params, **RANGE, "limit": "500"}, width=width, height=height,
        empty="no event in this range; choose a longer one",
    )  # fmt: skip


def jobs(title: str, params: Mapping[str, str], *, width: int = 24, height: int = 8) -> Placed:
    """Jobs of the range with their end and what it is put down to."""
    columns = [
        Col("job_id", "Job", link=TO_JOB, width=110),
        Col("user", "User", width=110),
        Col("partition", "Partition", width=110),
        Col("work", "Work", width=130),
        Col("state", "State", width=110),
        Col("node_names", "Nodes"),
        num("gpus", "GPUs", width=70),
        Col("allocated_ts", "Began", width=170),
        Col("end_ts", "Ended", width=170),
        num("wait_s", "Waited", width=100),
        num("run_s", "Ran", width=100),
        Col("verdict", "Whose fault", width=120),
        Col("verdict_message", "Why it ended"),
    ]
    return rows(
        title, "Jobs that ran or waited in this range, newest first; their ids lead to them.",
        "/api/v1/jobs", columns, {**params, **RANGE, "limit": "500"}, width=width, height=height,
        empty="no job in this range: choose a longer one, or connect the scheduler (docs/slurm.md, docs/kubernetes.md)",
    )  # fmt: skip
