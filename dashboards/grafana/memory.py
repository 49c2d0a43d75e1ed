"""Memory errors: corrected and uncorrected, of the fleet and of each GPU of a node, and what was remapped for them."""

from __future__ import annotations

from graynode.dashboards.grafana import tables
from graynode.dashboards.grafana.board import CLUSTER, NODE, Board, incidents_mark
from graynode.dashboards.grafana.panels import Series, metric

_OF_NODE = (
    ("ecc_sbe_volatile", "Corrected, since driver load"), ("ecc_dbe_volatile", "Uncorrected, since driver load"),
    ("ecc_sbe_aggregate", "Corrected, lifetime"), ("ecc_dbe_aggregate", "Uncorrected, lifetime"),
    ("row_remaps_correctable", "Rows remapped, correctable"),
    ("row_remaps_uncorrectable", "Rows remapped, uncorrectable"),
    ("row_remap_pending", "Remap waits for a reset"), ("row_remap_failed", "Remap failed"),
    ("mem_temp_c", "Memory temperature"),
)  # fmt: skip


def board() -> Board:
    """The dashboard."""
    fleet = [
        metric(Series("ecc_sbe_volatile", "corrected", "fleet", ids="cluster=$cluster")),
        metric(Series("ecc_dbe_volatile", "uncorrected", "fleet", ids="cluster=$cluster")),
    ]
    node = [metric(Series(name, title, "gpu", "$node"), width=8) for name, title in _OF_NODE]
    incidents = tables.incidents(
        "Incidents of memory", {"state": "all", "cause": "memory_errors,memory_degraded"}, ranged=True,
        empty="no memory had an incident in this range",
    )  # fmt: skip
    return Board(
        "ecc", "graynode: memory errors", "ECC errors and remapped rows: a few corrected ones are usual.",
        [
            ("Fleet", fleet),
            ("GPUs of the node", node),
            ("Incidents, all nodes", [incidents]),
            ("Xids of the node", [tables.events({"node": "$node", "kind": "xid"}, title="Xids", width=24)]),
        ],
        variables=[CLUSTER, NODE], since="now-24h", marks=[incidents_mark({"node": "$node"})],
    )  # fmt: skip
