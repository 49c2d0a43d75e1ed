"""Services that a GPU node lives by, as systemd knows them: ``systemctl show`` once a minute.

What a state means depends on the node. Fabric manager runs where there are NVSwitches, and not in the compute trays of
rack-scale systems, whose switches run their own; IMEX does nothing without a compute domain. A unit that is not
installed is absent, and only where it must be there is that a fault.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, Final

from graynode.collectors.base import Machine, Round
from graynode.collectors.services.look import Happening, Look, Seen
from graynode.collectors.services.program import Runner
from graynode.collectors.sysfs import names, text_of, whole_text

UNITS: Final = (
    "nvidia-fabricmanager.service", "nvidia-imex.service", "nvidia-persistenced.service", "nvidia-dcgm.service",
    "slurmd.service", "munge.service", "kubelet.service", "containerd.service", "chronyd.service",
)  # fmt: skip
FABRIC_MANAGER: Final = "nvidia-fabricmanager.service"
IMEX: Final = "nvidia-imex.service"
_PROPERTIES: Final = (
    "Id", "LoadState", "ActiveState", "SubState", "UnitFileState", "NRestarts", "Result", "ExecMainStatus",
    "StateChangeTimestampMonotonic",
)  # fmt: skip
_DEADLINE_S: Final = 10.0
_MOST: Final = 64 << 10
PATIENCE_S: Final = 300.0
"""What is starting, stopping or not yet started may be so for five minutes: boots, upgrades, restarts by hand."""
_STORM: Final = timedelta(hours=1)
_UNIT_NAME: Final = re.compile(r"[A-Za-z0-9:_.\\@-]{1,255}")
_NVSWITCHES: Final = frozenset({"0x1af1", "0x22a3"})
"""PCI device ids of the NVSwitches of A100 and H100 boards; those of B200 boards are not on the host's bus."""
_TRAY_GPUS: Final = frozenset({"0x2941", "0x31c2"})
"""GPUs of GB200 and GB300: their switches are in trays of their own."""
_TRAY: Final = re.compile(r"\bG[BH]\d{3}\b.*\bNVL|\bNVL\s?(?:36|72|144)\b", re.IGNORECASE)
_RUNS_AT_BOOT: Final = frozenset({"enabled", "enabled-runtime", "static", "generated", "linked", "indirect", "alias"})


