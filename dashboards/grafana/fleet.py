"""The fleet: who is well, what the scheduler says, availability, mean times, alarms against their budget."""

from __future__ import annotations

from graynode.dashboards.grafana import tables
from graynode.dashboards.grafana.board import CLUSTER, MODEL, PARTITION, Board, actions_mark, incidents_mark, words
from graynode.dashboards.grafana.panels import (
    ANY_IS_BAD,
    RANGE,
    SHARE_IS_GOOD,
    SOME_IS_BAD,
    Col,
    Placed,
    Series,
    hidden,
    metric,
    num,
    numbers,
    over_time,
    rows,
    state,
)
from graynode.dashboards.grafana.scraped import scraped_lines
from graynode.dashboards.grafana.units import GRAFANA

_FLEET = "/api/v1/fleet"
_EMPTY = "no node is known yet: start graynode agent on the nodes, or look at graynode doctor"
_STATES = ("*", "healthy", "suspect", "quarantined", "in_repair", "probation", "unknown")


def board() -> Board:
    """The dashboard."""
    return Board(
        "fleet", "graynode: fleet", "All nodes and GPUs: how they are now, and how it went in the range above.",
        [
            ("Now", [_nodes_now(), _gpus_now(), _incidents_now()]),
            ("In this range", [_availability(), _times(), _alarms()]),
            ("Open incidents", [tables.incidents("Open incidents", {"state": "open"}, empty="no incident is open")]),
            ("Over time", [*_history(), _states_over_time()]),
            ("Nodes", [_racks(), _nodes()]),
            ("Reliability", [_causes(), _weeks(), _lemons(), tables.actions({}, width=24)]),
        ],
        variables=[
            CLUSTER, MODEL, PARTITION,
            words("state", "Nodes in state", _STATES, "only nodes in this state are listed; * is all"),
        ],
        since="now-7d/h", until="now/h", refresh="1m", marks=[incidents_mark(), actions_mark()],
    )  # fmt: skip


def _nodes_now() -> Placed:
    columns = [
        num("nodes", "nodes"),
        num("nodes_healthy", "healthy"),
        num("nodes_suspect", "suspect", levels=SOME_IS_BAD),
        num("nodes_out_of_scheduling", "out of scheduling", levels=SOME_IS_BAD, empty="no scheduler tells"),
        num("nodes_quarantined", "quarantined", levels=SOME_IS_BAD),
        num("nodes_in_repair", "in repair"),
        num("nodes_probation", "on probation"),
        num("nodes_unknown", "unknown", levels=ANY_IS_BAD),
    ]
    about = "Nodes by state. Out of scheduling is what the scheduler says; unknown: not heard of."
    return numbers("Nodes now", about, _FLEET, columns, RANGE, empty=_EMPTY)


def _gpus_now() -> Placed:
    columns = [
        num("gpus", "GPUs"),
        num("gpus_healthy", "healthy"),
        num("gpus_suspect", "suspect", levels=SOME_IS_BAD),
        num("gpus_lost", "lost", levels=ANY_IS_BAD),
        num("gpus_unknown", "unknown", levels=ANY_IS_BAD),
    ]
    about = "GPUs by state; lost: gone from their node."
    return numbers("GPUs now", about, _FLEET, columns, RANGE, empty=_EMPTY, width=7)


def _incidents_now() -> Placed:
    columns = [
        num("open_pages", "pages", levels=ANY_IS_BAD),
        num("open_tickets", "tickets", levels=SOME_IS_BAD),
        num("open_digests", "digests"),
    ]
    return numbers("Open incidents now", "Open incidents by severity.", _FLEET, columns, RANGE, empty=_EMPTY, width=5)


def _availability() -> Placed:
    columns = [
        num("availability", "available", levels=SHARE_IS_GOOD, decimals=2),
        num("out_of_service_ratio", "out of service", decimals=2),
        num("blind_ratio", "not measured", decimals=2, empty="not known"),
    ]
    about = "Share of node time owned that was usable, out of service, and not measured."
    return numbers("Availability", about, _FLEET, columns, RANGE, empty="no node time in this range", width=7)


def _times() -> Placed:
    few = "no failure"
    columns = [
        num("failures", "failures"),
        num("mtbf_h", "MTBF", decimals=0, empty=few),
        num("mtbf_low_h", "MTBF at least", decimals=0, empty="too few"),
        num("mtbf_high_h", "MTBF at most", decimals=0, empty="too few"),
        num("mttr_h", "MTTR", decimals=1, empty=few),
        num("mttd_h", "to detect", decimals=1, empty=few),
    ]
    about = (
        "Mean time between failures of a node (usable node-hours a failure, with its exact 95 % interval), mean time "
        "to repair and to detect. With under five failures only the interval says anything."
    )
    return numbers("MTBF and MTTR", about, _FLEET, columns, RANGE, empty=few)


def _alarms() -> Placed:
    columns = [
        num("told_per_node_day", "told", decimals=4),
        num("false_per_node_day", "called false", decimals=4, empty="none labelled"),
        num("budget_per_node_day", "budget of false ones", decimals=4),
    ]
    about = (
        "Pages and tickets a node-day; those that people called false (graynode label), beside the budget of false "
        "findings that detectors are set to."
    )
    return numbers("Alarms against budget", about, _FLEET, columns, RANGE, empty="no node time in this range", width=5)


