"""A group's member over the spool: one partition a topic, read by one member of the group at a time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from graynode.pipeline import spool_files
from graynode.pipeline.bus import BusUnavailable, OffsetGone, OnAssigned, Partition, Received
from graynode.pipeline.lock_file import LockFile, Taken
from graynode.pipeline.spool_reader import TopicReader

_FIRST_NAP_S: Final = 0.005
_LONGEST_NAP_S: Final = 0.1
"""How late a message is seen at most when nothing came for a while; an idle reader of five topics costs 0.4 % of a
core."""


class SpoolConsumer:
    """Reads ``topics`` as a member of ``group``; a second member waits until the first is gone.

    A group is registered from here on: what it has not passed is kept, up to the spool's bound.
    """

    def __init__(
        self,
        root: Path,
        topics: Sequence[str],
        group: str,
        on_assigned: OnAssigned | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._root, self._group, self._on_assigned = root, spool_files.checked_name(group, "group"), on_assigned
        self._monotonic, self._sleep = monotonic, sleep
        self._readers = {
            Partition(t, 0): TopicReader(root, spool_files.checked_name(t, "topic"), group) for t in topics
        }
        self._locks: dict[Partition, LockFile] = {}
        self._turn = 0
        self._closed = False
        with self._our_errors("used"):
            for partition in self._readers:
                self._register(partition)

    def poll(self, timeout_s: float, max_messages: int = 1000, max_bytes: int = 32 << 20) -> list[Received]:
        """Messages in order per topic, at least one if any is there; else ``[]`` after ``timeout_s``."""
        deadline, nap = self._monotonic() + timeout_s, _FIRST_NAP_S
        while True:
            with self._our_errors("read"):
                self._take_free()
                if taken := self._take(max_messages, max_bytes):
                    return taken
            left = deadline - self._monotonic()
            if left <= 0:
                return []
            self._sleep(min(nap, left))
            nap = min(nap * 2, _LONGEST_NAP_S)

    def assigned(self) -> frozenset[Partition]:
        """The topics this member reads now; empty while another member of the group holds them."""
        return frozenset(self._locks)

    def seek(self, partition: Partition, offset: int) -> None:
        """Read from ``offset`` next."""
        self._held(partition).seek(offset)

    def commit(self, offsets: Mapping[Partition, int]) -> None:
        """Keep the next offset of each for the group, on disk before this returns."""
        for partition, offset in offsets.items():
            self._held(partition)
            with self._our_errors("written"):
                spool_files.write_offset(self._file(partition), offset)

    def end_offsets(self) -> dict[Partition, int]:
        """The offset after the last message of each topic held."""
        with self._our_errors("read"):
            return {partition: self._readers[partition].end() for partition in self._locks}

    def close(self) -> None:
        """Leave the group, so that a waiting member may go on."""
        self._closed = True
        for reader in self._readers.values():
            reader.close()
        while self._locks:
            self._locks.popitem()[1].close()

    @contextlib.contextmanager
    def _our_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise BusUnavailable(
                f"{error.filename or self._root}: cannot be {what}: {error.strerror or error};"
                " check its owner, the disk and its free space"
            ) from error

    def _held(self, partition: Partition) -> TopicReader:
        if partition not in self._locks:
            raise BusUnavailable(
                f"{partition.topic}/{partition.number} is not held by this member of {self._group}: poll first, or"
                " wait for the other member to go"
            )
        return self._readers[partition]

    def _file(self, partition: Partition) -> Path:
        return self._root / partition.topic / "groups" / self._group

    def _register(self, partition: Partition) -> None:
        file = self._file(partition)
        if spool_files.read_offset(file) is None:
            starts = spool_files.firsts(self._root, partition.topic)
            spool_files.write_offset(file, starts[0] if starts else 0)

    def _take_free(self) -> None:
        """Take the topics of the group that no other member holds, and ask where to begin."""
        if self._closed or len(self._locks) == len(self._readers):
            return
        new = set()
        for partition in self._readers.keys() - self._locks.keys():
            with contextlib.suppress(Taken):
                self._locks[partition] = LockFile(self._file(partition).with_name(f"{self._group}.lock"))
                new.add(partition)
        if new:
            self._begin(new)

    def _begin(self, new: set[Partition]) -> None:
        given = self._on_assigned(self.assigned()) if self._on_assigned else {}
        for partition in self._locks:
            if partition in given:
                self._readers[partition].seek(given[partition])
            elif partition in new:
                self._readers[partition].seek(self._committed(partition))

    def _committed(self, partition: Partition) -> int | None:
        return spool_files.read_offset(self._file(partition))

    def _take(self, max_messages: int, max_bytes: int) -> list[Received]:
        held = sorted(self._locks)
        self._turn += 1
        taken: list[Received] = []
        for i in range(len(held)):
            reader = self._readers[held[(self._turn + i) % len(held)]]
            while len(taken) < max_messages:
                try:
                    some = reader.take(max_messages - len(taken), max_bytes, oversize=not taken)
                except (OffsetGone, OSError):
                    if not taken:
                        raise
                    return taken  # what was read must not be lost by it; the next poll says it again
                if not some:
                    break
                max_bytes -= sum(len(r.message.value) for r in some)
                taken += some
        return taken
