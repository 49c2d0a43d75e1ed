"""Network ports: InfiniBand, RoCE and Ethernet, with their seconds down, into ``link``, ``event`` and ``inventory``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, ClassVar, Final

from graynode.collectors.base import Machine, NoSource, Round, Row, Rows
from graynode.collectors.outages import Change, Seen, first_look, next_look
from graynode.collectors.ports import Port, find_ports
from graynode.collectors.state_file import LastSeen, StateFile
from graynode.collectors.switches import Switches
from graynode.collectors.sysfs import names
from graynode.pipeline.schema import stable_id

_INVENTORY: Final[Mapping[str, str]] = {
    "model": "model",
    "serial": "serial",
    "slot": "slot",
    "vbios_version": "firmware",
}


@dataclass(slots=True)
class Known:
    """What is remembered of a port, here and in the state file."""

    seen: Seen | None = None
    kind: str | None = None
    facts: dict[str, Any] | None = None
    issued: dict[str, list[int | None]] = field(default_factory=dict)
    """Per kind of event the counter value of the last one and how many there were at that value."""

    def kept(self) -> dict[str, Any]:
        """For the state file. Written out because it is made every second while a port is down."""
        seen = self.seen
        look = seen and {
            "state": seen.state,
            "counters": seen.counters,
            "outage_s": seen.outage_s,
            "expected": seen.expected,
        }
        return {"seen": look, "kind": self.kind, "facts": self.facts, "issued": self.issued}

    @staticmethod
    def of(kept: Any) -> Known:  # noqa: ANN401 (a file's content)
        """From a state file; ``TypeError`` if it is none."""
        known = Known(**kept)
        known.seen = Seen(**kept["seen"]) if kept["seen"] else None
        return known


class Infiniband:
    """Ports below ``machine.sys``: state and down time every second, counters every 10 s, facts every 60 s.

    Down time survives a restart of the agent: an outage that runs meanwhile stays one piece if the port's counters
    say that nothing happened in it, otherwise the time between is ``unseen_s``. A port that was never active, or is
    switched off, has no down time and no events. A port that vanishes is down until it is back or the node reboots.
    """

    name: ClassVar[str] = "infiniband"
    tables: ClassVar[tuple[str, ...]] = ("link", "event", "inventory", "quality")

    def __init__(self, machine: Machine) -> None:
        self.more: Callable[[str], Mapping[str, Any]] = _nothing
        """Gives what another source has read of a port since its last row (``ethtool``); must not wait."""
        self.switches = Switches()
        """What is left out: files of such counters are not opened."""
        self._machine = machine
        self._state = StateFile(machine.state_dir / "infiniband.json")
        self._seen_at = LastSeen(machine.state_dir / "infiniband.last")
        self._kept: object = None
        self._known: dict[str, Known] = {}
        self._ports: dict[str, Port] = {}
        self._listing: tuple[list[str], list[str]] | None = None
        self._last: datetime | None = None
        self._fresh = True  # no look yet in this life of the agent
        self._said: str | None = None
        self._off: list[Row] = []
        self._restore()

    def collect(self, round_: Round) -> Rows:
        """One row a port. ``NoSource`` where there is no port at all."""
        rows: dict[str, list[Row]] = {"link": [], "event": [], "inventory": [], "quality": []}
        self._find(round_)
        rows["quality"], self._off = self._off, []
        elapsed = self._elapsed(round_)
        for link in [*self._ports, *(gone for gone in self._known if gone not in self._ports)]:
            known = self._known.setdefault(link, Known())
            port = self._ports.get(link)
            if port is None:
                self._look_at_gone(link, known, elapsed, round_, rows)
            else:
                self._look_at(port, known, elapsed, round_, rows)
        self._last, self._fresh = round_.ts, False
        self._keep(rows, due=bool(rows["event"]) or 10 in round_.due)
        return {table: some for table, some in rows.items() if some}

    def close(self) -> None:
        """Keep the state and let go of the files; twice is as good as once."""
        if not self._fresh:
            self._state.save(self._content())
        self._seen_at.close()
        for port in self._ports.values():
            port.close()
        self._ports, self._listing, self._fresh = {}, None, True

    def _find(self, round_: Round) -> None:
        sys = self._machine.sys
        listing = (names(sys / "class/infiniband"), names(sys / "class/net"))
        if listing == self._listing and 60 not in round_.due:
            return
        found = find_ports(sys)
        if not found and not self._known:
            raise NoSource(f"no network port with a device below {sys}/class/infiniband and {sys}/class/net")
        for link, port in self._ports.items():
            if link not in found:
                port.close()
        new = [port for link, port in found.items() if link not in self._ports]
        self._ports = {link: self._same(port) or port for link, port in found.items()}
        for port in new:
            self._off += self.switches.told("link", port.link, port.drop(self.switches.off_in("link")))
        self._listing = listing

    def _same(self, port: Port) -> Port | None:
        """The port object that is open already, if it is read from the same files."""
        old = self._ports.get(port.link)
        if old is not None and old.files != port.files:
            old.close()
            return None
        return old

    def _elapsed(self, round_: Round) -> float:
        """Seconds since the last look, by the monotonic clock; over a restart by the wall clock."""
        if not self._fresh and round_.elapsed_s is not None:
            return round_.elapsed_s
        return max(0.0, (round_.ts - self._last).total_seconds()) if self._last else 0.0

    def _look_at(self, port: Port, known: Known, elapsed: float, round_: Round, rows: dict[str, list[Row]]) -> None:
        state, fast = port.state(), port.fast()
        change = self._account(known, state, fast, elapsed)
        if 60 in round_.due or known.facts is None:
            self._note_facts(port, known, rows)
        row: Row = {"link": port.link, "link_kind": known.kind, "state": state, **fast, **_told(change)}
        if 10 in round_.due:
            row |= port.slow()
        if 60 in round_.due and known.facts:
            row |= {"link_layer": known.facts.get("link_layer"), "device": _device(port.link, known.facts)}
        rows["link"].append({**self.switches.strip("link", row, round_.due), **self.more(port.link)})
        rows["event"].extend(self._events(port.link, known, change, elapsed, round_.ts, {}))

    def _look_at_gone(self, link: str, known: Known, elapsed: float, round_: Round, rows: dict[str, list[Row]]) -> None:
        if known.facts is not None:
            who = {"kind": "port", "entity": link, "valid_until": round_.ts}
            rows["inventory"].append(who)
            known.facts = None
        if known.seen is None or not known.seen.expected:
            del self._known[link]
            return
        before = known.seen
        known.seen, change = next_look(before, "down", before.counters, elapsed)
        rows["link"].append({"link": link, "link_kind": known.kind, "state": "down", **_told(change)})
        rows["event"].extend(self._events(link, known, change, elapsed, round_.ts, {"vanished": True}))

    def _account(self, known: Known, state: str, fast: Mapping[str, int | None], elapsed: float) -> Change:
        if known.seen is None:
            known.seen, change = first_look(state, fast, expected=False)
        elif not known.seen.counters and self._fresh:  # another boot's: only that it was once up is known
            known.seen, change = first_look(state, fast, expected=known.seen.expected)
        else:
            known.seen, change = next_look(known.seen, state, fast, elapsed)
        return change

    def _note_facts(self, port: Port, known: Known, rows: dict[str, list[Row]]) -> None:
        facts = {name: value for name, value in port.facts().items() if value is not None}
        known.kind = facts.get("link_kind")
        if facts == known.facts:
            return
        known.facts = facts
        row: Row = {"kind": "port", "entity": port.link}
        row |= {name: facts.get(fact) for name, fact in _INVENTORY.items()}
        rest = {name: value for name, value in facts.items() if name not in _INVENTORY.values()}
        rows["inventory"].append(row | {"attributes": json.dumps(rest, sort_keys=True)})

    # --- events ---------------------------------------------------------------------------------------

    def _events(
        self, link: str, known: Known, change: Change, elapsed: float, ts: datetime, facts: Mapping[str, Any]
    ) -> Iterator[Row]:
        if change.flaps:
            seen = {"flaps": change.flaps, "seconds_at_most": round(elapsed, 3)}
            text = f"{link} went down and came back between two looks, {change.flaps} times by its counter"
            yield self._event("link_down", link, known, text, seen, ts)
            yield self._event("link_up", link, known, text, seen, ts)
        if change.went_down:
            why = "has vanished from the machine" if facts.get("vanished") else "is down"
            at = {**facts, "state": known.seen.state if known.seen else None}
            yield self._event("link_down", link, known, f"{link} {why}", at, ts)
        if change.came_up:
            unsure = " or more" if change.unseen_s else ""
            text = f"{link} is up again after {change.outage_s or 0:.0f} s{unsure}"
            yield self._event("link_up", link, known, text, {"outage_s": change.outage_s}, ts)

    def _event(self, kind: str, link: str, known: Known, message: str, facts: Mapping[str, Any], ts: datetime) -> Row:
        counters = known.seen.counters if known.seen else {}
        counter = counters.get("link_downed")
        counter = counters.get("carrier_changes") if counter is None else counter
        value, number = known.issued.get(kind, [None, 0])
        number = (number or 0) + 1 if value == counter else 1
        known.issued[kind] = [counter, number]
        who = (self._machine.cluster, self._machine.node_id, self.name, self._machine.boot_id)
        return {
            "ts": ts,
            "event_id": stable_id("event", *who, link, kind, counter, number),
            "source": self.name,
            "kind": kind,
            "link": link,
            "message": message,
            "attributes": json.dumps(dict(facts), sort_keys=True),
            "observed_ts": ts,
            "ts_quality": "observed",
        }

    # --- memory ---------------------------------------------------------------------------------------

    def _restore(self) -> None:
        kept = self._state.load()
        same_boot = kept.get("boot_id") == self._machine.boot_id
        try:
            known = {link: Known.of(port) for link, port in kept.get("ports", {}).items()}
            if same_boot:
                self._last = self._catch_up(known, datetime.fromisoformat(kept["ts"]))
        except (KeyError, TypeError, ValueError, AttributeError):
            return
        if not same_boot:
            here = find_ports(self._machine.sys)
            known = {link: port for link, port in known.items() if link in here}
            for port in known.values():
                port.seen = port.seen and Seen("unknown", {}, None, port.seen.expected)
                port.issued = {}
        self._known = known

    def _catch_up(self, known: Mapping[str, Known], saved: datetime) -> datetime:
        """The time of the last look. Until then everything was as saved, so running outages have grown by as much."""
        boot, _, text = self._seen_at.read().partition(" ")
        last = datetime.fromisoformat(text) if boot == self._machine.boot_id else saved
        grown = max(0.0, (last - saved).total_seconds())
        for port in known.values():
            if port.seen and port.seen.outage_s is not None:
                port.seen = replace(port.seen, outage_s=port.seen.outage_s + grown)
        return max(last, saved)

    def _content(self) -> dict[str, Any]:
        ts = self._last.isoformat() if self._last else None
        return {"boot_id": self._machine.boot_id, "ts": ts, "ports": {k: v.kept() for k, v in self._known.items()}}

    def _keep(self, rows: dict[str, list[Row]], *, due: bool) -> None:
        """Every 10 s and at every change; the time of the last look every second, so that no second counts twice."""
        now = [
            (link, k.seen and (k.seen.state, k.seen.outage_s is None, k.seen.expected))
            for link, k in self._known.items()
        ]
        if due or now != self._kept:
            self._state.save(self._content())
            self._kept = now
        if self._last:
            self._seen_at.write(f"{self._machine.boot_id} {self._last.isoformat(timespec='microseconds')}")
        if self._state.trouble != self._said:
            self._said = self._state.trouble
            state = "error" if self._said else "measured"
            who = {"table_name": "link", "entity": self._machine.node_id, "field": "*", "state": state}
            rows["quality"].append(who | {"reason": self._said or "down times are kept again"})


def _nothing(link: str) -> Mapping[str, Any]:
    del link
    return {}


def _told(change: Change) -> Row:
    return {
        "down_s": change.down_s,
        "outage_s": change.outage_s,
        "downs": change.downs,
        "unseen_s": change.unseen_s,
    }


def _device(link: str, facts: Mapping[str, Any]) -> str:
    firmware = f"firmware {facts['firmware']}" if facts.get("firmware") else None
    parts = (facts.get("netdev") or link.partition("/")[0], facts.get("model"), firmware)
    return " ".join(part for part in parts if part)
