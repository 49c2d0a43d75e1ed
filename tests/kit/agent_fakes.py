"""Sources and a bus end that remember, for tests of the agent loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from graynode.collectors.base import Machine, Round, Rows
from graynode.pipeline.codec import Message, decode

BOOT_ID = "11111111-2222-3333-4444-555555555555"


def machine(state_dir: Path, **other: Any) -> Machine:
    """A machine of its own, files of this one."""
    known = {"cluster": "test", "node": "host-1", "node_id": "machine-1", "node_id_source": "configured"}
    return Machine(**{**known, "boot_id": BOOT_ID, "state_dir": state_dir, **other})


def until(done: Callable[[], bool], timeout_s: float = 20.0) -> bool:
    """Wait for something that another thread does; false if it has not come to pass after so long."""
    end = time.monotonic() + timeout_s
    while not done():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


class Source:
    """A collector that keeps the rounds it got and gives what ``read`` gives."""

    name: ClassVar[str] = "source"
    tables: ClassVar[tuple[str, ...]] = ("host", "event")

    def __init__(self, read: Callable[[Round], Rows] | None = None, name: str = "source") -> None:
        self.name = name  # one class serves as several collectors
        self.read = read or (lambda round_: {"host": [{"load1": 1.0}]})
        self.rounds: list[Round] = []
        self.threads: set[int] = set()
        self.closed = 0

    def collect(self, round_: Round) -> Rows:
        self.rounds.append(round_)
        self.threads.add(threading.get_ident())
        return self.read(round_)

    def close(self) -> None:
        self.closed += 1


class Sink:
    """The producer's end of a bus: keeps what was sent, and refuses while ``trouble`` says so."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Message]] = []
        self.calls = 0
        self.trouble: Exception | None = None
        self.refuse: Callable[[Message], Exception | None] = lambda message: None
        self.closed = 0

    def send(self, topic: str, messages: Sequence[Message]) -> None:
        self.calls += 1
        if self.trouble is not None:
            raise self.trouble
        for message in messages:
            error = self.refuse(message)
            if error is not None:
                raise error
        self.sent += [(topic, m) for m in messages]

    def close(self) -> None:
        self.closed += 1

    def rows(self, table: str) -> list[dict[str, Any]]:
        """All rows of a table in the order sent, nulls left out."""
        found = [row for _, m in self.sent if m.headers["table"] == table for row in decode(m).to_pylist()]
        return [{k: v for k, v in row.items() if v is not None} for row in found]


class Hands:
    """A clock that stands still until it is turned."""

    def __init__(self) -> None:
        self.at = 1000.0
        self.wall = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)

    def monotonic(self) -> float:
        return self.at

    def now(self) -> datetime:
        return self.wall
