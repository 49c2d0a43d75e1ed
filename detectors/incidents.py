"""From findings to what people are told: one incident per machine and cause.

    incidents = Incidents("prod", resolve_after_s=3600)
    incidents.restore(revisions)            # from graynode.incidents, any order, JSON or rows
    for revision in incidents.add(findings, now): publish(revision)
    for revision in incidents.tick(now): publish(revision)

``add`` and ``tick`` return new revisions (dicts with the fields of table ``incident``) and nothing where nobody
needs to hear more. No clock, no lock, no I/O: the caller brings ``now`` (aware, UTC), serialises calls and
publishes what is returned before it forgets the findings. Given the same findings twice, nothing is told twice.

Nine nodes with one cause within minutes are nine incidents; the tenth and further ones are one (``storm``).
An incident opens at its first finding of ``least`` severity or worse that is live. It is told again when it gets
worse, when another GPU, link or signal joins, when it has spread to twice as many nodes, and hourly while there is more
evidence: that it goes on is no news.
It is resolved when ``resolve_after_s`` has passed without evidence, but not while an entry is held
(``evidence``): a GPU that fell off the bus is silent, not well. A hold ends by contrary evidence or a repair.
A finding of another cluster is passed over, and so is one older than ``stale_after_s`` that holds nothing: it is over.
Evidence within ``reopen_within_s`` of the resolution opens the same incident again as its next revision, and each
reopening doubles the silence that the next resolution takes, so that what flaps stays open instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from graynode.detectors import evidence as ev
from graynode.detectors.incident_words import words
from graynode.detectors.storm import Storms
from graynode.pipeline.schema import stable_id

Revision = dict[str, Any]
"""A row of table ``incident``."""

_TELL_AGAIN: Final = timedelta(hours=1)
_MAX_DOUBLINGS: Final = 5
_SEEN: Final = 2000
_IDS_TOLD: Final = 50
_NODE_SUBJECTS: Final = ("node", "gpu", "link", "switch", None, "")
_TIMES: Final = ("ts", "since", "opened_ts", "updated_ts", "resolved_ts")


@dataclass(slots=True)
class _Case:
    """One incident's memory: what was told last, and what has come since."""

    told: Revision
    entries: list[ev.Entry]
    last: datetime
    count: int = 0
    reopened: int = 0
    seen: dict[str, None] = field(default_factory=dict)
    restored: bool = False
    spread: float = 0.0

    @property
    def resolved(self) -> bool:
        return bool(self.told.get("state") == "resolved")

    @property
    def held(self) -> bool:
        return any(e["hold"] for e in self.entries)

    @property
    def latest(self) -> datetime:
        latest: datetime = max(e["last"] for e in self.entries)
        return latest


