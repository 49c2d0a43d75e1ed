"""``/metrics`` for Prometheus: the fleet, open incidents, and this server's own health."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from typing import Any, Final

import polars as pl
from litestar import Request, Response, get
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from graynode.pipeline.queries import quoted
from graynode.service.api.problems import Problem
from graynode.service.api.state import Served

_KEPT_S: Final = 15.0
_STALE_S: Final = 120.0
_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5, 5.0, 10.0)
NODE_STATES: Final = ("healthy", "suspect", "quarantined", "in_repair", "probation", "unknown")
GPU_STATES: Final = ("healthy", "suspect", "lost", "unknown")


class Own:
    """What this process counts of itself."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "graynode_http_requests",
            "Requests answered, by route.",
            ("route", "method", "status"),
            registry=self.registry,
        )
        self.seconds = Histogram(
            "graynode_http_request_duration_seconds", "Time from request to the end of its answer, by route.",
            ("route",), buckets=_BUCKETS, registry=self.registry,
        )  # fmt: skip
        self.streams = Gauge("graynode_http_streams", "Listeners of the event stream.", registry=self.registry)


class Measured:
    """Middleware: counts and times every exchange by its route, never by its path, which callers choose."""

    def __init__(self, app: ASGIApp, own: Own) -> None:
        self._app, self._own = app, own

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One exchange."""
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            route = str(scope.get("path_template") or "none")
            self._own.requests.labels(route, _method(scope), str(status)).inc()
            if not route.endswith("/stream"):
                self._own.seconds.labels(route).observe(time.perf_counter() - began)


def _method(scope: Scope) -> str:
    told = str(scope.get("method", ""))
    return told if told in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS") else "other"


class OfFleet(Collector):
    """The fleet as it is now, and how old that is."""

    def __init__(self, served: Served) -> None:
        self._served = served

    def describe(self) -> Iterable[Metric]:
        """Nothing: the lake is not asked when this is registered."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All families; an incident that the lake cannot tell now is left out, never zero."""
        now = self._served.fleet.now()
        yield from self._of_states(now.nodes, now.gpus)
        clock = self._served.clock()
        yield _one("graynode_fleet_read_age_seconds", "Since the fleet was last read from the lake.",
                   max((clock - now.made).total_seconds(), 0.0))  # fmt: skip
        yield _one("graynode_fleet_read_ok", "1 while the lake can be read, 0 while the last picture is shown.",
                   0.0 if now.problem else 1.0)  # fmt: skip
        if now.at is not None:
            yield _one("graynode_data_age_seconds", "Since the end of the newest window in the lake.",
                       max((clock - now.at).total_seconds(), 0.0))  # fmt: skip
        try:
            rows = self._served.kept.get("metrics", _KEPT_S, self._told, stale_s=_STALE_S)
        except Problem:
            return
        yield _labelled("graynode_incidents_open", "Open incidents.", ("cluster", "severity", "cause"), rows[0])
        if rows[1] is not None:
            yield _one("graynode_round_age_seconds", "Since the newest detection round that the lake has.",
                       max((clock - rows[1]).total_seconds(), 0.0))  # fmt: skip
        yield _one("graynode_build_info", "Version of graynode that answers.", 1.0, {"version": version("graynode")})

    def _of_states(self, nodes: pl.DataFrame, gpus: pl.DataFrame) -> Iterator[Metric]:
        cluster = sorted(set(nodes["cluster"].drop_nulls().to_list())) or [self._served.config.cluster]
        counted = _by(nodes, ["cluster", "state"])
        yield _labelled("graynode_nodes", "Nodes by state.", ("cluster", "state"),
                        [((c, s), counted.get((c, s), 0)) for c in cluster for s in NODE_STATES])  # fmt: skip
        models = sorted({str(m) for m in gpus["gpu_model"].drop_nulls().to_list()})
        counted = _by(gpus, ["cluster", "gpu_model", "state"])
        keys = [(c, m, s) for c in cluster for m in models for s in GPU_STATES]
        rows = [(key, counted.get(key, 0)) for key in keys]
        yield _labelled("graynode_gpus", "GPUs by model and state.", ("cluster", "gpu_model", "state"), rows)
        told = nodes.filter(pl.col("out_of_scheduling").is_not_null())
        if told.height:
            out = _by(told.filter("out_of_scheduling"), ["cluster"])
            yield _labelled("graynode_nodes_out_of_scheduling", "Nodes that the scheduler gives no work, as it says.",
                            ("cluster",), [((c,), out.get((c,), 0)) for c in cluster])  # fmt: skip

    def _told(self) -> tuple[list[tuple[tuple[str, ...], float]], Any]:
        cluster = quoted(self._served.cluster())
        rows = self._served.rows(
            "SELECT severity, cause, count(*) AS n FROM incident_now "  # noqa: S608 (quoted)
            f"WHERE state <> 'resolved' AND cluster = {cluster} GROUP BY ALL ORDER BY ALL"
        )
        rounds = self._served.rows(f"SELECT max(ts) AS ts FROM round WHERE cluster = {cluster}")  # noqa: S608
        named = self._served.cluster()
        return [((named, str(r["severity"]), str(r["cause"])), float(r["n"])) for r in rows], rounds[0]["ts"]


def _by(frame: pl.DataFrame, columns: list[str]) -> dict[tuple[str, ...], int]:
    rows = frame.group_by(columns).len().iter_rows()
    return {tuple(str(part) for part in row[:-1]): int(row[-1]) for row in rows}


def _one(name: str, help_: str, value: float, labels: dict[str, str] | None = None) -> Metric:
    family = GaugeMetricFamily(name, help_, labels=list(labels or {}))
    family.add_metric(list((labels or {}).values()), value)
    return family


def _labelled(name: str, help_: str, labels: tuple[str, ...], rows: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
    family = GaugeMetricFamily(name, help_, labels=labels)
    for values, number in rows:
        family.add_metric(values, number)
    return family


@get("/metrics", sync_to_thread=True)
def metrics(request: Request[Any, Any, Any]) -> Response[bytes]:
    """For Prometheus; its scrape configuration names the token (authorization, credentials_file)."""
    state = request.app.state
    state.own.streams.set(state.feed.listeners)
    return Response(generate_latest(state.own.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


ROUTES: Final[tuple[Any, ...]] = (metrics,)
