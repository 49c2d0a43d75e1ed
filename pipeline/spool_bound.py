"""Which segments of a spool go: those that every group has read, and, at the bound, the oldest samples first."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from graynode.pipeline import bus_metrics, spool_files
from graynode.pipeline.schema import DEADLETTER, SAMPLES
from graynode.pipeline.spool_files import Segment


@dataclass(frozen=True, slots=True)
class Removal:
    """A segment to remove, and how many of its messages some group has not read."""

    segment: Segment
    unread: int


def plan(segments: Iterable[Segment], groups: Mapping[str, Mapping[str, int]], max_bytes: int) -> list[Removal]:
    """The removals that bring the spool to ``max_bytes``; pure, so that the order of loss can be tested.

    ``groups`` gives the committed offsets per topic. A topic without groups keeps its segments for readers
    to come. Growing segments are never removed. Samples go first, then dead letters (copies for a person),
    then all others by age: an event is rare and says more than a sample.
    """
    found = list(segments)
    removals = [Removal(s, 0) for s in found if _read_by_all(s, groups.get(s.topic, {}))]
    passed = {r.segment for r in removals}
    total = sum(s.size for s in found) - sum(s.size for s in passed)
    left = [s for s in found if s.after is not None and s not in passed]
    for segment in sorted(left, key=_order_of_loss):
        if total <= max_bytes:
            break
        removals.append(Removal(segment, _unread(segment, groups.get(segment.topic, {}))))
        total -= segment.size
    return removals


def _read_by_all(segment: Segment, offsets: Mapping[str, int]) -> bool:
    return segment.after is not None and bool(offsets) and min(offsets.values()) >= segment.after


def _unread(segment: Segment, offsets: Mapping[str, int]) -> int:
    after = segment.after if segment.after is not None else segment.first
    return after - max(segment.first, min(offsets.values(), default=segment.first))


def _order_of_loss(segment: Segment) -> tuple[int, float, int]:
    rank = {SAMPLES: 0, DEADLETTER: 1}.get(segment.topic, 2)
    return rank, 0.0 if rank < 2 else segment.changed, segment.first


def size(root: Path) -> int:
    """Bytes of all segments of the spool."""
    return sum(s.size for name in spool_files.topics(root) for s in spool_files.segments(root, name))


def enforce(root: Path, max_bytes: int) -> int:
    """Remove what must go, count what was unread, and give the bytes that remain.

    Any writer may do this for all topics: two at once remove the same oldest segments, and only the one whose
    ``unlink`` succeeds counts.
    """
    names = spool_files.topics(root)
    found = [s for name in names for s in spool_files.segments(root, name)]
    groups = {name: spool_files.groups(root, name) for name in names}
    total = sum(s.size for s in found)
    for removal in plan(found, groups, max_bytes):
        segment = removal.segment
        with contextlib.suppress(FileNotFoundError):
            spool_files.segment_path(root, segment.topic, segment.first).unlink()
            bus_metrics.DROPPED.labels(segment.topic).inc(removal.unread)
        total -= segment.size
    return total
