"""Children one after the other: starting, asking, leaving those that hang, trying again what hung.

A GPU that hangs blocks NVML as a whole. Its child is left, and a new one reads the others; a third, the probe,
tries the GPU that hung now and then, alone, so that what it finds costs nobody a sample.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from graynode.collectors.nvml import wire
from graynode.collectors.nvml.child import Child, ChildEnded, Spawner
from graynode.collectors.nvml.fields import words
from graynode.collectors.nvml.patience import Patience, Pause
from graynode.collectors.nvml.probe import ABANDONED_MAX, Probe

_CRASHES: Final = 2
"""A reader that ends in the same GPU's call so often leaves that GPU out, as if it hung."""


@dataclass(slots=True)
class Hang:
    """A call that did not return, or ended the reader. ``bus`` is empty where the GPU's address is not known."""

    bus: str
    index: int
    call: str
    how: str


@dataclass(slots=True)
class Outcome:
    """One round of the session. ``blind`` says why there is no answer, with its code where NVML gave one."""

    hello: wire.Hello | None = None
    answer: wire.Answer | None = None
    events: list[wire.Happening] = field(default_factory=list)
    hung: Hang | None = None
    back: list[str] = field(default_factory=list)
    blind: str = ""
    code: int = 0
    starting: bool = False


