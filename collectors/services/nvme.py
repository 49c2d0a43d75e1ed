"""NVMe disks: the controller's state and temperature from ``/sys``, and the SMART log by ``nvme smart-log``.

The log asks the disk itself and wants CAP_SYS_ADMIN, so it is read every ten minutes, by a program with a deadline
(a dying disk can hold a caller for long), and where it is not permitted the rest goes on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from graynode.collectors.base import Machine, Round
from graynode.collectors.services.look import Look, Seen
from graynode.collectors.services.program import Runner
from graynode.collectors.sysfs import names, text_of

_SMART_EVERY: Final = 10
"""In rounds of the 60 s class."""
_DEADLINE_S: Final = 20.0
_MOST: Final = 64 << 10
_MOST_DISKS: Final = 32
_WARNINGS: Final = (
    "spare blocks below threshold", "temperature out of range", "reliability degraded by media or internal errors",
    "read-only", "volatile memory backup failed", "persistent memory region unreliable",
)  # fmt: skip
"""Bits of the critical warning, NVM Express base specification, SMART / health log."""


class Nvme:
    """The part, for PCIe disks; controllers behind a network are mounts' matter."""

    name: ClassVar[str] = "nvme"

    def __init__(self, machine: Machine, runner: Runner) -> None:
        self._at, self._dev, self._runner = machine.sys / "class/nvme", machine.dev, runner
        self._smart: dict[str, dict[str, Any]] = {}
        self._round = 0
        self._said = ""
        self.absent = "" if self._disks() else f"no NVMe disk below {self._at}"

    def look(self, round_: Round) -> Seen | None:
        """All disks once a minute, and what their logs have said meanwhile."""
        seen = Seen()
        disks = self._disks()
        for disk in disks:
            answer = self._runner.take(f"nvme {disk}")
            if answer is None:
                continue
            log = parse_smart(answer.text) if answer.code == 0 and not answer.trouble else None
            if log is None:
                why = answer.trouble or answer.complaint or f"exit {answer.code}: {answer.text[:80]!r}"
                seen.trouble = f"SMART log of {disk}: {why}"[:300]
                self._smart.pop(disk, None)
            else:
                self._smart[disk] = log
        if 60 in round_.due:
            self._ask(disks, seen)
            seen.looks = [self._state(disk) for disk in disks]
            seen.whole = frozenset({"nvme"})
        return seen if seen.looks or seen.trouble or seen.whole else None

    def host_fields(self) -> dict[str, Any]:
        """The warmest and the most worn disk, and unrecovered errors of all whose log could be read."""
        logs = [self._smart[disk] for disk in self._disks() if disk in self._smart]
        errors = [log["media_errors"] for log in logs if log.get("media_errors") is not None]
        worn = [log["percent_used"] for log in logs if log.get("percent_used") is not None]
        warm = [t for t in (self._temperature(disk) for disk in self._disks()) if t is not None]
        return {
            "nvme_media_errors": sum(errors) if errors else None,
            "nvme_used_max_percent": max(worn, default=None),
            "nvme_temp_max_c": max(warm, default=None),
        }

    def memory(self) -> Any:  # noqa: ANN401 (JSON)
        """Nothing: the disks remember."""
        return None

    def remember(self, kept: Any) -> None:  # noqa: ANN401 (JSON)
        """Nothing to take up."""

    def close(self) -> None:
        """The runner lets go of the programs."""

    def _disks(self) -> list[str]:
        here = (name for name in names(self._at) if name.startswith("nvme"))
        return [name for name in here if (text_of(self._at / name / "transport") or "pcie") == "pcie"][:_MOST_DISKS]

    def _ask(self, disks: list[str], seen: Seen) -> None:
        due = self._round % _SMART_EVERY == 0
        self._round += 1
        if not due:
            return
        if not self._runner.finds("nvme"):
            seen.trouble = f"no nvme in {self._runner.path}: no SMART logs (package nvme-cli)"
            return
        for disk in disks:
            ask = ["smart-log", str(self._dev / disk), "-o", "json"]
            self._runner.start(f"nvme {disk}", "nvme", ask, deadline_s=_DEADLINE_S, most=_MOST)

    def _state(self, disk: str) -> Look:
        said = text_of(self._at / disk / "state")
        log = self._smart.get(disk, {})
        facts = {"model": text_of(self._at / disk / "model"), "serial": text_of(self._at / disk / "serial")}
        facts |= {"firmware": text_of(self._at / disk / "firmware_rev"), **log}
        state, reason = "ok", ""
        if said == "dead":
            state, reason = "dead", "the kernel has given the controller up"
        elif log.get("critical_warning"):
            state, reason = "warning", ", ".join(warnings(log["critical_warning"]))
        worn = log.get("percent_used")
        return Look(
            "nvme", disk, state, state != "ok", value=worn, unit="%" if worn is not None else None, reason=reason,
            key=f"{facts['serial']} {log.get('critical_warning')}",
            attributes={k: v for k, v in facts.items() if v is not None},
        )  # fmt: skip

    def _temperature(self, disk: str) -> int | None:
        """By the kernel's hwmon of the disk, which anybody may read; else as of the last log."""
        at = self._at / disk
        for name in names(at):
            if name.startswith("hwmon"):
                chip = at / name if (at / name / "temp1_input").exists() else next(iter((at / name).glob("hwmon*")), at)
                text = text_of(chip / "temp1_input") or ""
                if text.lstrip("-").isdecimal():
                    return round(int(text) / 1000)
        kept: int | None = self._smart.get(disk, {}).get("temp_c")
        return kept


def parse_smart(text: str) -> dict[str, Any] | None:
    """What counts of ``nvme smart-log -o json``, ``None`` if it is no such log.

    Seen in the field: numbers as texts with commas between the thousands (nvme-cli 2.4), the warning as an object with
    ``value`` (with ``--verbose``), 128-bit counters; temperature in kelvin.
    """
    try:
        log = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(log, dict) or "critical_warning" not in log:
        return None
    warning = log["critical_warning"]
    kelvin = _whole(log.get("temperature"))
    found = {
        "critical_warning": _whole(warning.get("value") if isinstance(warning, Mapping) else warning),
        "temp_c": kelvin - 273 if kelvin else None,
        "spare_percent": _whole(log.get("avail_spare")),
        "spare_threshold_percent": _whole(log.get("spare_thresh")),
        "percent_used": _whole(log.get("percent_used", log.get("percentage_used"))),
        "media_errors": _whole(log.get("media_errors")),
        "error_log_entries": _whole(log.get("num_err_log_entries")),
        "unsafe_shutdowns": _whole(log.get("unsafe_shutdowns")),
    }
    return {name: value for name, value in found.items() if value is not None}


def warnings(bits: int) -> list[str]:
    """The bits in words; unknown ones by their number."""
    words = [word for i, word in enumerate(_WARNINGS) if bits >> i & 1]
    rest = bits >> len(_WARNINGS) << len(_WARNINGS)
    return words + ([f"unknown bits {rest:#x}"] if rest else [])


def _whole(value: Any) -> int | None:  # noqa: ANN401 (JSON)
    if isinstance(value, str):
        value = value.replace(",", "")
        value = int(value) if value.isascii() and value.isdecimal() and len(value) < 40 else None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        return None
    return value
