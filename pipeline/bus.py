"""The bus contract: what Kafka and the spool both promise.

"Sent" means that ``send`` returned: the messages survive the death of this process and of the machine's
power as far as the medium promises it. Order per key is kept. A message may arrive twice, never not at all,
up to the stated bound of the spool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from graynode.pipeline.codec import MAX_MESSAGE_BYTES, Message


class BusUnavailable(Exception):
    """The bus does not take or give messages now; try again later. The text says what to look at."""


class BusRefused(Exception):
    """The bus will never take this as it is: too large, not permitted, wrong certificate or password."""


class MessageRefused(BusRefused):
    """It is this one message that the bus will never take, whatever else is sent: too large, not well formed."""


class OffsetGone(Exception):
    """The wanted offset has left the bus. ``first`` is the oldest there is; what lies between is lost."""

    def __init__(self, partition: Partition, wanted: int, first: int) -> None:
        super().__init__(f"{partition.topic}/{partition.number}: offset {wanted} is gone, the oldest is {first}")
        self.partition, self.wanted, self.first = partition, wanted, first


@dataclass(frozen=True, slots=True, order=True)
class Partition:
    """One ordered log of a topic."""

    topic: str
    number: int


@dataclass(frozen=True, slots=True)
class Received:
    """A message with its place. ``arrived_ms`` is the bus's own clock (epoch milliseconds)."""

    message: Message
    partition: Partition
    offset: int
    arrived_ms: int


def check_size(message: Message) -> None:
    """``MessageRefused`` if the message is over the limits that hold on every bus: value, key, headers."""
    if len(message.value) > MAX_MESSAGE_BYTES:
        raise MessageRefused(
            f"message of {message.key[:80]}: {len(message.value)} bytes, the limit is {MAX_MESSAGE_BYTES};"
            " send fewer rows in one message"
        )
    if len(message.key) > 1000 or sum(len(k) + len(v) for k, v in message.headers.items()) > 10_000:
        raise MessageRefused(
            f"message of {message.key[:80]}: a key may have 1,000 characters, all headers together 10,000"
        )


class Producer(Protocol):
    """Writes. One producer a process and topic; safe to use from one thread at a time."""

    def send(self, topic: str, messages: Sequence[Message]) -> None:
        """Return when all are durable. ``BusUnavailable``: some may have been taken; send all again.

        What was taken of a key is always its first part, so sending all again doubles but leaves no gap.
        ``MessageRefused``: one message is at fault; send one by one to find it. ``BusRefused``: none is.
        """
        ...

    def close(self) -> None:
        """Flush and let go; twice is as good as once."""
        ...


class Consumer(Protocol):
    """Reads as a member of a group; positions are the caller's, or those committed for the group."""

    def poll(self, timeout_s: float, max_messages: int = 1000, max_bytes: int = 32 << 20) -> list[Received]:
        """Messages in order per partition, at most so many, at least one if any is there; else ``[]``."""
        ...

    def assigned(self) -> frozenset[Partition]:
        """The partitions this member reads now."""
        ...

    def seek(self, partition: Partition, offset: int) -> None:
        """Read from ``offset`` next. ``poll`` raises ``OffsetGone`` until a ``seek`` to what is there."""
        ...

    def commit(self, offsets: Mapping[Partition, int]) -> None:
        """Keep for the group the next offset to read of each partition."""
        ...

    def end_offsets(self) -> dict[Partition, int]:
        """The offset after the last message of each assigned partition, for lag."""
        ...

    def close(self) -> None:
        """Leave the group; twice is as good as once."""
        ...


class Bus(Protocol):
    """Makes producers and consumers. Either, or its first use, says ``BusUnavailable`` or ``BusRefused``."""

    def producer(self) -> Producer:
        """A producer."""
        ...

    def consumer(self, topics: Sequence[str], group: str, on_assigned: OnAssigned | None = None) -> Consumer:
        """A member of ``group``. Without ``on_assigned`` it starts at the group's commit, else at the oldest."""
        ...

    def partitions(self, topic: str) -> list[Partition]:
        """The topic's partitions."""
        ...


OnAssigned = Callable[[frozenset[Partition]], Mapping[Partition, int | None]]
"""Called inside ``poll`` with all partitions now held; gives the next offset of each (``None``: the oldest).
One that is left out starts at the group's commit, else at the oldest (over the spool: goes on where it was, if
it was held before). Partitions no longer held have been taken away: their open state must be dropped.
Committing is still wanted: the spool keeps what its groups have not committed, and lag is seen by it."""