class Incidents:
    """All incidents of one cluster. ``least`` is the least severity that opens one."""

    def __init__(
        self,
        cluster: str,
        resolve_after_s: float = 3600.0,
        *,
        least: str = "ticket",
        reopen_within_s: float = 86_400.0,
        stale_after_s: float = 86_400.0,
    ) -> None:
        self._cluster = cluster
        self._resolve_after = timedelta(seconds=resolve_after_s)
        self._reopen_within = timedelta(seconds=reopen_within_s)
        self._stale_after = timedelta(seconds=stale_after_s)
        self._least = ev.rank(least)
        self._cases: dict[tuple[str, str], _Case] = {}
        self._storms = Storms(cluster, self._is_open)

    def restore(self, revisions: Iterable[Mapping[str, Any]]) -> None:
        """Take up where these revisions left off. Those of other clusters are passed over."""
        latest: dict[str, Revision] = {}
        reopened: dict[str, set[int]] = {}
        for raw in revisions:
            row = {**raw, **{key: ev.moment(raw.get(key)) for key in _TIMES}}
            if row.get("cluster") != self._cluster or row["ts"] is None:
                continue
            if row["state"] == "open" and row["revision"] > 0:
                reopened.setdefault(row["incident_id"], set()).add(row["revision"])
            if row["incident_id"] not in latest or row["revision"] > latest[row["incident_id"]]["revision"]:
                latest[row["incident_id"]] = row
        for row in sorted(latest.values(), key=lambda r: (r["ts"], r["incident_id"])):
            self._take_up(row, len(reopened.get(row["incident_id"], ())))

    def add(self, findings: Iterable[ev.Finding], now: datetime) -> list[Revision]:
        """Take findings in; the revisions that people should hear of, in order of the findings."""
        touched: dict[tuple[str, str], None] = {}
        news: set[tuple[str, str]] = set()
        ours = [f for f in findings if f.get("cluster") in (None, self._cluster)]
        for finding in sorted(ours, key=self._order):
            if ev.details(finding).get("clears"):
                self._clear(finding)
                continue
            about = self._subject(finding, now)
            key = _key(about)
            taken = self._take(key, about, now)
            if taken is not None:
                touched[key] = None
                if taken:
                    news.add(key)
        return [r for key in touched if (r := self._tell(key, key in news, now)) is not None]

    def tick(self, now: datetime) -> list[Revision]:
        """Let time pass: the incidents that are over. Long-resolved ones are forgotten."""
        over: list[Revision] = []
        for key, case in list(self._cases.items()):
            if case.resolved:
                if now - case.told["resolved_ts"] > self._reopen_within:
                    del self._cases[key]
            elif not case.held and now - case.last >= self._patience(case):
                over.append(self._say(case, "resolved", now))
        return over

    def repaired(self, node_id: str, now: datetime, gpu_uuid: str | None = None) -> list[Revision]:
        """A logged repair of a node, or of one GPU of it, ends what was known of it."""
        over: list[Revision] = []
        for case in self._cases.values():
            if case.told["node_id"] != node_id or case.resolved:
                continue
            for e in case.entries:
                if gpu_uuid is None or e["gpu_uuid"] == gpu_uuid:
                    e["hold"] = False
            if gpu_uuid is None or {e["gpu_uuid"] for e in case.entries} <= {gpu_uuid}:
                over.append(self._say(case, "resolved", now))
        return over

    def current(self) -> list[Revision]:
        """The last told revision of every incident that is not resolved, worst first."""
        live = [case.told for case in self._cases.values() if not case.resolved]
        return sorted(live, key=lambda r: (ev.rank(r["severity"]), r["since"], r["incident_id"]))

    # --- one incident ---

    def _take_up(self, row: Revision, reopened: int) -> None:
        for name in ("since", "opened_ts", "updated_ts", *(("resolved_ts",) if row["state"] == "resolved" else ())):
            row[name] = row[name] or row["ts"]
        row |= {name: row.get(name) for name in ("node", "boot_id", "severity", "subject")}
        count = row.get("count")
        row["count"] = count if isinstance(count, int) else 0
        entries = ev.load(row.get("evidence"))
        if not entries:
            entries = ev.load([{"signal": row["cause"], "since": row["since"], "last": row["since"]}])
        ids = ev.array(row.get("finding_ids"))
        self._cases[_key(row)] = _Case(
            row,
            entries,
            row["ts"],
            row["count"],
            reopened,
            dict.fromkeys(str(i) for i in ids),
            restored=True,
            spread=_spread(entries),
        )

    def _take(self, key: tuple[str, str], finding: ev.Finding, now: datetime) -> bool | None:
        """None: nothing taken; else whether it brought something new."""
        case = self._cases.get(key)
        new = ev.entry(finding)
        identity = str(finding.get("finding_id"))
        if case is not None and _known(case, identity, new):
            return None
        if finding.get("live") is False or ((case is None or case.resolved) and not self._opens(new, now)):
            return None
        if case is None:
            case = self._cases[key] = _Case(_first(self._cluster, key, finding, new), [], now)
        elif case.resolved:
            case.entries = []
        case.seen[identity] = None
        while len(case.seen) > _SEEN:
            del case.seen[next(iter(case.seen))]
        case.count += 1
        case.last = max(case.last, now)
        for column in ("node", "boot_id"):
            case.told[column] = finding.get(column) or case.told.get(column)
        joined = ev.merge(case.entries, new)
        return joined and ev.rank(new["severity"]) <= self._least

    def _subject(self, finding: ev.Finding, now: datetime) -> ev.Finding:
        """The finding, about the whole cluster where it would open one incident too many."""
        case, new = self._cases.get(_key(finding)), ev.entry(finding)
        if case is not None and (not case.resolved or _known(case, str(finding.get("finding_id")), new)):
            return finding
        opens = finding.get("live") is not False and self._opens(new, now)
        return self._storms.opening(finding, now) if opens else finding

    def _is_open(self, finding: ev.Finding) -> bool:
        case = self._cases.get(_key(finding))
        return case is not None and not case.resolved

    def _order(self, finding: ev.Finding) -> tuple[bool, datetime, str]:
        """What can open an incident first, so that what only joins one finds it."""
        joins_only = ev.rank(finding.get("severity")) > self._least and not ev.details(finding).get("clears")
        return joins_only, finding["ts"], str(finding.get("finding_id"))

    def _opens(self, new: ev.Entry, now: datetime) -> bool:
        return ev.rank(new["severity"]) <= self._least and (new["hold"] or now - new["last"] <= self._stale_after)

    def _clear(self, finding: ev.Finding) -> None:
        for case in self._cases.values():
            same_cause = finding.get("cause") in (None, case.told["cause"])
            if same_cause and case.told["node_id"] == finding.get("node_id"):
                ev.cleared(case.entries, finding)

    def _tell(self, key: tuple[str, str], news: bool, now: datetime) -> Revision | None:
        case = self._cases[key]
        told = case.told
        if told["revision"] < 0:
            since = min(e["since"] for e in case.entries)
            told["since"], told["opened_ts"] = since, now
            told["incident_id"] = stable_id(self._cluster, key[0], key[1], since.isoformat())
            return self._say(case, "open", now)
        if case.resolved:
            case.reopened += 1
            return self._say(case, "open", now)
        worse = ev.rank(ev.worst(case.entries)["severity"]) < ev.rank(told["severity"])
        hourly = now - told["updated_ts"] >= _TELL_AGAIN and case.count > told["count"]
        wider = case.spread > 0 and _spread(case.entries) >= 2 * case.spread
        return self._say(case, "updated", now) if news or worse or wider or hourly else None

    def _patience(self, case: _Case) -> timedelta:
        return self._resolve_after * float(2 ** min(case.reopened, _MAX_DOUBLINGS))

    def _say(self, case: _Case, state: str, now: datetime) -> Revision:
        told = {**case.told, **words(case.told, case.entries)}
        told["revision"] += 1
        told |= {"ts": now, "updated_ts": now, "state": state, "count": case.count}
        told["resolved_ts"] = now if state == "resolved" else None
        told["since"] = min(told["since"], *(e["since"] for e in case.entries)) if told["since"] else None
        told["finding_ids"] = msgspec.json.encode(list(case.seen)[-_IDS_TOLD:]).decode()
        told["evidence"] = ev.dump(case.entries)
        case.told, case.spread = told, _spread(case.entries)
        return dict(told)


