"""The node itself, from ``/proc`` and ``/sys``, and the agent's own health, into ``host`` and ``inventory``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

from graynode.collectors.base import Machine, Round, Row, Rows
from graynode.collectors.driver_module import driver_module
from graynode.collectors.host_files import (
    ClockState,
    CpuTimes,
    clock_state,
    cpu_times,
    cpu_use,
    cpus_online,
    disk_io_ms,
    first_number,
    table,
    used_ratio,
)
from graynode.collectors.pci import is_nvidia_gpu
from graynode.collectors.state_file import StateFile
from graynode.collectors.switches import Switches
from graynode.collectors.sysfs import SysFile, names, text_of, whole_text
from graynode.pipeline.schema import TABLES

Health = Mapping[str, float | int | None]
_HOST: Final = TABLES["host"]
_EVERY_S: Final[Mapping[str, int]] = {f.name: f.every_s for f in _HOST.fields if f.kind != "key"}


def no_health() -> Health:
    """Nothing is known of the agent."""
    return {}


class Host:
    """One ``host`` row a round, and an ``inventory`` row of kind node when the node's facts are new.

    ``health`` gives the agent's own fields of table ``host`` (``samples_taken``, ``spool_bytes``, …); what it says wins
    over what is read here, and names that the table does not have are left out. ``root`` is the file system watched.
    """

    name: ClassVar[str] = "host"
    tables: ClassVar[tuple[str, ...]] = ("host", "inventory", "quality")

    def __init__(
        self,
        machine: Machine,
        health: Callable[[], Health] = no_health,
        *,
        clock: Callable[[], ClockState | None] = clock_state,
        root: Path = Path("/"),
    ) -> None:
        self._machine, self._health, self._clock, self._root = machine, health, clock, root
        self.switches = Switches()
        """What is left out. Most of it comes of files that are read for other fields too: it saves bytes, not time."""
        self._first = True
        proc = machine.proc
        self._stat, self._load = SysFile(proc / "stat"), SysFile(proc / "loadavg")
        self._uptime, self._meminfo = SysFile(proc / "uptime"), SysFile(proc / "meminfo")
        self._before: CpuTimes | None = None
        self._is_gpu: dict[str, bool] = {}
        self._is_disk: dict[str, bool] = {}
        self._state = StateFile(machine.state_dir / "host.json")
        self._inventory: dict[str, Any] = self._state.load()

    def collect(self, round_: Round) -> Rows:
        """Read what is due. What this machine does not have is absent."""
        row = self._every_second()
        if 10 in round_.due:
            row |= self._every_ten_seconds()
        rows: dict[str, list[Row]] = {"host": [row]}
        if 60 in round_.due:
            facts = self._every_minute()
            row |= facts
            rows["inventory"] = self._changed(facts)
        due = {name for name, every_s in _EVERY_S.items() if every_s in round_.due}
        row |= {name: value for name, value in self._health().items() if name in due}
        rows["host"] = [self.switches.strip("host", row, round_.due)]
        if self._first:
            self._first = False
            rows["quality"] = self.switches.told("host", self._machine.node_id, _EVERY_S)
        return {name: some for name, some in rows.items() if some}

    def close(self) -> None:
        """Let go of the files; twice is as good as once."""
        for file in (self._stat, self._load, self._uptime, self._meminfo):
            file.close()

    def _every_second(self) -> Row:
        row: Row = {"load1": first_number(self._load.text() or ""), "uptime_s": first_number(self._uptime.text() or "")}
        now = cpu_times(self._stat.text() or "")
        used = cpu_use(self._before, now) if self._before and now else None
        if used:
            row |= {"cpu_util_percent": used[0], "cpu_iowait_percent": used[1]}
        self._before = now
        row["mem_available_bytes"] = self._memory().get("MemAvailable")
        return row

    def _every_ten_seconds(self) -> Row:
        proc = self._machine.proc
        memory = self._memory()
        total, free = memory.get("SwapTotal"), memory.get("SwapFree")
        clock = self._clock()
        return {
            "swap_used_bytes": total - free if total is not None and free is not None else None,
            "oom_kills": table(whole_text(proc / "vmstat")).get("oom_kill"),
            "disk_io_ms": disk_io_ms(whole_text(proc / "diskstats"), self._whole_disk),
            "clock_synced": int(clock.synced) if clock else None,
            "clock_offset_s": clock.offset_s if clock else None,
            "gpus_expected": self._gpus_on_bus(),
        }

    def _every_minute(self) -> Row:
        proc, dmi = self._machine.proc, self._machine.sys / "class/dmi/id"
        module = driver_module(text_of(proc / "driver/nvidia/version") or "")
        return {
            "cpus": cpus_online(whole_text(proc / "stat")),
            "mem_total_bytes": self._memory().get("MemTotal"),
            "root_used_ratio": used_ratio(str(self._root)),
            "kernel": text_of(proc / "sys/kernel/osrelease"),
            "driver_version": module.version if module else None,
            "driver_kind": module.kind if module else None,
            "bios_version": text_of(dmi / "bios_version"),
            "product_name": text_of(dmi / "product_name"),
            "node_id_source": self._machine.node_id_source,
        }

    def _memory(self) -> dict[str, int]:
        return table(self._meminfo.text() or "", 1024)

    def _gpus_on_bus(self) -> int | None:
        """NVIDIA display controllers that the kernel has enumerated, whether a driver answers for them or not."""
        at = self._machine.sys / "bus/pci/devices"
        if not at.is_dir():
            return None
        return sum(self._looks_like_gpu(at, device) for device in names(at))

    def _looks_like_gpu(self, at: Path, device: str) -> bool:
        if device not in self._is_gpu:
            self._is_gpu[device] = is_nvidia_gpu(at / device)
        return self._is_gpu[device]

    def _whole_disk(self, name: str) -> bool:
        """A disk with a device behind it: no partition, loop, RAM or mapper device."""
        if name not in self._is_disk:
            self._is_disk[name] = (self._machine.sys / "block" / name / "device").exists()
        return self._is_disk[name]

    def _changed(self, facts: Row) -> list[Row]:
        dmi = self._machine.sys / "class/dmi/id"
        row: Row = {
            "kind": "node",
            "entity": self._machine.node_id,
            "model": facts["product_name"],
            "serial": text_of(dmi / "product_serial"),
            "vbios_version": facts["bios_version"],
            "driver_version": facts["driver_version"],
            "expected": self._gpus_on_bus(),
        }
        more = {name: facts[name] for name in ("kernel", "driver_kind", "cpus", "node_id_source")}
        more |= {"node": self._machine.node, "vendor": text_of(dmi / "sys_vendor")}
        row["attributes"] = json.dumps({k: v for k, v in more.items() if v is not None}, sort_keys=True)
        if row == self._inventory:
            return []
        self._inventory = dict(row)
        self._state.save(self._inventory)
        return [row]
