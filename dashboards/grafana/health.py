"""graynode itself: how old the data is, whether rounds come, whether receivers hear, how the API answers."""

from __future__ import annotations

from graynode.dashboards.grafana.board import CLUSTER, NODE, Board, actions_mark
from graynode.dashboards.grafana.panels import Col, Levels, Placed, Series, metric, num, rows, state
from graynode.dashboards.grafana.scraped import scraped_lines, scraped_numbers
from graynode.dashboards.grafana.units import GRAFANA

_S = GRAFANA["s"]
_AGE: Levels = ((None, "green"), (300, "orange"), (900, "red"))
_ANSWERED = "sum by (status) (rate(graynode_http_requests_total[$__rate_interval]))"
_SECONDS = "rate(graynode_http_request_duration_seconds_bucket[$__rate_interval])"
_P95 = f"histogram_quantile(0.95, sum by (le, route) ({_SECONDS}))"
_AGENT = (
    ("samples_taken", "Rounds taken"), ("samples_missed", "Rounds missed"), ("collect_errors", "Errors in collecting"),
    ("collect_max_ms", "Longest round"), ("agent_cpu_percent", "Processor time"), ("agent_rss_bytes", "Memory"),
    ("spool_bytes", "Spooled, not sent yet"), ("spool_dropped", "Dropped from the spool"),
    ("clock_offset_s", "Clock offset"),
)  # fmt: skip


def board() -> Board:
    """The dashboard."""
    agent = [metric(Series(name, title, "node", "$node"), width=8) for name, title in _AGENT]
    return Board(
        "health", "graynode: itself", "Whether graynode is well: a tool that is blind looks like a fleet that is well.",
        [
            ("Parts", [_parts()]),
            ("As scraped", [_ages(), _readable(), _told(), *_api()]),
            ("The agent of a node", agent),
        ],
        variables=[CLUSTER, NODE], since="now-6h", marks=[actions_mark()],
    )  # fmt: skip


def _parts() -> Placed:
    columns = [
        Col("part", "Part", width=220),
        state("state", "State", width=110),
        Col("last", "Last", width=170),
        num("age_s", "Ago", width=110),
        num("value", "Value", unit="", width=110),
        Col("detail", "What is known"),
    ]
    about = (
        "Each part of graynode: ok, late, failing, unknown. The value is a round's seconds, a table's version or a "
        "receiver's failures of the day."
    )
    empty = "graynode serve does not answer: is it running?"
    return rows("Parts", about, "/api/v1/health", columns, empty=empty, height=10)


def _ages() -> Placed:
    return scraped_numbers(
        "Ages", "Since the newest window in the lake, the newest detection round, and the newest picture of the fleet.",
        [("max(graynode_data_age_seconds)", "data"), ("max(graynode_round_age_seconds)", "detection round"),
         ("max(graynode_fleet_read_age_seconds)", "fleet picture")],
        _S, levels=_AGE,
    )  # fmt: skip


def _readable() -> Placed:
    said = {"1": ("readable", "green"), "0": ("not readable: the last picture is shown", "red")}
    return scraped_numbers(
        "Lake", "Whether the lake can be read now; otherwise the last picture is shown, and pages say so.",
        [("min(graynode_fleet_read_ok)", "lake")], GRAFANA[""], said=said, width=6,
    )  # fmt: skip


def _told() -> Placed:
    return scraped_numbers(
        "Open incidents", "Open incidents by severity.",
        [('sum by (severity) (graynode_incidents_open{cluster="$cluster"})', "{{severity}}")], GRAFANA[""], width=6,
        empty="no incident is open, or Prometheus scrapes nothing",
    )  # fmt: skip


def _api() -> list[Placed]:
    return [
        scraped_lines("Age of the data over time", "A line that climbs: nothing lands.",
                      [("max(graynode_data_age_seconds)", "data"), ("max(graynode_round_age_seconds)", "round")],
                      _S, width=8),
        scraped_lines("Requests", "Requests a second that the API answered, by status.",
                      [(_ANSWERED, "{{status}}")], "reqps", width=8, stacked=True),
        scraped_lines("Time to answer, 95 %", "95 of 100 requests were answered within this, by route.",
                      [(_P95, "{{route}}")], _S, width=8),
        scraped_lines("GPUs by state", "GPUs by state, as scraped.",
                      [('sum by (state) (graynode_gpus{cluster="$cluster"})', "{{state}}")], GRAFANA[""], stacked=True),
        scraped_lines("Listeners and version", "Listeners of the event stream, and which version answers.",
                      [("sum(graynode_http_streams)", "listeners"),
                       ("sum by (version) (graynode_build_info)", "version {{version}}")], GRAFANA[""]),
    ]  # fmt: skip