def _known(case: _Case, identity: str, new: ev.Entry) -> bool:
    """Whether a finding was taken in before: rounds are computed again, and events read again, after a restart.

    Only the latest ids survive a restart; beyond them, what is not newer than its own entry is known.
    """
    if identity in case.seen or (case.resolved and new["last"] <= case.latest):
        return True
    return case.restored and any(
        e["signal"] == new["signal"] and ev.same_entity(e, new) and new["last"] <= e["last"] for e in case.entries
    )


def _spread(entries: Iterable[ev.Entry]) -> float:
    """How many nodes it is about, where it is about several."""
    return max((float(e["value"] or 0) for e in entries if e["unit"] == "nodes"), default=0.0)


def _key(row: Mapping[str, Any]) -> tuple[str, str]:
    """Subject and cause. What is in a node is the node's; a larger subject goes by its own name."""
    subject, node_id = row.get("subject"), row.get("node_id")
    if subject in _NODE_SUBJECTS and node_id:
        return f"node/{node_id}", str(row["cause"])
    return f"{subject}/{_name(row)}", str(row["cause"])


def _name(row: Mapping[str, Any]) -> str:
    return str(row.get("node_id") or row.get("node") or row.get("link") or row.get("subject"))


def _first(cluster: str, key: tuple[str, str], finding: ev.Finding, new: ev.Entry) -> Revision:
    return {
        "cluster": cluster,
        "node_id": _name(finding),
        "node": finding.get("node"),
        "boot_id": finding.get("boot_id"),
        "subject": "node" if key[0].startswith("node/") else finding.get("subject"),
        "cause": key[1],
        "severity": new["severity"],
        "revision": -1,
        "state": "new",
        "since": None,
        "count": 0,
    }
