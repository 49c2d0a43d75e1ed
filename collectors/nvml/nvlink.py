"""NVLinks into ``link``, ``event``, ``inventory``: states, seconds down, counters and far ends, link by link.

Read in the NVML child with the rest of their GPU (``nvml.nvlink_reading``). Resolution: states are looked at every
10 s; from the look that finds a link down, or an Xid of a link, every second until all is well (at most ten minutes,
then every 10 s again). So an outage is counted from the look that found it: its end is exact to 1 s and its beginning
to 10 s, and one that falls between two looks is not seen at all, for no counter of NVLink tells it. With
``agent.nvlink_watch_s = 1`` every look is a second after the last.

A link that was never active has no partner: it is not down. After a boot, a load of the driver or a reset, links
train: until a link is active again, or ``GRACE_S`` have passed, that is no outage (214 of 288 nodes were once
reported for it).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from graynode.collectors.base import Machine, Row
from graynode.collectors.nvml import wire
from graynode.collectors.nvml.nvlink_fields import LOOK_S, STATES
from graynode.collectors.nvml.nvlink_words import device_of, events_of, inventory_of
from graynode.collectors.nvml.presence import Known
from graynode.collectors.nvml.rows import Teller
from graynode.collectors.outages import Change, Seen, first_look, next_look
from graynode.collectors.state_file import StateFile

GRACE_S: Final = 600.0
"""As the rules' own grace after boot: links and fabrics come up within minutes."""
_LOOKS_APART: Final = 2.5
"""One missed look is tolerated, as for ports."""
_WATCH_S: Final = 600.0
_HEARD_S: Final = 60.0
_LINK_XIDS: Final = frozenset({74, *range(144, 151)})
"""NVLink faults of up to NVLink 4, and of NVLink 5."""
_SLOW: Final = 60
_MOST_GPUS: Final = 64


@dataclass(slots=True)
class _Link:
    """What is remembered of a link. ``training``: it was once active and has not been since the driver was loaded."""

    seen: Seen | None = None
    training: bool = False
    last_s: float | None = None
    told: str = ""
    remote: Mapping[str, str] = field(default_factory=dict)
    inventory: str = ""


@dataclass(slots=True)
class _Gpu:
    links: dict[int, _Link] = field(default_factory=dict)
    grace_until: datetime | None = None
    heard_s: float = float("-inf")


