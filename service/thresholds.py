"""``graynode thresholds``: what decides now, what the site's own days say of it, a fit, and putting one in force."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from graynode.collectors.base import utc_now
from graynode.detectors import calibration
from graynode.detectors.calibration import Fitted, Key, Rate, TooFewDays
from graynode.detectors.drift import Drift
from graynode.detectors.node_days import fitted_signals
from graynode.detectors.thresholds import shipped
from graynode.pipeline.lake import Lake, LakeError, LakeTooNew
from graynode.service.asker import who
from graynode.service.config import Config, ConfigError
from graynode.service.healthy_days import HealthyDays, midnight, read
from graynode.service.people import say
from graynode.service.site_thresholds import LOOKED_AT, SHIPPED, Accepted, budget, drift, fleet, sets, standing
from graynode.service.thresholds_print import print_fit, print_standing
from graynode.service.times import past
from graynode.service.wiring import make_lake

WINDOW_S: Final = 30
_NOBODY: Final = "-"
_WHY: Final = 500


def show(config: Config, *, as_json: bool = False, now: datetime | None = None) -> int:
    """What is in force, on which data, against which budget, and whether the site still looks like it."""
    moment, lake = now or utc_now(), make_lake(config)
    try:
        found = standing(config, lake, moment)
        known = sets(lake, config.cluster)
        moved = drift(found.accepted, found.days, moment)
    except (LakeError, LakeTooNew) as error:
        raise ConfigError(f"the lake {config.lake.path} cannot be read: {error}") from error
    if as_json:
        print(json.dumps(_as_json(config, found, known, moved), indent=2, default=str))
    else:
        print_standing(found, known, moved)
    return 0


def fit(config: Config, *, since: str = "", until: str = "", as_json: bool = False, now: datetime | None = None) -> int:
    """Fit thresholds to healthy node-days, judge them on later ones, and keep the set as a candidate.

    0: within the budget. 1: over it, or too few node-days to say; nothing changes then.
    """
    moment = now or utc_now()
    try:
        found, days, limit = _fitted(config, since, until, moment)
    except TooFewDays as short:
        if as_json:
            print(json.dumps({"accepted": False, "healthy_node_days": short.have, "needed": short.need}, indent=2))
        else:
            print(f"graynode thresholds: {_too_few(short)}")
        return 1
    set_id = _set_id(found)
    kept = _keep(config, found, set_id, moment)
    if as_json:
        print(json.dumps({"set_id": set_id, "kept": kept, **fit_json(found, days)}, indent=2, default=str))
    else:
        print_fit(found, days, limit, set_id, kept)
    return 0 if found.accepted else 1


def accept(
    config: Config, wanted: str = "", *, fitted: bool = False, why: str = "", by: str = "", now: datetime | None = None
) -> int:
    """Put a set in force: a candidate or an earlier set by its id, ``shipped``, or one fitted now (``fitted``)."""
    moment = now or utc_now()
    if fitted == bool(wanted):
        raise ConfigError("name a set that 'graynode thresholds' shows, or shipped; or --fitted, to fit and accept now")
    if not why.strip():
        raise ConfigError("--why: say in a few words why these; whoever reads this later was not there")
    rows, set_id = _chosen(config, wanted, fitted, moment)
    _within_budget(set_id, rows)
    said = {"ts": moment, "node_id": _NOBODY, "state": "accepted", "who": who(by), "why": why.strip()[:_WHY]}
    say(config, [("threshold", {**row, **said}) for row in rows], now=moment)
    print(f"set {set_id} is accepted: {len(rows)} thresholds; a running detect takes it up within a minute or so")
    return 0


def _fitted(config: Config, since: str, until: str, now: datetime) -> tuple[Fitted, HealthyDays, Any]:
    lake = make_lake(config)
    begin = past("--since", since, now) if since else now - LOOKED_AT
    end = midnight(past("--until", until, now))
    if begin >= end:
        raise ConfigError(f"--since {begin:%Y-%m-%d}: is not before the end, {end:%Y-%m-%d}; only whole days count")
    try:
        days = read(lake, config.cluster, midnight(begin), end, WINDOW_S)
        limit = budget(config, fleet(lake, config.cluster, now))
    except (LakeError, LakeTooNew) as error:
        raise ConfigError(f"the lake {config.lake.path} cannot be read: {error}") from error
    if not days.whole:
        raise ConfigError(
            f"the lake {config.lake.path} has no whole node-day of cluster {config.cluster!r} since {begin:%Y-%m-%d}; "
            "graynode detect writes them at the end of each day (UTC)"
        )
    own = fitted_signals(shipped(), WINDOW_S)
    return calibration.fit(days.maxima, own, limit.per_node_day, in_force=days.in_force), days, limit


def _keep(config: Config, found: Fitted, set_id: str, now: datetime) -> str:
    """Publish the candidate; an empty text, or why it could not be kept."""
    rows = rows_of(found, set_id, now)
    try:
        say(config, [("threshold", {**row, "node_id": _NOBODY}) for row in rows], now=now)
    except ConfigError as error:
        return str(error)
    return ""


def rows_of(found: Fitted, set_id: str, now: datetime) -> list[dict[str, Any]]:
    """A fit as rows of table ``threshold``, candidates."""
    base = shipped()
    shared = {
        "ts": now, "set_id": set_id, "state": "candidate", "hash": found.digest, "budget": found.budget,
        "upper_bound": found.judged.upper, "node_days": float(found.judged.node_days), "provisional": False,
        "data_since": _start(found.proposed_on[0]), "data_until": _start(found.judged_on[1]) + timedelta(days=1),
    }  # fmt: skip
    return [
        {**shared, "detector": key[0], "signal": key[1], "window_s": key[2], "value": value,
         "usual_most": found.usual_most.get(key), "unit": base.rows[key].unit if key in base.rows else None}
        for key, value in sorted(found.values.items())
    ]  # fmt: skip


def _chosen(config: Config, wanted: str, fitted: bool, now: datetime) -> tuple[list[dict[str, Any]], str]:
    if fitted:
        try:
            found, _, _ = _fitted(config, "", "", now)
        except TooFewDays as short:
            raise ConfigError(_too_few(short)) from short
        set_id = _set_id(found)
        return rows_of(found, set_id, now), set_id
    if wanted == SHIPPED:
        return _shipped_rows(now), f"{SHIPPED}-{shipped().digest[:8]}"
    known = _sets(config)
    ids = {s.set_id for s in known if s.set_id.startswith(wanted)}
    if len(ids) != 1:
        there = ", ".join(sorted({s.set_id for s in known})) or "none yet: graynode thresholds fit"
        many = f"{len(ids)} sets begin" if ids else "no set begins"
        raise ConfigError(f"{many} with {wanted!r}; there are {there}; shipped is always there")
    chosen = next(s for s in known if s.set_id in ids)
    return chosen.rows.drop("ts", "cluster").to_dicts(), chosen.set_id


def _within_budget(set_id: str, rows: list[dict[str, Any]]) -> None:
    """A fit that its own judging days do not bear is not put in force: that is what they are for."""
    bound, limit = rows[0].get("upper_bound"), rows[0].get("budget")
    if bound is not None and limit is not None and bound > limit:
        raise ConfigError(
            f"set {set_id} is not accepted: up to {bound:.2g} false findings a node-day on its judging days, over its "
            f"budget of {limit:.2g}; see with 'graynode thresholds fit' which node-days set it, label those that were "
            "sick, wait for more days, or raise the budget"
        )


def _shipped_rows(now: datetime) -> list[dict[str, Any]]:
    base = shipped()
    shared = {"ts": now, "set_id": f"{SHIPPED}-{base.digest[:8]}", "hash": base.digest}
    own = fitted_signals(base, WINDOW_S)
    return [
        {**shared, "detector": d, "signal": s, "window_s": w, "value": value, "unit": base.rows[d, s, w].unit,
         "provisional": base.rows[d, s, w].provisional}
        for (d, s, w), value in sorted(own.items())
    ]  # fmt: skip


def _sets(config: Config, lake: Lake | None = None) -> list[Accepted]:
    try:
        return sets(lake or make_lake(config), config.cluster)
    except (LakeError, LakeTooNew) as error:
        raise ConfigError(f"the lake {config.lake.path} cannot be read: {error}") from error


def _set_id(found: Fitted) -> str:
    """Of values and data: the same fit has the same id."""
    values = [[*key, value] for key, value in sorted(found.values.items())]
    return hashlib.sha256(json.dumps([values, found.digest, found.budget]).encode()).hexdigest()[:12]


def _too_few(short: TooFewDays) -> str:
    if short.have < short.need:
        return (
            f"{short.have:,} healthy node-days are too few: {short.need:,} without a false finding certify the budget, "
            f"and some before them propose; {short.need - short.have:,} more are needed at least"
        )
    return f"{short.have:,} healthy node-days of {short.days} days: one more is needed, for no day proposes and judges"


def _start(day: date) -> datetime:
    return datetime.combine(day, datetime.min.time(), UTC)


def fit_json(found: Fitted, days: HealthyDays) -> dict[str, Any]:
    """A fit for a machine."""
    return {
        "accepted": found.accepted,
        "budget_per_node_day": found.budget,
        "judged": rate_json(found.judged),
        "proposed_on": found.proposed_on,
        "judged_on": found.judged_on,
        "proposed_node_days": found.proposed_node_days,
        "hash": found.digest,
        "values": values_json(found.values),
        "capped": [".".join(map(str, key)) for key in found.capped],
        "whole_node_days": days.whole,
        "left_out": dict(days.left_out),
        "unjudged": days.unjudged,
        "top": found.top.to_dicts(),
    }


def rate_json(rate: Rate) -> dict[str, Any]:
    """A false rate for a machine."""
    names = ("told", "node_days", "nodes", "days", "rate", "upper", "by")
    return {name: getattr(rate, name) for name in names}


def values_json(values: Mapping[Key, float]) -> list[dict[str, Any]]:
    """Thresholds for a machine."""
    return [{"detector": d, "signal": s, "window_s": w, "value": v} for (d, s, w), v in sorted(values.items())]


def _as_json(config: Config, found: Any, known: list[Accepted], moved: list[Drift]) -> dict[str, Any]:  # noqa: ANN401 (a Standing)
    return {
        "cluster": config.cluster,
        "version": found.thresholds.version,
        "hash": found.thresholds.digest,
        "accepted": found.accepted.set_id if found.accepted else None,
        "shadow": found.shadow,
        "because": found.because,
        "budget_per_node_day": found.budget.per_node_day,
        "budget_per_week": found.budget.per_week if found.budget.nodes else None,
        "measured": rate_json(found.rate),
        "needed": calibration.needed(found.budget.per_node_day),
        "left_out": dict(found.days.left_out),
        "unjudged": found.days.unjudged,
        "drift": [{"signal": ".".join(map(str, d.key)), "above": d.above, "expected": d.expected, "nodes": d.nodes,
                   "p_value": d.p_value} for d in moved],
        "thresholds": [
            {"detector": r.detector, "signal": r.signal, "window_s": r.window_s, "value": r.value, "unit": r.unit,
             "source": r.source, "provisional": r.provisional}
            for r in found.thresholds.rows.values()
        ],
        "sets": [{"set_id": s.set_id, "state": s.state, "ts": s.at, "who": s.who, "why": s.why,
                  "upper_bound": s.first("upper_bound"), "node_days": s.first("node_days"), "hash": s.first("hash"),
                  "values": values_json(s.values)} for s in known],
    }  # fmt: skip