class Units:
    """The part. ``units`` are watched; ``run`` and ``etc`` are roots, other ones in tests."""

    name: ClassVar[str] = "units"

    def __init__(
        self,
        machine: Machine,
        runner: Runner,
        units: Sequence[str] = UNITS,
        *,
        run: Path = Path("/run"),
        etc: Path = Path("/etc"),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._machine, self._runner, self._units, self._etc = machine, runner, tuple(units), etc
        self._monotonic = monotonic
        self._restarts: dict[str, int] = {}
        self._lately: dict[str, deque[datetime]] = {}
        self._failed = 0
        self.absent = ""
        if not (run / "systemd/system").is_dir():
            self.absent = f"systemd does not run here (no {run}/systemd/system)"
        elif not runner.finds("systemctl"):
            self.absent = f"no systemctl in {runner.path}"
        elif not self._units:
            self.absent = "services.units names none"

    def look(self, round_: Round) -> Seen | None:
        """All units, a second or more after they were asked for."""
        if 60 in round_.due:
            ask = ["show", "--no-pager", f"--property={','.join(_PROPERTIES)}", "--", *self._units]
            self._runner.start("units", "systemctl", ask, deadline_s=_DEADLINE_S, most=_MOST)
        answer = self._runner.take("units")
        if answer is None:
            return None
        if answer.trouble:
            return Seen(trouble=answer.trouble)
        told = parse_show(answer.text)
        if not told:
            return Seen(trouble=f"systemctl told nothing (exit {answer.code}): {answer.complaint}"[:300])
        looks = [self._judge(facts, round_.ts) for facts in told.values()]
        self._failed = sum(look.bad for look in looks if look is not None)
        return Seen([x for x in looks if x is not None], self._restarted(told, round_.ts), frozenset({"unit"}))

    def host_fields(self) -> dict[str, Any]:
        """Units that should run and do not."""
        return {} if self.absent else {"services_failed": self._failed}

    def memory(self) -> Any:  # noqa: ANN401 (JSON)
        """Restarts counted so far."""
        return self._restarts

    def remember(self, kept: Any) -> None:  # noqa: ANN401 (JSON)
        """As ``memory`` gave them."""
        if isinstance(kept, dict):
            self._restarts = {str(k): v for k, v in kept.items() if isinstance(v, int) and not isinstance(v, bool)}

    def close(self) -> None:
        """The runner lets go of the program."""

    def _judge(self, facts: Mapping[str, str], ts: datetime) -> Look | None:
        unit = facts["Id"]
        state, bad, patience_s = unit_state(facts)
        reason = _reason(facts, state)
        needed = self._needed(unit)
        if state == "absent" and not needed:
            return None
        if needed is False and state != "active":
            state, bad, reason = "not_needed", False, f"{reason}; nothing on this node needs it".strip("; ")
        if needed and state in ("absent", "off", "masked"):
            bad, patience_s, reason = True, PATIENCE_S, "there are NVSwitches on this node, which need it"
        return Look(
            "unit", unit, state, bad, patience_s,
            since=self._since(facts, ts),
            key=facts.get("StateChangeTimestampMonotonic", ""),
            restarts=_number(facts.get("NRestarts")),
            reason=reason,
            attributes={"sub_state": facts.get("SubState"), "unit_file_state": facts.get("UnitFileState")},
        )  # fmt: skip

    def _needed(self, unit: str) -> bool | None:
        """Whether the node needs the unit for certain, certainly not, or nobody can tell."""
        if unit == FABRIC_MANAGER:
            return needs_fabric_manager(self._machine.sys)
        if unit == IMEX:
            config = whole_text(self._etc / "nvidia-imex/nodes_config.cfg")
            domain = any(line.strip() and not line.lstrip().startswith("#") for line in config.splitlines())
            return None if domain else False
        return None

    def _since(self, facts: Mapping[str, str], ts: datetime) -> datetime | None:
        """systemd's own time of the change, by the clock that no one sets."""
        changed = _number(facts.get("StateChangeTimestampMonotonic"))
        ago = self._monotonic() - changed / 1e6 if changed else None
        return ts - timedelta(seconds=round(ago)) if ago is not None and ago >= 0 else None

    def _restarted(self, told: Mapping[str, Mapping[str, str]], ts: datetime) -> list[Happening]:
        found: list[Happening] = []
        for unit, facts in told.items():
            now, before = _number(facts.get("NRestarts")), self._restarts.get(unit)
            if now is None:
                continue
            self._restarts[unit] = now
            if before is None or now <= before:
                continue
            lately = self._lately.setdefault(unit, deque(maxlen=1000))
            lately.extend([ts] * (now - before))
            while lately and ts - lately[0] > _STORM:
                lately.popleft()
            text = f"{unit} was restarted by systemd {now - before} times, {len(lately)} in the last hour"
            more = {"restarts": now - before, "in_last_hour": len(lately), "result": facts.get("Result")}
            found.append(Happening("service_restarted", unit, f"{now} {facts.get(_PROPERTIES[-1], '')}", text, more))
        return found


def parse_show(text: str) -> dict[str, dict[str, str]]:
    """Properties by unit of ``systemctl show``; a block without a unit's name is none."""
    found: dict[str, dict[str, str]] = {}
    for block in text.split("\n\n"):
        facts = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if _UNIT_NAME.fullmatch(facts.get("Id", "")):
            found[facts["Id"]] = facts
    return found


def unit_state(facts: Mapping[str, str]) -> tuple[str, bool, float]:
    """The state in one word, whether it is a fault by itself, and how long it may last before it is told."""
    load, active, sub = (facts.get(name, "") for name in ("LoadState", "ActiveState", "SubState"))
    if load in ("not-found", "masked"):
        return ("absent" if load == "not-found" else "masked"), False, 0.0
    if active in ("active", "reloading", "refreshing"):
        return "active", False, 0.0
    if active == "failed":
        return "failed", True, 0.0
    if active == "activating":
        return ("restarting" if sub.startswith("auto-restart") else "starting"), True, PATIENCE_S
    if active in ("inactive", "deactivating"):
        boots = facts.get("UnitFileState", "") in _RUNS_AT_BOOT
        return ("down" if boots else "off"), boots, PATIENCE_S
    return f"{active or 'unknown'}"[:40], False, 0.0


def needs_fabric_manager(sys: Path) -> bool | None:
    """True with NVSwitches on the bus, false in a rack-scale compute tray, ``None`` where nothing tells."""
    at = sys / "bus/pci/devices"
    nvidia = {text_of(at / device / "device") for device in names(at) if text_of(at / device / "vendor") == "0x10de"}
    if nvidia & _NVSWITCHES:
        return True
    product = text_of(sys / "class/dmi/id/product_name") or ""
    return False if nvidia & _TRAY_GPUS or _TRAY.search(product) else None


def _reason(facts: Mapping[str, str], state: str) -> str:
    result, status = facts.get("Result", ""), facts.get("ExecMainStatus", "")
    if state in ("failed", "restarting") and result not in ("", "success"):
        return f"{result}, exit status {status}" if status else result
    return "enabled, and not running" if state == "down" else ""


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 19 else None
