"""Whether the server lives and can answer (for a supervisor, without a token), and how graynode's own parts are."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final

from litestar import Response, get

from graynode.pipeline.queries import quoted
from graynode.service.api.answers import Page, Row, page
from graynode.service.api.asked import ServedHere
from graynode.service.api.problems import Problem
from graynode.service.api.spans import sql_time
from graynode.service.api.state import Served

_LATE_S: Final = {"fleet": 120.0, "data": 300.0, "rounds": 600.0}
"""From when a part is late: pictures come every 15 s, windows close after a minute, rounds come every 30 s."""
_KEPT_S: Final = 10.0


@get("/healthz", opt={"public": True}, sync_to_thread=False, media_type="text/plain")
def healthz() -> str:
    """The process answers."""
    return "ok\n"


@get("/readyz", opt={"public": True}, sync_to_thread=False, media_type="text/plain")
def readyz(served: ServedHere) -> Response[str]:
    """The fleet has been read from the lake, and the last time that worked. 503 until then."""
    ready = not served.fleet.now().problem
    return Response("ready\n" if ready else "not ready\n", status_code=200 if ready else 503, media_type="text/plain")


def read_health(served: Served) -> Page:
    """A row a part: ``ok``, ``late``, ``failing`` or ``unknown``, since when, how long ago, and why."""
    clock = served.clock()
    rows = [*_fleet(served, clock)]
    try:
        rows += served.kept.get("health", _KEPT_S, lambda: list(_lake(served, clock)))
    except Problem as problem:
        rows.append(_row("lake", "failing", None, clock, problem.detail))
    return Page(rows, clock)


def _row(
    part: str, state: str, last: datetime | None, clock: datetime, detail: str = "", value: float | None = None
) -> Row:
    age = None if last is None else max((clock - last).total_seconds(), 0.0)
    return {"part": part, "state": state, "last": last, "age_s": age, "value": value, "detail": detail}


def _late(part: str, last: datetime | None, clock: datetime) -> str:
    if last is None:
        return "unknown"
    return "ok" if (clock - last).total_seconds() <= _LATE_S[part] else "late"


def _fleet(served: Served, clock: datetime) -> Iterator[Row]:
    now = served.fleet.now()
    state = "failing" if now.problem else _late("fleet", now.made, clock)
    yield _row("fleet picture", state, now.made, clock, now.problem)
    yield _row("data", _late("data", now.at, clock), now.at, clock, "" if now.at else "the lake has no window yet")


def _lake(served: Served, clock: datetime) -> Iterator[Row]:
    cluster, day = quoted(served.cluster()), sql_time(clock - timedelta(days=1))
    done = served.rows(
        "SELECT ts, late_machines, seconds FROM round "  # noqa: S608 (quoted)
        f"WHERE cluster = {cluster} AND ts >= {day} ORDER BY ts DESC LIMIT 1"
    )
    if done:
        said = f"{done[0]['late_machines']} machines had not closed their windows" if done[0]["late_machines"] else ""
        yield _row(
            "detection rounds", _late("rounds", done[0]["ts"], clock), done[0]["ts"], clock, said, done[0]["seconds"]
        )
    else:
        yield _row("detection rounds", "unknown", None, clock, "none in a day")
    for row in served.rows(
        "SELECT responder, max(ts) AS ts, arg_max(outcome, ts) AS outcome, arg_max(reason, ts) AS reason, "  # noqa: S608
        "count(*) FILTER (outcome = 'failed') AS failed FROM action "
        f"WHERE cluster = {cluster} AND ts >= {day} GROUP BY 1"
    ):
        state = "failing" if row["outcome"] == "failed" else "ok"
        yield _row(f"responder {row['responder']}", state, row["ts"], clock, str(row["reason"] or ""), row["failed"])
    for table in ("gpu_30s", "host_30s", "event", "finding", "incident"):
        version = served.lake.version(table)
        yield _row(f"table {table}", "ok" if version >= 0 else "unknown", None, clock,
                   "" if version >= 0 else "not written yet", None if version < 0 else float(version))  # fmt: skip


@get("/api/v1/health", sync_to_thread=True)
def health(served: ServedHere) -> Response[bytes]:
    """graynode's own parts: how old the fleet's picture, the data and the rounds are; who could be told."""
    return page(read_health(served))


ROUTES: Final[tuple[Any, ...]] = (healthz, readyz, health)
