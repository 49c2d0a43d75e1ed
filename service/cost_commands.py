"""``graynode cost``, ``capacity`` and ``user``: ask the lake, print, and say it plainly where that cannot be."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import ModuleType
from typing import Any, Final, TextIO

import polars as pl

from graynode.collectors.base import utc_now
from graynode.pipeline.codec import to_batch
from graynode.pipeline.lake import Lake, LakeError, LakeTooNew
from graynode.pipeline.queries import Queries, QueryError
from graynode.pipeline.schema import TABLES
from graynode.service import capacity as capacity_
from graynode.service import cost as cost_
from graynode.service import cost_budgets, cost_jobs, cost_print, cost_text, user_view
from graynode.service.config import Config, ConfigError
from graynode.service.times import instant, past
from graynode.service.wiring import make_lake

Answer = Mapping[str, Any]
_TEXT: Final[Mapping[str, Callable[[Answer, TextIO], None]]] = {
    "cost": cost_text.print_cost,
    "jobs": cost_text.print_jobs,
    "budgets": cost_text.print_budgets,
    "capacity": cost_text.print_capacity,
    "user": cost_text.print_user,
}


def cost(
    config: Config, *, since: str = "", until: str = "", by: str = "category", form: str = "text",
    out: TextIO | None = None,
) -> int:  # fmt: skip
    """GPU-hours and money. 0 told, 1 nothing to tell or no lake to ask; ``ConfigError`` for a wrong option."""
    begin, end = _at("--since", since), _at("--until", until)
    return _ask(config, "cost", form, out, lambda q: cost_.read(q, config, since=begin, until=end, by=by))


def jobs(
    config: Config, *, since: str = "", until: str = "", job_id: str = "", user: str = "", form: str = "text",
    out: TextIO | None = None,
) -> int:  # fmt: skip
    """Each job's phases, cost and losses."""
    begin, end = _at("--since", since), _at("--until", until)
    return _ask(
        config, "jobs", form, out,
        lambda q: cost_jobs.read(q, config, since=begin, until=end, job_id=job_id, user=user),
    )  # fmt: skip


def budgets(
    config: Config, *, until: str = "", tell: bool = False, send: bool = False, form: str = "text",
    out: TextIO | None = None,
) -> int:  # fmt: skip
    """Budgets of the month that ``until`` ends, or this one. With ``tell`` alerts go into the lake, once each; with
    ``send`` to the addresses of reports before that: what nobody took is not told, and comes again.
    """
    now = utc_now()
    end = past("--until", until, now)
    if send:
        _letters().addresses(config)  # wrong ones are said before the work

    def read(queries: Queries) -> Answer:
        found = cost_budgets.read(queries, config, at=end)
        if tell and (rows := cost_budgets.untold(queries, found, cost_budgets.alerts(found, now))):
            if send and not _sent(config, rows):
                raise ConfigError("no address took the alerts; they are not marked as told and come again")
            _write(make_lake(config), rows)
            found["notes"].extend(f"told: {row['message']}" for row in rows)
        return found

    return _ask(config, "budgets", form, out, read)


def _letters() -> ModuleType:
    """Loaded where something is sent only: it takes apprise in."""
    from graynode.service import report_send

    return report_send


def _sent(config: Config, rows: Sequence[Mapping[str, Any]]) -> bool:
    body = "\n".join(str(row["message"]) for row in rows)
    took: int = _letters().tell(config, "cost", f"Budgets of GPU-hours, {rows[0]['cluster']}", body)[0]
    return took > 0


def _write(lake: Lake, rows: Sequence[Mapping[str, Any]]) -> None:
    """Straight into the lake, as an import does: the bus' topic of events belongs to the agents."""
    frame = pl.from_arrow(to_batch(TABLES["event"], rows))
    assert isinstance(frame, pl.DataFrame)  # noqa: S101 (a batch gives a frame; narrows the type)
    lake.write("event", frame)


def capacity(config: Config, *, at: str = "", form: str = "text", out: TextIO | None = None) -> int:
    """Who waits, what is free, what could be given back."""
    moment = past("--at", at)
    return _ask(config, "capacity", form, out, lambda q: capacity_.read(q, config, at=moment))


def user(
    config: Config, name: str, *, since: str = "", until: str = "", form: str = "text", out: TextIO | None = None
) -> int:
    """What happened to a user's jobs."""
    begin, end = _at("--since", since), _at("--until", until)
    return _ask(config, "user", form, out, lambda q: user_view.read(q, config, name, since=begin, until=end))


def _at(option: str, text: str) -> datetime | None:
    return instant(option, text) if text else None


def _ask(config: Config, what: str, form: str, out: TextIO | None, read: Callable[[Queries], Answer]) -> int:
    sink = out or sys.stdout
    queries = Queries(make_lake(config))
    try:
        answer = read(queries)
    except (QueryError, LakeError, LakeTooNew, OSError) as error:
        print(f"graynode {what}: the lake {config.lake.path} cannot be asked: {error}", file=sys.stderr)
        return 1
    finally:
        queries.close()
    if form == "json":
        cost_print.as_json(answer, sink)
    elif form == "csv":
        cost_print.as_csv(answer["rows"], sink)
        for note in answer.get("notes", ()):
            print(f"graynode {what}: {note}", file=sys.stderr)
    else:
        _TEXT[what](answer, sink)
    return 0 if answer["rows"] else 1
