"""An incident as a message for people: what, where, since when, why we think so, what to do, the command to look.

Plain text. Every word of an incident comes from machines: control characters go, and what chat services read as a
mention, a tag or a link of their own is written so that they do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

import msgspec

from graynode.responders.base import Incident, Kind

_ENTRIES: Final = 3
_LINES: Final = 20
_LONGEST: Final = 400
_TITLE: Final = 200
_HARMLESS: Final = str.maketrans({"<": "‹", ">": "›", "@": "＠", "`": "'", "|": "¦"})
"""Slack's ``<!channel>`` and ``<http://…|text>``, ``@everyone`` elsewhere, and code marks."""


@dataclass(frozen=True, slots=True)
class Links:
    """Where a person finds more: the status page, and a runbook's address with ``{cause}`` in it. Empty: no link."""

    page_url: str = ""
    runbook_url: str = ""

    def incident(self, incident: Mapping[str, Any]) -> str:
        """The incident's page."""
        return self._below(self.page_url, "incidents", incident.get("incident_id"))

    def node(self, incident: Mapping[str, Any]) -> str:
        """The node's page."""
        return self._below(self.page_url, "nodes", incident.get("node"))

    def runbook(self, incident: Mapping[str, Any]) -> str:
        """What to do about such a cause."""
        cause = quote(clean(incident.get("cause")), safe="")
        return self.runbook_url.format(cause=cause) if self.runbook_url and cause else ""

    def _below(self, base: str, folder: str, name: object) -> str:
        return f"{base.rstrip('/')}/{folder}/{quote(str(name), safe='')}" if base and name else ""


def clean(value: object, most: int = _LONGEST) -> str:
    """A machine's text on one line, harmless to a terminal and to a chat service; empty for none."""
    if value is None:
        return ""
    text = " ".join("".join(c if c.isprintable() else " " for c in str(value)).split()).translate(_HARMLESS)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def title(incident: Incident, kind: Kind = "revision") -> str:
    """One line: how urgent, what it is, and whether it is over."""
    severity = clean(incident.get("severity")).upper() or "INCIDENT"
    what = clean(incident.get("title"), _TITLE) or clean(incident.get("cause"))
    if kind == "canary":
        return "graynode canary: the way to here works"
    if kind == "reminder":
        return f"STILL OPEN, not taken: {severity} {what}"
    word = {"resolved": "RESOLVED", "updated": f"{severity} (more)"}.get(str(incident.get("state")), severity)
    return f"{word} {what}"


def body(incident: Incident, where: Mapping[str, str], links: Links) -> str:
    """Where, since when, why, what to do, how to look. ``where`` has what the caller knows: rack, partition."""
    if str(incident.get("state")) == "resolved":
        parts = [_where(incident, where), _since(incident)]
    else:
        parts = [_where(incident, where), _since(incident), _why(incident), _to_do(incident), _cost(incident)]
    return "\n".join(part for part in (*parts, _look(incident, links)) if part)


def many(incidents: Sequence[Incident], why: str, links: Links) -> tuple[str, str]:
    """Title and body of one message about many: the worst first, at most twenty lines, the rest counted."""
    order = {"page": 0, "ticket": 1, "digest": 2}
    ranked = sorted(incidents, key=lambda i: (order.get(str(i.get("severity")), 0), str(i.get("since"))))
    lines = [_line(i) for i in ranked[:_LINES]]
    if len(ranked) > _LINES:
        lines.append(f"and {len(ranked) - _LINES} more")
    lines.append("Look: graynode explain ID" + (f", or {links.page_url}" if links.page_url else ""))
    counted = f"{len(ranked)} incident{'s' if len(ranked) != 1 else ''}"
    return f"{counted} ({clean(why)})", "\n".join(lines)


def moment(value: object) -> datetime | None:
    """A time of ``incident.v1``; none where it cannot be read."""
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    try:
        return datetime.fromisoformat(str(value)).astimezone(UTC) if value else None
    except ValueError:
        return None