class NvLinks:
    """The links of this node's GPUs. ``load`` is the driver load id; what is remembered survives a restart.

    ``watch_s`` 1 looks at states every second: outages of a second are seen, at the price of as many more calls.
    """

    def __init__(self, machine: Machine, load: int, watch_s: int = LOOK_S) -> None:
        self._machine, self._load, self._watch_s = machine, load, watch_s
        self._gap_s = _LOOKS_APART * watch_s
        self._file = StateFile(machine.state_dir / "nvlink.json")
        self._gpus: dict[str, _Gpu] = {}
        self._restored: datetime | None = None
        """When links were last looked at in an earlier life of the agent, in this load of the driver."""
        self._restore()

    def reloaded(self, load: int, uuid: str | None = None) -> None:
        """The driver was loaded anew, or this GPU was reset: its links train again."""
        self._load = load
        for gpu in self._gpus.values() if uuid is None else [self._gpus[uuid]] if uuid in self._gpus else []:
            gpu.grace_until = None
            for link in gpu.links.values():
                link.training = bool(link.seen and link.seen.expected)
        if uuid is None:
            self._restored = None

    def heard(self, uuid: str, xid: int, at_s: float) -> None:
        """An Xid of this GPU: where it speaks of links they are looked at every second for a while."""
        if xid in _LINK_XIDS:
            self._gpus.setdefault(uuid, _Gpu()).heard_s = at_s

    def to_watch(self, uuid: str, at_s: float) -> bool:
        """Whether the GPU's links are to be looked at in this round whatever is due."""
        gpu = self._gpus.get(uuid)
        if gpu is None:
            return False
        return (
            self._watch_s < LOOK_S
            or at_s - gpu.heard_s < _HEARD_S
            or any(
                link.seen is not None and link.seen.outage_s is not None and link.seen.outage_s < _WATCH_S
                for link in gpu.links.values()
            )
        )

    def tell(self, known: Known, read: wire.Read, due: frozenset[int], at_s: float, teller: Teller) -> None:
        """Rows of one GPU's links, where they were looked at. ``at_s`` is monotonic."""
        if read.links is None:
            return
        gpu = self._gpus.setdefault(known.gpu.uuid, _Gpu())
        if gpu.grace_until is None:
            gpu.grace_until = teller.ts + timedelta(seconds=GRACE_S)
        changes: dict[int, Change] = {}
        for one in read.links:
            link = gpu.links.setdefault(one.n, _Link())
            changes[one.n] = self._look(gpu, link, STATES.get(one.state, "unknown"), at_s, teller.ts)
            link.remote = one.remote or link.remote
        partner = any(link.seen is not None and link.seen.expected for link in gpu.links.values())
        for one in read.links:
            link, change = gpu.links[one.n], changes[one.n]
            self._row(known, one, link, change, due, partner=partner, teller=teller)
            if _SLOW in due:
                link.inventory = inventory_of(known.gpu, one.n, link.remote, link.inventory, teller)
        events_of(known.gpu, changes, teller)

    def keep(self, ts: datetime, due: frozenset[int]) -> None:
        """Save what a restart must not forget, with the 10 s class."""
        if LOOK_S in due and self._gpus:
            self._file.save(self._content(ts))

    def close(self) -> None:
        """Nothing is held; what was saved with the last 10 s class is what the next life knows."""

    # --- one link ----------------------------------------------------------------------------------------

    def _look(self, gpu: _Gpu, link: _Link, state: str, at_s: float, ts: datetime) -> Change:
        elapsed = self._elapsed(link, at_s, ts)
        link.last_s = at_s
        if link.training:
            change = self._trained(gpu, link, state, ts)
            return replace(change, unseen_s=elapsed) if elapsed > self._gap_s else change
        if link.seen is None:
            link.seen, change = first_look(state, {}, expected=False)
        else:
            link.seen, change = next_look(link.seen, state, {}, elapsed, gap_s=self._gap_s)
        return change

    def _trained(self, gpu: _Gpu, link: _Link, state: str, ts: datetime) -> Change:
        over = gpu.grace_until is not None and ts >= gpu.grace_until
        if state in ("inactive", "unknown") and not over:
            link.seen = Seen(state, {}, None, expected=True)
            return Change()
        link.training = False
        link.seen, change = first_look(state, {}, expected=True)
        late = link.seen.outage_s is not None
        return Change(0.0, 0.0, 1, 0.0, went_down=True) if late else change

    def _elapsed(self, link: _Link, at_s: float, ts: datetime) -> float:
        if link.last_s is not None:
            return at_s - link.last_s
        return max(0.0, (ts - self._restored).total_seconds()) if self._restored else 0.0

    def _row(
        self,
        known: Known,
        one: wire.Link,
        link: _Link,
        change: Change,
        due: frozenset[int],
        *,
        partner: bool,
        teller: Teller,
    ) -> None:
        state = STATES.get(one.state, "unknown")
        news = state != link.told or change.downs or change.down_s or change.unseen_s or one.values
        if not (news or (LOOK_S if partner else _SLOW) in due):
            return
        link.told = state
        row: Row = {
            "link": f"{known.gpu.uuid}/{one.n}", "link_kind": "nvlink", "gpu_uuid": known.gpu.uuid, "state": state,
            "down_s": change.down_s, "outage_s": change.outage_s, "downs": change.downs, "unseen_s": change.unseen_s,
            **one.values,
        }  # fmt: skip
        if _SLOW in due:
            row |= {"link_layer": "NVLink", "device": device_of(link.remote)}
        teller.link(row)

    # --- memory ------------------------------------------------------------------------------------------

    def _content(self, ts: datetime) -> dict[str, Any]:
        gpus = {}
        for uuid, gpu in list(self._gpus.items())[-_MOST_GPUS:]:
            seen = {n: link for n, link in gpu.links.items() if link.seen is not None and link.seen.expected}
            gpus[uuid] = {
                "expected": [*seen],
                "training": [n for n, link in seen.items() if link.training],
                "down": {n: k.seen.outage_s for n, k in seen.items() if k.seen and k.seen.outage_s is not None},
                "grace": gpu.grace_until.isoformat() if gpu.grace_until else None,
            }
        who = {"boot_id": self._machine.boot_id, "load": self._load}
        return {**who, "ts": ts.isoformat(timespec="microseconds"), "gpus": gpus}

    def _restore(self) -> None:
        kept = self._file.load()
        same = kept.get("boot_id") == self._machine.boot_id and kept.get("load") == self._load
        try:
            self._gpus = {str(uuid): _restored(gpu, same=same) for uuid, gpu in kept.get("gpus", {}).items()}
            self._restored = datetime.fromisoformat(kept["ts"]) if same else None
        except (KeyError, TypeError, ValueError, AttributeError):
            self._gpus, self._restored = {}, None


def _restored(kept: Mapping[str, Any], *, same: bool) -> _Gpu:
    """A GPU of the state file; of another boot or load only which links were once active."""
    gpu = _Gpu(grace_until=datetime.fromisoformat(kept["grace"]) if same and kept.get("grace") else None)
    down = {int(n): float(outage) for n, outage in kept["down"].items()} if same else {}
    training = {int(n) for n in kept["training"]}
    for n in map(int, kept["expected"]):
        state = "inactive" if n in down else "active"
        seen = Seen(state, {}, down.get(n), expected=True)
        gpu.links[n] = _Link(seen if same else Seen("unknown", {}, None, expected=True), not same or n in training)
    return gpu
