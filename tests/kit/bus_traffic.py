"""Messages to send over a bus in tests, and patient reading of them."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence

from graynode.pipeline.bus import Consumer, Received
from graynode.pipeline.codec import Message


def numbered(count: int, nodes: int = 1, first: int = 0, size: int = 0, epoch: int = 1) -> list[Message]:
    """``count`` messages, round robin over ``nodes`` machines, numbered from ``first`` per machine."""
    return [
        Message(
            key=f"site/node{i % nodes}",
            value=b"%d" % i + b"." * size,
            headers={"node_id": f"node{i % nodes}", "epoch": str(epoch), "seq": str(first + i // nodes)},
        )
        for i in range(count)
    ]


def read(consumer: Consumer, count: int, timeout_s: float = 30.0) -> list[Received]:
    """At least ``count`` messages, or fewer if they do not come in time."""
    deadline = time.monotonic() + timeout_s
    got: list[Received] = []
    while len(got) < count and time.monotonic() < deadline:
        got += consumer.poll(0.2)
    return got


def sequences(received: Iterable[Received]) -> dict[str, list[int]]:
    """The sequence numbers of each machine in the order of arrival."""
    found: dict[str, list[int]] = defaultdict(list)
    for r in received:
        found[r.message.headers["node_id"]].append(int(r.message.headers["seq"]))
    return dict(found)


def first_seen(received: Iterable[Received]) -> dict[str, list[int]]:
    """As ``sequences``, without what repeats (epoch, seq): what the owner of a partition keeps."""
    seen: set[tuple[str, str, str]] = set()
    kept: list[Received] = []
    for r in received:
        h = r.message.headers
        identity = (h["node_id"], h["epoch"], h["seq"])
        if identity not in seen:
            seen.add(identity)
            kept.append(r)
    return sequences(kept)


def values(received: Sequence[Received]) -> list[bytes]:
    """The values in the order of arrival."""
    return [r.message.value for r in received]
