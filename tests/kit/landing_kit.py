"""What pipeline tests send and how they look at the lake: a small fleet's messages, and a landing without a bus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl

from graynode.pipeline.bus import Partition, Received
from graynode.pipeline.codec import Message, Origin, encode
from graynode.pipeline.lake import Lake
from graynode.pipeline.land import Landing
from graynode.pipeline.schema import SAMPLES, TABLES

T0 = datetime(2026, 11, 2, 10, 0, tzinfo=UTC)
CLUSTER = "test"


def at(seconds: float) -> datetime:
    """So many seconds after the tests' beginning of time."""
    return T0 + timedelta(seconds=seconds)


def ms(seconds: float) -> int:
    """The same as the bus's clock."""
    return round(at(seconds).timestamp() * 1000)


def gpu_row(second: float, node: str = "n1", gpu: str = "GPU-0", **values: Any) -> dict[str, Any]:
    """One sample of one GPU; boot and driver load are the first unless given."""
    return {
        "ts": at(second), "cluster": CLUSTER, "node_id": node, "node": f"host-{node}", "boot_id": "boot-1",
        "driver_load": 1, "gpu_uuid": gpu, "vendor": "NVIDIA", "gpu_index": 0, **values,
    }  # fmt: skip


def link_row(second: float, node: str = "n1", link: str = "mlx5_0/1", **values: Any) -> dict[str, Any]:
    """One sample of one port."""
    who = {"ts": at(second), "cluster": CLUSTER, "node_id": node, "boot_id": "boot-1", "driver_load": 1}
    return {**who, "link": link, "link_kind": "infiniband", "state": "active", **values}


def host_row(second: float, node: str = "n1", **values: Any) -> dict[str, Any]:
    """One sample of one node."""
    who = {"ts": at(second), "cluster": CLUSTER, "node_id": node, "boot_id": "boot-1", "driver_load": 1}
    return {**who, "load1": 1.0, **values}


def message(
    rows: Sequence[Mapping[str, Any]], *, table: str = "gpu", sequence: int = 0, epoch: int = 1, sent: float = 0
) -> Message:
    """These rows of one machine as an agent sends them."""
    node = str(rows[0]["node_id"])
    return encode(table, rows, Origin(CLUSTER, node, epoch), sequence, at(sent))


class Log:
    """One partition that remembers: gives messages their offsets."""

    def __init__(self, topic: str = SAMPLES, number: int = 0) -> None:
        self.partition = Partition(topic, number)
        self.received: list[Received] = []

    def add(self, message_: Message, arrived: float) -> Received:
        """Append; ``arrived`` in seconds of the tests' time."""
        one = Received(message_, self.partition, len(self.received), ms(arrived))
        self.received.append(one)
        return one


class Rejected:
    """Dead letters that are remembered."""

    def __init__(self) -> None:
        self.letters: list[tuple[Received, str]] = []
        self.read = 0

    def skips(self, received: Received) -> bool:
        """Nobody floods here."""
        return False

    def readable(self, received: Received) -> None:
        """Count."""
        self.read += 1

    def put(self, received: Received, reason: str) -> None:
        """Remember."""
        self.letters.append((received, reason))


def landing(lake: Lake, now: float = 0, rejects: Rejected | None = None, **settings: Any) -> Landing:
    """A landing whose clock stands still."""
    return Landing(lake, rejects or Rejected(), clock=lambda: at(now).timestamp(), **settings)


def land(
    lake_path: Path | str, log: Log, *, chunks: Sequence[int] = (), now: float = 10_000, finish: bool = True
) -> Lake:
    """Carry a whole log to the lake in polls of these sizes (then the rest), closing all windows at the end."""
    lake = Lake(str(lake_path))
    carrier = landing(lake, now)
    carry(carrier, log, chunks)
    if finish:
        end = {log.partition: len(log.received)}
        for _ in range(2):  # the first commits the last windows, the second the hours made of them
            carrier.commit(end, everything=True)
    return lake


def carry(carrier: Landing, log: Log, chunks: Sequence[int] = ()) -> None:
    """Give a log's messages to a landing from where it wants them, committing after every poll."""
    start = carrier.assigned(frozenset([log.partition]))[log.partition] or 0
    for some in polls(log.received[start:], chunks):
        carrier.take(some)
        carrier.commit()


def polls(received: Sequence[Received], chunks: Sequence[int]) -> Iterator[list[Received]]:
    """The messages in pieces of these sizes, then the rest."""
    left = list(received)
    for size in chunks:
        if left:
            yield left[:size]
            left = left[size:]
    if left:
        yield left


def rows(lake: Lake, table: str) -> pl.DataFrame:
    """All rows of a table, in order of entity and time."""
    return lake.read(table).sort([*TABLES[table].entity, "ts"])
