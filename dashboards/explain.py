"""An incident for a person: what was seen, against what, since when, and what to do.

Pure: dicts with the fields of table ``incident`` (or ``incident.v1``) in, rich renderables and texts out. Texts of
an incident come from machines and are shown as they are, never as markup, without control characters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from graynode.dashboards.pieces import clean, from_json, head, label, look_yourself, time

Incident = Mapping[str, Any]

STYLES: Final = {"page": "bold red", "ticket": "yellow", "digest": "dim"}
"""How each severity looks in a terminal."""
_ARRAYS: Final = ("evidence", "finding_ids")
_TIMES: Final = ("ts", "since", "opened_ts", "updated_ts", "resolved_ts", "due_ts")
_SHOWN: Final = 12
"""Entries of evidence shown; the rest is counted, and ``--json`` has it."""


def explain(
    incident: Incident,
    history: Sequence[Incident] = (),
    now: datetime | None = None,
    *,
    said: Sequence[Mapping[str, Any]] = (),
    lake: str = "",
) -> RenderableType:
    """The whole story, readable at 80 columns. ``history`` are its revisions, ``now`` gives ages, ``said`` is what
    people said and who was told (rows with ts, what, who, why), ``lake`` the lake that the line to copy asks.
    """
    told = plain(incident)
    entries, severity = told["evidence"], str(told.get("severity") or "?")
    parts: list[RenderableType] = [
        head(severity, STYLES.get(severity, ""), clean(told.get("title")), _facts(told, now)),
        Text(),
        label("What was seen"),
    ]
    parts += [Padding(_entry(e), (0, 0, 1, 2)) for e in entries[:_SHOWN]]
    if len(entries) > _SHOWN:
        parts.append(Padding(Text(f"and {len(entries) - _SHOWN} more; --json shows all"), (0, 0, 1, 2)))
    if not entries:
        parts.append(Padding(Text("no evidence was kept"), (0, 0, 1, 2)))
    parts += [label("What to do"), Padding(_what_to_do(told), (0, 0, 1, 2))]
    dissent = _dissent(entries)
    if dissent:
        parts += [label("Who sees it otherwise"), Padding(Text(dissent), (0, 0, 1, 2))]
    parts += [label("Since then"), Padding(_story(told, history), (0, 0, 1, 2))]
    if said:
        parts += [label("What was said and told"), Padding(Group(*map(_said, said)), (0, 0, 1, 2))]
    parts.append(_sources(told, lake))
    return Group(*parts)


def one_line(incident: Incident) -> str:
    """One line for a list: severity, title, since when, and the id's beginning."""
    told = plain(incident)
    state = " (resolved)" if told.get("state") == "resolved" else ""
    since = time(told.get("since"))
    return f"{clean(told.get('severity')) or '?':<6} {clean(told.get('title'))}{state}, since {since}  {short_id(told)}"


def short_id(incident: Incident) -> str:
    """Enough of the id to name it to ``graynode explain``."""
    return clean(incident.get("incident_id"))[:8]


def as_json(incident: Incident, history: Sequence[Incident] = ()) -> str:
    """``incident.v1`` with its earlier revisions under ``history``, indented."""
    told = plain(incident) | {"history": [plain(h) for h in history if h.get("revision") != incident.get("revision")]}
    return msgspec.json.format(msgspec.json.encode(told), indent=2).decode()


def plain(incident: Incident) -> dict[str, Any]:
    """Rows and ``incident.v1`` alike: arrays as arrays, times as times (UTC); what cannot be read is none."""
    told = dict(incident)
    for name in _ARRAYS:
        value = told.get(name)
        told[name] = _array(value) if isinstance(value, str) else list(value or [])
    told["evidence"] = [e for e in told["evidence"] if isinstance(e, dict)]
    for name in _TIMES:
        told[name] = _moment(told.get(name))
    return told


def _facts(told: Incident, now: datetime | None) -> Iterable[tuple[str, str]]:
    since = told.get("since")
    age = f" ({_age(now - since)} ago)" if now is not None and since is not None else ""
    yield "node", f"{clean(told.get('node')) or '?'} (machine {clean(told.get('node_id')) or '?'})"
    if told.get("pci_bus_id") or told.get("gpu_uuid"):
        yield "GPU", " ".join(clean(told[k]) for k in ("pci_bus_id", "gpu_uuid") if told.get(k))
    if told.get("link"):
        yield "link", clean(told["link"])
    yield "since", f"{time(since)}{age}"
    yield "state", f"{told.get('state')}, revision {told.get('revision')}, {told.get('count')} findings or events"
    yield "owner", clean(told.get("owner")).replace("_", " ") or "?"
    if told.get("job_id"):
        yield "job", clean(told["job_id"])
    if told.get("due_ts"):
        yield "due", time(told["due_ts"])
    if told.get("wait_basis"):
        yield "waiting", _waiting(told)
    if told.get("grouped_under"):
        yield "part of", clean(told["grouped_under"])
    yield "incident", clean(told.get("incident_id"))


def _waiting(told: Incident) -> str:
    """What a day of waiting is expected to cost, and on what that rests."""
    hours, money = told.get("wait_gpu_h_per_day"), told.get("wait_cost_per_day")
    if hours is None:
        return f"cost unknown: {clean(told['wait_basis'])}"
    cost = f" ({float(money):,.0f} {clean(told.get('currency'))})".replace(" )", ")") if money is not None else ""
    return f"about {float(hours):.3g} GPU-hours a day{cost}: {clean(told['wait_basis'])}"


