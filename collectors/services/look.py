"""What one look at one service, mount, disk or memory controller says, and what is made of many looks.

A look is a state; the ledger makes of looks the rows of table ``service`` (changes, and everything once an hour) and
the events that people hear of. It forgets nothing at a restart of the agent and everything at a boot.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final, Protocol

from graynode.collectors.base import Machine, Round, Row
from graynode.pipeline.schema import stable_id

SOURCE: Final = "services"
AGAIN_S: Final = 3600.0
"""Every state in force is told again so often: a row that was lost in a full spool heals."""
_LONG: Final = 400


@dataclass(frozen=True, slots=True)
class Look:
    """One thing at one moment. ``bad`` is a fault; it becomes an event once it has lasted ``patience_s``.

    ``since`` and ``key`` are the source's own time and mark of this state, where it has one; ``key`` makes event ids.
    """

    kind: str
    name: str
    state: str
    bad: bool = False
    patience_s: float = 0.0
    since: datetime | None = None
    key: str = ""
    restarts: int | None = None
    value: float | None = None
    unit: str | None = None
    reason: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that happened at a moment and is no state: a restart, an error counted, a record of the BMC."""

    kind: str
    name: str
    key: str
    message: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    raw: str | None = None
    code: int | None = None


@dataclass(slots=True)
class Seen:
    """What a part has to say this round.

    ``whole`` names kinds: whatever of them is neither among the looks nor among the ``silent`` names is gone.
    """

    looks: list[Look] = field(default_factory=list)
    happenings: list[Happening] = field(default_factory=list)
    whole: frozenset[str] = frozenset()
    silent: frozenset[str] = frozenset()
    trouble: str = ""
    """Why something could not be read; a ``quality`` row says it once."""


class Part(Protocol):
    """One source. ``look`` never waits and is called every second."""

    name: ClassVar[str]
    absent: str
    """Why this machine has no such source; empty where it has."""

    def look(self, round_: Round) -> Seen | None:
        """What is new, ``None`` if nothing is."""
        ...

    def host_fields(self) -> dict[str, Any]:
        """Fields of table ``host`` by the last look."""
        ...

    def memory(self) -> Any:  # noqa: ANN401 (JSON)
        """What must outlive the agent, within one boot."""
        ...

    def remember(self, kept: Any) -> None:  # noqa: ANN401 (JSON)
        """Take up what ``memory`` gave in an earlier life; what is no such thing is passed over."""
        ...

    def close(self) -> None:
        """Let go of programs that run; twice is as good as once."""
        ...


TELLS: Final[Mapping[tuple[str, str], str]] = {
    ("mount", "hung"): "mount_hung",
    ("mount", "failing"): "mount_failing",
    ("mount", "read_only"): "mount_read_only",
    ("nvme", "warning"): "nvme_critical_warning",
    ("nvme", "dead"): "nvme_dead",
}
"""Event kinds by kind and state; ``_BAD`` has those that do not depend on the state."""
_BAD: Final[Mapping[str, str]] = {"unit": "service_failed", "disk": "disk_full"}
_BACK: Final[Mapping[str, str]] = {
    "unit": "service_back", "mount": "mount_back", "disk": "disk_room", "nvme": "nvme_well",
}  # fmt: skip


@dataclass(slots=True)
class _Known:
    state: str
    bad: bool
    since: str
    bad_since: str | None = None
    told: str = ""
    """The event that was told of the fault in force: its kind."""


