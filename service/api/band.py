"""What an incident's metric did over time, beside its own normal and the peers' band; and the picture of it.

Own normal is the median of the hours of the two weeks before, those under load where the metric follows load. Peers are
GPUs of the same model (or the other links of the node, the other nodes), at the same moment as loaded as the one looked
at: of idle ones a clock or a power says nothing. Low and high are their 5th and 95th percentile, null under three.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Literal

import polars as pl
from litestar import Response, get
from litestar.params import QueryParameter

from graynode.dashboards.pieces import clean
from graynode.pipeline.queries import quoted
from graynode.pipeline.schema import TABLES
from graynode.service.api.answers import Page, Row, page, tag
from graynode.service.api.asked import ServedHere
from graynode.service.api.incidents import IncidentId, evidence_of, revisions_of
from graynode.service.api.problems import Problem, shown
from graynode.service.api.spans import Span, sql_time
from graynode.service.api.state import Served

Theme = Literal["light", "dark"]
MOST_PEERS: Final = 200
"""More peers make the band no better: a 5th percentile of 200 is known to ±1.5 points."""
LEAST_PEERS: Final = 3
_POINTS: Final = 400
_LOADED: Final = 50.0
"""Percent of utilisation from which a window counts as loaded; utilisation is not lowered by a slow clock."""
_BEFORE: Final = timedelta(hours=6)
_AFTER: Final = timedelta(hours=1)
_LONGEST: Final = timedelta(days=3)
_FINE: Final = timedelta(hours=12)
_PAST: Final = timedelta(days=14)
_KEPT_S: Final = 60.0
_STALE_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Shown:
    """Which column of the windows stands for a cause: ``table`` gpu, link or host."""

    table: str
    metric: str
    column: str

    @property
    def unit(self) -> str:
        """Its unit in the contract."""
        return TABLES[self.table].field(self.metric).unit


_CLOCK: Final = Shown("gpu", "sm_clock_mhz", "sm_clock_mhz_mean")
_USE: Final = Shown("gpu", "gpu_util_percent", "gpu_util_percent_mean")
_DOWN: Final = Shown("link", "down_s", "down_s_sum")
BY_CAUSE: Final[Mapping[str, Shown]] = {
    "slow_gpu": _CLOCK,
    "fleet_shift": _CLOCK,
    "power_brake": _CLOCK,
    "thermal": Shown("gpu", "temp_c", "temp_c_mean"),
    "memory_errors": Shown("gpu", "ecc_sbe_volatile", "ecc_sbe_volatile_delta"),
    "memory_degraded": Shown("gpu", "ecc_sbe_volatile", "ecc_sbe_volatile_delta"),
    "pcie_degraded": Shown("gpu", "pcie_width", "pcie_width_last"),
    "pcie_errors": Shown("gpu", "pcie_replays", "pcie_replays_delta"),
    "nvlink_fault": Shown("gpu", "nvlink_links_active", "nvlink_links_active_last"),
    "unusual": Shown("gpu", "power_w", "power_w_mean"),
    "gpu_lost": _USE,
    "driver_fault": _USE,
    "application_error": _USE,
    "recovery_requested": _USE,
    "link_flap": _DOWN,
    "link_down": _DOWN,
    "link_degraded": Shown("link", "rate_gbps", "rate_gbps_mean"),
    "link_errors": Shown("link", "symbol_errors", "symbol_errors_delta"),
    "network_fault": Shown("link", "rx_errors", "rx_errors_delta"),
    "monitoring_blind": Shown("host", "samples_taken", "samples_taken_sum"),
    "clock_skew": Shown("host", "clock_skew_s", "clock_skew_s_mean"),
    "host_fault": Shown("host", "cpu_util_percent", "cpu_util_percent_mean"),
}
"""By cause of an incident. One of a node whose cause is a GPU's shows the node's GPUs together."""


def read_band(served: Served, incident_id: str) -> Page:
    """Rows ``ts``, ``value``, ``baseline``, ``low``, ``median``, ``high``, ``peers``, ``metric``, ``unit``."""
    found = revisions_of(served, incident_id)[-1]
    what = BY_CAUSE.get(str(found["cause"]), _CLOCK)
    key = f"band {found['incident_id']} {found['revision']} {served.fleet.now().at}"
    rows = served.kept.get(key, _KEPT_S, lambda: _read(served, found, what), stale_s=_STALE_S)
    return Page([{**row, "metric": what.metric, "unit": what.unit} for row in rows], served.at())


def _read(served: Served, found: Row, what: Shown) -> list[Row]:
    span = _span(served, found)
    windows = f"{what.table}_30s" if span.until - span.since <= _FINE else f"{what.table}_1h"
    if windows.endswith("30s") and not served.queries.has(windows, span.since, span.until):
        windows = f"{what.table}_1h"
    step = max(30 if windows.endswith("30s") else 3600, int((span.until - span.since).total_seconds() / _POINTS))
    rows = served.rows(_sql(served, found, what, windows, span, step))
    normal = _normal(served, found, what, span.since)
    return [{**row, "baseline": normal} for row in rows]


def _span(served: Served, found: Row) -> Span:
    """From before the first evidence until after it was over, or now; of a long one the beginning."""
    since: datetime = found["since"] or found["opened_ts"] or found["ts"]
    end = min(found["resolved_ts"] or served.at(), since + _LONGEST)
    return Span(since - _BEFORE, max(end, since) + _AFTER)


def _entity(found: Row, what: Shown) -> str:
    """Which rows are the one looked at."""
    parts = [f"node_id = {quoted(str(found['node_id']))}"]
    if what.table == "gpu" and found["gpu_uuid"]:
        parts.append(f"gpu_uuid = {quoted(str(found['gpu_uuid']))}")
    if what.table == "link" and found["link"]:
        parts.append(f"link = {quoted(str(found['link']))}")
    return " AND ".join(parts)


def _peers(served: Served, found: Row, what: Shown) -> str:
    """Which rows are peers: some hundred of the same kind, the same ones at every look."""
    if what.table == "link":
        return f"node_id = {quoted(str(found['node_id']))}"
    now = served.fleet.now()
    if what.table == "host":
        ids = now.nodes.filter(pl.col("node_id") != found["node_id"])["node_id"]
        return f"node_id IN ({_listed(ids)})"
    own = now.gpus.filter(pl.col("node_id") == found["node_id"])
    model = own["gpu_model"][0] if own.height else None
    gpus = now.gpus.filter(
        pl.col("gpu_model").eq_missing(pl.lit(model)), pl.col("gpu_uuid").ne_missing(pl.lit(found["gpu_uuid"]))
    )
    return f"gpu_uuid IN ({_listed(gpus['gpu_uuid'])})"


def _listed(ids: pl.Series) -> str:
    held = ids.drop_nulls()
    chosen = held.gather(held.hash(seed=1).arg_sort().head(MOST_PEERS)).to_list()
    return ", ".join(quoted(str(id_)) for id_ in chosen) or "''"


def _sql(served: Served, found: Row, what: Shown, windows: str, span: Span, step: int) -> str:
    source = served.queries.source(windows, span.since, span.until)
    loaded = f"avg(gpu_util_percent_mean) >= {_LOADED}" if what.table == "gpu" else "true"
    key = {"gpu": "gpu_uuid", "link": "link", "host": "node_id"}[what.table]
    total = "sum" if what.column.endswith(("_delta", "_sum")) else "avg"
    mine, peers = _entity(found, what), _peers(served, found, what)

    def windows_of(which: str, is_mine: str) -> str:
        return f"""
  SELECT time_bucket(INTERVAL {step} SECOND, ts, TIMESTAMPTZ '2000-01-01 00:00:00+00') AS t, {key} AS key,
    {is_mine} AS mine, {total}({what.column}) AS v, {loaded} AS loaded
  FROM {source} WHERE cluster = {quoted(served.cluster())} AND ts >= {sql_time(span.since)}
    AND ts < {sql_time(span.until)} AND {which} GROUP BY ALL"""  # noqa: S608 (as below)

    # Apart, for each is then looked up by statistics: of "this one or one of those" every row would be read
    return f"""
