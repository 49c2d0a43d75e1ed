"""What the bus counts, for ``/metrics``: every message that was not carried as it came is in one of these."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter

DROPPED: Final = Counter(
    "graynode_bus_dropped_total",
    "Messages removed unread because the spool reached its bound.",
    ["topic"],
)
CUT_BYTES: Final = Counter(
    "graynode_bus_cut_bytes_total",
    "Bytes of records that a death in mid-write left unfinished, cut off when the spool was opened.",
    ["topic"],
)
SKIPPED: Final = Counter(
    "graynode_bus_skipped_total",
    "Messages that a reader stepped over because the disk no longer holds them as written.",
    ["topic", "group"],
)
GONE: Final = Counter(
    "graynode_bus_gone_total",
    "Messages that had left the spool before they were forwarded.",
    ["topic"],
)
FORWARDED: Final = Counter(
    "graynode_bus_forwarded_total",
    "Messages that the far bus has acknowledged.",
    ["topic"],
)
FORWARD_REFUSED: Final = Counter(
    "graynode_bus_forward_refused_total",
    "Messages that the far bus will never take, given up one by one.",
    ["topic"],
)
FORWARD_FAILURES: Final = Counter(
    "graynode_bus_forward_failures_total",
    "Attempts to forward that failed because one of the two buses was away.",
    ["topic"],
)
DEADLETTERED: Final = Counter(
    "graynode_bus_deadlettered_total",
    "Messages that could not be read and were put into the dead letters.",
    ["topic"],
)
HELD_BACK: Final = Counter(
    "graynode_bus_deadletter_skipped_total",
    "Unreadable messages of a flooding machine that were counted, not kept.",
    ["topic"],
)
