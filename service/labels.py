"""``graynode label``, ``ack``, ``mute`` and ``repair``: what people know, said so that it stays.

A label is a verdict and teaches nothing: no detector reads it. It measures (``graynode label --summary``), and it says
of a node-day whether it may stand behind a threshold (``graynode thresholds fit`` counts what it leaves out).
"""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta
from typing import Any, Final

from graynode.collectors.base import utc_now
from graynode.service.asker import who
from graynode.service.config import Config, ConfigError
from graynode.service.people import known_gpu, one_incident, one_node, say
from graynode.service.times import elapsed, past

VERDICTS: Final = ("true", "false", "unsure")
_WEEK: Final = re.compile(r"([0-9]{4})-W([0-9]{2})")
_TEXT: Final = 500
_LONGEST_MUTE: Final = timedelta(days=90)


Said = tuple[str, dict[str, Any], str]
"""Table, row, and what to tell the person: the command line and the HTTP API send and show the same."""


def label(config: Config, about: str, verdict: str, *, why: str, by: str = "", now: datetime | None = None) -> int:
    """A verdict on an incident (its id or the beginning of it), or on a node in a period: ``node001@2026-W48``."""
    return _tell(config, label_row(config, about, verdict, why=why, by=by, now=now))


def label_row(config: Config, about: str, verdict: str, *, why: str, by: str = "", now: datetime | None = None) -> Said:
    """The same, not yet sent."""
    if verdict not in VERDICTS:
        raise ConfigError(f"verdict {verdict!r}: one of {', '.join(VERDICTS)}")
    row: dict[str, Any] = {"ts": now or utc_now(), "verdict": verdict, "why": _text("--why", why), "who": who(by)}
    if "@" in about:
        name, _, period = about.rpartition("@")
        node_id, node = one_node(config, name)
        row |= {"node_id": node_id, "node": node, "period": checked_period(period)}
        what = f"{node or node_id} in {period}"
    else:
        incident = one_incident(config, about)
        row |= {key: incident.get(key) for key in ("node_id", "node", "incident_id")}
        what = f"incident {incident['incident_id'][:8]} ({incident['title'] or incident['cause']})"
    return "label", row, f"{what}: {verdict}, says {row['who']}"


def ack(config: Config, about: str, *, why: str = "", by: str = "", now: datetime | None = None) -> int:
    """Somebody has taken the incident: receivers hear of it again when it gets worse and when it is over."""
    return _tell(config, ack_row(config, about, why=why, by=by, now=now))


def ack_row(config: Config, about: str, *, why: str = "", by: str = "", now: datetime | None = None) -> Said:
    """The same, not yet sent."""
    incident = one_incident(config, about)
    if incident["state"] == "resolved":
        raise ConfigError(f"incident {incident['incident_id'][:8]} is over since {incident['resolved_ts']}; label it")
    row = {key: incident.get(key) for key in ("node_id", "node", "incident_id")}
    row |= {"ts": now or utc_now(), "who": who(by), "why": why[:_TEXT] or None}
    said = f"incident {incident['incident_id'][:8]} is taken by {row['who']}; it is told again if it gets worse"
    return "ack", row, said


def mute(
    config: Config, name: str, *, for_: str = "", why: str = "", end: bool = False, by: str = "",
    now: datetime | None = None,
) -> int:  # fmt: skip
    """Receivers are told nothing of a node for a while, or (``end``) are told again."""
    return _tell(config, mute_row(config, name, for_=for_, why=why, end=end, by=by, now=now))


def mute_row(
    config: Config, name: str, *, for_: str = "", why: str = "", end: bool = False, by: str = "",
    now: datetime | None = None,
) -> Said:  # fmt: skip
    """The same, not yet sent."""
    if end == bool(for_):
        raise ConfigError("say how long: --for 2d, 12h or 1d12h; or --end, and the node is heard again")
    moment = now or utc_now()
    until = moment if end else moment + duration(for_)
    node_id, node = one_node(config, name)
    row = {"ts": moment, "node_id": node_id, "node": node, "until": until, "who": who(by)}
    row["why"] = why[:_TEXT] or None if end else _text("--why", why)
    said = "is heard again" if end else f"is muted until {until:%Y-%m-%d %H:%M} UTC; what is found is stored"
    return "mute", row, f"{node or node_id} {said}"


def _tell(config: Config, said: Said) -> int:
    table, row, sentence = said
    say(config, [(table, row)], now=row["ts"])
    print(sentence)
    return 0


def repair(
    config: Config, name: str, *, what: str, at: str = "", gpu: str = "", incident: str = "", by: str = "",
    now: datetime | None = None,
) -> int:  # fmt: skip
    """A repair: open incidents of the node end, and what its GPUs can do is learned anew from then on."""
    moment = now or utc_now()
    node_id, node = one_node(config, name)
    row: dict[str, Any] = {"ts": past("--at", at, moment), "node_id": node_id, "node": node, "logged_ts": moment}
    row |= {"what": _text("--what", what), "who": who(by)}
    row["gpu_uuid"] = known_gpu(config, node_id, node, gpu) if gpu else None
    if incident:
        row["incident_id"] = _incident_of(config, incident, node_id, node)
    say(config, [("repair", row)], now=moment)
    of = f" of {gpu}" if gpu else ""
    print(f"repair{of} of {node or node_id} at {row['ts']:%Y-%m-%d %H:%M} UTC is logged; its past begins anew there")
    return 0


def _incident_of(config: Config, about: str, node_id: str, node: str | None) -> str:
    """The incident's id; ``ConfigError`` where it is another node's."""
    found = one_incident(config, about)
    if found["node_id"] != node_id:
        of = found["node"] or found["node_id"]
        raise ConfigError(f"--incident {about}: is about {of}, not {node or node_id}; leave it out, or name {of}")
    return str(found["incident_id"])


def duration(text: str) -> timedelta:
    """``2d``, ``12h``, ``1d12h``; ``ConfigError`` where it is none, or longer than three months."""
    told = elapsed(text, "smhdw", 4)
    if told is None:
        raise ConfigError(f"--for {text}: not a time; write 2d, 12h or 1d12h")
    if not timedelta(0) < told <= _LONGEST_MUTE:
        raise ConfigError(f"--for {text}: from 1s to {_LONGEST_MUTE.days}d; say it again when that is over")
    return told


def checked_period(text: str) -> str:
    """An ISO week (``2026-W48``) or a day; ``ConfigError`` for anything else."""
    week = _WEEK.fullmatch(text)
    try:
        if week:
            date.fromisocalendar(int(week[1]), int(week[2]), 1)
            return text
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise ConfigError(f"@{text}: a week such as 2026-W48, or a day such as 2026-11-20") from None


def _text(option: str, text: str) -> str:
    if not text.strip():
        raise ConfigError(f"{option}: say it in a few words; whoever reads this later was not there")
    return text.strip()[:_TEXT]
