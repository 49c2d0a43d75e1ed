"""One incident: its metric with own baseline and the peers' band, the evidence, and what people said and did."""

from __future__ import annotations

from graynode.dashboards.grafana import tables
from graynode.dashboards.grafana.board import Board, Choice, actions_mark, incidents_mark
from graynode.dashboards.grafana.infinity import Ask, Picked, source
from graynode.dashboards.grafana.panels import Col, Placed, hidden, num, over_time, rows, state
from graynode.dashboards.grafana.sdk import model

INCIDENT = Choice(
    "incident", "Incident", "/api/v1/incidents", "incident_id", "title", {"state": "all", "limit": "500"},
    about="newest first; tables of incidents lead here with the right range",
)  # fmt: skip
_ONE = "/api/v1/incidents/${incident:percentencode}"
_EMPTY = "no incident is chosen: choose one above"


def board() -> Board:
    """The dashboard."""
    return Board(
        "incident", "graynode: one incident", "What happened, beside its own past and its peers, and what was done.",
        [
            ("The incident", [_facts()]),
            ("Own baseline and peers' band", [_band()]),
            ("Evidence", [_evidence(), tables.findings({"incident": "$incident"})]),
            ("How it went", [_revisions(), tables.actions({"incident": "$incident"}), _said()]),
        ],
        variables=[INCIDENT], since="now-24h", marks=[incidents_mark(), actions_mark()],
    )  # fmt: skip


def _facts() -> Placed:
    columns = [
        state("severity", "Severity", width=90),
        state("state", "State", width=120),
        Col("title", "What"),
        Col("cause", "Cause", width=130),
        Col("node", "Node", link=tables.TO_NODE, width=130),
        Col("gpu_uuid", "GPU"),
        Col("link", "Link", width=90),
        Col("since", "Since", width=170),
        Col("resolved_ts", "Resolved", width=170),
        Col("owner", "Whose", width=100),
        Col("next_step", "Next step"),
        Col("action", "Advice"),
        Col("verdict", "Verdict", width=90),
        Col("job_id", "Job", link=tables.TO_JOB, width=100),
        *hidden("node_id"),
    ]
    about = "The latest revision. Verdicts are given by graynode label or on graynode's own page."
    return rows("What it is", about, _ONE, columns, root="", empty=_EMPTY, height=5)


def _band() -> Placed:
    columns = [
        num("value", "this one", unit=""),
        num("baseline", "own baseline", unit=""),
        num("low", "peers, 5 %", unit=""),
        num("median", "peers, median", unit=""),
        num("high", "peers, 95 %", unit=""),
    ]
    about = (
        "The metric that its cause shows in, beside the median of its own two weeks before and the 5th to 95th "
        "percentile of its peers: the same model, as loaded at that moment. The unit comes with the data."
    )
    placed = over_time("Against its own past and its peers", about, f"{_ONE}/band", columns, width=24, height=11,
                       empty="no window of it in this range: follow a link from a table of incidents")  # fmt: skip
    panel = placed.panel
    unit = Ask(f"{_ONE}/band", [Picked("unit", "unit", "string")], ref_id="unit")
    options = {"configRefId": "unit", "mappings": [{"fieldName": "unit", "handlerKey": "unit"}],
            "applyTo": {"id": "byType", "options": "number"}}  # fmt: skip
    panel = panel.datasource(source()).with_target(unit)  # type: ignore[attr-defined] # a panel's builder, as all here
    panel = panel.with_transformation(model.DataTransformerConfig("configFromData", options=options))
    for name, properties in _LOOK.items():
        told = [model.DynamicConfigValue(id_, value) for id_, value in properties.items()]
        panel = panel.override_by_name(name, told)
    return Placed(panel, placed.width, placed.height)


_THIN = {"custom.lineWidth": 1, "custom.showPoints": "never"}
_LOOK = {
    "this one": {"custom.lineWidth": 2, "color": {"mode": "fixed", "fixedColor": "red"}},
    "own baseline": {**_THIN, "custom.lineStyle": {"fill": "dash", "dash": [10, 10]},
                     "color": {"mode": "fixed", "fixedColor": "blue"}},
    "peers, median": {**_THIN, "custom.lineStyle": {"fill": "dot", "dash": [2, 6]},
                      "color": {"mode": "fixed", "fixedColor": "green"}},
    "peers, 5 %": {**_THIN, "color": {"mode": "fixed", "fixedColor": "green"}},
    "peers, 95 %": {**_THIN, "custom.fillBelowTo": "peers, 5 %", "custom.fillOpacity": 15,
                    "color": {"mode": "fixed", "fixedColor": "green"}},
}  # fmt: skip
"""Lines differ by dash and width as well as by colour."""


def _evidence() -> Placed:
    columns = [
        Col("signal", "Signal", width=150),
        num("value", "Value", unit="", width=110),
        num("baseline", "Own baseline", unit="", width=120),
        Col("unit", "Unit", width=80),
        Col("message", "What it says"),
    ]
    about = "What was seen, in the order in which it counts."
    return rows("Evidence", about, _ONE, columns, root="evidence", empty="its rows have no evidence", height=6)


def _revisions() -> Placed:
    columns = [
        num("revision", "Revision", width=90),
        Col("ts", "Time", width=170),
        state("state", "State", width=120),
        state("severity", "Severity", width=90),
        num("count", "Findings", width=90),
        Col("title", "What"),
    ]
    return rows("Revisions", "How it grew and ended.", f"{_ONE}/revisions", columns, width=12, empty=_EMPTY)


def _said() -> Placed:
    columns = [
        Col("ts", "Time", width=170),
        Col("what", "What", width=150),
        Col("who", "Who", width=150),
        Col("why", "Why"),
    ]
    about = "Acknowledgements, verdicts, mutes and repairs, and who was told, in order of time."
    return rows("What people said, who was told", about, _ONE, columns, root="said",
                empty="nobody has said anything yet: graynode ack and graynode label do", height=6)  # fmt: skip
