"""The kernel log: ``/dev/kmsg``, or a file in kmsg, dmesg or journal form, into ``event`` rows."""

from __future__ import annotations

import math
import os
import stat
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, tzinfo
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from graynode.collectors.base import Machine, NoSource, Round, Row, Rows, utc_now
from graynode.collectors.kernel_log.events import Context, event_row
from graynode.collectors.kernel_log.kmsg_device import KmsgDevice
from graynode.collectors.kernel_log.records import Parse, Record, cleaned, parse_dmesg, parse_journal, parse_kmsg
from graynode.collectors.log_file import LogFile
from graynode.collectors.state_file import StateFile
from graynode.pipeline.schema import stable_id

Format = Literal["kmsg", "dmesg", "journal"]
_FUTURE: Final = timedelta(seconds=1)
_KEEP_EVERY_S: Final = 10.0
"""A log that grows every second need not cost a file every second: a kill makes this much more be read again."""


class KernelLog:
    """Events of the kernel log, each told once. ``collect`` reads what is there and never waits.

    ``path`` and ``format`` as in the configuration (``agent.kmsg``, ``agent.kernel_log_format``); ``zone`` is that of
    log times without one, ``None`` this machine's. ``clock`` and ``monotonic`` tell when records since boot were
    written; ``read`` reads the device. Where reading stands is kept in ``machine.state_dir`` once what was read is
    ``settle_s`` old, and at ``close``: an agent that is killed before its rows were sent reads them again, under the
    same ids. Text logs can be written to by user space (``logger -t kernel``); ``/dev/kmsg`` and journal JSON cannot.
    """

    name: ClassVar[str] = "kernel_log"
    tables: ClassVar[tuple[str, ...]] = ("event", "quality")

    def __init__(
        self,
        machine: Machine,
        path: Path = Path("/dev/kmsg"),
        format: Format = "kmsg",  # noqa: A002 (the configuration's word)
        clock: Callable[[], datetime] = utc_now,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        zone: tzinfo | None = None,
        settle_s: float = 30.0,
        read: Callable[[int, int], bytes] = os.read,
    ) -> None:
        self._machine, self._path, self._format = machine, path, format
        self._clock, self._monotonic, self._zone, self._settle_s = clock, monotonic, zone, settle_s
        self._read = read
        self._state = StateFile(machine.state_dir / "kernel_log.json")
        kept = self._state.load()
        own = kept if kept.get("path") == str(path) and kept.get("format") == format else {}
        self._context = Context(own.get("context"))
        self._position: dict[str, Any] = own.get("position") or {}
        self._unsettled: deque[tuple[float, dict[str, Any]]] = deque()
        self._to_keep: dict[str, Any] | None = None
        self._kept_at = -math.inf
        self._device: KmsgDevice | None = None
        self._file: LogFile | None = None
        self._drained_at: datetime | None = None
        self._previous: Record | None = None
        self._said: str | None = None
        self._lost = 0
        self.tally: Counter[str] = Counter()
        """What became of every record that was read: ``event``, ``no news``, ``no record`` (not in this form) and
        ``read before``; since the agent started."""

    @property
    def lost(self) -> int:
        """Records that the kernel's ring dropped before they were read, since the agent started."""
        return self._lost

    def collect(self, round_: Round) -> Rows:
        """New events in the log's order. ``NoSource`` where the log is missing or may not be read."""
        if self._device is None and self._file is None:
            self._open()
        events = list(self._device_events(self._device, round_) if self._device else self._file_events(round_))
        self._settle()
        rows: dict[str, list[Row]] = {"event": events} if events else {}
        if self._state.trouble != self._said:
            self._said = self._state.trouble
            rows["quality"] = [self._quality(self._said)]
        return rows

    def close(self) -> None:
        """Keep the position and let go of the log; twice is as good as once."""
        if self._device or self._file:
            self._state.save(self._snapshot())
        for source in (self._device, self._file):
            if source is not None:
                source.close()
        self._device = self._file = None

    def _open(self) -> None:
        try:
            if stat.S_ISCHR(self._path.stat().st_mode):
                self._device = KmsgDevice(self._path, self._read)
                if self._position.get("boot_id") != self._machine.boot_id:
                    self._context = Context()  # a GPU may have been swapped while the power was off
            else:
                os.close(os.open(self._path, os.O_RDONLY | os.O_NONBLOCK))  # says now what reading would say later
                self._file = LogFile(self._path, self._position)
        except PermissionError as error:
            raise NoSource(
                f"{self._path}: no permission; add CAP_SYSLOG (kernel.dmesg_restrict) or group adm, "
                "or set agent.kmsg to a file that the agent may read"
            ) from error
        except OSError as error:
            raise NoSource(
                f"{self._path}: {error.strerror}; set agent.kmsg to this machine's kernel log, "
                "or leave kernel_log out of agent.collectors"
            ) from error

    # --- /dev/kmsg ------------------------------------------------------------------------------------

    def _device_events(self, device: KmsgDevice, round_: Round) -> Iterator[Row]:
        now = self._clock()
        boot = now - timedelta(seconds=self._monotonic())
        for raw in device.records():
            record = parse_kmsg(raw)
            if record is None or record.sequence is None:
                self.tally["no record"] += 1
                continue
            last = self._position.get("sequence") if self._position.get("boot_id") == self._machine.boot_id else None
            if isinstance(last, int) and record.sequence <= last:
                self.tally["read before"] += 1
                continue
            if isinstance(last, int) and record.sequence > last + 1:
                yield self._gap(last + 1, record.sequence - 1, round_.ts)
            self._position = {"boot_id": self._machine.boot_id, "sequence": record.sequence}
            yield from self._event(record, raw, (self._written(record, boot, now), "exact"), round_.ts)
        self._drained_at = now if device.drained else None

    def _written(self, record: Record, boot: datetime, now: datetime) -> datetime:
        """Wall time of a record. The kernel's log clock drifts from the wall clock, seconds in weeks; a record that
        was not there at the last look and is now was written in between, so that is what bounds it.
        """
        at = min(boot + timedelta(seconds=record.since_boot_s or 0.0), now)
        return max(at, self._drained_at) if self._drained_at and self._drained_at <= now else at

    def _gap(self, first: int, last: int, observed: datetime) -> Row:
        lost = last - first + 1
        self._lost += lost
        return self._gap_row(
            f"{lost} kernel log records were lost before they were read",
            ("gap", self._machine.boot_id, first),
            observed,
        ) | {"attributes": f'{{"first": {first}, "last": {last}, "lost": {lost}}}'}

    # --- a file ---------------------------------------------------------------------------------------

    def _file_events(self, round_: Round) -> Iterator[Row]:
        log = self._file
        assert log is not None  # noqa: S101 (collect opened it)
        parse = self._parser(round_.ts)
        try:
            lines = log.lines(round_.ts.timestamp())
        except OSError:
            return  # between two rotations there may be no file; position and context wait
        boot = self._clock() - timedelta(seconds=self._monotonic())
        for gap in log.gaps:
            yield self._gap_row(gap, ("gap", str(self._path), str(log.position())), round_.ts)
        log.gaps.clear()
        for raw in lines:
            record = self._record(parse, raw)
            if record is None:
                self.tally["no record"] += 1
            else:
                yield from self._event(record, raw, _file_time(record, boot, round_.ts), round_.ts)
        self._position = log.position()

    def _record(self, parse: Parse, raw: bytes) -> Record | None:
        """The record of a line; an indented line without a time goes on with the record before it (dmesg does that)."""
        record = parse(raw)
        if record is None and self._format == "dmesg" and raw[:1].isspace() and self._previous:
            before = self._previous
            text = cleaned(raw).strip()
            return Record(text, before.at, before.since_boot_s, None, before.facility, before.boot_id, before.exact)
        self._previous = record
        return record

    def _parser(self, now: datetime) -> Parse:
        if self._format == "kmsg":
            return _parse_kmsg_line
        return partial(parse_dmesg if self._format == "dmesg" else parse_journal, zone=self._zone, now=now)

    # --- both -----------------------------------------------------------------------------------------

    def _event(self, record: Record, raw: bytes, at: tuple[datetime, str], observed: datetime) -> Iterator[Row]:
        when = record.since_boot_s if record.since_boot_s is not None else at[0].timestamp()
        found = self._context.find(record.text, when)
        self.tally["event" if found is not None else "no news"] += 1
        if found is not None:
            yield event_row(self._machine, self._context, found, record, raw, at, observed)

    def _gap_row(self, message: str, key: tuple[str | int, ...], observed: datetime) -> Row:
        return {
            "ts": observed,
            "event_id": stable_id("event", self._machine.cluster, self._machine.node_id, "kernel_log", *key),
            "source": "kernel_log",
            "kind": "kmsg_gap",
            "message": message,
            "observed_ts": observed,
            "ts_quality": "observed",
        }

    def _quality(self, reason: str | None) -> Row:
        state = "error" if reason else "measured"
        who = {"entity": self._machine.node_id, "field": "*", "state": state}
        return {"table_name": "event", **who, "reason": reason or "the kernel log's position is kept again"}

    def _snapshot(self) -> dict[str, Any]:
        position = self._file.position() if self._file else self._position
        where = {"path": str(self._path), "format": self._format, "position": position}
        return {**where, "context": self._context.remembered()}

    def _settle(self) -> None:
        now = self._monotonic()
        if not self._unsettled or self._unsettled[-1][1]["position"] != self._position:
            self._unsettled.append((now, self._snapshot()))
        settled = None
        while self._unsettled and now - self._unsettled[0][0] >= self._settle_s:
            settled = self._unsettled.popleft()[1]
        self._to_keep = settled or self._to_keep
        if self._to_keep and now - self._kept_at >= _KEEP_EVERY_S:
            self._state.save(self._to_keep)
            self._to_keep, self._kept_at = None, now


def _file_time(record: Record, boot: datetime, now: datetime) -> tuple[datetime, str]:
    """When a line of a file was written. Seconds since boot that lie ahead of now are another boot's: time unknown."""
    if record.at is not None:
        return record.at, "exact" if record.exact else "approximate"
    at = boot + timedelta(seconds=record.since_boot_s or 0.0)
    return (now, "observed") if record.since_boot_s is None or at > now + _FUTURE else (at, "approximate")


def _parse_kmsg_line(raw: bytes) -> Record | None:
    """A kmsg record kept in a file. Its sequence numbers are another boot's, or edited: not an identity here."""
    record = parse_kmsg(raw)
    return record and Record(record.text, None, record.since_boot_s, None, record.facility)
