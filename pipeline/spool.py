"""The spool: a bus on local disk, for one machine and for an agent whose broker is away.

Segments that only grow, one writer a topic, any number of readers in any process. It holds at most
``max_bytes``: what every registered group has read goes first, then the oldest samples, counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from graynode.pipeline import spool_bound, spool_files
from graynode.pipeline.bus import BusUnavailable, OnAssigned, Partition
from graynode.pipeline.spool_consumer import SpoolConsumer
from graynode.pipeline.spool_writer import SpoolProducer

__all__ = ["SpoolBus", "SpoolConsumer", "SpoolProducer"]


class SpoolBus:
    """A bus in the folder ``root``, made if absent. ``BusUnavailable`` if it cannot be."""

    def __init__(self, root: Path, max_bytes: int) -> None:
        self._root, self._max_bytes = root, max_bytes
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BusUnavailable(
                f"{root}: cannot be made: {error.strerror or error}; name a folder that this user may write"
            ) from error

    def producer(self) -> SpoolProducer:
        """A producer; it becomes the one writer of each topic with the first message to it."""
        return SpoolProducer(self._root, self._max_bytes)

    def consumer(self, topics: Sequence[str], group: str, on_assigned: OnAssigned | None = None) -> SpoolConsumer:
        """A member of ``group``, which is registered by this: its unread messages are kept up to the bound."""
        return SpoolConsumer(self._root, topics, group, on_assigned)

    def partitions(self, topic: str) -> list[Partition]:
        """One partition a topic."""
        return [Partition(topic, 0)]

    def size_bytes(self) -> int:
        """Bytes of all segments, for the agent's own health."""
        return spool_bound.size(self._root)

    def forget(self, group: str) -> None:
        """Remove a group that will not come back, so that its unread messages are kept no longer."""
        for topic in spool_files.topics(self._root):
            (self._root / topic / "groups" / spool_files.checked_name(group, "group")).unlink(missing_ok=True)
