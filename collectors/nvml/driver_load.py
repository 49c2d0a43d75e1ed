"""Driver load id: a counter on disk, so that counters are compared only inside one load of the driver."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from graynode.collectors.base import Machine
from graynode.collectors.state_file import StateFile

_SAVE_S: Final = 60.0
"""Energies are saved this often: a reload while the agent was away shows as a fall below what was saved."""


class DriverLoad:
    """The counter. Raised by another boot, another driver version, the driver's own load line in the kernel log, or
    energy falling on every GPU (it counts from the load of the driver).

    Energy that falls on some GPUs only is a reset of those (``fallen``).
    """

    def __init__(self, machine: Machine, now: datetime) -> None:
        self._boot_id = machine.boot_id
        self._file = StateFile(machine.state_dir / "driver_load.json")
        kept = self._file.load()
        load = kept.get("load")
        self.current: int = load if isinstance(load, int) and load > 0 else 0
        self.fallen: tuple[str, ...] = ()
        """GPUs whose energy alone fell at the last ``observe``."""
        self._version = ""
        self._energy: dict[str, int] = {}
        self._since = now.timestamp()
        self._by_line = False
        self._saved_at = 0.0
        if self.current and kept.get("boot_id") == self._boot_id:
            self._restore(kept)
        else:
            self._raise(now)

    def observe(self, version: str, energies: Mapping[str, int], now: datetime) -> str | None:
        """What NVML says now; the reason where that is another load of the driver than before."""
        reason = self._reason(version, energies)
        told_by_line, self._by_line = self._by_line, False
        self._version = version or self._version
        self._energy |= energies
        if reason and told_by_line:
            reason = None  # the load line came first and has raised the counter for this very load
        if reason:
            self._energy = dict(energies)
            self.fallen = ()
            self._raise(now)
        elif now.timestamp() - self._saved_at >= _SAVE_S:
            self._save(now)
        return reason

    def load_line(self, at: datetime, now: datetime) -> bool:
        """The kernel log's line that the driver was loaded ``at``; true where that is news."""
        if at.timestamp() <= self._since:
            return False
        self._by_line = True
        self._raise(now)
        return True

    def _reason(self, version: str, energies: Mapping[str, int]) -> str | None:
        both = [uuid for uuid in energies if uuid in self._energy]
        fallen = [uuid for uuid in both if energies[uuid] < self._energy[uuid]]
        self.fallen = tuple(fallen) if len(fallen) < len(both) else ()
        if version and self._version and version != self._version:
            return f"driver {self._version} became {version}"
        if fallen and len(fallen) == len(both):
            return f"the energy counter fell on every GPU ({len(both)})"
        return None

    def _raise(self, now: datetime) -> None:
        self.current += 1
        self._since = now.timestamp()
        self._save(now)

    def _save(self, now: datetime) -> None:
        self._saved_at = now.timestamp()
        self._file.save(
            {
                "load": self.current, "boot_id": self._boot_id, "version": self._version, "since": self._since,
                "energy": self._energy,
            }
        )  # fmt: skip

    def _restore(self, kept: Mapping[str, Any]) -> None:
        version, since, energy = kept.get("version"), kept.get("since"), kept.get("energy")
        self._version = version if isinstance(version, str) else ""
        self._since = float(since) if isinstance(since, int | float) else self._since
        if isinstance(energy, dict):
            self._energy = {str(k): v for k, v in energy.items() if isinstance(v, int)}
