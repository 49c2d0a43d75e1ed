"""The reading half of the spool: follows the segments of a topic while they grow, steps over damage."""

from __future__ import annotations

import os
from pathlib import Path

from graynode.pipeline import bus_metrics, spool_files
from graynode.pipeline.bus import OffsetGone, Partition, Received
from graynode.pipeline.spool_frame import (
    BLOCK,
    end_of,
    frame_size,
    is_whole,
    next_whole,
    offset_of,
    read_frame,
    walk,
)


class SegmentReader:
    """Reads one segment forward from its beginning; ``next`` is the offset that comes next."""

    def __init__(self, path: Path, partition: Partition, first: int) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._partition = partition
        self.first, self.next, self.full = first, first, False
        self._block, self._block_at, self._here = b"", 0, 0

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._fd)

    def take(self, max_messages: int, max_bytes: int, *, oversize: bool) -> list[Received]:
        """Some messages; ``[]`` at the end, before damage, or if the next is too large (then ``full`` is set).

        With ``oversize`` the first may be larger than ``max_bytes``.
        """
        self.full = False
        taken = self._from_block(max_messages, max_bytes, oversize)
        if not taken and not self.full and self._fill():
            taken = self._from_block(max_messages, max_bytes, oversize)
        return taken

    def skip_to(self, offset: int) -> bool:
        """Go to ``offset`` or to the damage where it was; ``False`` if the segment ends before it."""
        place, after = 0, self.first
        for at, size, found in walk(self._fd, 0, self.first):
            if found >= offset:
                after = offset
                break
            place, after = at + size, found + 1
        self._go(place, after)
        return after >= offset

    def step_over(self) -> int | None:
        """Pass damage if a whole record follows in this segment; how many were lost, ``None`` if none follows."""
        at = self._block_at + self._here
        found = next_whole(self._fd, at, self.next)
        if found is None:
            return None
        lost = found[2] - self.next
        self._go(found[0], found[2])
        return lost

    def to_end(self) -> int:
        """Go behind the last whole record that is there now; the offset that comes next."""
        self._go(*end_of(self._fd, self._block_at + self._here, self.next))
        return self.next

    def unread_bytes(self) -> int:
        """Bytes of the segment, now, from the place of the next record on."""
        return os.fstat(self._fd).st_size - self._block_at - self._here

    def _go(self, place: int, offset: int) -> None:
        self._block, self._block_at, self._here, self.next = b"", place, 0, offset

    def _fill(self) -> bool:
        at = self._block_at + self._here
        block = os.pread(self._fd, BLOCK, at)
        size = frame_size(block, 0, self.next)
        if size is not None and size > len(block):
            block = os.pread(self._fd, size, at)
        self._block, self._block_at, self._here = block, at, 0
        return bool(block)

    def _from_block(self, max_messages: int, max_bytes: int, oversize: bool) -> list[Received]:
        block, here, expect = self._block, self._here, self.next
        taken: list[Received] = []
        while len(taken) < max_messages:
            size = frame_size(block, here, expect)
            if size is None or not is_whole(block, here, size) or offset_of(block, here) != expect:
                break
            one = read_frame(block, here, self._partition)
            max_bytes -= len(one.message.value)
            if max_bytes < 0 and (taken or not oversize):
                self.full = True
                break
            taken.append(one)
            here, expect = here + size, expect + 1
        self._here, self.next = here, expect
        return taken


class TopicReader:
    """Reads one topic for one group from any offset on, segment after segment. Not safe for two threads."""

    def __init__(self, root: Path, topic: str, group: str) -> None:
        self._root, self._group = root, group
        self.partition = Partition(topic, 0)
        self._wanted: int | None = None
        self._segment: SegmentReader | None = None
        self._last: SegmentReader | None = None

    @property
    def position(self) -> int | None:
        """The next offset, ``None`` before anything was found."""
        return self._segment.next if self._segment else self._wanted

    def seek(self, offset: int | None) -> None:
        """Read from ``offset`` next, ``None`` for the oldest there is."""
        self.close()
        self._wanted = offset

    def close(self) -> None:
        """Let go of the open files; the position stays."""
        if self._segment:
            self._wanted = self._segment.next
            self._segment.close()
        if self._last:
            self._last.close()
        self._segment = self._last = None

    def take(self, max_messages: int, max_bytes: int, *, oversize: bool = True) -> list[Received]:
        """Some messages in order, ``[]`` if none is there now. ``OffsetGone`` until ``seek`` goes elsewhere.

        At most ``max_bytes`` of values; with ``oversize`` the first may be larger.
        """
        while (segment := self._segment or self._find()) is not None:
            taken = segment.take(max_messages, max_bytes, oversize=oversize)
            if taken or segment.full:
                return taken
            after = self._after(segment)
            # It may have grown between the look and the listing, and it does not grow once it has a successor.
            taken = segment.take(max_messages, max_bytes, oversize=oversize)
            if taken or segment.full:
                return taken
            if not self._pass(segment, after):
                return []
        return []

    def end(self) -> int:
        """The offset after the last message of the topic; 0 if nothing was ever sent."""
        starts = spool_files.firsts(self._root, self.partition.topic)
        if not starts:
            return 0
        if self._last is None or self._last.first != starts[-1]:
            if self._last is not None:
                self._last.close()
            self._last = SegmentReader(self._path(starts[-1]), self.partition, starts[-1])
        return self._last.to_end()

    def _path(self, first: int) -> Path:
        return spool_files.segment_path(self._root, self.partition.topic, first)

    def _after(self, segment: SegmentReader) -> int | None:
        starts = spool_files.firsts(self._root, self.partition.topic)
        return next((first for first in starts if first > segment.first), None)

    def _pass(self, segment: SegmentReader, after: int | None) -> bool:
        """Go past what cannot be read: to the next whole record here, or to the next segment if there is one."""
        lost = segment.step_over()
        if lost is not None:
            self._count(lost)
            return True
        if after is None:
            return False
        if segment.unread_bytes():
            self._count(after - segment.next)
        elif after > segment.next:
            raise OffsetGone(self.partition, segment.next, after)
        self.seek(after)
        return True

    def _count(self, lost: int) -> None:
        if lost:
            bus_metrics.SKIPPED.labels(self.partition.topic, self._group).inc(lost)

    def _find(self) -> SegmentReader | None:
        starts = spool_files.firsts(self._root, self.partition.topic)
        if not starts:
            return None
        wanted = starts[0] if self._wanted is None else self._wanted
        if wanted < starts[0]:
            raise OffsetGone(self.partition, wanted, starts[0])
        first = max(s for s in starts if s <= wanted)
        try:
            segment = SegmentReader(self._path(first), self.partition, first)
        except FileNotFoundError:
            return self._find()
        if segment.skip_to(wanted):
            self._segment = segment
            return segment
        segment.close()
        later = min((s for s in starts if s > first), default=None)
        if later is None:
            raise OffsetGone(self.partition, wanted, starts[0])
        self._count(later - wanted)
        self._wanted = later
        return self._find()
