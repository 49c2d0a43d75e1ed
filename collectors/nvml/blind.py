"""Whether NVML is blind, since when and why; and the time in which it was let go of on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from graynode.collectors.nvml.absence import way_out
from graynode.collectors.nvml.presence import Presence
from graynode.collectors.nvml.rows import Teller
from graynode.collectors.nvml.session import Outcome, Session
from graynode.collectors.release import Release, Request, one_line
from graynode.pipeline.schema import PLANNED

_log = structlog.get_logger()

_ALL_GPUS: Final = "*"


class Blindness:
    """From the round in which NVML stopped answering to the one in which it answers again."""

    def __init__(self, presence: Presence, monotonic: Callable[[], float]) -> None:
        self._presence, self._monotonic = presence, monotonic
        self._since: float | None = None
        self.why = ""

    @property
    def on(self) -> bool:
        """True while it lasts."""
        return self._since is not None

    def note(self, outcome: Outcome, abandoned: int, teller: Teller) -> None:
        """No answer in this round: tell it at the first, and when the reason is another one."""
        why = outcome.blind or "no answer"
        if self._since is None:
            self._since = self._monotonic()
        elif why == self.why or outcome.starting:
            return
        self.why = why
        teller.event("nvml_blind", f"NVML is blind: {why}{way_out(outcome.code)}", code=outcome.code or None,
                     details={"reason": why, "abandoned": abandoned})  # fmt: skip
        for known in self._presence.gpus.values():
            if known.state == "well":
                teller.quality(known.entity, "*", "error", why)

    def end(self, teller: Teller) -> None:
        """NVML answers."""
        if self._since is None:
            return
        seconds = round(self._monotonic() - self._since, 3)
        self._since = None
        details = {"seconds": seconds, "was": self.why}
        teller.event("nvml_back", f"NVML answers again after {seconds:.0f} s", details=details)
        for known in self._presence.gpus.values():
            if known.state == "well":
                teller.quality(known.entity, "*", "measured", "")


class LettingGo:
    """Closes NVML while an operator wants it closed, and says so. GPUs missing meanwhile are not looked for."""

    def __init__(self, release: Release, session: Session, presence: Presence) -> None:
        self._release, self._session, self._presence = release, session, presence
        self._running: Request | None = None
        self._owed: set[str] = set()
        """Entities of which "measured" is to be told when NVML answers again."""

    def step(self, teller: Teller) -> bool:
        """True while NVML is let go of. Tells beginning and end, and answers whoever asked."""
        self._release.look(teller.ts)
        asked, on = self._release.on, self._running
        if asked is not None and (on is None or asked.id != on.id):
            self._begin(asked, teller)
        elif asked is None and on is not None:
            self._end(on, teller)
        if self._release.asked is not None:
            problem = self._release.answer(released=self._running is not None, holding=self._session.held_by())
            if problem:
                _log.warning("whoever asked for the GPUs gets no answer", reason=problem)
        return self._running is not None

    def measured(self, teller: Teller) -> None:
        """NVML answers: the planned blindness is over."""
        for entity in sorted(self._owed):
            teller.quality(entity, "*", "measured", "")
        self._owed.clear()

    def _begin(self, request: Request, teller: Teller) -> None:
        again, self._running = self._running is not None, request
        self._session.close()
        until = request.until.isoformat() if request.until else None
        what_for, by = one_line(request.why), one_line(request.by)
        details = {"until": until, "reason": what_for or None, "by": by or None, "again": again or None}
        told = f"NVML is let go of until {until}{f': {what_for}' if what_for else ''}"
        teller.event("nvml_released", told, details=details)
        if again:
            return
        well = [k.entity for k in self._presence.gpus.values() if k.state in ("well", "blind")] or [_ALL_GPUS]
        for entity in well:
            teller.quality(entity, "*", "paused", f"{PLANNED}{told}")
        self._owed = set(well)

    def _end(self, request: Request, teller: Teller) -> None:
        self._running = None
        how = "its time is over" if self._release.asked is None else "somebody asked for it"
        details = {"until": request.until.isoformat() if request.until else None, "how": how}
        teller.event("nvml_resumed", f"NVML is read again: {how}", details=details)
