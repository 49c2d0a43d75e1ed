"""``graynode routes test``: who would be told of an incident, how and why, without telling anybody."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TextIO

from graynode.collectors.base import utc_now
from graynode.pipeline.schema import CAUSES, OWNERS, SEVERITIES
from graynode.responders.hours import next_digest
from graynode.responders.message import clean
from graynode.responders.routes import Decision
from graynode.service.config import Config, ConfigError
from graynode.service.respond_config import make_routes
from graynode.service.respond_tables import Receiver
from graynode.service.times import instant

_ALLOWED = {"severity": SEVERITIES, "cause": CAUSES, "owner": OWNERS}


def look(
    config: Config, incident: str = "", *, said: Mapping[str, str], at: str = "", as_json: bool = False,
    out: TextIO | None = None, now: datetime | None = None,
) -> int:  # fmt: skip
    """Print each route and whether it fits, then each receiver and what it would hear. 0; 1 where nobody is told.

    ``incident``: an id or its beginning, looked up with its place; without it ``said`` describes one (``severity``,
    ``cause``, ``owner``, ``cluster``, ``partition``, ``rack``).
    """
    sink, moment = out or sys.stdout, instant("--at", at) if at else now or utc_now()
    about, place = _about(config, incident, said)
    routes = make_routes(config.respond)
    decisions = routes.decide(about, place, moment)
    fits = [(route.name, route.misfit(about, place)) for route in routes.routes]
    if as_json:
        told = [_plain(d, config.respond.receivers[d.receiver], moment) for d in decisions]
        answer = {"routes": [{"route": n, "misfit": why or None} for n, why in fits], "receivers": told}
        print(json.dumps(answer, indent=2), file=sink)
        return 0 if decisions else 1
    words = ", ".join(f"{k} {clean(v)}" for k, v in {**_shown(about), **place}.items() if v)
    print(f"An incident of {words}:", file=sink)
    for name, why in fits:
        print(f"  {name}: {f'no, {clean(why)}' if why else 'fits'}", file=sink)
    for decision in decisions:
        one = _plain(decision, config.respond.receivers[decision.receiver], moment)
        print(f"{one['receiver']}: {one['how']} ({clean(one['why'])})", file=sink)
    for name in sorted(set(config.respond.receivers) - {d.receiver for d in decisions}):
        print(f"{name}: nothing", file=sink)
    if not decisions:
        print("Nobody is told of it; it is found and stored all the same.", file=sink)
    return 0 if decisions else 1


def _about(config: Config, incident: str, said: Mapping[str, str]) -> tuple[dict[str, Any], Mapping[str, str]]:
    place = {k: said[k] for k in ("partition", "rack") if said.get(k)}
    if not incident:
        for key, allowed in _ALLOWED.items():
            if said.get(key) and said[key] not in allowed:
                raise ConfigError(f"--{key} {said[key]!r}: there is none such; there are {', '.join(allowed)}")
        told = {k: said.get(k, "") for k in _ALLOWED} | {"cluster": said.get("cluster") or config.cluster}
        if not told["severity"]:
            raise ConfigError(
                "name an incident, or describe one: --severity page, --cause, --owner, --partition, --rack"
            )
        return told, place
    from graynode.service.people import one_incident
    from graynode.service.respond_places import Places, from_lake

    found = one_incident(config, incident)
    places = Places(from_lake(config))
    places.start(wait_s=30.0)
    places.stop()
    return found, {**places(found), **place}


def _shown(about: Mapping[str, Any]) -> dict[str, Any]:
    return {k: about.get(k) for k in ("severity", "cause", "owner", "cluster", "node")}


def _plain(decision: Decision, terms: Receiver, now: datetime) -> dict[str, str]:
    how = {"page": "at once, as a page", "ticket": "at once, as a ticket"}.get(decision.deliver)
    if how is None:
        due = next_digest(now, terms.digest_at, terms.timezone)
        how = f"in the digest of {due:%Y-%m-%d %H:%M} UTC"
    elif decision.held_until is not None:
        how = f"after quiet hours, at {decision.held_until:%Y-%m-%d %H:%M} UTC"
    elif decision.deliver == "page" and terms.remind_h:
        how += f", again every {terms.remind_h:g} h, {terms.reminders} times at most, until it is taken"
    return {"receiver": decision.receiver, "deliver": decision.deliver, "how": how, "why": decision.route}
