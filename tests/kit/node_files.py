"""A node's files for collector tests: rounds a second apart, a ``/sys`` that can be changed, captured trees."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from agent_fakes import machine

from graynode.collectors.base import Machine, Round, Row, Rows
from graynode.pipeline.codec import to_batch
from graynode.pipeline.schema import TABLES

FIXTURES: Final = Path(__file__).resolve().parents[1] / "fixtures"
START: Final = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


def node(folder: Path, **other: Any) -> Machine:
    """A machine whose ``/proc``, ``/sys`` and state lie below ``folder``."""
    at = {"state_dir": folder / "state", "proc": folder / "proc", "sys": folder / "sys", "dev": folder / "dev"}
    return machine(**{**at, **other})


def round_at(second: float, elapsed_s: float | None = None) -> Round:
    """The round at that second, with the classes that are due then."""
    due = frozenset(every for every in (1, 10, 60) if second % every == 0)
    return Round(START + timedelta(seconds=second), due | {1}, elapsed_s)


def checked(rows: Rows, tables: Sequence[str]) -> Rows:
    """The rows, after the contract took them: only tables promised, only fields known, of their type."""
    for table, some in rows.items():
        assert table in tables
        keyed = [{"ts": START, "cluster": "c", "node_id": "n", **row} for row in some]
        assert to_batch(TABLES[table], keyed).num_rows == len(some)
    return rows


def write(path: Path, text: str) -> None:
    """A file in place (the same inode, as sysfs attributes are), folders made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


class Ports:
    """A ``/sys`` with InfiniBand ports and interfaces."""

    def __init__(self, sys: Path) -> None:
        self.sys = sys

    def rdma(
        self, device: str = "mlx5_0", *, state: str = "4: ACTIVE", phys: str = "5: LinkUp", **counters: int
    ) -> Path:
        """Make or change port 1 of a device."""
        at = self.sys / "class/infiniband" / device / "ports/1"
        write(at / "state", f"{state}\n")
        write(at / "phys_state", f"{phys}\n")
        write(at / "rate", "400 Gb/sec (4X NDR)\n")
        write(at / "link_layer", "InfiniBand\n")
        write(at.parents[1] / "fw_ver", "28.41.1000\n")
        for name, value in ({"link_downed": 0} | counters).items():
            write(at / "counters" / name, f"{value}\n")
        return at

    def net(self, name: str = "eth0", *, carrier: str = "1", changes: int = 2, flags: str = "0x1003") -> Path:
        """Make or change a physical interface."""
        at = self.sys / "class/net" / name
        (at / "device").mkdir(parents=True, exist_ok=True)
        files = {"carrier": carrier, "carrier_changes": str(changes), "flags": flags, "type": "1", "speed": "25000"}
        for file, text in (files | {"operstate": "up", "statistics/rx_dropped": "7"}).items():
            write(at / file, f"{text}\n")
        return at

    def remove(self, device: str) -> None:
        """Take an RDMA device away."""
        shutil.rmtree(self.sys / "class/infiniband" / device)


def unpack_ttar(archive: Path, into: Path) -> None:
    """Unpack node_exporter's text archive: ``Path:``, ``Lines:`` and that many lines, or ``Directory:``."""
    lines = iter(archive.read_text(encoding="utf-8").splitlines())
    path = into
    for line in lines:
        word, _, rest = line.partition(": ")
        if word == "Directory":
            (into / rest).mkdir(parents=True, exist_ok=True)
        elif word == "Path":
            path = into / rest
        elif word == "Lines":
            write(path, "".join(next(lines) + "\n" for _ in range(int(rest))))


def by(rows: Sequence[Row], key: str) -> Mapping[Any, Row]:
    """Rows by one of their fields."""
    return {row[key]: row for row in rows}