class Session:
    """What the collector asks once a round."""

    def __init__(
        self,
        every: dict[str, int],
        env: Mapping[str, str],
        patience: Patience,
        monotonic: Callable[[], float] = time.monotonic,
        links: dict[str, int] | None = None,
    ) -> None:
        self._every, self._env, self._patience, self._monotonic = every, env, patience, monotonic
        self._links = links or {}
        self._spawner = Spawner()
        self._child: Child | None = None
        self._hello: wire.Hello | None = None
        self._known: dict[int, str] = {}
        """Index to PCI address, from the last time that every GPU was listed."""
        self._again = Pause(patience.again_s)
        self._relist = Pause(patience.relist_s)
        self._why, self._code, self._n = "", 0, 0
        self._crashes: dict[int, int] = {}
        self._skipped: list[int] = []
        self.hung: list[str] = []
        """PCI addresses of GPUs that no child but the probe touches."""
        self._abandoned: list[Child] = []
        self._probe = Probe(self, patience)

    @property
    def abandoned(self) -> int:
        """Children that were left and that the kernel has not let go."""
        self._abandoned = [c for c in self._abandoned if not c.gone()]
        return len(self._abandoned)

    def round(self, due: frozenset[int], until: float, watch: Sequence[int] = ()) -> Outcome:
        """Ask, and wait for the answer until then at the latest. ``watch``: slots whose links are looked at anyway."""
        outcome = Outcome()
        try:
            if self._ready(outcome, until):
                self._ask(outcome, wire.Ask(0, sorted(due), list(watch)), until)
        except ChildEnded as ended:
            self._ended(outcome, str(ended))
        if outcome.answer is not None:
            outcome.back += self._probe.step(self._monotonic())
            if outcome.back:
                self._restart()
        return outcome

    def relist(self) -> None:
        """Look again for GPUs that NVML did not list, with a new child; not more often than the pause says."""
        now = self._monotonic()
        if self._hello is not None and not self.hung and self._relist.over(now):
            self._relist.begin(now)
            self._known = {}
            self._restart()

    def restart(self) -> None:
        """A new child, which learns anew what is supported."""
        self._restart()

    def listed(self) -> None:
        """Nothing is missing any more."""
        self._relist.reset()

    def held_by(self) -> list[int]:
        """Process ids of children that hang in the driver: until the kernel ends them they hold device files."""
        return [c.process.pid for c in self._abandoned if not c.gone()]

    def close(self) -> None:
        """End all children; those in the driver are left to the kernel. A later round starts anew."""
        self._probe.stop()
        child, self._child, self._hello = self._child, None, None
        if child is not None:
            child.stop()
            self._abandoned.append(child)  # it has ended, or hangs
        for left in self._abandoned:
            left.reap()
        self._again.reset()
        self._why, self._code = "", 0
        self.hung.clear()
        self._skipped.clear()
        self._spawner.stop()

    def begin(self, only: list[str], skip: list[int]) -> Child:
        """A new child."""
        setup = wire.Setup(self._every, only, skip, self._links)
        return Child(setup, self._spawner, self._env, self._monotonic)

    def leave(self, child: Child) -> None:
        """Kill a child without waiting for its end."""
        child.kill()
        self._abandoned.append(child)

    # --- the steps of a round -----------------------------------------------------------------------------

    def _ready(self, outcome: Outcome, until: float) -> bool:
        """True when a child has said hello."""
        if self._child is None and not self._start(outcome):
            return False
        child = self._child
        if child is None or self._hello is not None:
            return child is not None
        at_most = child.started_at + self._patience.start_s
        message = child.receive(min(until, at_most))
        if isinstance(message, wire.Hello):
            return self._greet(message, outcome)
        if self._monotonic() >= at_most:
            self._hang(outcome, child)
        else:
            outcome.starting, outcome.blind, outcome.code = True, self._why or "NVML is starting", self._code
        return False

    def _start(self, outcome: Outcome) -> bool:
        outcome.blind, outcome.code = self._why, self._code
        if not self._again.over(self._monotonic()):
            return False
        if self.abandoned >= ABANDONED_MAX:
            outcome.blind = f"{self._why}; {self.abandoned} readers hang in the driver"
            return False
        only = [bus for bus in self._known.values() if bus not in self.hung] if self.hung else []
        if self.hung and not only:
            outcome.back = self._probe.step(self._monotonic())
            self._forget_if_back(outcome)
            return False
        try:
            self._child = self.begin(only, self._skipped)
        except OSError as error:
            self._failed(outcome, f"the reader cannot be started: {error}", 0)
            return False
        return True

    def _forget_if_back(self, outcome: Outcome) -> None:
        if outcome.back:
            self._why, self._code = "", 0

    def _greet(self, hello: wire.Hello, outcome: Outcome) -> bool:
        if hello.code:
            self._drop()
            self._failed(outcome, f"{hello.where}: {words(hello.code)}", hello.code)
            return False
        self._hello = outcome.hello = hello
        if not self.hung and not self._skipped:
            self._known = {g.index: g.bus for g in hello.gpus}
        return True

    def _ask(self, outcome: Outcome, ask: wire.Ask, until: float) -> None:
        child = self._child
        if child is None:
            return
        self._n += 1
        ask.n = self._n
        child.send(ask)
        while True:
            message = child.receive(until)
            if isinstance(message, wire.Happenings):
                outcome.events += message.events
            elif isinstance(message, wire.Answer):
                outcome.answer = message
                self._again.reset()
                self._crashes.clear()
                self._why, self._code = "", 0
                return
            elif message is None:
                self._hang(outcome, child)
                return
            else:
                self._drop()
                self._failed(outcome, f"{message.where}: {words(message.code)}", message.code)
                return

    def _hang(self, outcome: Outcome, child: Child) -> None:
        slot, call = child.where()
        self.leave(child)
        outcome.hung = self._exclude(child, slot, call, "did not return")
        self._child = self._hello = None
        place = f" of GPU {outcome.hung.bus or slot}" if slot >= 0 else ""
        self._failed(outcome, f"{call}{place} does not return", 0, pause=slot < 0)

    def _ended(self, outcome: Outcome, how: str) -> None:
        child = self._child
        if child is not None:
            slot, call = child.where()
            self._crashes[slot] = self._crashes.get(slot, 0) + 1
            if slot >= 0 and self._crashes[slot] >= _CRASHES:
                outcome.hung = self._exclude(child, slot, call, how)
            self.leave(child)
        self._child = self._hello = None
        self._failed(outcome, how, 0)

    def _exclude(self, child: Child, slot: int, call: str, how: str) -> Hang:
        """Keep away from the GPU in that place from now on."""
        bus, index = "", -1
        if slot >= 0 and self._hello is not None and slot < len(self._hello.gpus):
            bus, index = self._hello.gpus[slot].bus, self._hello.gpus[slot].index
        elif slot >= 0 and child.setup.only:
            bus = child.setup.only[slot] if slot < len(child.setup.only) else ""
        elif slot >= 0:
            index = slot
            bus = self._known.get(slot, "")
        if bus and bus not in self.hung:
            self.hung.append(bus)
        elif not bus and index >= 0 and index not in self._skipped:
            self._skipped.append(index)
        self._probe.wait(self._monotonic())
        return Hang(bus, index, call, how)

    def _failed(self, outcome: Outcome, why: str, code: int, *, pause: bool = True) -> None:
        self._why, self._code = why, code
        outcome.blind, outcome.code = why, code
        if pause:
            self._again.begin(self._monotonic())

    def _drop(self) -> None:
        if self._child is not None:
            self._child.stop()
        self._child = self._hello = None

    def _restart(self) -> None:
        self._drop()
        self._again.reset()
        self._crashes.clear()

    def returned(self, bus: str) -> None:
        """The probe has read it: the next child takes it again."""
        if bus:
            self.hung.remove(bus)
        else:
            self._skipped.clear()

    def to_probe(self) -> str | None:
        """The next GPU to try, ``""`` for one whose address is not known, ``None`` where none hung."""
        if self.hung:
            self.hung.append(self.hung.pop(0))
            return self.hung[-1]
        return "" if self._skipped else None
