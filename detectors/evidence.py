"""Evidence of an incident: findings of one signal and one entity, folded into one entry.

A finding's ``evidence`` is a JSON object of the detector's own. These keys mean something to incidents:
``pci_bus_id``, ``action_source``, ``owner``, ``next_step``, ``title`` (of the incident), ``due_h`` (hours until
a forecast runs out), ``disagree`` (who sees it otherwise), ``raw`` (the line as read), ``ts_quality``; of a shift
that many share ``nodes``, ``nodes_told`` (how many), ``of_cause`` (what each has) and ``shared`` (the place's name);
``lines`` (log lines behind it); ``hold`` (true: silence is no proof of health); ``clears`` (signals that this finding
says are over; ``xid_*`` takes all that begin so); ``new_boot`` (true: it clears only what an earlier boot showed).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from graynode.detectors import trend
from graynode.pipeline.schema import SEVERITIES

Finding = Mapping[str, Any]
"""A row of table ``finding``."""
Entry = dict[str, Any]

MAX_ENTRIES: Final = 30
"""Entries an incident keeps; a node has at most 16 GPUs, so this is cut by nonsense only."""
_CARRIED: Final = (
    "detector", "signal", "subject", "cause", "boot_id", "gpu_uuid", "link", "value", "unit", "baseline", "peer_median",
    "peers", "effect", "score", "threshold", "p_value", "message", "action",
)  # fmt: skip
_EXTRA: Final = (
    "pci_bus_id",
    "gpu_index",
    "action_source",
    "owner",
    "next_step",
    "disagree",
    "raw",
    "nodes",
    "nodes_told",
    "of_cause",
    "shared",
    "title",
    "due_h",
    "incidents",
    "ts_quality",
)
ALSO: Final = "also_pages"
"""Signal of the entry in which a page names the incidents that it speaks for."""


def rank(severity: str | None) -> int:
    """0 is the worst; an unknown word ranks last."""
    return SEVERITIES.index(severity) if severity in SEVERITIES else len(SEVERITIES)


def details(finding: Finding) -> dict[str, Any]:
    """The finding's own evidence; empty where it brings none or none that can be read."""
    raw = finding.get("evidence")
    if isinstance(raw, Mapping):
        return dict(raw)
    if not raw:
        return {}
    try:
        parsed = msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def entry(finding: Finding) -> Entry:
    """One finding as an entry that counts one."""
    more = details(finding)
    made: Entry = {key: finding.get(key) for key in _CARRIED} | {key: more.get(key) for key in _EXTRA}
    made["severity"] = finding.get("severity") or "digest"
    made["since"] = finding.get("since") or finding["ts"]
    made["last"] = finding["ts"]
    made["count"] = 1
    made["lines"] = int(more.get("lines") or 0)
    made["hold"] = bool(more.get("hold"))
    made["trend"] = trend.more([], made["value"], 0)
    return made


def merge(entries: list[Entry], new: Entry) -> bool:
    """Fold ``new`` into ``entries``; true where it names an entity or a signal that was not among them."""
    for old in entries:
        if old["signal"] == new["signal"] and same_entity(old, new):
            _fold(old, new)
            return False
    if len(entries) >= MAX_ENTRIES:
        return False
    entries.append(new)
    return True