def evidence(incident: Incident) -> list[dict[str, Any]]:
    """Entries of evidence, from ``incident.v1`` and from the table's row alike."""
    found = incident.get("evidence")
    if isinstance(found, str):
        try:
            found = msgspec.json.decode(found)
        except (msgspec.DecodeError, RecursionError):
            return []
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


def why(incident: Incident, most: int = _ENTRIES) -> Iterable[str]:
    """One line an entry of evidence: what was seen, against what."""
    for entry in evidence(incident)[:most]:
        against = [_against(entry, key, word) for key, word in (("value", "measured"), ("baseline", "own normal"))]
        against.append(_against(entry, "peer_median", f"median of {clean(entry.get('peers')) or '?'} peers"))
        told = clean(entry.get("message")) or clean(entry.get("signal"))
        compared = ", ".join(a for a in against if a) if entry.get("value") is not None else ""
        count = entry.get("count")
        times = f" ({count} times)" if isinstance(count, int) and count > 1 else ""
        yield f"{told}{times}{f': {compared}' if compared else ''}"


def _against(entry: Mapping[str, Any], key: str, word: str) -> str:
    value = entry.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    unit = clean(entry.get("unit")) if key == "value" else ""
    return f"{word} {value:.6g}{f' {unit}' if unit else ''}"


def _where(incident: Incident, where: Mapping[str, str]) -> str:
    told = [
        ("node", clean(incident.get("node") or incident.get("node_id"))),
        ("GPU", clean(incident.get("pci_bus_id") or incident.get("gpu_uuid"))),
        ("link", clean(incident.get("link"))),
        *((name, clean(value)) for name, value in sorted(where.items())),
        ("job", clean(incident.get("job_id"))),
        ("cluster", clean(incident.get("cluster"))),
    ]
    return "Where: " + ", ".join(f"{name} {value}" for name, value in told if value)


def _since(incident: Incident) -> str:
    since, over = moment(incident.get("since")), moment(incident.get("resolved_ts"))
    text = f"Since: {since:%Y-%m-%d %H:%M} UTC" if since else ""
    return f"{text}; over at {over:%Y-%m-%d %H:%M} UTC".lstrip("; ") if over else text


def _why(incident: Incident) -> str:
    lines = list(why(incident))
    return "\n".join(["Why we think so:", *(f"- {line}" for line in lines)]) if lines else ""


def _to_do(incident: Incident) -> str:
    action, then = clean(incident.get("action")), clean(incident.get("next_step"))
    parts = [action] if action else []
    parts += [f"Then: {then}"] if then and then != action else []
    due, owner = moment(incident.get("due_ts")), clean(incident.get("owner")).replace("_", " ")
    whose = f" Owner: {owner}{f', until {due:%Y-%m-%d %H:%M} UTC' if due else ''}." if owner else ""
    return f"What to do: {' '.join(parts)}{whose}" if parts or whose else ""


def _cost(incident: Incident) -> str:
    hours = incident.get("wait_gpu_h_per_day")
    if isinstance(hours, bool) or not isinstance(hours, int | float):
        return ""
    return f"A day of waiting: about {hours:.3g} GPU-hours ({clean(incident.get('wait_basis'))})"


def _look(incident: Incident, links: Links) -> str:
    known = (links.incident(incident), links.runbook(incident))
    look = f"Look: graynode explain {clean(incident.get('incident_id'))[:8]}"
    return "\n".join([look, *(url for url in known if url)])


def _line(incident: Incident) -> str:
    since = moment(incident.get("since"))
    over = " (over)" if incident.get("state") == "resolved" else ""
    begun = f", since {since:%Y-%m-%d %H:%M} UTC" if since else ""
    short = clean(incident.get("incident_id"))[:8]
    return f"- {clean(incident.get('severity'))}: {clean(incident.get('title'), _TITLE)}{over}{begun} [{short}]"
