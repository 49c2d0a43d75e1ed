"""Memory errors that the kernel's EDAC drivers count (Documentation/driver-api/edac.rst), per controller and DIMM."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, Final

from graynode.collectors.base import Machine, Round
from graynode.collectors.services.look import Happening, Look, Seen
from graynode.collectors.sysfs import names, text_of

_CORRECTED_AGAIN: Final = timedelta(hours=1)
"""Corrected errors come by the thousand from one bad DIMM: one event an hour, with how many there were."""


class Edac:
    """The part. Counts are since boot; an uncorrected one is told at once, also one from before the agent started."""

    name: ClassVar[str] = "edac"

    def __init__(self, machine: Machine) -> None:
        self._at = machine.sys / "devices/system/edac/mc"
        self._before: dict[str, list[int]] = {}
        self._told_at: dict[str, datetime] = {}
        self._now: dict[str, tuple[int | None, int | None]] = {}
        there = [name for name in names(self._at) if name.startswith("mc")]
        self.absent = "" if there else f"no memory controller below {self._at} (no EDAC driver, or a virtual machine)"

    def look(self, round_: Round) -> Seen | None:
        """All controllers, once a minute."""
        if 60 not in round_.due:
            return None
        seen = Seen(whole=frozenset({"memory"}))
        self._now = {}
        for name in (name for name in names(self._at) if name.startswith("mc")):
            corrected, uncorrected = _count(self._at / name / "ce_count"), _count(self._at / name / "ue_count")
            self._now[name] = corrected, uncorrected
            if corrected is None and uncorrected is None:
                seen.trouble = f"{self._at / name}: no counts can be read"
                continue
            dimms = _dimms(self._at / name)
            self._grown(name, corrected or 0, uncorrected or 0, dimms, round_.ts, seen)
            state = "uncorrected" if uncorrected else "corrected" if corrected else "ok"
            facts = {"model": text_of(self._at / name / "mc_name"), "corrected": corrected, "dimms": dimms or None}
            seen.looks.append(
                Look("memory", name, state, bool(uncorrected), value=uncorrected, unit="errors", attributes=facts)
            )
        return seen

    def host_fields(self) -> dict[str, Any]:
        """Sums over the controllers; null where none can be read."""
        corrected = [c for c, _ in self._now.values() if c is not None]
        uncorrected = [u for _, u in self._now.values() if u is not None]
        return {
            "edac_corrected_errors": sum(corrected) if corrected else None,
            "edac_uncorrected_errors": sum(uncorrected) if uncorrected else None,
        }

    def memory(self) -> Any:  # noqa: ANN401 (JSON)
        """Counts that have been told."""
        return self._before

    def remember(self, kept: Any) -> None:  # noqa: ANN401 (JSON)
        """As ``memory`` gave them."""
        for name, counts in kept.items() if isinstance(kept, dict) else ():
            if isinstance(counts, list) and len(counts) == 2 and all(isinstance(c, int) for c in counts):
                self._before[str(name)] = counts

    def close(self) -> None:
        """Nothing to let go of."""

    def _grown(
        self, name: str, corrected: int, uncorrected: int, dimms: dict[str, list[int]], ts: datetime, seen: Seen
    ) -> None:
        before = self._before.setdefault(name, [corrected, 0])
        if corrected < before[0] or uncorrected < before[1]:  # the driver was loaded anew, or counts were reset
            before[:] = [0, 0]
        facts: dict[str, Any] = {"dimms": dimms or None}
        if uncorrected > before[1]:
            text = f"{name}: {uncorrected - before[1]} uncorrected memory errors{_where(dimms, 1)}"
            facts |= {"errors": uncorrected - before[1], "since_boot": uncorrected}
            seen.happenings.append(Happening("edac_ue", name, str(uncorrected), text, facts, code=uncorrected))
            before[1] = uncorrected
        waited = name not in self._told_at or ts - self._told_at[name] >= _CORRECTED_AGAIN
        if corrected > before[0] and waited:
            text = f"{name}: {corrected - before[0]} corrected memory errors{_where(dimms, 0)}"
            facts = {"errors": corrected - before[0], "since_boot": corrected, "dimms": dimms or None}
            seen.happenings.append(Happening("edac_ce", name, str(corrected), text, facts, code=corrected))
            before[0], self._told_at[name] = corrected, ts


def _dimms(controller: Path) -> dict[str, list[int]]:
    """Counts (corrected, uncorrected) of DIMMs that have any, by label; at most 16."""
    found: dict[str, list[int]] = {}
    for name in names(controller):
        at = controller / name
        if not name.startswith(("dimm", "rank")) or len(found) >= 16:
            continue
        counts = [_count(at / "dimm_ce_count") or 0, _count(at / "dimm_ue_count") or 0]
        if any(counts):
            label = (text_of(at / "dimm_label") or name)[:64]
            found[label if label not in found else f"{label} ({name})"] = counts
    return found


def _where(dimms: dict[str, list[int]], column: int) -> str:
    named = [label for label, counts in dimms.items() if counts[column]]
    return f" ({', '.join(named[:4])})" if named else ""


def _count(path: Path) -> int | None:
    text = text_of(path)
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 19 else None
