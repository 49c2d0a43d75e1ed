"""A recording as time that passes: slices that end on whole windows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from graynode.collectors.base import CADENCES_S, Round, Row
from graynode.collectors.replay import Replay
from graynode.service.config import ConfigError
from graynode.service.replay_paths import Slice, steps_s

_LOOK: Final = timedelta(hours=1)
_LOOK_ROWS: Final = 20_000
_STEP: Final = timedelta(seconds=30)
_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)


class RecordedTime:
    """The recording in slices that end on whole windows."""

    def __init__(self, recording: Replay, cluster: str, source: str) -> None:
        """``source`` is what a person calls the recording."""
        self._recording, self.cluster, self._source = recording, cluster, source
        self.start: datetime | None = None
        self.end: datetime | None = None
        self.rows = 0

    @property
    def refused(self) -> Counter[str]:
        """What of the recording could not be read, by the reason."""
        return self._recording.refused

    def look(self) -> list[tuple[datetime, Slice]]:
        """The beginning, until it shows how far apart its samples are. ``ConfigError`` where it holds no row."""
        found: list[tuple[datetime, Slice]] = []
        rows = self._until(_EPOCH)
        for some in rows.values():
            self.start = min(filter(None, (self.start, some[0]["ts"])))
        if self.start is None:
            raise ConfigError(f"{self._source}: holds no row with a time{not_taken(self.refused)}")
        at = self._aligned(self.start, 30)
        found.append((at, rows))
        while not self._recording.finished and at - self.start < _LOOK and self.rows < _LOOK_ROWS:
            at += _STEP
            found.append((at, self._until(_EPOCH + (at - self.start))))
            if next(steps_s(joined(found)), None) is not None:
                break
        return found

    def slices(self, first: list[tuple[datetime, Slice]], length_s: int) -> Iterator[tuple[datetime, Slice]]:
        """Ends and rows of slices of that length, with what ``look`` has taken; empty ones too."""
        assert self.start is not None  # noqa: S101 (there is a first row; narrows the type)
        waiting = dict(joined(first))
        end = self._aligned(self.start, length_s)
        while True:
            for table, some in self._until(_EPOCH + (end - self.start)).items():
                waiting[table] = [*waiting.get(table, ()), *some]
            now = {t: [r for r in some if r["ts"] < end] for t, some in waiting.items()}
            waiting = {t: kept for t, some in waiting.items() if (kept := [r for r in some if r["ts"] >= end])}
            self.end = end
            yield end, {table: some for table, some in now.items() if some}
            if self._recording.finished and not waiting:
                return
            end += timedelta(seconds=length_s)

    def _until(self, virtual: datetime) -> dict[str, list[Row]]:
        """All rows up to that moment of the recording, which began at ``_EPOCH``; under the replay's own cluster."""
        found: dict[str, list[Row]] = {}
        while True:
            some = self._recording.collect(Round(virtual, frozenset(CADENCES_S)))
            if not some:
                break
            for table, rows in some.items():
                self.rows += len(rows)
                found.setdefault(table, []).extend({**row, "cluster": self.cluster} for row in rows)
        return found

    @staticmethod
    def _aligned(moment: datetime, length_s: int) -> datetime:
        """The end of the window that holds it."""
        return datetime.fromtimestamp(moment.timestamp() // length_s * length_s + length_s, UTC)


def joined(slices: list[tuple[datetime, Slice]]) -> dict[str, list[Row]]:
    """All slices as one."""
    joined: dict[str, list[Row]] = {}
    for _, rows in slices:
        for table, some in rows.items():
            joined.setdefault(table, []).extend(some)
    return joined


def not_taken(refused: Counter[str]) -> str:
    """What was not taken, for the end of a sentence; empty where all was."""
    told = ", ".join(f"{count:,} {why}" for why, count in refused.most_common(5))
    return f"; not taken: {told}" if told else ""