WITH windows AS ({windows_of(mine, "true")}
  UNION ALL {windows_of(f"{peers} AND ({mine}) IS NOT TRUE", "false")}),
own AS (SELECT t, avg(v) AS v, bool_or(loaded) AS loaded FROM windows WHERE mine GROUP BY t),
band AS (
  SELECT o.t, count(w.v) AS peers, quantile_cont(w.v, [0.05, 0.5, 0.95]) AS q
  FROM own o JOIN windows w ON w.t = o.t AND NOT w.mine AND w.loaded IS NOT DISTINCT FROM o.loaded GROUP BY o.t)
SELECT o.t AS ts, o.v AS value, coalesce(peers, 0) AS peers, CASE WHEN peers >= {LEAST_PEERS} THEN q[1] END AS low,
  CASE WHEN peers >= {LEAST_PEERS} THEN q[2] END AS median, CASE WHEN peers >= {LEAST_PEERS} THEN q[3] END AS high
FROM own o LEFT JOIN band USING (t) ORDER BY ts"""  # noqa: S608 (quoted; columns are the contract's)


def _normal(served: Served, found: Row, what: Shown, since: datetime) -> float | None:
    """Median of its hours before; of a GPU of those under load, where there are any."""
    source = served.queries.source(f"{what.table}_1h", since - _PAST, since)
    loaded = f"FILTER (gpu_util_percent_mean >= {_LOADED})" if what.table == "gpu" and what is not _USE else ""
    rows = served.rows(
        f"SELECT median({what.column}) {loaded} AS loaded, median({what.column}) AS whole FROM {source} "  # noqa: S608
        f"WHERE {_entity(found, what)} AND ts >= {sql_time(since - _PAST)} AND ts < {sql_time(since)}"
    )
    told: float | None = rows[0]["loaded"] if rows[0]["loaded"] is not None else rows[0]["whole"]
    return told


# --- pictures -------------------------------------------------------------------------------------------------


def read_chart(served: Served, incident_id: str, theme: Theme) -> tuple[dict[str, Any], str]:
    """The chart (Vega-Lite) and its title: the band, or what was seen against what where there is no band."""
    from graynode.dashboards.charts import band_chart, incident_chart

    found = revisions_of(served, incident_id)[-1]
    title = clean(found["title"]) or str(found["cause"])
    rows = read_band(served, incident_id).rows
    if any(row["value"] is not None for row in rows):
        metric, unit = str(rows[0]["metric"]), str(rows[0]["unit"])
        return band_chart(rows, title=f"{title}: {metric}", unit=unit, onset=found["since"], theme=theme), title
    return incident_chart(evidence_of(found), title=title, theme=theme), title


def _theme(theme: str) -> Theme:
    if theme == "light":
        return "light"
    if theme == "dark":
        return "dark"
    raise Problem(400, f"theme={shown(theme)}: light or dark")


def _picture(body: bytes, media_type: str) -> Response[bytes]:
    headers = {"ETag": tag(body), "Cache-Control": "private, no-cache"}
    return Response(body, media_type=media_type, headers=headers)


ThemeIs = Annotated[str, QueryParameter(max_length=10, description="light or dark")]


@get("/api/v1/incidents/{incident_id:str}/band", sync_to_thread=True)
def band(served: ServedHere, incident_id: IncidentId) -> Response[bytes]:
    """The incident's metric over time, with its own normal and the peers' band."""
    return page(read_band(served, incident_id))


@get("/api/v1/incidents/{incident_id:str}/picture.svg", sync_to_thread=True, media_type="image/svg+xml")
def picture_svg(served: ServedHere, incident_id: IncidentId, theme: ThemeIs = "light") -> Response[bytes]:
    """The incident's picture as SVG, with an alternative text."""
    from graynode.dashboards.render import RenderError, note, svg

    spec, title = read_chart(served, incident_id, _theme(theme))
    try:
        made = svg(spec, title)
    except RenderError as error:
        made = note(title, str(error))
    return _picture(made.encode(), "image/svg+xml")


@get("/api/v1/incidents/{incident_id:str}/picture.png", sync_to_thread=True, media_type="image/png")
def picture_png(served: ServedHere, incident_id: IncidentId, theme: ThemeIs = "light") -> Response[bytes]:
    """The incident's picture as PNG."""
    from graynode.dashboards.render import RenderError, png

    spec, _ = read_chart(served, incident_id, _theme(theme))
    try:
        return _picture(png(spec), "image/png")
    except RenderError as error:
        raise Problem(503, str(error)) from error


ROUTES: Final[tuple[Any, ...]] = (band, picture_svg, picture_png)
