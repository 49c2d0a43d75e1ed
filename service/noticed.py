"""How long before people noticed: what was told, beside what a history holds of when somebody had to know.

A history says that in several ways, and each is named: a repair, a node taken out of scheduling, a label or an ack, a
job that ended because its node failed, a fault record, and the first hard event, which nobody can miss. Where it holds
none of them, nothing is claimed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from statistics import median
from typing import Any, Final

from graynode.detectors.event_rules import EventRules, is_clearing
from graynode.pipeline.lake import Lake

Row = Mapping[str, Any]
_OUT_STATES: Final = ("quarantined", "in_repair")
_OUT_WORDS: Final = ("drain", "down", "fail", "unschedulable", "notready")
_RECORDED: Final = "fault_start"
_LATER: Final = timedelta(days=28)
"""A notice belongs to what was told in the four weeks before it: so far back do a node's own baselines see."""
_SAME: Final = timedelta(hours=1)
"""What is told this soon after the notice is told of the same thing, only later."""
_MINUTE_S: Final = 60.0
TABLES: Final = ("repair", "node_state", "label", "ack", "job", "event")


@dataclass(frozen=True, slots=True, order=True)
class Notice:
    """From then on somebody knew, or had to."""

    ts: datetime
    node_id: str
    what: str


@dataclass(frozen=True, slots=True)
class Told:
    """One incident as it was told first."""

    at: datetime
    node_id: str
    node: str
    severity: str
    title: str


@dataclass(frozen=True, slots=True)
class Lead:
    """What was told, and the notice that belongs to it; ``ahead`` is negative where people were first."""

    told: Told
    notice: Notice | None

    @property
    def ahead(self) -> timedelta | None:
        """From what was told to the notice."""
        return self.notice.ts - self.told.at if self.notice else None


@dataclass(slots=True)
class Notices:
    """Notices of a history, gathered as it passes or read from its lake."""

    found: dict[str, list[Notice]] = field(default_factory=dict)
    _rules: EventRules = field(default_factory=EventRules)

    def add(self, table: str, rows: Iterable[Row]) -> None:
        """Rows of one table in order of time; those of other tables say nothing."""
        if table == "event":
            events = list(rows)
            for finding in self._rules.findings(events):
                if finding.get("severity") == "page" and not is_clearing(finding):
                    self._put(finding, f"the first hard event: {finding.get('message')}")
            for row in events:
                if row.get("kind") == _RECORDED:
                    self._put(row, f"a recorded fault: {row.get('message')}")
            return
        for row in rows:
            what = _said(table, row)
            if what:
                self._put(row, what)

    def read(self, lake: Lake, cluster: str, since: datetime | None, until: datetime | None) -> None:
        """All that a lake holds."""
        for table in TABLES:
            rows = list(lake.read(table, since, until).sort("ts").iter_rows(named=True))
            self.add(table, (row for row in rows if row.get("cluster") == cluster))

    def leads(self, told: Sequence[Told]) -> list[Lead]:
        """For each incident the first notice of its node from an hour before it to four weeks after."""
        leads = []
        for incident in told:
            ordered = sorted(self.found.get(incident.node_id, ()))
            at = bisect_left([n.ts for n in ordered], incident.at - _SAME)
            near = ordered[at] if at < len(ordered) and ordered[at].ts <= incident.at + _LATER else None
            leads.append(Lead(incident, near))
        return leads

    def untold(self, told: Sequence[Told]) -> list[Notice]:
        """Of each node the first notice of four weeks before which nothing was told of it."""
        missed: list[Notice] = []
        for node_id, notices in sorted(self.found.items()):
            times = [t.at for t in told if t.node_id == node_id]
            last: datetime | None = None
            for notice in sorted(notices):
                new = last is None or notice.ts - last > _LATER
                if new and not any(notice.ts - _LATER <= at <= notice.ts + _SAME for at in times):
                    missed.append(notice)
                last = notice.ts if new else last
        return sorted(missed)

    def _put(self, row: Row, what: str) -> None:
        node_id, ts = row.get("node_id"), row.get("ts")
        if isinstance(node_id, str) and isinstance(ts, datetime):
            self.found.setdefault(node_id, []).append(Notice(ts, node_id, what))


def _said(table: str, row: Row) -> str:
    if table == "repair":
        return f"a logged repair: {row.get('what') or 'not said what'}"
    if table in ("label", "ack") and row.get("verdict") != "false":
        return f"a person: {row.get('why') or table}"
    if table == "job" and row.get("state") == "node_fail":
        return f"job {row.get('job_id')} ended because the node failed"
    if table == "node_state":
        words = str(row.get("scheduler_state") or "").lower()
        if row.get("state") in _OUT_STATES or any(word in words for word in _OUT_WORDS):
            return f"taken out of scheduling: {row.get('reason') or words or row.get('state')}"
    return ""


def say(notices: Notices, told: Sequence[Told], most: int = 20) -> None:
    """Print what was told beside when people noticed."""
    if not told and not notices.found:
        return
    print("\nhow long before people noticed:")
    if not notices.found:
        print("  not known: this history holds no repair, no drained or failed node, no label and no hard event")
        return
    leads = notices.leads(told)
    known = [lead for lead in leads if lead.notice is not None]
    for lead in sorted(known, key=lambda one: one.told.at)[:most]:
        print(f"  {lead.told.node}: {lead.told.title}: told {lead.told.at:%Y-%m-%d %H:%M}, {_ahead(lead)}")
    if len(known) > most:
        print(f"  and {len(known) - most} more")
    never = len(leads) - len(known)
    if known:
        ahead = [a.total_seconds() for lead in known if (a := lead.ahead) is not None]
        first = sum(a > 0 for a in ahead)
        print(f"  told before people noticed: {first} of {len(known)} with a notice; median {_span(median(ahead))}")
    if never:
        print(f"  {never} of {len(leads)} told of nodes of which this history holds no notice within four weeks")
    missed = notices.untold(told)
    if missed:
        print(f"  noticed by people, and nothing was told in the four weeks before: {len(missed)}")
        for notice in missed[:most]:
            print(f"    {notice.ts:%Y-%m-%d %H:%M} {notice.node_id}: {notice.what}")


def _ahead(lead: Lead) -> str:
    assert lead.notice is not None  # noqa: S101 (asked for those only; narrows the type)
    span = lead.notice.ts - lead.told.at
    return f"{_span(span.total_seconds())} ({lead.notice.what}, {lead.notice.ts:%Y-%m-%d %H:%M})"


def _span(seconds: float) -> str:
    size = abs(seconds)
    if size < _MINUTE_S:
        return "at the same time"
    unit = next((u for u in ((86_400, "d"), (3600, "h")) if size >= u[0]), (60, "min"))
    text = f"{size / unit[0]:.0f} min" if unit[1] == "min" else f"{size / unit[0]:.1f} {unit[1]}"
    return f"{text} {'earlier' if seconds > 0 else 'later'}"
