"""The BMC's event log (SEL) by ``ipmitool``, only what is new.

A BMC answers slowly (tens of milliseconds a record over its keyboard-controller interface, with a kernel thread
spinning), so every five minutes only the log's head is asked for, and records only when their number has changed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any, ClassVar, Final

from graynode.collectors.base import Machine, Round
from graynode.collectors.services.look import Happening, Look, Seen
from graynode.collectors.services.program import Runner

_EVERY: Final = 5
"""In rounds of the 60 s class."""
_DEVICES: Final = ("ipmi0", "ipmi/0", "ipmidev/0")
_DEADLINE_S: Final = 60.0
_MOST: Final = 256 << 10
_MOST_RECORDS: Final = 50
_CRITICAL: Final = re.compile(
    r"uncorrectable|non-recoverable|critical|bus fatal|fatal|ierr|cat err|caterr|machine check|thermal trip|"
    r"processor disabled|power supply ac lost|failure detected|predictive failure|drive fault|parity|bus timeout",
    re.IGNORECASE,
)
"""Sensor events of the IPMI specification (tables 42-2 and 42-3) that ask for a person."""
_NOT_CRITICAL: Final = re.compile("non-critical", re.IGNORECASE)


class Ipmi:
    """The part. What the log holds when the agent first runs is history and not told."""

    name: ClassVar[str] = "ipmi"

    def __init__(self, machine: Machine, runner: Runner) -> None:
        self._runner = runner
        self._round = 0
        self._entries: int | None = None
        self._head: dict[str, str] = {}
        self._last_add: str | None = None
        device = next((machine.dev / name for name in _DEVICES if (machine.dev / name).exists()), None)
        self.absent = ""
        if device is None:
            self.absent = f"no BMC interface ({machine.dev}/ipmi0)"
        elif not runner.finds("ipmitool"):
            self.absent = f"no ipmitool in {runner.path}"
        elif not os.access(device, os.R_OK | os.W_OK):
            self.absent = f"{device}: this user may not use it"

    def look(self, round_: Round) -> Seen | None:
        """The log's head every five minutes, and records that it did not have before."""
        if 60 in round_.due:
            if self._round % _EVERY == 0:
                self._runner.start("sel info", "ipmitool", ["sel", "info"], deadline_s=_DEADLINE_S, most=_MOST)
            self._round += 1
        seen = Seen()
        self._take_head(seen)
        self._take_records(seen)
        return seen if seen.looks or seen.happenings or seen.trouble else None

    def host_fields(self) -> dict[str, Any]:
        """None."""
        return {}

    def memory(self) -> Any:  # noqa: ANN401 (JSON)
        """How far the log has been read."""
        return {"entries": self._entries, "last_add": self._last_add}

    def remember(self, kept: Any) -> None:  # noqa: ANN401 (JSON)
        """As ``memory`` gave it."""
        if isinstance(kept, dict) and isinstance(kept.get("entries"), int):
            self._entries, self._last_add = kept["entries"], str(kept.get("last_add"))

    def close(self) -> None:
        """The runner lets go of the programs."""

    def _take_head(self, seen: Seen) -> None:
        answer = self._runner.take("sel info")
        if answer is None:
            return
        head = parse_info(answer.text)
        entries = head.get("entries", "").partition(" ")[0]
        if answer.code or answer.trouble or not entries.isdecimal():
            seen.trouble = f"SEL: {answer.trouble or answer.complaint or answer.text[:80]!r}"[:300]
            return
        self._head = head
        full = head.get("overflow", "false") == "true" or head.get("percent used", "").startswith("100")
        facts = {
            "entries": int(entries),
            "percent_used": head.get("percent used"),
            "last_add": head.get("last add time"),
        }
        reason = "the log is full: the BMC may write nothing new" if full else ""
        seen.looks.append(
            Look(
                "bmc",
                "sel",
                "full" if full else "ok",
                value=int(entries),
                unit="entries",
                reason=reason,
                attributes=facts,
            )
        )
        before, changed = self._entries, head.get("last add time") != self._last_add
        if before is None:
            self._entries, self._last_add = int(entries), head.get("last add time")
        elif int(entries) != before or changed:
            grown = int(entries) - before if int(entries) > before else int(entries)  # cleared meanwhile: all are new
            wanted = str(max(1, min(grown or 1, _MOST_RECORDS)))
            if int(entries):
                ask = ["sel", "elist", "last", wanted]
                self._runner.start("sel list", "ipmitool", ask, deadline_s=_DEADLINE_S, most=_MOST)
            else:
                self._entries, self._last_add = 0, head.get("last add time")

    def _take_records(self, seen: Seen) -> None:
        answer = self._runner.take("sel list")
        if answer is None:
            return
        if answer.code or answer.trouble:
            seen.trouble = f"SEL: {answer.trouble or answer.complaint}"[:300]
            return  # asked for again with the next head
        self._entries = int(self._head["entries"].partition(" ")[0])
        self._last_add = self._head.get("last add time")
        seen.happenings += records(answer.text)


def parse_info(text: str) -> dict[str, str]:
    """``ipmitool sel info``: words before a colon, in lower case, to what follows."""
    lines = (line.partition(":") for line in text.splitlines()[:100])
    return {name.strip().lower(): value.strip() for name, colon, value in lines if colon and name.strip()}


def records(text: str) -> Iterator[Happening]:
    """Records of ``ipmitool sel elist``: number | date | time | sensor | event | direction | reading.

    The time is the BMC's own and kept as it stands: its clock is often wrong. A record from before the BMC had a time
    has one column less.
    """
    for line in text.splitlines()[: 2 * _MOST_RECORDS]:
        words = [word.strip() for word in line.split("|")]
        if len(words) < 4 or not re.fullmatch(r"[0-9a-fA-F]{1,4}", words[0]):
            continue
        timed = bool(re.fullmatch(r"\d\d/\d\d/\d{2,4}", words[1]))
        when = f"{words[1]} {words[2]}" if timed else words[1]
        sensor, *said = words[3:] if timed else words[2:]
        event = " · ".join(word for word in said if word)
        critical = bool(_CRITICAL.search(event)) and not _NOT_CRITICAL.search(event) and "Deasserted" not in said
        facts = {"record": int(words[0], 16), "sensor": sensor, "event": event, "bmc_time": when, "critical": critical}
        key = f"{words[0]} {when} {sensor} {event}"
        yield Happening("ipmi_sel", sensor[:80] or "SEL", key, f"BMC: {sensor}: {event}", facts, raw=line)
