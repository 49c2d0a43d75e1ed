"""What people have asked receivers to be spared: muted nodes, maintenance, incidents that somebody has taken."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from graynode.pipeline.bus import Bus, OffsetGone, Partition
from graynode.pipeline.codec import Unreadable, decode
from graynode.pipeline.schema import PEOPLE
from graynode.responders.routes import rank
from graynode.service.quiet_windows import Window, window_of

_ALL_S: Final = 15.0
"""How long the first look waits for a broker to share out what there is. Then incidents are told all the same."""

Place = Callable[[Mapping[str, Any]], Mapping[str, str]]
"""Rack and partition of an incident's node, as far as known."""


class Quiet:
    """One reader of what people say, from the oldest on; it commits nothing, so a restart knows it all again.

    One thread. ``BusUnavailable`` from ``because``: call again, nothing was decided.
    """

    def __init__(
        self,
        bus: Bus,
        group: str,
        monotonic: Callable[[], float] = time.monotonic,
        place: Place = lambda _: {},
    ) -> None:
        self._consumer = bus.consumer([PEOPLE], group, on_assigned=dict.fromkeys)
        self._monotonic, self._place = monotonic, place
        self._muted: dict[tuple[str, str], tuple[datetime, datetime, str]] = {}
        self._windows: dict[tuple[str, str], Window] = {}
        self._taken: dict[str, str] = {}
        self._told: dict[str, int] = {}
        self._whole = False

    def because(self, incident: Mapping[str, Any], now: datetime) -> str:
        """Why this revision is not to be told; empty: it is.

        A taken incident is told when it gets worse than it was last told here, when it opens again and when it is over.
        """
        spared = self.spared(incident, now)
        if spared is not None:
            return spared[0]
        identity, severity = str(incident.get("incident_id")), rank(incident.get("severity"))
        before = self._told.get(identity)
        no_worse = before is not None and severity >= before
        if identity in self._taken and incident.get("state") == "updated" and no_worse:
            return f"taken by {self._taken[identity]}"
        return ""

    def spared(self, incident: Mapping[str, Any], now: datetime) -> tuple[str, datetime] | None:
        """Why receivers hear nothing of this node now, and until when; none: they do."""
        self._hear()
        found = []
        mute = self._muted.get((str(incident.get("cluster")), str(incident.get("node_id"))))
        if mute is not None and mute[1] > now:
            found.append((f"muted until {mute[1]:%Y-%m-%d %H:%M} UTC by {mute[2]}", mute[1]))
        for window in self._windows.values():
            if window.holds(now) and window.covers(incident, self._place(incident)):
                found.append((window.said(), window.until))
        return max(found, key=lambda one: one[1], default=None)

    def taken(self, incident: Mapping[str, Any]) -> str:
        """Who has taken the incident; empty: nobody has."""
        self._hear()
        return self._taken.get(str(incident.get("incident_id")), "")

    def told(self, incident: Mapping[str, Any]) -> None:
        """The receiver has this revision."""
        identity, severity = str(incident.get("incident_id")), rank(incident.get("severity"))
        if incident.get("state") == "resolved":
            self._told.pop(identity, None)
        else:
            self._told[identity] = min(severity, self._told.get(identity, severity))

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
        elif table == "maintenance":
            for row in rows():
                self._window(row)
        elif table == "ack":
            self._taken |= {str(row["incident_id"]): str(row.get("who") or "somebody") for row in rows()}

    def _mute(self, row: Mapping[str, Any]) -> None:
        said, until = row.get("ts"), row.get("until")
        key = (str(row.get("cluster")), str(row.get("node_id")))
        if not isinstance(said, datetime) or not isinstance(until, datetime):
            return
        if key not in self._muted or said >= self._muted[key][0]:
            self._muted[key] = (said, until.astimezone(UTC), str(row.get("who") or "somebody"))

    def _window(self, row: Mapping[str, Any]) -> None:
        window = window_of(row)
        if window is None:
            return
        key = (window.cluster, window.maintenance_id)
        if key not in self._windows or window.ts >= self._windows[key].ts:
            self._windows[key] = window
