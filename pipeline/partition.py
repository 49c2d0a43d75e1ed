"""One partition in the hands of its owner: what was met, what is open, how far each table has come."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import polars as pl

from graynode.pipeline import snapshot
from graynode.pipeline.bus import Partition
from graynode.pipeline.clones import CloneWatch
from graynode.pipeline.decode import tables_of
from graynode.pipeline.hours import HOUR_US, Hours, epoch_us
from graynode.pipeline.lake import CLOSED_THROUGH, Lake
from graynode.pipeline.normalise import Normaliser
from graynode.pipeline.schema import SAMPLES
from graynode.pipeline.seen import Seen
from graynode.pipeline.skew import SkewWatch
from graynode.pipeline.still import StillWatch
from graynode.pipeline.window_counters import carry_columns
from graynode.pipeline.window_pieces import WINDOW_US
from graynode.pipeline.windows import WINDOWED, Machine, Recovered, Windows

OPEN_HOURS: Final = "open_hours_from:"
"""Application ids of ``_1h`` tables: from which hour on (epoch seconds) a restart looks for open hours."""
_CARRY_LOOK_BACK: Final = timedelta(minutes=10)
"""Before a machine's last closed window: the slowest counters are read once a minute."""
_STATE_LOOK_BACK: Final = timedelta(days=30)
_WHO: Final = ["cluster", "node_id"]


def landed_tables(topic: str) -> tuple[str, ...]:
    """Tables that the messages of a topic give rows to; each holds an offset of its partitions."""
    if topic == SAMPLES:
        return (*tables_of(topic), "event", *(f"{table}_30s" for table in WINDOWED))
    return tables_of(topic)


class Owned:
    """State of one partition, as the lake and the snapshot left it. ``start`` is where to read from."""

    def __init__(self, lake: Lake, partition: Partition, now: datetime) -> None:
        self.partition, self._lake = partition, lake
        self.id = f"{partition.topic}/{partition.number}"
        self.samples = partition.topic == SAMPLES
        self.committed = {t: lake.committed(t, self.id) or 0 for t in landed_tables(partition.topic)}
        self.seen = Seen()
        self.least_committed = min(self.committed.values())
        # Without a snapshot the whole log is passed once more: only so is it known what was met.
        self.start: int | None = None
        held = snapshot.load(lake, partition)
        if held is not None and held[0] <= self.least_committed:
            self.start, self.seen = held[0], held[1]
        self.position = self.start or 0
        self.snapshot_offset = self.position
        self.waiting_snapshot: tuple[int, pl.DataFrame] | None = None
        self.normaliser, self.skew = Normaliser(), SkewWatch()
        self.clones, self.still = CloneWatch(), StillWatch()
        self.windows = Windows(self._recover)
        self.hours = {table: Hours() for table in WINDOWED}
        self.said_closed: dict[str, int] = {}
        self.said_hours: dict[str, int] = {}
        self._strangers: dict[Machine, dict[str, pl.DataFrame]] = {}
        if self.samples:
            self._resume(now)

    # --- after a restart -----------------------------------------------------------------------------------

    def _resume(self, now: datetime) -> None:
        since = now - _STATE_LOOK_BACK
        names = ["ts", *_WHO, "table_name", "entity", "field", "state", "reason"]
        told = self._lake.read("quality", since, columns=names)
        self.normaliser.restore(told)
        self.still.restore(told)
        self.skew.restore(self._lake.read("event", since, columns=[*_WHO, "kind", "source", "observed_ts"]))
        said = [self._lake.offset(f"{table}_30s", CLOSED_THROUGH + self.id) for table in WINDOWED]
        self.windows.resume_closed_through(max((s for s in said if s is not None), default=None))
        mine = set(self.seen.machines())
        for table in WINDOWED:
            mark = self._lake.offset(f"{table}_1h", OPEN_HOURS + self.id)
            if mark is not None:
                self.said_hours[table] = mark
                self._resume_hours(table, datetime.fromtimestamp(mark, UTC), mine)

    def _resume_hours(self, table: str, since: datetime, mine: set[Machine]) -> None:
        for cluster, node_id, ts in self._lake.read(f"{table}_1h", since, columns=[*_WHO, "ts"]).iter_rows():
            self.hours[table].made(f"{cluster}/{node_id}", epoch_us(ts))
        rows = self._lake.read(f"{table}_30s", since, columns=[*_WHO, "ts"])
        for (cluster, node_id), some in rows.group_by(_WHO):
            machine = f"{cluster}/{node_id}"
            if machine in mine:
                self.hours[table].note(some)
            else:  # of another partition, or not met again yet
                self._strangers.setdefault(machine, {})[table] = some

    def meet(self, machines: Iterable[Machine]) -> None:
        """Machines that have just been heard of here: hours they left open are this partition's."""
        if self._strangers:
            for machine in machines:
                for table, rows in self._strangers.pop(machine, {}).items():
                    self.hours[table].note(rows)

    def _recover(self, table: str, machines: Sequence[Machine], since: datetime) -> Recovered:
        """Where a machine's windows ended and what its counters stood at, from the window table."""
        name, ids = f"{table}_30s", sorted({machine.partition("/")[2] for machine in machines})
        rows = self._lake.read(name, since - timedelta(days=1), columns=[*_WHO, "ts"], node=ids)
        ends = rows.group_by(_WHO).agg(pl.col("ts").max())
        ends = ends.filter(pl.concat_str(_WHO, separator="/").is_in(list(machines)))
        if not ends.height:
            return Recovered()
        closed = {f"{c}/{n}": epoch_us(ts) + WINDOW_US for c, n, ts in ends.iter_rows()}
        wanted = _window_carry_columns(table)
        parts = []
        for (hour,), some in ends.group_by(pl.col("ts").dt.truncate("1h")):
            assert isinstance(hour, datetime)  # noqa: S101 (the column is a time; narrows the type)
            until = hour + timedelta(microseconds=HOUR_US)
            read = self._lake.read(
                name, hour - _CARRY_LOOK_BACK, until, wanted, node=some["node_id"].unique().to_list()
            )
            parts.append(read.join(some.select(_WHO), on=_WHO, how="semi"))
        return Recovered(closed, pl.concat(parts))

    # --- what a commit says --------------------------------------------------------------------------------

    def next_offset(self, table: str) -> int:
        """The offset that a commit of this table may store now: everything below is in it for good."""
        raw = table.removesuffix("_30s")
        if raw != table:
            first = self.windows.first_open(raw)
            return self.position if first is None else first
        return self.position

    def advanced(self, table: str, offset: int) -> None:
        """A commit stored this offset."""
        self.committed[table] = offset
        self.least_committed = min(self.committed.values())


def _window_carry_columns(table: str) -> list[str]:
    names = carry_columns(table)
    keys = {*_WHO, "ts", "boot_id", "driver_load", "gpu_uuid", "mig_instance", "link"}
    return [name if name in keys else f"{name}_last" for name in names]
