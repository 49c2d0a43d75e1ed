"""From findings to what people are told: one incident per machine and cause.

    incidents = Incidents("prod", resolve_after_s=3600)
    incidents.restore(revisions)            # from graynode.incidents, any order, JSON or rows
    incidents.see(round_)                   # work and places, for cost and for what nodes share
    for revision in incidents.add(findings, now): publish(revision)
    for revision in incidents.tick(now): publish(revision)

``add`` and ``tick`` return new revisions (dicts with the fields of table ``incident``) and nothing where nobody
needs to hear more. No clock, no lock, no I/O: the caller brings ``now`` (aware, UTC), serialises calls and
publishes what is returned before it forgets the findings. Given the same findings twice, nothing is told twice.

Nodes that share a place and a cause within minutes become one incident about the place (``storm``), which takes in
what was open of them. An incident opens at its first finding of ``least`` severity or worse that is live. It is told
again when it gets worse, when another GPU, link or signal joins, when it has spread to twice as many nodes, and while
there is more evidence after an hour, then ever more seldom, once a day at last: that it goes on is no news.
It is resolved when ``resolve_after_s`` has passed without evidence, but not while an entry is held
(``evidence``): a GPU that fell off the bus is silent, not well. A hold ends by contrary evidence or a repair.
A finding of another cluster is passed over, and so is one older than ``stale_after_s`` that holds nothing: it is over.
Evidence within ``reopen_within_s`` of the resolution opens the same incident again as its next revision, and each
reopening doubles the silence that the next resolution takes, so that what flaps stays open instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from graynode.detectors import cases as ca
from graynode.detectors import evidence as ev
from graynode.detectors.base import Round
from graynode.detectors.cases import Case, Key, Revision
from graynode.detectors.context import Context
from graynode.detectors.incident_words import words
from graynode.detectors.pages import Budget, Pages
from graynode.detectors.scheduler_view import SchedulerView
from graynode.detectors.storm import Storms, contains, covers, joined
from graynode.detectors.waiting import Terms, reckoned
from graynode.pipeline.schema import stable_id

_TELL_AGAIN: Final = timedelta(hours=1)
_TELL_DAILY: Final = timedelta(days=1)
_REPAIR_SLACK: Final = timedelta(minutes=2)
"""The window that was open when somebody logged the repair may still tell of before."""
_MAX_DOUBLINGS: Final = 5
_SEEN: Final = 2000
_IDS_TOLD: Final = 50
_NODES_KEPT: Final = 100_000


class Incidents:
    """All incidents of one cluster. ``least`` is the least severity that opens one, ``budget`` that of pages."""

    def __init__(
        self,
        cluster: str,
        resolve_after_s: float = 3600.0,
        *,
        least: str = "ticket",
        reopen_within_s: float = 86_400.0,
        stale_after_s: float = 86_400.0,
        budget: Budget | None = None,
        terms: Terms | None = None,
    ) -> None:
        self._cluster = cluster
        self._resolve_after = timedelta(seconds=resolve_after_s)
        self._reopen_within = timedelta(seconds=reopen_within_s)
        self._stale_after = timedelta(seconds=stale_after_s)
        self._least = ev.rank(least)
        self._cases: dict[Key, Case] = {}
        self._context = Context()
        self._storms = Storms(cluster)
        self._pages = Pages(budget or Budget(most=0))
        self._terms = terms or Terms()
        self._scheduler = SchedulerView()
        self.planned: Callable[[str, datetime], str] = lambda _node, _at: ""  # a node's maintenance window, in words

    def see(self, round_: Round) -> None:
        """Take note of what runs where. Kept until the next call; nothing is read before it is needed."""
        self._context = Context(round_)

    def scheduler_says(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Rows of table ``node_state``: shown beside an incident where the scheduler still gives work to its node."""
        self._scheduler.note(rows)

    def restore(self, revisions: Iterable[Mapping[str, Any]]) -> None:
        """Take up where these revisions left off. Those of other clusters are passed over."""
        cases, paged = ca.from_revisions(revisions, self._cluster)
        self._cases |= cases
        for identity, when in sorted(paged.items(), key=lambda p: (p[1], p[0])):
            self._pages.note(identity, when)

    def add(self, findings: Iterable[ev.Finding], now: datetime) -> list[Revision]:
        """Take findings in; the revisions that people should hear of, in order of the findings."""
        touched: dict[Key, None] = {}
        news: set[Key] = set()
        ours = [f for f in findings if f.get("cluster") in (None, self._cluster)]
        for finding in sorted(ours, key=self._order):
            if ev.details(finding).get("clears"):
                self._clear(finding)
                continue
            about = self._subject(finding, now)
            own = self._home(about)
            taken = self._take(own, about, now)
            if taken is not None:
                touched[own] = None
                if taken:
                    news.add(own)
        told = [r for own in touched if (r := self._tell(own, own in news, now)) is not None]
        for own in touched:
            told += self._absorbed(self._cases[own], now)
        return told + self._spoken_for(now)

    def tick(self, now: datetime) -> list[Revision]:
        """Let time pass: the incidents that are over. Long-resolved ones are forgotten."""
        over: list[Revision] = []
        for own, case in list(self._cases.items()):
            if case.resolved:
                if now - case.told["resolved_ts"] > self._reopen_within:
                    del self._cases[own]
            elif not case.held and now - case.last >= self._patience(case):
                over.append(self._say(case, "resolved", now))
        return over + self._spoken_for(now)

    def repaired(
        self, node_id: str, now: datetime, gpu_uuid: str | None = None, at: datetime | None = None
    ) -> list[Revision]:
        """A logged repair of a node, or of one GPU of it, ends what was known of it; not what was seen after ``at``."""
        over: list[Revision] = []
        for case in self._cases.values():
            if case.told["node_id"] != node_id or case.resolved or case.latest > (at or now) + _REPAIR_SLACK:
                continue
            for e in case.entries:
                if gpu_uuid is None or e["gpu_uuid"] == gpu_uuid:
                    e["hold"] = False
            if gpu_uuid is None or {e["gpu_uuid"] for e in case.entries} <= {gpu_uuid}:
                over.append(self._say(case, "resolved", now))
        return over + self._spoken_for(now)

    def current(self) -> list[Revision]:
        """The last told revision of every incident that is not resolved, worst first."""
        live = [case.told for case in self._cases.values() if not case.resolved]
        return sorted(live, key=lambda r: (ev.rank(r["severity"]), r["since"], r["incident_id"]))

    def pages_within(self, now: datetime) -> int:
        """Pages in the shift that ends now, for the report against the budget."""
        return self._pages.within(now)

    # --- taking in ---

    def _take(self, own: Key, finding: ev.Finding, now: datetime) -> bool | None:
        """None: nothing taken; else whether it brought something new."""
        case = self._cases.get(own)
        new = ev.entry(finding)
        identity = str(finding.get("finding_id"))
        if case is not None and ca.known(case, identity, new):
            return None
        if finding.get("live") is False or ((case is None or case.resolved) and not self._opens(new, now)):
            return None
        if case is None:
            case = self._cases[own] = Case(ca.first(self._cluster, own, finding, new), [], now)
        elif case.resolved:
            case.entries, case.nodes = [], {}
        case.seen[identity] = None
        while len(case.seen) > _SEEN:
            del case.seen[next(iter(case.seen))]
        case.count += 1
        case.last = max(case.last, now)
        case.nodes.update(dict.fromkeys((new.get("nodes") or ())[:_NODES_KEPT]))
        for column in ("node", "boot_id"):
            case.told[column] = finding.get(column) or case.told.get(column)
        joined_in = ev.merge(case.entries, new)
        return joined_in and ev.rank(new["severity"]) <= self._least

    def _home(self, finding: ev.Finding) -> Key:
        """The incident that a finding belongs to: that of its cause, or an open one of another face of the fault."""
        own = ca.key(finding)
        mine = self._cases.get(own)
        if mine is not None and not mine.resolved:
            return own
        about = ev.entry(finding)
        for other in ca.relatives(finding):
            case = self._cases.get(other)
            if case is not None and case.is_open and any(ev.same_entity(e, about) for e in case.entries):
                return other
        return own

    def _subject(self, finding: ev.Finding, now: datetime) -> ev.Finding:
        """The finding, about the place that many share where it would open one incident too many."""
        case, new = self._cases.get(self._home(finding)), ev.entry(finding)
        if case is not None and (not case.resolved or ca.known(case, str(finding.get("finding_id")), new)):
            return finding
        if finding.get("live") is False or not self._opens(new, now):
            return finding
        for shift in self._cases.values():
            if shift.is_open and covers(shift, finding, self._context):
                return joined(shift, finding)
        return self._storms.opening(finding, now, self._context)

    def _order(self, finding: ev.Finding) -> tuple[bool, bool, datetime, str]:
        """What can open an incident first, and places before nodes, so that what only joins one finds it."""
        joins_only = ev.rank(finding.get("severity")) > self._least and not ev.details(finding).get("clears")
        return joins_only, finding.get("subject") not in ca.SHARED, finding["ts"], str(finding.get("finding_id"))

    def _opens(self, new: ev.Entry, now: datetime) -> bool:
        return ev.rank(new["severity"]) <= self._least and (new["hold"] or now - new["last"] <= self._stale_after)

    def _clear(self, finding: ev.Finding) -> None:
        for case in self._cases.values():
            same_cause = finding.get("cause") is None or finding["cause"] in case.causes
            if same_cause and case.told["node_id"] == finding.get("node_id"):
                ev.cleared(case.entries, finding)

    # --- telling ---

    def _tell(self, own: Key, news: bool, now: datetime) -> Revision | None:
        case = self._cases[own]
        told = case.told
        if told["revision"] < 0:
            told["since"], told["opened_ts"] = case.since, now
            told["incident_id"] = stable_id(self._cluster, own[0], own[1], case.since.isoformat())
            return self._say(case, "open", now)
        if case.resolved:
            case.reopened += 1
            told["grouped_under"] = None
            return self._say(case, "open", now)
        worse = ev.rank(ev.worst(case.entries)["severity"]) < ev.rank(told["severity"])
        worse = worse and told.get("grouped_under") is None
        patience = min(max(_TELL_AGAIN, (now - told["opened_ts"]) / 2), _TELL_DAILY)
        again = now - told["updated_ts"] >= patience and case.count > told["count"]
        wider = case.spread > 0 and ca.spread(case.entries) >= 2 * case.spread
        return self._say(case, "updated", now) if news or worse or wider or again else None

    def _absorbed(self, shift: Case, now: datetime) -> list[Revision]:
        """What is open of a place's nodes and began with it ends as a part of it; a held fault stays a node's own."""
        if shift.told.get("subject") not in ca.SHARED or not shift.is_open:
            return []
        over: list[Revision] = []
        for case in self._cases.values():
            if not case.is_open or case is shift:
                continue
            about = {**case.told, "since": case.since, "signal": ev.worst(case.entries)["signal"]}
            part = contains(shift, case, self._context) or covers(shift, about, self._context)
            if part and (not case.held or case.told["cause"] == "monitoring_blind"):
                case.told["grouped_under"] = shift.told["incident_id"]
                over.append(self._say(case, "resolved", now))
        return over

    def _spoken_for(self, now: datetime) -> list[Revision]:
        """Pages whose speaker is over page now, and speakers say for whom they speak."""
        open_ids = self._open_ids()
        told: list[Revision] = []
        for case in self._cases.values():
            leader = case.told.get("grouped_under")
            if case.is_open and leader is not None and leader not in open_ids:
                case.told["grouped_under"] = None
                told.append(self._say(case, "updated", now))
        spoken = ca.spoken_for(self._cases.values())
        for case in self._cases.values():
            speaks = spoken.get(str(case.told.get("incident_id")), {})
            if case.is_open and speaks.keys() != case.also.keys():
                case.also = speaks
                told.append(self._say(case, "updated", now))
        return told

    def _open_ids(self) -> frozenset[str]:
        return frozenset(c.told["incident_id"] for c in self._cases.values() if c.is_open)

    def _patience(self, case: Case) -> timedelta:
        return self._resolve_after * float(2 ** min(case.reopened, _MAX_DOUBLINGS))

    def _say(self, case: Case, state: str, now: datetime) -> Revision:
        told = {**case.told, **words(case.told, case.entries, case.also)}
        told["revision"] += 1
        # A round speaks of its window's end and an event of this moment: a later revision is never the earlier one
        now = max(now, case.told.get("updated_ts") or now)
        told |= {"ts": now, "updated_ts": now, "state": state, "count": case.count}
        told["resolved_ts"] = now if state == "resolved" else None
        told["since"] = min(told["since"], case.since) if told["since"] else None
        planned = self.planned(str(told["node_id"]), now)
        if state != "resolved" and not planned:  # nobody is woken by what happens in a window: it costs no page
            self._budgeted(told, now)
        work = self._context.work(str(told["node_id"]), told.get("gpu_uuid"))
        told |= reckoned(told, case.told.get("due_ts"), case.entries, work, self._terms)
        told["finding_ids"] = msgspec.json.encode(list(case.seen)[-_IDS_TOLD:]).decode()
        told["evidence"] = ev.dump(case.entries, case.also, self._scheduler.otherwise(case), planned)
        case.told, case.spread = told, ca.spread(case.entries)
        return dict(told)

    def _budgeted(self, told: Revision, now: datetime) -> None:
        """A page beyond the budget is a ticket under the page that is open."""
        told["grouped_under"] = None
        if told["severity"] != "page":
            return
        if not self._pages.has_paged(told["incident_id"]):
            leader = self._pages.leader(self._open_ids() - {told["incident_id"]}, now)
            if leader is not None:
                told["severity"], told["grouped_under"] = "ticket", leader
                return
            self._pages.note(told["incident_id"], now)
