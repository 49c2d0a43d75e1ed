"""The writing half of the spool: appends, makes durable, starts new segments, keeps the bound."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from graynode.pipeline import bus_metrics, spool_bound, spool_files
from graynode.pipeline.bus import BusUnavailable, check_size
from graynode.pipeline.codec import Message
from graynode.pipeline.spool_frame import encode_frame, end_of

_LARGEST_SEGMENT: Final = 32 << 20
_SEGMENTS: Final = 16
"""At least so many segments make the bound, so that what goes at once is a small part of what is kept."""
_LOOK_EVERY_S: Final = 1.0
_PIECE: Final = 8 << 20
"""Bytes written and synced at once, so that a large ``send`` needs little memory of its own."""


class TopicWriter:
    """The one writer of a topic. Opening cuts off what a death in mid-write left; ``BusUnavailable`` if taken."""

    def __init__(self, root: Path, topic: str, segment_bytes: int, clock: Callable[[], float]) -> None:
        self._root, self._topic, self._segment_bytes, self._clock = root, topic, segment_bytes, clock
        self._lock = spool_files.lock_writer(root, topic)
        self._fd = -1
        try:
            spool_files.sync_folder(root)  # the topic's folder may be new
            self._open_last()
        except BaseException:
            self.close()
            raise

    def frames(self, messages: Sequence[Message]) -> list[bytearray]:
        """The messages as they would be appended now."""
        if self._fd < 0:
            self._open_last()
        arrived = int(self._clock() * 1000)
        return [encode_frame(m, self._next + i, arrived) for i, m in enumerate(messages)]

    def append(self, frames: Sequence[bytearray]) -> int:
        """Write all and make them durable; the bytes written. On ``OSError`` the first few may have been taken."""
        block = b"".join(frames)
        if self._size and self._size + len(block) > self._segment_bytes:
            self._start(self._next)
        try:
            _write_all(self._fd, block)
            os.fdatasync(self._fd)
        except OSError:
            self._take_back()
            raise
        self._next += len(frames)
        self._size += len(block)
        return len(block)

    def close(self) -> None:
        """Let go of the segment and of the topic."""
        if self._fd >= 0:
            os.close(self._fd)
        self._lock.close()
        self._fd = -1

    def roll(self) -> None:
        """Close the growing segment, so that it can be removed when the bound asks for it."""
        if self._size:
            self._start(self._next)

    def _open_last(self) -> None:
        starts = spool_files.firsts(self._root, self._topic)
        first = starts[-1] if starts else 0
        self._next = first
        self._open(first)
        whole, self._next = end_of(self._fd, 0, first)
        torn = os.fstat(self._fd).st_size - whole
        if torn > 0:
            os.ftruncate(self._fd, whole)
            os.fdatasync(self._fd)
            bus_metrics.CUT_BYTES.labels(self._topic).inc(torn)
        self._size = whole
        # A loss of power may have taken messages that a group has read and committed. Their numbers are
        # not given again, or that group would take the new messages for the old ones.
        read = max(spool_files.groups(self._root, self._topic).values(), default=0)
        if read > self._next:
            self._start(read)

    def _start(self, first: int) -> None:
        self._open(first)
        self._next, self._size = first, 0

    def _open(self, first: int) -> None:
        path = spool_files.segment_path(self._root, self._topic, first)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = fd
        spool_files.sync_folder(path.parent)

    def _take_back(self) -> None:
        # A reader may have seen the records that are whole, so they stay and keep their numbers.
        try:
            self._size, self._next = end_of(self._fd, self._size, self._next)
            os.ftruncate(self._fd, self._size)
        except OSError:
            # What is half written stays for the check at the next opening.
            os.close(self._fd)
            self._fd = -1


class SpoolProducer:
    """Writes to the spool in ``root``; each topic is locked from the first message on until ``close``.

    ``send`` syncs the file before it returns: callers send a batch every few seconds, so it costs 0.4 ms each
    time (ext4 on a virtual disk), and in return "sent" also holds through a loss of power.
    """

    def __init__(
        self,
        root: Path,
        max_bytes: int,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root, self._max_bytes, self._clock, self._monotonic = root, max_bytes, clock, monotonic
        self._segment_bytes = min(_LARGEST_SEGMENT, max(max_bytes // _SEGMENTS, 1))
        self._writers: dict[str, TopicWriter] = {}
        self._total = 0
        self._looked = -_LOOK_EVERY_S

    def send(self, topic: str, messages: Sequence[Message]) -> None:
        """Return when all are on disk. ``BusUnavailable`` names the path and the way out."""
        if not messages:
            return
        for message in messages:
            check_size(message)
        try:
            writer = self._writer(topic)
            for some in _pieces(messages, min(_PIECE, self._segment_bytes)):
                frames = writer.frames(some)
                self._make_room(writer, sum(map(len, frames)))
                self._total += self._append(writer, some, frames)
        except OSError as error:
            raise BusUnavailable(
                f"{self._root / topic}: cannot be written: {error.strerror or error}; free space on its file"
                " system, lower the spool's bound, or move the spool; nothing already written is harmed"
            ) from error

    def close(self) -> None:
        """Let go of all topics."""
        while self._writers:
            self._writers.popitem()[1].close()

    def _writer(self, topic: str) -> TopicWriter:
        if topic not in self._writers:
            spool_files.checked_name(topic, "topic")
            self._writers[topic] = TopicWriter(self._root, topic, self._segment_bytes, self._clock)
        return self._writers[topic]

    def _make_room(self, writer: TopicWriter, wanted: int) -> None:
        now, most = self._monotonic(), self._max_bytes - wanted
        if self._total <= most and now - self._looked < _LOOK_EVERY_S:
            return
        self._looked = now
        self._total = spool_bound.enforce(self._root, most)
        if self._total > most:
            writer.roll()
            self._total = spool_bound.enforce(self._root, most)

    def _append(self, writer: TopicWriter, messages: Sequence[Message], frames: Sequence[bytearray]) -> int:
        try:
            return writer.append(frames)
        except OSError:
            # The disk is full below our bound: what every group has read may go before anything fails.
            before = spool_bound.size(self._root)
            with contextlib.suppress(OSError):
                writer.roll()
            if spool_bound.enforce(self._root, self._max_bytes) >= before:
                raise
            return writer.append(writer.frames(messages))


def _pieces(messages: Sequence[Message], most: int) -> Iterator[list[Message]]:
    some: list[Message] = []
    size = 0
    for message in messages:
        if some and size + len(message.value) > most:
            yield some
            some, size = [], 0
        some.append(message)
        size += len(message.value)
    yield some


def _write_all(fd: int, block: bytes) -> None:
    view = memoryview(block)
    while view:
        view = view[os.write(fd, view) :]
