"""NVIDIA GPUs through NVML. The reading happens in a child (``nvml.reader``); this side makes rows of its answers.

What a call to a sick GPU can do to the reader, it cannot do to the agent: a child that hangs is left, NVML is
reported blind, and a new child reads the other GPUs.
"""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, ClassVar, Final

from graynode.collectors.base import Machine, NoSource, Round, Row, Rows, utc_now
from graynode.collectors.context import JobContext
from graynode.collectors.nvml import wire
from graynode.collectors.nvml.absence import refuse
from graynode.collectors.nvml.blind import Blindness, LettingGo
from graynode.collectors.nvml.driver_load import DriverLoad
from graynode.collectors.nvml.fields import GPU_NOT_FOUND, NO_PERMISSION, words
from graynode.collectors.nvml.nvlink import NvLinks
from graynode.collectors.nvml.nvlink_fields import EVERY as LINKS
from graynode.collectors.nvml.nvlink_fields import LOOK_S
from graynode.collectors.nvml.patience import Patience
from graynode.collectors.nvml.plausible import EVERY
from graynode.collectors.nvml.presence import Known, Presence, pci_gpus, said
from graynode.collectors.nvml.rows import XID, Teller
from graynode.collectors.nvml.samples import Told, mig_of, pids_of
from graynode.collectors.nvml.session import Outcome, Session
from graynode.collectors.release import Release
from graynode.collectors.switches import Switches

_ALL: Final = frozenset(EVERY.values())
_SLOW: Final = 60
_WITNESS: Final = 10
_OFF_BUS_XID: Final = 79


