"""The collector contract: one source, one file or folder, read and parse apart.

A collector reads its source when it is told to and gives rows of contract tables. It never sleeps, never
retries and never logs per sample: the agent (``agent.py``) times, counts, catches and carries. It raises
``NoSource`` where this machine has no such source, and any other exception for a failure that is counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

Row = dict[str, Any]
"""One row: field name to value. Keys the agent fills if absent: ts, cluster, node, node_id, boot_id,
driver_load, vendor."""
Rows = Mapping[str, Sequence[Row]]
"""Rows by table name."""

CADENCES_S: Final = (1, 10, 60)
"""Reading classes; a field's class is ``Field.every_s``. The first round has all of them."""


def utc_now() -> datetime:
    """This machine's clock."""
    return datetime.now(UTC)


class NoSource(Exception):
    """This machine has no such source; said once, the collector is not asked again until the agent restarts."""


@dataclass(frozen=True, slots=True)
class Round:
    """One round: ``ts`` is the one timestamp of all its rows, ``due`` the reading classes that are due.

    ``elapsed_s`` is the monotonic time since this collector's previous round, null at the first.
    """

    ts: datetime
    due: frozenset[int]
    elapsed_s: float | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """Who this machine is, and where its files are. Tests give other roots.

    ``state_dir`` outlives the agent: counters, outages and positions that a restart must not forget.
    """

    cluster: str
    node: str
    node_id: str
    node_id_source: str
    boot_id: str
    state_dir: Path
    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    dev: Path = Path("/dev")


class Collector(Protocol):
    """What the agent knows of a source.

    One that reads slower classes only may say so with a class variable ``every_s``: rounds without them are not its.
    One that counts what became of its records says so by an attribute ``tally``, a mapping from words to counts, which
    the agent's ``/metrics`` show.
    """

    name: ClassVar[str]
    tables: ClassVar[tuple[str, ...]]

    def collect(self, round_: Round) -> Rows:
        """Read what is due. Rows lack nothing but agent-filled keys; absent values are absent or ``None``."""
        ...

    def close(self) -> None:
        """Let go of files, children and handles; twice is as good as once."""
        ...
