"""Kernel log records from the forms in which they are kept: /dev/kmsg, dmesg and the journal. Text in, records out.

Times: kmsg and raw dmesg count from boot; ``dmesg -T`` and syslog give local time without a zone, which is taken
in ``zone`` and called approximate; ISO times and the journal carry theirs. No line raises: what is no record of
the kernel gives ``None``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Final

MAX_RAW_BYTES: Final = 1024
_MAX_TEXT: Final = 2000
"""Messages are matched up to here. The kernel's own limit is about 1,000 characters a line."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record. ``since_boot_s`` or ``at`` tells when; neither: nobody knows.

    ``text`` is the message with control characters escaped (``\\\\x1b``), a line break inside a record kept as one.
    """

    text: str
    at: datetime | None = None
    since_boot_s: float | None = None
    sequence: int | None = None
    facility: int = 0
    boot_id: str | None = None
    exact: bool = False


_KMSG: Final = re.compile(rb"(\d{1,10}),(\d{1,20}),(\d{1,20}),[^;\n]{0,200};([^\n]*)")
_LEVEL: Final = re.compile(r"<(\d{1,4})>|(\w+) *:(\w+) *: ")
_SECONDS: Final = re.compile(r"\[ *(\d{1,12}\.\d{1,9})\] ?")
_CALLER: Final = re.compile(r"\[ *[CT]\d+\] ?")
_HUMAN: Final = re.compile(r"\[\w{3} (\w{3}) +(\d{1,2}) (\d\d):(\d\d):(\d\d) (\d{4})\] ?")
_ISO: Final = re.compile(r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)(Z|[+-]\d\d:?\d\d) ")
_SYSLOG: Final = re.compile(r"(\w{3}) +(\d{1,2}) (\d\d):(\d\d):(\d\d)(?:\.\d{1,9})? ")
_KERNEL: Final = re.compile(r"(?:\S+ )?kernel: ?")
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_CONTROL: Final = {
    c: f"\\x{c:02x}" if c < 0x100 else f"\\u{c:04x}"
    for c in (*range(32), *range(0x7F, 0xA0), 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
    if c != 0x0A
}
_CONTROL[0x09] = " "
"""Control characters, line separators and direction marks: a terminal or page that shows a raw line obeys none."""

Parse = Callable[[bytes], "Record | None"]


def cleaned(raw: bytes) -> str:
    """Text of bytes from anyone: what is no UTF-8 and every control character is escaped; line breaks stay."""
    return raw[: 4 * _MAX_TEXT].decode("utf-8", "backslashreplace").translate(_CONTROL)[:_MAX_TEXT]


def shown(text: str) -> str:
    """At most 1 kB of the text on one line, cut between characters and then marked with ``…``."""
    line = text.replace("\n", "\\x0a")
    encoded = line.encode("utf-8", "replace")
    if len(encoded) <= MAX_RAW_BYTES:
        return line
    return encoded[: MAX_RAW_BYTES - 3].decode("utf-8", "ignore") + "…"


def parse_kmsg(raw: bytes) -> Record | None:
    """One record as read from ``/dev/kmsg``: ``priority,sequence,microseconds,flags;message`` (dev-kmsg, kernel ABI).

    Its further lines (a dictionary of the device) are left out. The kernel has escaped control characters itself.
    """
    found = _KMSG.match(raw)
    if found is None:
        return None
    priority, sequence, microseconds = int(found[1]), int(found[2]), int(found[3])
    text = cleaned(found[4]).replace("\\x0a", "\n")
    return Record(text, None, microseconds / 1e6, sequence, priority >> 3, exact=True)


def parse_dmesg(raw: bytes, *, zone: tzinfo | None = None, now: datetime | None = None) -> Record | None:
    """One line of dmesg (raw, ``-T``, ``-x``, ``--time-format iso``), of pstore, or of a syslog's kernel file.

    ``zone`` is the zone of times without one, ``None`` this machine's. ``now`` gives the year to syslog lines.
    """
    line, facility = _without_level(cleaned(raw))
    seconds = _SECONDS.match(line)
    if seconds:
        return Record(_message(line[seconds.end() :]), None, float(seconds[1]), facility=facility)
    human = _HUMAN.match(line)
    if human:
        at = _local(human[1], human[2], (human[3], human[4], human[5]), int(human[6]), zone)
        return Record(_message(line[human.end() :]), at, facility=facility) if at else None
    return _dated(line, facility, zone, now, named=False)


def parse_journal(raw: bytes, *, zone: tzinfo | None = None, now: datetime | None = None) -> Record | None:
    """One line of ``journalctl -o short-iso`` (or ``short``), or of ``-o json``; kernel lines only."""
    if raw.lstrip()[:1] == b"{":
        return _journal_json(raw)
    return _dated(cleaned(raw), 0, zone, now, named=True)


def _dated(line: str, facility: int, zone: tzinfo | None, now: datetime | None, *, named: bool) -> Record | None:
    iso = _ISO.match(line)
    if iso:
        at, rest, exact = _iso(iso[1], iso[2]), line[iso.end() :], True
    else:
        short = _SYSLOG.match(line)
        if short is None:
            return None
        at = _local(short[1], short[2], (short[3], short[4], short[5]), None, zone, now)
        rest, exact = line[short.end() :], False
    kernel = _KERNEL.match(rest)
    if at is None or (kernel is None and (named or not iso)):
        return None  # a line of user space in a syslog: it may quote the kernel, it is not the kernel
    if kernel:
        rest = _SECONDS.sub("", rest[kernel.end() :], count=1)
    return Record(_message(rest), at, facility=facility, exact=exact)


def _journal_json(raw: bytes) -> Record | None:
    try:
        entry: Any = json.loads(raw)
        micros = int(entry.get("_SOURCE_REALTIME_TIMESTAMP") or entry["__REALTIME_TIMESTAMP"])
        at = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=micros)
        text = _json_text(entry["MESSAGE"])
        from_kernel = entry.get("_TRANSPORT", "kernel") == "kernel"
        boot = entry.get("_BOOT_ID")
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None
    if not from_kernel:
        return None
    return Record(_message(text), at, boot_id=_boot_id(boot), exact=True)


def _json_text(message: Any) -> str:  # noqa: ANN401 (a journal's JSON value)
    # journalctl writes a message with bytes that are no text as an array of numbers
    return cleaned(bytes(message) if isinstance(message, list) else str(message).encode("utf-8", "backslashreplace"))


def _boot_id(text: object) -> str | None:
    found = str(text)
    if not re.fullmatch(r"[0-9a-f]{32}", found):
        return None
    return "-".join((found[:8], found[8:12], found[12:16], found[16:20], found[20:]))


def _without_level(line: str) -> tuple[str, int]:
    found = _LEVEL.match(line)
    if found is None:
        return line, 0
    if found[1] is not None:
        return line[found.end() :], int(found[1]) >> 3
    return line[found.end() :], 0 if found[2] == "kern" else 1


def _message(text: str) -> str:
    caller = _CALLER.match(text)
    return (text[caller.end() :] if caller else text).rstrip()


def _iso(text: str, zone: str) -> datetime | None:
    digits = re.sub(r"([.,]\d{6})\d+", r"\1", text).replace(",", ".")
    try:
        return datetime.fromisoformat(digits + ("+00:00" if zone == "Z" else zone)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _local(
    month: str,
    day: str,
    clock: tuple[str, str, str],
    year: int | None,
    zone: tzinfo | None,
    now: datetime | None = None,
) -> datetime | None:
    """A time without a zone. Without a year it is the last such time that is not later than tomorrow."""
    if month not in _MONTHS:
        return None
    today = now or datetime.now(UTC)
    hour, minute, second = (int(part) for part in clock)
    try:
        naive = datetime(year or today.year, _MONTHS.index(month) + 1, int(day), hour, minute, second)
        at = (naive.replace(tzinfo=zone) if zone else naive).astimezone(UTC)
        if year is None and at > today + timedelta(days=1):
            at = at.replace(year=at.year - 1)
    except (ValueError, OverflowError):
        return None
    return at