class Nvml:
    """The GPUs of this node, their MIG instances and their NVLinks.

    ``deadline_s`` bounds a round; a child that has not answered by then is in a call that hangs. ``env`` is the
    child's environment and so decides which library it loads. ``context`` is told which processes are on which GPU,
    ``switches`` say what is not read. Other threads may read the properties.
    """

    name: ClassVar[str] = "nvml"
    tables: ClassVar[tuple[str, ...]] = ("gpu", "link", "event", "quality", "inventory")

    def __init__(
        self,
        machine: Machine,
        *,
        env: Mapping[str, str] | None = None,
        deadline_s: float = 5.0,
        patience: Patience | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = utc_now,
        context: JobContext | None = None,
        switches: Switches | None = None,
        nvlink_watch_s: int = LOOK_S,
    ) -> None:
        self._machine, self.deadline_s, self._monotonic, self._now = machine, deadline_s, monotonic, now
        self._context, switched = context or JobContext(), switches or Switches()
        self._every, links = switched.every("gpu", EVERY), switched.every("link", LINKS)
        env = os.environ if env is None else env
        self._session = Session(self._every, env, patience or Patience(), monotonic, links)
        self._load = DriverLoad(machine, now())
        self._presence = Presence(machine.sys)
        self._links = NvLinks(machine, self._load.current, nvlink_watch_s)
        self._told = Told(switched)
        self._blindness = Blindness(self._presence, monotonic)
        self._letting_go = LettingGo(Release(machine.state_dir, monotonic), self._session, self._presence)
        self._slots: dict[int, Known] = {}
        self._owed: frozenset[int] = frozenset()
        self._read_classes: set[int] = set()
        self._heard: deque[Row] = deque()
        self._unseen: list[tuple[Known, wire.Unseen]] = []
        self.nvml_up: bool | None = None
        """Whether NVML answered in the last round; ``None`` before the first, and while it is let go of."""
        self.gpus_read: int | None = None
        """GPUs read in the last round."""
        self.call_max_ms: float | None = None
        """The slowest NVML call of the last round; at least the deadline where one did not return."""
        self.driver_version: str | None = None
        self.errors: Counter[str] = Counter()
        """NVML calls that failed, and rounds without an answer, by what was said; since the agent started."""

    @property
    def driver_load(self) -> int:
        """The driver load id now."""
        return self._load.current

    def host_fields(self) -> dict[str, Any]:
        """What table ``host`` tells of NVML."""
        up = None if self.nvml_up is None else int(self.nvml_up)
        known = {"nvml_up": up, "gpus_read": self.gpus_read, "nvml_call_max_ms": self.call_max_ms}
        return known | ({"driver_version": self.driver_version} if self.driver_version else {})

    def note_kernel_events(self, rows: Iterable[Row]) -> None:
        """What the kernel log said, as its collector tells it: the second witness, and loads of the driver.

        From any thread; heard in the next round.
        """
        self._heard.extend(rows)

    def collect(self, round_: Round) -> Rows:
        """Samples, and what has changed. While NVML is blind there are none, and that is told once.

        Raises ``NoSource`` on a machine without NVML, or without NVIDIA GPUs.
        """
        started = self._monotonic()
        self._owed |= round_.due
        loaded = self._hear()
        teller = Teller(self._machine, self._load.current, round_.ts)
        if loaded:
            self._reloaded(teller, "the kernel log says that the driver was loaded")
        if self._letting_go.step(teller):
            self._let_go()
            return teller.rows
        watch = [slot for slot, known in self._slots.items() if self._links.to_watch(known.gpu.uuid, started)]
        outcome = self._session.round(self._owed, started + self.deadline_s, watch)
        if outcome.hello is not None:
            self._greet(outcome.hello)
        for happening in outcome.events:
            self._happened(happening, teller, started)
        if outcome.answer is not None and not self._presence.gpus:
            outcome.answer = None
            outcome.blind = f"it lists no GPU, and PCI lists {len(pci_gpus(self._machine.sys))}"
            self._session.relist()
        if outcome.answer is None:
            self._no_answer(outcome, teller, (self._monotonic() - started) * 1e3)
        else:
            teller = self._answered(outcome.answer, outcome, teller)
        self._links.keep(teller.ts, round_.due)
        return teller.rows

    def close(self) -> None:
        """End the child."""
        self._session.close()
        self._links.close()

    def _hear(self) -> bool:
        """Take in what the kernel log said; true if it was that the driver was loaded anew."""
        loaded = False
        while self._heard:
            row = self._heard.popleft()
            bus, kind = row.get("pci_bus_id"), row.get("kind")
            if bus and (kind == "gpu_off_bus" or (kind == "xid" and row.get("code") == _OFF_BUS_XID)):
                self._presence.kernel_says(bus, str(row.get("message") or kind))
            elif kind == "nvrm_load" and isinstance(row.get("ts"), datetime):
                loaded |= self._load.load_line(row["ts"], self._now())
        return loaded

    # --- no answer -----------------------------------------------------------------------------------------

    def _no_answer(self, outcome: Outcome, teller: Teller, waited_ms: float) -> None:
        if not self._presence.gpus and not self._blindness.on:
            refuse(outcome.code, self._machine.sys)
        self._context.set_pids({})
        waiting = outcome.starting and not self._blindness.on  # nobody can tell yet how many GPUs there are
        self.gpus_read, self.call_max_ms = None if waiting else 0, None
        if outcome.hung is not None:
            self.call_max_ms = waited_ms
            self._hung(outcome, teller)
        if waiting:
            return
        self.nvml_up = False
        self.errors[words(outcome.code) if outcome.code else "no answer"] += 1
        self._blindness.note(outcome, self._session.abandoned, teller)
        self._presence.tell(teller)

    def _hung(self, outcome: Outcome, teller: Teller) -> None:
        hang = outcome.hung
        if hang is None:
            return
        for known in self._presence.gpus.values():
            if known.gpu.bus == hang.bus:
                self._presence.unwell(known, 0, f"{hang.call} {hang.how}", hung=True)
                return
        teller.event("gpu_hung", f"GPU {hang.index}: {hang.call} {hang.how}; NVML was left and starts without it",
                     pci_bus_id=hang.bus or None, details={"index": hang.index, "call": hang.call})  # fmt: skip

    def _let_go(self) -> None:
        """Closed on purpose: nothing is known of GPUs, and nobody is to conclude anything from that."""
        self._context.set_pids({})
        self.nvml_up = self.gpus_read = self.call_max_ms = None
        self._links.reloaded(self._load.current)

    # --- an answer -----------------------------------------------------------------------------------------

    def _greet(self, hello: wire.Hello) -> None:
        self.driver_version = hello.driver
        self._read_classes.clear()
        self._slots.clear()
        gpus = self._presence.gpus
        for gpu in hello.gpus:
            self._slots[gpu.slot] = self._presence.identified(gpu)
        if not hello.gpus and not gpus and not pci_gpus(self._machine.sys):
            raise NoSource("NVML answers and lists no GPU, and PCI lists no NVIDIA GPU")
        self._unseen = self._presence.place(hello.unseen, {g.bus for g in hello.gpus}, self._session.hung)

    def _answered(self, answer: wire.Answer, outcome: Outcome, teller: Teller) -> Teller:
        """Rows of an answer; the teller is another one where the driver turns out to have been loaded anew."""
        due, self._owed = self._owed, frozenset()
        self._read_classes |= due
        self.nvml_up = True
        for code, count in answer.counts.items():
            self.errors[words(code)] += count
        reason = self._observe_load(answer, teller.ts)
        if reason:
            rows, teller = teller.rows, Teller(self._machine, self._load.current, teller.ts)
            teller.rows = rows
            self._reloaded(teller, reason)
            if outcome.hello is None:
                self._session.restart()  # what is supported is learnt anew
        for uuid in self._load.fallen:
            teller.event("counter_reset", "the energy counter fell on this GPU alone: it was reset", gpu_uuid=uuid)
            self._links.reloaded(self._load.current, uuid)
        self._blindness.end(teller)
        self._letting_go.measured(teller)
        self._context.set_pids(pids_of(answer, self._slots, self._context.pids))
        self._context.set_mig(mig_of(answer, self._slots, self._context.mig))
        for read in answer.reads:
            self._one(read, due, teller)
        if not outcome.back:  # otherwise the next child will tell
            self._others(due, teller)
        self.gpus_read = sum(not r.trouble for r in answer.reads)
        self.call_max_ms = max((r.max_ms for r in answer.reads), default=None)
        if answer.reads and not self.gpus_read and all(k.state == "blind" for k in self._presence.gpus.values()):
            self.nvml_up = False
        self._presence.tell(teller)
        return teller

    def _observe_load(self, answer: wire.Answer, ts: datetime) -> str | None:
        energies = {
            self._slots[r.slot].gpu.uuid: int(r.values["energy_mj"]) for r in answer.reads if r.values.get("energy_mj")
        }
        return self._load.observe(self.driver_version or "", energies, ts)

    def _reloaded(self, teller: Teller, reason: str) -> None:
        for known in self._presence.gpus.values():
            known.plausible = type(known.plausible)()
        self._links.reloaded(self._load.current)
        teller.event("driver_reload", f"the NVIDIA driver was loaded anew: {reason}",
                     details={"reason": reason, "driver_version": self.driver_version})  # fmt: skip

    def _others(self, due: frozenset[int], teller: Teller) -> None:
        """GPUs that this child does not read: hung, listed without a handle, or not listed."""
        if _WITNESS not in due:
            return
        gpus, hung = self._presence.gpus.values(), self._session.hung
        for known in gpus:
            if known.gpu.bus in hung:
                self._presence.unwell(known, 0, known.said, hung=True)
        here = [k.gpu.bus for k in self._slots.values()] + [k.gpu.bus for k, _ in self._unseen]
        for known in self._presence.missing(here, hung):
            self._presence.unwell(known, GPU_NOT_FOUND, "NVML does not list it")
        for known, unseen in self._unseen:
            self._no_handle(known, unseen, teller)
        # after a reset or a rescan of the bus only NVML started anew finds a GPU again
        if any(k.state in ("lost", "reset") or (k.state == "blind" and k not in self._slots.values()) for k in gpus):
            self._session.relist()
        else:
            self._session.listed()

    def _no_handle(self, known: Known, unseen: wire.Unseen, teller: Teller) -> None:
        why = said(unseen.code, "nvmlDeviceGetHandle")
        if unseen.code != NO_PERMISSION:
            self._presence.unwell(known, unseen.code, why)
        elif not known.told:  # a GPU that is not ours, such as another container's
            known.told = True
            teller.quality(known.entity, "*", "not_permitted", why)

    def _one(self, read: wire.Read, due: frozenset[int], teller: Teller) -> None:
        known = self._slots[read.slot]
        if read.trouble:
            if known.state == "well" or _WITNESS in due:
                self._presence.unwell(known, read.trouble, said(read.trouble, read.where))
            return
        self._presence.well(known)
        now = self._monotonic()
        self._told.samples(known, read, now, teller)
        self._links.tell(known, read, due, now, teller)
        if _SLOW in due:
            known.facts = read.facts
        if read.parts or _SLOW in due:
            self._told.parts(known, read, teller)
        if _SLOW in due and self._read_classes >= _ALL:
            self._told.inventory(known, self.driver_version, teller)

    def _happened(self, happening: wire.Happening, teller: Teller, at_s: float) -> None:
        known = self._slots.get(happening.slot)
        teller.happening(happening, known.gpu if known else None)
        if known is not None and happening.type == XID:
            self._links.heard(known.gpu.uuid, happening.data, at_s)