class Ledger:
    """States by kind and name, and what of them has been told."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._known: dict[tuple[str, str], _Known] = {}
        self._row_at: dict[tuple[str, str], datetime] = {}

    def note(self, seen: Seen, ts: datetime) -> tuple[list[Row], list[Row]]:
        """Rows of ``service`` and of ``event``."""
        rows: list[Row] = []
        events = [self.event(h.kind, h.name, h.key, h.message, h.attributes, ts, h) for h in seen.happenings]
        for look in [*seen.looks, *self._gone(seen)]:
            row, event = self._one(look, ts)
            rows += [row] if row else []
            events += [event] if event else []
        return rows, events

    def memory(self) -> list[list[Any]]:
        """For the state file."""
        return [[*key, k.state, k.bad, k.since, k.bad_since, k.told] for key, k in sorted(self._known.items())]

    def remember(self, kept: Any) -> None:  # noqa: ANN401 (a file's content)
        """From the state file; entries that are none are passed over."""
        for entry in kept if isinstance(kept, list) else ():
            try:
                kind, name, state, bad, since, bad_since, told = entry
                known = _Known(str(state), bool(bad), since, bad_since, str(told))
                _moment(since)
                _moment(bad_since or since)
            except (TypeError, ValueError):
                continue
            self._known[str(kind), str(name)] = known

    def _gone(self, seen: Seen) -> Iterable[Look]:
        there = {(look.kind, look.name) for look in seen.looks}
        gone = [key for key in self._known if key[0] in seen.whole and key not in there and key[1] not in seen.silent]
        return [Look(kind, name, "gone", reason="not there any more") for kind, name in gone]

    def _one(self, look: Look, ts: datetime) -> tuple[Row | None, Row | None]:
        key = (look.kind, look.name)
        before = self._known.get(key)
        changed = before is None or (before.state, before.bad) != (look.state, look.bad)
        since = look.since or ts
        known = before or _Known(look.state, look.bad, since.isoformat())
        if changed:
            known.state, known.bad, known.since = look.state, look.bad, since.isoformat()
        known.bad_since = (known.bad_since or since.isoformat()) if look.bad else None
        self._known[key] = known
        event = self._tell(look, known, ts)
        again = key not in self._row_at or ts - self._row_at[key] >= timedelta(seconds=AGAIN_S)
        if changed or again:
            self._row_at[key] = ts
        if look.state == "gone":
            del self._known[key], self._row_at[key]
        return (_row(look, known) if changed or again else None), event

    def _tell(self, look: Look, known: _Known, ts: datetime) -> Row | None:
        kind = TELLS.get((look.kind, look.state)) or _BAD.get(look.kind)
        if look.bad:
            since = _moment(known.bad_since or known.since)
            if kind is None or known.told == kind or ts - since < timedelta(seconds=look.patience_s):
                return None
            known.told = kind
            facts = {**look.attributes, "state": look.state, "since": since.isoformat(), "why": look.reason or None}
            lasting = f" since {since:%Y-%m-%d %H:%M:%S} UTC"
            text = f"{look.name}: {look.state.replace('_', ' ')}{lasting}{f': {look.reason}' if look.reason else ''}"
            return self.event(kind, look.name, f"{look.key or since.isoformat()} {look.state}", text, facts, ts)
        if not known.told:
            return None
        told, known.told = known.told, ""
        text = f"{look.name}: {look.state.replace('_', ' ')} again"
        return self.event(_BACK[look.kind], look.name, f"{look.key or ts.isoformat()} {told}", text, {"over": told}, ts)

    def event(
        self, kind: str, name: str, key: str, message: str, attributes: Mapping[str, Any], ts: datetime,
        more: Happening | None = None,
    ) -> Row:  # fmt: skip
        """A row of ``event``; the same kind, name and key give the same id in any life of the agent."""
        machine = self._machine
        facts = {"about": name, **{k: v for k, v in attributes.items() if v is not None}}
        return {
            "ts": ts,
            "event_id": stable_id("event", machine.cluster, machine.node_id, SOURCE, machine.boot_id, kind, name, key),
            "source": SOURCE,
            "kind": kind,
            "code": more.code if more else None,
            "message": message[:_LONG],
            "raw": more.raw[: 2 * _LONG] if more and more.raw else None,
            "attributes": json.dumps(facts, sort_keys=True, default=str),
            "observed_ts": ts,
            "ts_quality": "observed",
        }


def _row(look: Look, known: _Known) -> Row:
    return {
        "kind": look.kind,
        "name": look.name,
        "state": look.state,
        "bad": look.bad,
        "since": _moment(known.since),
        "restarts": look.restarts,
        "value": look.value,
        "unit": look.unit,
        "reason": look.reason[:_LONG] or None,
        "attributes": json.dumps(dict(look.attributes), sort_keys=True, default=str) if look.attributes else None,
    }


def _moment(text: str) -> datetime:
    """A time of the state file; ``ValueError`` if it is none, or has no zone."""
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(f"{text}: no zone")
    return found
