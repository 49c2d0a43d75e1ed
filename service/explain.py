"""``graynode explain INCIDENT``: from the lake, or from the bus where the lake does not have it yet."""

from __future__ import annotations

import os
import re
import sys
from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from graynode.pipeline.bus import BusRefused, BusUnavailable
from graynode.pipeline.queries import Queries, QueryError
from graynode.service.config import Config
from graynode.service.config_tables import LakeSection
from graynode.service.said import said
from graynode.service.wiring import make_bus, make_lake

_PREFIX: Final = re.compile(r"[0-9a-f-]{1,36}")
_LATEST: Final = 5

Revisions = dict[str, dict[int, dict[str, Any]]]
"""Incident id → revision → row."""


def run(config: Config, incident: str, *, as_json: bool = False, out: TextIO | None = None) -> int:
    """Explain the incident whose id begins so. 0 explained, 1 not found or not only one."""
    from graynode.dashboards.explain import as_json as to_json
    from graynode.dashboards.explain import explain

    found, notes = find(config, incident.strip().lower())
    if len(found) != 1:
        print(_not_one(config, incident, found, notes), file=sys.stderr)
        return 1
    revisions = next(iter(found.values()))
    history = [revisions[number] for number in sorted(revisions)]
    sink = out or sys.stdout
    if as_json:
        print(to_json(history[-1], history), file=sink)
        return 0
    from rich.console import Console

    console = Console(file=sink, highlight=False, soft_wrap=False, width=None if sink.isatty() else 80)
    told = _said(config, history[-1], notes)
    console.print(explain(history[-1], history, datetime.now(UTC), said=told, lake=other_lake(config)))
    return 0


def other_lake(config: Config) -> str:
    """The lake that was asked, where ``graynode sql`` would by itself ask another; else empty."""
    return config.lake.path if config.lake.path != LakeSection().path else ""


def _said(config: Config, incident: Mapping[str, Any], notes: list[str]) -> list[dict[str, Any]]:
    """What the lake has of it; nothing where there is none to ask, for the incident may come from the bus alone."""
    if any("the lake" in note for note in notes):
        return []
    queries = Queries(make_lake(config))
    try:
        return said(queries.rows, incident)
    finally:
        queries.close()


def find(config: Config, prefix: str) -> tuple[Revisions, list[str]]:
    """Incidents whose id begins with ``prefix``, and what could not be asked. The lake first, then the bus."""
    if not _PREFIX.fullmatch(prefix):
        return {}, []
    notes: list[str] = []
    found = _from_lake(config, f"starts_with(incident_id, '{prefix}')", notes)
    if not found:
        found = {i: r for i, r in _from_bus(config, notes).items() if i.startswith(prefix)}
    return found, notes


def latest(config: Config, most: int = _LATEST) -> list[dict[str, Any]]:
    """The incidents changed last, in their latest revision, newest first."""
    notes: list[str] = []
    found = _from_lake(config, "true", notes, most)
    found |= {i: r for i, r in _from_bus(config, notes).items() if i not in found or max(r) > max(found[i])}
    rows = [revisions[max(revisions)] for revisions in found.values()]
    return sorted(rows, key=_when, reverse=True)[:most]


def _when(row: Mapping[str, Any]) -> str:
    ts = row.get("ts")
    return ts.isoformat() if isinstance(ts, datetime) else str(ts).replace("Z", "+00:00")


def _from_lake(config: Config, where: str, notes: list[str], most: int = 1000) -> Revisions:
    from graynode.pipeline.lake import LakeError, LakeTooNew

    found: Revisions = defaultdict(dict)
    try:
        queries = Queries(make_lake(config))
        try:
            rows = queries.rows(f"SELECT * FROM incident WHERE {where} ORDER BY ts DESC, revision DESC LIMIT {most}")  # noqa: S608 (checked)
        finally:
            queries.close()
    except (QueryError, LakeError, LakeTooNew, OSError) as error:
        notes.append(f"the lake {config.lake.path} cannot be asked: {error}")
        return {}
    for row in rows:
        row.pop("date", None)
        found[row["incident_id"]][row["revision"]] = row
    return dict(found)


def _from_bus(config: Config, notes: list[str]) -> Revisions:
    from graynode.service.incident_bus import read_incidents

    if config.bus.kind == "spool" and not config.bus.spool_dir.exists():
        return {}
    group = f"graynode-explain-{os.getpid()}"
    found: Revisions = defaultdict(dict)
    try:
        bus = make_bus(config)
        try:
            revisions = read_incidents(bus, group)
        finally:
            forget = getattr(bus, "forget", None)
            if forget is not None:
                forget(group)  # a reader for one look must not keep messages
    except (BusUnavailable, BusRefused, OSError) as error:
        notes.append(f"the bus cannot be asked: {error}")
        return {}
    for row in revisions:
        if row["cluster"] == config.cluster:
            found[row["incident_id"]][row["revision"]] = row
    return dict(found)


def _not_one(config: Config, asked: str, found: Revisions, notes: list[str]) -> str:
    from graynode.dashboards.explain import one_line
    from graynode.dashboards.pieces import clean

    if found:
        rows = [r[max(r)] for r in found.values()]
        head = f"graynode explain: {len(found)} incidents begin with {asked!r}; give more of the id:"
    else:
        rows = latest(config)
        head = f"graynode explain: no incident begins with {asked[:60]!r}"
        head += "; the latest are:" if rows else ", and there is none at all yet"
    ids = [clean(row["incident_id"]) for row in rows[:10]]
    lines = [head, *(f"  {id_}  {one_line(row)}" for id_, row in zip(ids, rows, strict=False))]
    return "\n".join([*lines, *(f"  ({note})" for note in notes)])