def _history() -> list[Placed]:
    url, step = "/api/v1/fleet/history", {**RANGE, "step": "${__interval}"}
    empty = "no whole hour of data in this range"
    held = [num("gpu_hours", "measured"), num("job_gpu_hours", "with a job")]
    return [
        over_time(
            "Use of GPUs", "Mean time with a kernel resident; it hides how much of the chip works.",
            url, [num("gpu_util_percent", "utilisation")], step, empty=empty, width=8,
        ),
        over_time("Power", "Power of all GPUs, summed.", url, [num("power_w", "all GPUs")], step, empty=empty, width=8),
        over_time("GPU-hours", "GPU-hours a step: measured, and with a job.", url, held, step, empty=empty, width=8),
        over_time(
            "Open pages and tickets", "Incidents that were open in each step.", url,
            [num("pages_open", "pages"), num("tickets_open", "tickets")], step, empty=empty, width=8,
        ),
        metric(Series("tensor_active_ratio", "tensor pipes active", "fleet", ids="cluster=$cluster"), width=8),
    ]  # fmt: skip


def _states_over_time() -> Placed:
    return scraped_lines(
        "Nodes by state, as scraped", "Nodes by state over time, from Prometheus.",
        [('sum by (state) (graynode_nodes{cluster="$cluster"})', "{{state}}"),
         ('graynode_nodes_out_of_scheduling{cluster="$cluster"}', "out of scheduling (scheduler)")],
        GRAFANA[""], width=8,
    )  # fmt: skip


def _racks() -> Placed:
    columns = [
        Col("rack", "Rack"),
        Col("domain", "NVLink domain"),
        num("nodes", "Nodes"),
        num("nodes_healthy", "Healthy"),
        num("nodes_suspect", "Suspect", levels=SOME_IS_BAD),
        num("nodes_quarantined", "Quarantined"),
        num("nodes_in_repair", "In repair"),
        num("nodes_unknown", "Unknown", levels=ANY_IS_BAD),
        num("gpus", "GPUs"),
        num("open_incidents", "Open incidents", levels=SOME_IS_BAD),
    ]
    about = "Nodes by rack and NVLink domain, as the inventory names them."
    return rows("Racks", about, "/api/v1/fleet/racks", columns, empty=_EMPTY, height=6)


def _nodes() -> Placed:
    columns = [
        Col("node", "Node", link=tables.TO_NODE, width=150),
        state("state", "State", width=120),
        state("out_of_scheduling", "Out of scheduling", width=140),
        Col("scheduler_state", "Scheduler says", width=130),
        Col("since", "Since", width=170),
        Col("why", "Why"),
        num("open_incidents", "Incidents", levels=SOME_IS_BAD, width=90),
        num("gpus", "GPUs", width=70),
        num("gpus_expected", "expected", width=90),
        Col("gpu_model", "Model"),
        Col("partition", "Partition", width=110),
        Col("rack", "Rack", width=90),
        Col("driver_version", "Driver", width=110),
        Col("last_seen", "Last seen", width=170),
        *hidden("node_id"),
    ]
    return rows(
        "Nodes", "Every node as it is now; its name leads to it.", "/api/v1/nodes", columns,
        {"model": "$model", "partition": "$partition", "state": "$state", "limit": "5000"}, empty=_EMPTY, height=12,
    )  # fmt: skip


_RELIABILITY = [
    num("failures", "Failures"),
    num("nodes", "Nodes"),
    num("per_1000_node_days", "per 1,000 node-days", decimals=2, unit=""),
    num("per_1000_low", "at least", decimals=2, unit=""),
    num("per_1000_high", "at most", decimals=2, unit=""),
    num("mttd_h", "To detect", decimals=1),
    num("mttr_h", "To repair", decimals=1),
    num("during_job", "During a job"),
    num("gpu_hours_lost", "Lost", decimals=1),
]


def _causes() -> Placed:
    return rows(
        "Failures by cause", "Failures of nodes by cause, per 1,000 node-days with the exact 95 % interval.",
        "/api/v1/reliability", [Col("cause", "Cause"), *_RELIABILITY], {"by": "cause", **RANGE}, width=12,
        empty="no node failed in this range",
    )  # fmt: skip


def _weeks() -> Placed:
    return rows(
        "Failures by week", "The same by ISO week; a week's node-days are its part of the range's.",
        "/api/v1/reliability", [Col("week", "Week"), *_RELIABILITY], {"by": "week", **RANGE}, width=12,
        empty="no node failed in this range",
    )  # fmt: skip


def _lemons() -> Placed:
    columns = [
        num("rank", "Rank", width=70),
        Col("node", "Node", link=tables.TO_NODE, width=150),
        num("p_fault_7d", "Faults within a week", decimals=1),
        num("times_fleet", "times the fleet", decimals=1, unit=""),
        num("faults_28d", "Faults, 28 days"),
        num("faults_90d", "90 days"),
        num("repairs_in_a_row", "Repairs in a row"),
        Col("last_fault", "Last fault", width=170),
        Col("last_kind", "Its kind"),
        Col("reason", "Why"),
        *hidden("node_id"),
    ]
    return rows(
        "Likeliest to fault next", "Nodes by how likely they are to fault within a week (graynode lemons).",
        "/api/v1/lemons", columns, {"limit": "20"}, empty="no node is known yet",
    )  # fmt: skip
