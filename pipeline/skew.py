"""Clocks that are wrong: a machine's newest sample against the bus's clock, said once, and once when it is over.

``ts`` is never rewritten. A clock that runs ahead shows at once. One that runs behind looks like a backlog, so it
must stay behind by a steady amount for ten minutes; a backlog passes, and what is hours old is history.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import polars as pl

from graynode.pipeline.bus import Received
from graynode.pipeline.decode import SOURCE
from graynode.pipeline.schema import stable_id

SKEW_MS: Final = 15_000
"""Windows close 15 s after their end: a clock that is further off puts samples into windows that are closed."""
_BATCH_MS: Final = 10_000
"""A sample waits this long for its batch and its sending; so much later is not behind."""
_CALM_MS: Final = 600_000
_STEADY_MS: Final = 10_000
_HISTORY_MS: Final = 6 * 3_600_000
_WELL_MS: Final = 10_000
KINDS: Final = ("clock_skew", "clock_skew_end")
_LABEL: Final = "pipeline"
_WHO: Final = ("cluster", "node_id", "node", "boot_id")


@dataclass(slots=True)
class _Clock:
    skewed: bool = False
    behind_since_ms: int = 0
    least_lag_ms: int = 0
    most_lag_ms: int = 0


class SkewWatch:
    """One partition's clocks, by message key."""

    def __init__(self) -> None:
        self._clocks: dict[str, _Clock] = {}

    def restore(self, events: pl.DataFrame) -> None:
        """What the table ``event`` last said of each machine's clock."""
        own = events.filter(pl.col("kind").is_in(list(KINDS)) & (pl.col("source") == _LABEL)).sort("observed_ts")
        for row in own.select("cluster", "node_id", "kind").iter_rows(named=True):
            self._clocks.setdefault(f"{row['cluster']}/{row['node_id']}", _Clock()).skewed = row["kind"] == KINDS[0]

    def events(self, frame: pl.DataFrame, received: Sequence[Received]) -> list[tuple[int, dict[str, Any]]]:
        """Look at each message's newest sample; index of the message and an ``event`` row for each clock that goes
        wrong or right again. ``frame`` has ``_source``, ascending, an index into ``received``.
        """
        if not frame.height:
            return []
        source = frame[SOURCE].to_numpy()
        starts = np.flatnonzero(np.append(True, source[1:] != source[:-1]))
        newest = np.maximum.reduceat(frame["ts"].dt.timestamp("us").to_numpy(), starts)
        told: list[tuple[int, dict[str, Any]]] = []
        for at, index, latest in zip(starts.tolist(), source[starts].tolist(), newest.tolist(), strict=True):
            event = self.see(received[index], datetime.fromtimestamp(latest / 1e6, UTC))
            if event is not None:
                who = frame.row(at, named=True)
                told.append((index, {**event, **{key: who[key] for key in _WHO}}))
        return told

    def see(self, received: Received, newest: datetime) -> dict[str, Any] | None:
        """One message's newest sample; an ``event`` row, without the machine's names, where its clock goes wrong or
        right again.
        """
        ahead_ms = int(newest.timestamp() * 1000) - received.arrived_ms
        clock = self._clocks.setdefault(received.message.key, _Clock())
        wrong = ahead_ms > SKEW_MS or self._behind(clock, -ahead_ms, received.arrived_ms)
        if wrong and not clock.skewed:
            clock.skewed = True
            return _event(received, KINDS[0], ahead_ms)
        if clock.skewed and not wrong and -_WELL_MS - _BATCH_MS < ahead_ms < _WELL_MS:
            clock.skewed = False
            return _event(received, KINDS[1], ahead_ms)
        return None

    def _behind(self, clock: _Clock, lag_ms: int, arrived_ms: int) -> bool:
        if not SKEW_MS + _BATCH_MS < lag_ms <= _HISTORY_MS:
            clock.behind_since_ms = 0
            return False
        if not clock.behind_since_ms or max(clock.most_lag_ms, lag_ms) - min(clock.least_lag_ms, lag_ms) > _STEADY_MS:
            clock.behind_since_ms, clock.least_lag_ms, clock.most_lag_ms = arrived_ms, lag_ms, lag_ms
            return False
        clock.least_lag_ms, clock.most_lag_ms = min(clock.least_lag_ms, lag_ms), max(clock.most_lag_ms, lag_ms)
        return arrived_ms - clock.behind_since_ms >= _CALM_MS


def _event(received: Received, kind: str, ahead_ms: int) -> dict[str, Any]:
    arrived = datetime.fromtimestamp(received.arrived_ms / 1000, UTC)
    place = f"{received.partition.topic}/{received.partition.number}"
    side = "ahead of" if ahead_ms > 0 else "behind"
    over = kind == KINDS[1]
    return {
        "ts": arrived,
        "event_id": stable_id(received.message.key, _LABEL, kind, place, received.offset),
        "source": _LABEL,
        "kind": kind,
        "message": f"clock is {abs(ahead_ms) / 1000:.1f} s {side} the bus's clock" + (": well again" if over else ""),
        "attributes": json.dumps({"skew_s": round(ahead_ms / 1000, 3), "bound_s": SKEW_MS / 1000}),
        "observed_ts": arrived,
        "ts_quality": "observed",
    }
