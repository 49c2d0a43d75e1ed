"""What people have asked receivers to be spared: muted nodes, and incidents that somebody has taken."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from graynode.pipeline.bus import Bus, OffsetGone, Partition
from graynode.pipeline.codec import Unreadable, decode
from graynode.pipeline.schema import PEOPLE, SEVERITIES

_ALL_S: Final = 15.0
"""How long the first look waits for a broker to share out what there is. Then incidents are told all the same."""


class Quiet:
    """One reader of what people say, from the oldest on; it commits nothing, so a restart knows it all again.

    One thread. ``BusUnavailable`` from ``because``: call again, nothing was decided.
    """

    def __init__(self, bus: Bus, group: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._consumer = bus.consumer([PEOPLE], group, on_assigned=dict.fromkeys)
        self._monotonic = monotonic
        self._muted: dict[tuple[str, str], tuple[datetime, datetime, str]] = {}
        self._taken: dict[str, str] = {}
        self._told: dict[str, int] = {}
        self._whole = False

    def because(self, incident: Mapping[str, Any], now: datetime) -> str:
        """Why this revision is not to be told; empty: it is.

        A taken incident is told when it gets worse than it was last told here, when it opens again and when it is over.
        """
        self._hear()
        mute = self._muted.get((str(incident.get("cluster")), str(incident.get("node_id"))))
        if mute is not None and mute[1] > now:
            return f"muted until {mute[1]:%Y-%m-%d %H:%M} UTC by {mute[2]}"
        identity, rank = str(incident.get("incident_id")), _rank(incident.get("severity"))
        before = self._told.get(identity)
        no_worse = before is not None and rank >= before
        if identity in self._taken and incident.get("state") == "updated" and no_worse:
            return f"taken by {self._taken[identity]}"
        return ""

    def told(self, incident: Mapping[str, Any]) -> None:
        """The receiver has this revision."""
        identity, rank = str(incident.get("incident_id")), _rank(incident.get("severity"))
        if incident.get("state") == "resolved":
            self._told.pop(identity, None)
        else:
            self._told[identity] = min(rank, self._told.get(identity, rank))

    def close(self) -> None:
        """Let go of the bus."""
        self._consumer.close()

    def _hear(self) -> None:
        began = self._monotonic()
        position: dict[Partition, int] = {}
        while True:
            try:
                received = self._consumer.poll(0.0 if self._whole else 0.1)
            except OffsetGone as gone:
                self._consumer.seek(gone.partition, gone.first)
                continue
            for r in received:
                position[r.partition] = r.offset + 1
                try:
                    self._take(str(r.message.headers.get("table")), decode(r.message).to_pylist)
                except Unreadable:
                    continue  # the pipeline keeps it among the dead letters
            if not received and (self._whole or self._at_end(position) or self._monotonic() - began > _ALL_S):
                self._whole = True
                return

    def _at_end(self, position: Mapping[Partition, int]) -> bool:
        ends = self._consumer.end_offsets()
        return bool(ends) and all(position.get(p, 0) >= end for p, end in ends.items())

    def _take(self, table: str, rows: Callable[[], list[dict[str, Any]]]) -> None:
        if table == "mute":
            for row in rows():
                self._mute(row)
        elif table == "ack":
            self._taken |= {str(row["incident_id"]): str(row.get("who") or "somebody") for row in rows()}

    def _mute(self, row: Mapping[str, Any]) -> None:
        said, until = row.get("ts"), row.get("until")
        key = (str(row.get("cluster")), str(row.get("node_id")))
        if not isinstance(said, datetime) or not isinstance(until, datetime):
            return
        if key not in self._muted or said >= self._muted[key][0]:
            self._muted[key] = (said, until.astimezone(UTC), str(row.get("who") or "somebody"))


def _rank(severity: Any) -> int:  # noqa: ANN401 (from JSON)
    return SEVERITIES.index(severity) if severity in SEVERITIES else 0
