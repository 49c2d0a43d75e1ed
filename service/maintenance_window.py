"""``graynode maintenance``: times in which receivers are told nothing of a node, a rack, a partition or all of it.

Rows of table ``maintenance``, said like mutes: the latest row of a window counts, and ending one is a row too. What is
found in a window is found and stored; what is still open at its end is told then, and what was told before it and ended
in it is told to be over. View ``maintenance_now`` has the windows for ``detect``, reports and whoever asks.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any, Final

from graynode.collectors.base import utc_now
from graynode.pipeline.queries import quoted
from graynode.pipeline.schema import stable_id
from graynode.service.asker import who
from graynode.service.config import Config, ConfigError
from graynode.service.people import ask, one_node, say
from graynode.service.quiet_windows import Window, window_of
from graynode.service.times import elapsed, instant

_LONGEST: Final = timedelta(days=30)
_AHEAD: Final = timedelta(days=366)
_TEXT: Final = 500
_SHORT: Final = 8


def add(
    config: Config, *, node: str = "", rack: str = "", partition: str = "", all_: bool = False, from_: str = "",
    for_: str = "", why: str = "", by: str = "", now: datetime | None = None,
) -> int:  # fmt: skip
    """Announce a window. ``ConfigError`` where it names nothing that is known, or no time."""
    moment = now or utc_now()
    named = [(scope, name) for scope, name in (("node", node), ("rack", rack), ("partition", partition)) if name]
    named += [("all", "")] if all_ else []
    if len(named) != 1:
        raise ConfigError("say what it is of, one of --node NAME, --rack NAME, --partition NAME, --all")
    if not why.strip():
        raise ConfigError("--why: say it in a few words; whoever reads this later was not there")
    since = instant("--from", from_) if from_ else moment
    if since > moment + _AHEAD:
        raise ConfigError(f"--from {from_}: is more than a year ahead")
    until = since + _length(for_)
    if until <= moment:
        raise ConfigError(f"--from {from_}: the window would have ended at {until:%Y-%m-%d %H:%M} UTC")
    scope, name = named[0]
    row = _about(config, scope, name)
    row |= {"ts": moment, "scope": scope, "since": since, "until": until, "why": why.strip()[:_TEXT], "who": who(by)}
    row["maintenance_id"] = stable_id("maintenance", config.cluster, scope, name, moment.isoformat())
    say(config, [("maintenance", row)], now=moment)
    of = "the whole cluster" if scope == "all" else f"{scope} {name}"
    print(
        f"maintenance {row['maintenance_id'][:_SHORT]} of {of}: {since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} UTC; "
        "receivers are told at its end what is open then"
    )
    return 0


def show(config: Config, *, as_json: bool = False, now: datetime | None = None) -> int:
    """Print the windows that are now or to come, the next to end first."""
    moment = now or utc_now()
    windows = sorted((w for w in known(config) if w.until > moment), key=lambda w: w.until)
    if as_json:
        rows = [
            {"id": w.maintenance_id[:_SHORT], **{k: getattr(w, k) for k in Window.__slots__}, "now": w.holds(moment)}
            for w in windows
        ]
        print(json.dumps(rows, indent=2, default=lambda t: t.isoformat()))
        return 0
    if not windows:
        print("No maintenance is now or announced (what was said in the last seconds is not in the lake yet).")
    for w in windows:
        when = "now" if w.holds(moment) else "to come"
        print(f"{w.maintenance_id[:_SHORT]}  {when:<7} {w.since:%Y-%m-%d %H:%M} to {w.until:%Y-%m-%d %H:%M} UTC")
        print(f"          {_plain(w.of)}: {_plain(w.why)} ({_plain(w.who)})")
    return 0


def end(config: Config, prefix: str, *, why: str = "", by: str = "", now: datetime | None = None) -> int:
    """End a window, or call it off. ``ConfigError`` where no window that lasts begins so."""
    moment = now or utc_now()
    lasting = [w for w in known(config) if w.until > moment]
    found = [w for w in lasting if prefix and w.maintenance_id.startswith(prefix.lower())]
    if len(found) != 1:
        ids = ", ".join(w.maintenance_id[:_SHORT] for w in (found or lasting)[:_SHORT]) or "none"
        said = "no window that lasts begins" if not found else f"{len(found)} windows begin"
        raise ConfigError(f"{said} with {prefix[:60]!r}; there are: {ids}")
    window = found[0]
    row = _about(config, window.scope, window.name)
    row |= {"ts": moment, "scope": window.scope, "since": window.since, "until": moment, "who": who(by)}
    row |= {"maintenance_id": window.maintenance_id, "why": why.strip()[:_TEXT] or window.why}
    say(config, [("maintenance", row)], now=moment)
    print(f"maintenance {window.maintenance_id[:_SHORT]} of {_plain(window.of)} is over")
    return 0


def known(config: Config) -> list[Window]:
    """All windows of the cluster, as the lake has them."""
    rows = ask(config, f"SELECT * FROM maintenance_now WHERE cluster = {quoted(config.cluster)}")  # noqa: S608 (quoted)
    return [w for w in map(window_of, rows) if w is not None]


def _about(config: Config, scope: str, name: str) -> dict[str, Any]:
    """Columns that name what a window is of. Racks and partitions may be new: only nodes are looked up."""
    if scope == "node":
        node_id, node = one_node(config, name)
        return {"node_id": node_id, "node": node, "name": node_id}
    return {"node_id": f"{scope}:{name}" if name else scope, "name": name or None}


def _length(text: str) -> timedelta:
    told = elapsed(text, "smhdw", 4)
    if told is None:
        raise ConfigError(f"--for {text!r}: not a time; write 2h, 1d12h or 3d")
    if not timedelta(0) < told <= _LONGEST:
        raise ConfigError(f"--for {text}: from 1s to {_LONGEST.days}d; announce another for what lasts longer")
    return told


def _plain(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)
