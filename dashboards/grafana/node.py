"""One node and its GPUs, each beside the others of the node."""

from __future__ import annotations

from graynode.dashboards.grafana import tables
from graynode.dashboards.grafana.board import NODE, Board, Choice, actions_mark, incidents_mark
from graynode.dashboards.grafana.panels import Col, Placed, Series, hidden, metric, num, rows, state

GPU = Choice(
    "gpu", "GPU", "/api/v1/gpus", "gpu_uuid", params={"node": "$node"}, all_of=True, about="one GPU of the node, or all"
)
_OF_NODE = {"node": "$node"}
_GPU_METRICS = (
    ("gpu_util_percent", "Utilisation"), ("sm_clock_mhz", "SM clock"), ("power_w", "Power"), ("temp_c", "Temperature"),
    ("mem_temp_c", "Memory temperature"), ("mem_used_bytes", "Memory used"), ("sm_active_ratio", "SMs active"),
    ("tensor_active_ratio", "Tensor pipes active"), ("pcie_width", "PCIe lanes"), ("pcie_replays", "PCIe replays"),
    ("nvlink_links_active", "NVLinks active"), ("ecc_sbe_volatile", "Corrected memory errors"),
)  # fmt: skip
_HOST_METRICS = (
    ("cpu_util_percent", "Processors busy"), ("mem_available_bytes", "Host memory available"),
    ("root_used_ratio", "Root file system used"), ("clock_offset_s", "Clock offset"),
    ("samples_missed", "Rounds missed by the agent"), ("collect_max_ms", "Longest round of the agent"),
)  # fmt: skip


def board() -> Board:
    """The dashboard."""
    gpus = [metric(Series(name, title, "gpu", "$node", "$gpu"), width=8) for name, title in _GPU_METRICS]
    host = [metric(Series(name, title, "node", "$node"), width=8) for name, title in _HOST_METRICS]
    return Board(
        "node", "graynode: one node", "A node, each GPU beside the others, host, events, incidents, jobs.",
        [
            ("The node", [_facts(), _gpus()]),
            ("GPUs over time", gpus),
            ("Incidents", [
                tables.incidents("Incidents of this node", {"state": "all", **_OF_NODE}, ranged=True,
                                 empty="no incident of this node in this range"),
                tables.findings(_OF_NODE),
            ]),
            ("What it said, what was done", [tables.events(_OF_NODE), tables.actions(_OF_NODE)]),
            ("Jobs", [tables.jobs("Jobs on this node", _OF_NODE)]),
            ("Host", host),
        ],
        variables=[NODE, GPU], since="now-6h", marks=[incidents_mark(_OF_NODE), actions_mark(_OF_NODE)],
    )  # fmt: skip


def _facts() -> Placed:
    columns = [
        Col("node", "Node", link=("links", {"node": "node_id"}), width=150),
        state("state", "State", width=120),
        state("out_of_scheduling", "Out of scheduling", width=140),
        Col("scheduler_state", "Scheduler says", width=130),
        Col("since", "Since", width=170),
        Col("why", "Why"),
        num("gpus", "GPUs", width=70),
        num("gpus_expected", "expected", width=90),
        Col("rack", "Rack", width=90),
        Col("partition", "Partition", width=110),
        Col("driver_version", "Driver", width=110),
        Col("last_seen", "Last seen", width=170),
        *hidden("node_id"),
    ]
    about = "State as graynode and as the scheduler say it; the name leads to the node's links."
    empty = "no such node is known now: choose one above"
    return rows("State", about, "/api/v1/nodes", columns, {"q": "$node"}, empty=empty, height=4)


def _gpus() -> Placed:
    columns = [
        num("gpu_index", "Index", width=70),
        state("state", "State", width=110),
        Col("why", "Why"),
        num("util_percent", "Utilisation", decimals=0, width=100),
        num("sm_clock_mhz", "SM clock", decimals=0, width=100),
        num("power_w", "Power", decimals=0, width=90),
        num("temp_c", "Temperature", decimals=0, width=110, levels=((None, "green"), (85, "orange"), (92, "red"))),
        num("mem_used_bytes", "Memory used", decimals=1, width=120),
        Col("job_id", "Job", link=tables.TO_JOB, width=100),
        Col("user", "User", width=110),
        Col("slot", "Slot", width=130),
        Col("gpu_uuid", "UUID", link=("ecc", {"node": "node_id"})),
        Col("last_seen", "Last seen", width=170),
        *hidden("node_id"),
    ]
    about = "Every GPU as it is now; its UUID leads to its memory errors."
    return rows("GPUs now", about, "/api/v1/gpus", columns, _OF_NODE, height=9,
                empty="no GPU of this node is known now: is graynode agent running there?")  # fmt: skip
