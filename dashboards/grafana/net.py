"""Links of a node: NVLink ports, InfiniBand and Ethernet."""

from __future__ import annotations

from graynode.dashboards.grafana import tables
from graynode.dashboards.grafana.board import NODE, Board, Choice, incidents_mark
from graynode.dashboards.grafana.panels import (
    ANY_IS_BAD,
    SOME_IS_BAD,
    Col,
    Placed,
    Series,
    hidden,
    metric,
    num,
    rows,
    state,
)

LINK = Choice(
    "link", "Link", "/api/v1/links", "link", params={"node": "$node"}, all_of=True, about="one link of the node, or all"
)
_METRICS = (
    ("rate_gbps", "Rate"), ("down_s", "Time down"), ("downs", "Times down"), ("symbol_errors", "Symbol errors"),
    ("rx_errors", "Receive errors"), ("link_downed", "Link downed, as the port counts"),
    ("tx_bytes", "Sent"), ("rx_bytes", "Received"), ("tx_wait_ticks", "Waited for credits to send"),
)  # fmt: skip


def board() -> Board:
    """The dashboard."""
    lines = [metric(Series(name, title, "link", "$node", "$node/$link"), width=8) for name, title in _METRICS]
    causes = "link_flap,link_down,link_degraded,link_errors,nvlink_fault,network_fault"
    incidents = tables.incidents(
        "Incidents of links", {"state": "all", "cause": causes}, ranged=True,
        empty="no link had an incident in this range",
    )  # fmt: skip
    return Board(
        "links", "graynode: links", "Links of a node now and over time, and incidents of links in the whole fleet.",
        [
            ("Links of the node now", [_links()]),
            ("Over time", lines),
            ("Events", [tables.events({"node": "$node"}, width=24)]),
            ("Incidents, all nodes", [incidents]),
        ],
        variables=[NODE, LINK], since="now-6h", marks=[incidents_mark({"node": "$node"})],
    )  # fmt: skip


def _links() -> Placed:
    columns = [
        Col("link", "Link", width=120),
        Col("link_kind", "Kind", width=110),
        state("state", "State", width=100),
        Col("phys_state", "Physical", width=110),
        Col("down_reason", "Reason"),
        num("rate_gbps", "Rate", width=110),
        num("down_s", "Down", levels=ANY_IS_BAD, width=90),
        num("downs", "Times down", levels=ANY_IS_BAD, width=110),
        num("symbol_errors", "Symbol errors", levels=SOME_IS_BAD, width=120),
        num("rx_errors", "Receive errors", levels=SOME_IS_BAD, width=120),
        num("crc_errors", "CRC errors", levels=SOME_IS_BAD, width=110),
        num("fec_uncorrected_blocks", "FEC, uncorrected", levels=SOME_IS_BAD, width=140),
        num("module_temp_c", "Module", width=90),
        num("module_rx_power_min_mw", "Light received", width=120),
        Col("last_seen", "Last seen", width=170),
        Col("node", "Node", link=tables.TO_NODE, width=120),
        *hidden("node_id"),
    ]
    about = "Each link in its newest window, with what it counted in it. Asleep and disabled are not down."
    return rows("Links", about, "/api/v1/links", columns, {"node": "$node"}, height=11,
                empty="no link of this node was heard of in the last half hour")  # fmt: skip