def _entry(entry: Incident) -> RenderableType:
    lines = [Text(clean(entry.get("message")) or clean(entry.get("signal")))]
    against = _against(entry)
    if against:
        lines.append(Text(against, style="cyan"))
    where = clean(entry.get("link") or entry.get("pci_bus_id") or entry.get("gpu_uuid"))
    times = f"{time(_moment(entry.get('since')))} to {time(_moment(entry.get('last')))}"
    count = int(entry.get("count") or 1)
    seen = f"{times}, {count} times" if count > 1 else time(_moment(entry.get("since")))
    if entry.get("ts_quality"):
        seen += f" (time {clean(entry['ts_quality'])})"
    by = f"{clean(entry.get('detector')) or '?'}/{clean(entry.get('signal')) or '?'}"
    lines.append(Text("  ".join(x for x in (where, seen, f"by {by}") if x), style="dim"))
    if entry.get("picture"):
        lines.append(Text(f"{clean(entry['picture'])}  as it was measured, lowest to highest", style="cyan"))
    if entry.get("raw"):
        lines.append(Text(clean(entry["raw"]), style="dim italic"))
    if entry.get("nodes"):
        lines.append(Text("nodes: " + ", ".join(clean(n) for n in entry["nodes"]), style="dim"))
    return Group(*lines)


def _against(entry: Incident) -> str:
    """The value, the entity's own normal, and the peers'; empty where there is nothing to compare with."""
    unit = clean(entry.get("unit"))
    parts = []
    if entry.get("baseline") is not None:
        parts.append(f"own normal {_number(entry['baseline'])}")
    if entry.get("peer_median") is not None:
        peers = f" of {int(entry['peers'])} peers" if entry.get("peers") else ""
        parts.append(f"median{peers} {_number(entry['peer_median'])}")
    if entry.get("effect") is not None:
        parts.append(f"{abs(float(entry['effect'])) * 100:.1f} % worse")
    if entry.get("score") is not None and entry.get("threshold") is not None:
        parts.append(f"score {_number(entry['score'])} (told from {_number(entry['threshold'])})")
    if entry.get("p_value") is not None:
        parts.append(f"p = {float(entry['p_value']):.2g}")
    if not parts or entry.get("value") is None:
        return ", ".join(parts)
    return f"measured {_number(entry['value'])}{f' {unit}' if unit else ''}; {', '.join(parts)}"


def _what_to_do(told: Incident) -> RenderableType:
    lines = [Text(clean(told.get("action")) or "nothing is known", style="bold")]
    if told.get("next_step"):
        lines.append(Text(f"Then: {clean(told['next_step'])}"))
    if told.get("action_source"):
        lines.append(Text(f"According to: {clean(told['action_source'])}", style="dim"))
    return Group(*lines)


def _dissent(entries: Iterable[Incident]) -> str:
    said: dict[str, str] = {}
    for entry in entries:
        signal = str(entry.get("signal") or "").replace("xid_", "Xid ")
        for who, what in (entry.get("disagree") or {}).items():
            said.setdefault(f"{clean(signal)}: {clean(who)}", clean(what))
        if entry.get("maintenance"):
            said.setdefault("in maintenance", clean(entry["maintenance"]))
    return "\n".join(f"{who}: {what}" for who, what in said.items())


def _story(told: Incident, history: Sequence[Incident]) -> RenderableType:
    revisions = {int(h.get("revision") or 0): plain(h) for h in (*history, told)}
    lines = []
    for number, revision in sorted(revisions.items()):
        what = f"{revision.get('state')}, {revision.get('severity')}, {revision.get('count')} findings or events"
        lines.append(Text(f"{time(revision.get('updated_ts') or revision.get('ts'))}  revision {number}: {what}"))
    return Group(*lines)


def _said(row: Mapping[str, Any]) -> RenderableType:
    why = f": {clean(row['why'])}" if row.get("why") else ""
    return Text(f"{time(row.get('ts'))}  {clean(row.get('what'))} by {clean(row.get('who')) or '?'}{why}")


def _sources(told: Incident, lake: str) -> RenderableType:
    node, since = clean(told.get("node_id")).replace("'", "''"), told.get("since")
    start = f"'{since:%Y-%m-%d %H:%M}'" if since is not None else "now() - INTERVAL 1 DAY"
    # for a person to copy, not a statement that is run here
    sql = f"SELECT * FROM event({start}, now()) WHERE node_id = '{node}' ORDER BY ts"  # noqa: S608
    return look_yourself(sql, lake)


def _number(value: Any) -> str:  # noqa: ANN401 (JSON)
    return f"{float(value):.6g}"


def _age(span: Any) -> str:  # noqa: ANN401 (a timedelta)
    seconds = max(0, int(span.total_seconds()))
    for length, word in ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        if seconds >= length:
            number = seconds // length
            return f"{number} {word}{'s' if number != 1 else ''}"
    return "0 seconds"


def _array(text: str) -> list[Any]:
    parsed = from_json(text)
    return parsed if isinstance(parsed, list) else []


def _moment(value: Any) -> datetime | None:  # noqa: ANN401 (JSON)
    if value is None or isinstance(value, datetime):
        return value
    try:
        return msgspec.convert(value, datetime)
    except msgspec.ValidationError:
        return None
