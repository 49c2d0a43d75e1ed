"""What people said of an incident and who was told of it, in order of time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from graynode.pipeline.queries import quoted

_SAID: Final = """
WITH all_said AS (
  SELECT ts, 'taken' AS what, who, why FROM ack WHERE incident_id = {incident}
  UNION ALL SELECT ts, 'verdict ' || verdict, who, why FROM label WHERE incident_id = {incident}
  UNION ALL SELECT ts, CASE WHEN until > ts THEN 'node muted until ' || strftime(until, '%Y-%m-%d %H:%M UTC')
    ELSE 'node heard again' END, who, why FROM mute
    WHERE cluster = {cluster} AND node_id = {node_id} AND coalesce(until, ts) >= TIMESTAMPTZ '{since}'
  UNION ALL SELECT ts, 'repaired: ' || coalesce(what, '?'), who, NULL FROM repair
    WHERE cluster = {cluster} AND node_id = {node_id} AND ts >= TIMESTAMPTZ '{since}'
  UNION ALL SELECT ts, kind || ' ' || outcome || ' (revision ' || revision || ')', responder, reason FROM action
    WHERE incident_id = {incident})
SELECT ts, what, who, why FROM all_said ORDER BY ts, what
"""


def said(rows: Callable[[str], list[dict[str, Any]]], incident: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of ts, what, who and why: acknowledgements, verdicts, mutes and repairs of its node, and what was told.

    ``rows`` asks the lake; ``incident`` is any revision. Its ``since`` bounds mutes and repairs.
    """
    since = incident.get("since") or incident["ts"]
    return rows(
        _SAID.format(
            incident=quoted(str(incident["incident_id"])),
            cluster=quoted(str(incident["cluster"])),
            node_id=quoted(str(incident.get("node_id") or "")),
            since=since if isinstance(since, str) else since.isoformat(),
        )
    )
