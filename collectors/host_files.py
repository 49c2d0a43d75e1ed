"""What ``/proc`` files say, text in, values out; proc(5) and Documentation/filesystems/proc.rst name the columns."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_STA_UNSYNC: Final = 0x0040
_STA_NANO: Final = 0x2000
_TIME_ERROR: Final = 5


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Ticks since boot over all CPUs."""

    total: int
    idle: int
    iowait: int


def cpu_times(stat: str) -> CpuTimes | None:
    """From ``/proc/stat``. Guest time is already in user time, so only the first eight columns add up."""
    lines = stat.splitlines()
    if not lines or not lines[0].startswith("cpu "):
        return None
    try:
        ticks = [int(word) for word in lines[0].split()[1:9]]
    except ValueError:
        return None
    if len(ticks) < 5:
        return None
    return CpuTimes(sum(ticks), ticks[3], ticks[4])


def cpus_online(stat: str) -> int | None:
    """From ``/proc/stat``, which has a line for each."""
    return sum(line.startswith("cpu") and line[3:4].isdigit() for line in stat.splitlines()) or None


def cpu_use(before: CpuTimes, now: CpuTimes) -> tuple[float, float] | None:
    """Percent busy and percent waiting for I/O between two readings. iowait is known to fall; then it is 0."""
    total = now.total - before.total
    if total <= 0:
        return None
    idle, iowait = max(0, now.idle - before.idle), max(0, now.iowait - before.iowait)
    busy = max(0.0, 100.0 * (total - idle - iowait) / total)
    return min(100.0, busy), min(100.0, 100.0 * iowait / total)


def table(text: str, scale: int = 1) -> dict[str, int]:
    """``Name: value`` or ``name value`` lines, as in meminfo (``scale`` 1024: its kB) and vmstat."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        words = line.replace(":", " ", 1).split()
        if len(words) >= 2 and _is_count(words[1]):
            found[words[0]] = int(words[1]) * scale
    return found


def _is_count(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) < 16


def first_number(text: str) -> float | None:
    """The first word as a number: load over one minute, seconds of uptime."""
    words = text.split()
    try:
        return float(words[0]) if words else None
    except ValueError:
        return None


def disk_io_ms(diskstats: str, is_disk: Callable[[str], bool]) -> int | None:
    """Milliseconds with work of the busiest whole disk since boot (column 13 of ``/proc/diskstats``)."""
    found: list[int] = []
    for line in diskstats.splitlines():
        words = line.split()
        if len(words) > 12 and _is_count(words[12]) and is_disk(words[2]):
            found.append(int(words[12]))
    return max(found, default=None)


class _Timex(ctypes.Structure):
    """``struct timex`` of adjtimex(2), 64-bit layout."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("constant", ctypes.c_long),
        ("precision", ctypes.c_long),
        ("tolerance", ctypes.c_long),
        ("time_sec", ctypes.c_long),
        ("time_usec", ctypes.c_long),
        ("tick", ctypes.c_long),
        ("rest", ctypes.c_long * 32),
    )


@dataclass(frozen=True, slots=True)
class ClockState:
    """Whether the kernel's clock is disciplined, and the offset that it still has to slew."""

    synced: bool
    offset_s: float


def clock_state() -> ClockState | None:
    """As adjtimex(2) says, changing nothing; ``None`` where the kernel or a sandbox refuses."""
    timex = _Timex(modes=0)
    result = ctypes.CDLL(None).adjtimex(ctypes.byref(timex))
    if result < 0:
        return None
    unit = 1e-9 if timex.status & _STA_NANO else 1e-6
    return ClockState(result != _TIME_ERROR and not timex.status & _STA_UNSYNC, timex.offset * unit)


def used_ratio(path: str) -> float | None:
    """Part of a file system in use, as df counts it: without what is reserved for root."""
    try:
        status = os.statvfs(path)
    except OSError:
        return None
    used = status.f_blocks - status.f_bfree
    return used / (used + status.f_bavail) if used + status.f_bavail else None