def same_entity(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether two entries are about the same GPU, link or node; a GPU is known by UUID or PCI address."""
    if a.get("link") != b.get("link"):
        return False
    pairs = [(a.get(key), b.get(key)) for key in ("gpu_uuid", "pci_bus_id")]
    if any(x and y for x, y in pairs):
        return any(x and x == y for x, y in pairs)
    return not any(x or y for x, y in pairs)


def cleared(entries: Iterable[Entry], finding: Finding) -> None:
    """Take the hold off the entries that this finding contradicts.

    Without an entity it speaks for the whole node; an entry without one is contradicted by any GPU of the node.
    """
    more = details(finding)
    about = {**finding, "pci_bus_id": more.get("pci_bus_id")}
    whole_node = not (finding.get("gpu_uuid") or finding.get("link") or more.get("pci_bus_id"))
    for old in entries:
        if more.get("new_boot") and old["boot_id"] in (None, finding.get("boot_id")):
            continue
        named = any(_matches(str(old["signal"]), str(pattern)) for pattern in more.get("clears") or ())
        of_node = not (old["gpu_uuid"] or old["pci_bus_id"] or old["link"])
        if named and (whole_node or of_node or same_entity(old, about)):
            old["hold"] = False


def _matches(signal: str, pattern: str) -> bool:
    return signal.startswith(pattern[:-1]) if pattern.endswith("*") else signal == pattern


def worst(entries: Iterable[Entry]) -> Entry:
    """The entry that speaks for the incident: most severe, then most often, then earliest."""
    return min(entries, key=lambda e: (rank(e["severity"]), -e["count"], e["since"], str(e["signal"])))


def dump(
    entries: Iterable[Entry], also: Mapping[str, str] | None = None, otherwise: Mapping[str, str] | None = None,
    maintenance: str = "",
) -> str:  # fmt: skip
    """Entries as JSON, worst first, without the keys that say nothing; ``picture`` draws how the value went.

    ``also``: incidents (id → title) that this page speaks for, as a last entry. ``otherwise``: who sees it otherwise
    besides those that the entries name. ``maintenance``: the window that it was told in.
    """
    ordered = sorted(entries, key=lambda e: (rank(e["severity"]), e["since"], str(e["signal"])))
    told = [{k: v for k, v in {**e, "picture": trend.drawn(e["trend"])}.items() if v is not None} for e in ordered]
    if otherwise and told:
        told[0]["disagree"] = {**(told[0].get("disagree") or {}), **otherwise}
    if also and told:
        said = f"{len(also)} more that would page, within the budget of this shift told under this one"
        told.append({"signal": ALSO, "severity": "digest", "message": said, "incidents": dict(also),
                     "since": told[0]["since"], "last": told[0]["last"]})  # fmt: skip
    if maintenance and told:
        told[0]["maintenance"] = maintenance
    return msgspec.json.encode(told).decode()


def load(dumped: Any) -> list[Entry]:  # noqa: ANN401 (text of a row, or the array of ``incident.v1``)
    """Entries back from ``dump``; none where they cannot be read."""
    parsed = [e for e in array(dumped) if isinstance(e, dict)]
    keys = (*_CARRIED, *_EXTRA)
    made = [{**dict.fromkeys(keys), "severity": "digest", "count": 1, "lines": 0, "hold": False, **e} for e in parsed]
    for e in made:
        e["since"], e["last"] = moment(e.get("since")), moment(e.get("last"))
        e["trend"] = [float(v) for v in array(e.get("trend")) if isinstance(v, int | float)]
        for passing in ("picture", "maintenance"):
            e.pop(passing, None)
    return [e for e in made if e["since"] and e["last"]]


def array(value: Any) -> list[Any]:  # noqa: ANN401
    """A JSON array, be it text or read already; empty where it is none."""
    if isinstance(value, str | bytes):
        try:
            value = msgspec.json.decode(value)
        except msgspec.DecodeError:
            return []
    return list(value) if isinstance(value, list | tuple) else []


def moment(value: Any) -> datetime | None:  # noqa: ANN401 (JSON)
    """A time from JSON or a row; none where it is none."""
    if value is None or isinstance(value, datetime):
        return value
    try:
        return msgspec.convert(value, datetime)
    except msgspec.ValidationError:
        return None


def _fold(old: Entry, new: Entry) -> None:
    old["since"] = min(old["since"], new["since"])
    old["trend"] = trend.more(old["trend"], new["value"], old["count"])
    old["count"] += new["count"]
    old["lines"] += new["lines"]
    old["hold"] = old["hold"] or new["hold"]
    if rank(new["severity"]) < rank(old["severity"]):
        old["severity"] = new["severity"]
    latest = new["last"] >= old["last"]
    for key in (*_CARRIED, *_EXTRA):
        if new[key] is not None and (latest or old[key] is None):
            old[key] = new[key]
    old["last"] = max(old["last"], new["last"])
