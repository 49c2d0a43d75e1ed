"""What a running ``detect`` does about its site's thresholds: take up an accepted set, leave the shadow, see drift."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

import structlog

from graynode.detectors.drift import Drift, over_budget
from graynode.pipeline.lake import Lake
from graynode.pipeline.schema import stable_id
from graynode.service.config import Config
from graynode.service.detect_terms import with_timeout
from graynode.service.healthy_days import midnight
from graynode.service.rounds import Rounds
from graynode.service.site_thresholds import Standing, drift, standing

LOOK: Final = timedelta(seconds=30)
"""From one look for a newly accepted set to the next."""
_HOUR: Final = timedelta(hours=1)
_SETTLED: Final = timedelta(hours=1)
"""After midnight, until yesterday's node-days have landed."""
_LOOKED_BACK: Final = timedelta(days=35)
"""Node-days read by a running role: as far as baselines reach; ``graynode thresholds`` looks further."""
_LISTED: Final = 5
_UNLIKELY: Final = 1e-3


@dataclass(slots=True)
class SiteWatch:
    """Keeps thresholds and shadow of ``rounds`` as the lake says. The cheap look is a table's version."""

    config: Config
    lake: Lake
    clock: Callable[[], datetime]
    _version: int | None = None
    _looked: datetime | None = None
    _judged: datetime | None = None
    _drift_day: datetime | None = None
    _said: str = ""
    _log: Any = field(default_factory=structlog.get_logger)

    def look(self, rounds: Rounds) -> list[dict[str, Any]]:
        """Bring ``rounds`` up to date; gives findings about the thresholds themselves. ``LakeError``: call again."""
        now = self.clock()
        if self._looked is not None and now - self._looked < LOOK:
            return []
        version = self.lake.version("threshold")
        another = version != self._version
        in_time = rounds.shadow and (self._judged is None or now - self._judged >= _HOUR)
        day = midnight(now)
        daily = self._drift_day != day and now - day >= _SETTLED
        found: list[dict[str, Any]] = []
        if another or in_time or daily:
            known = standing(self.config, self.lake, now, now - _LOOKED_BACK)
            self._take_up(rounds, known)
            self._judged = now
            if daily:
                found = self._drift(known, day)
                self._drift_day = day
        self._version, self._looked = version, now
        return found

    def _take_up(self, rounds: Rounds, known: Standing) -> None:
        wanted = with_timeout(known.thresholds, self.config)
        if wanted.digest != rounds.thresholds.digest:
            rounds.use(wanted)
        rounds.shadow = known.shadow
        said = f"{known.thresholds.version}: {'in shadow' if known.shadow else 'live'}: {known.because}"
        if said != self._said:
            mode = "shadow: statistics are stored and not told" if known.shadow else "live"
            self._log.info("thresholds", version=known.thresholds.version, statistics=mode, because=known.because,
                           always_silent=list(rounds.silent), budget=known.budget.text)  # fmt: skip
        self._said = said

    def _drift(self, known: Standing, day: datetime) -> list[dict[str, Any]]:
        return [*self._moved(known, day), *self._over(known, day)]

    def _over(self, known: Standing, day: datetime) -> list[dict[str, Any]]:
        """The budget itself, whatever set is in force: more than it on the healthy node-days since."""
        rate, limit = known.rate, known.budget.per_node_day
        p = over_budget(rate.told, rate.node_days, limit)
        if p > _UNLIKELY:
            return []
        said = f"{rate.told} findings on {rate.node_days:,} healthy node-days are over the budget"
        self._log.warning("the budget is not kept", told=rate.told, node_days=rate.node_days, budget=limit)
        row = _about_thresholds(self.config.cluster, "budget", day)
        row |= {"value": float(rate.told), "baseline": limit * rate.node_days, "p_value": p, "message": said}
        return [row | {"action": "graynode thresholds; label what was told, then fit", "evidence": "[]"}]

    def _moved(self, known: Standing, day: datetime) -> list[dict[str, Any]]:
        moved = drift(known.accepted, known.days, day)
        if not moved:
            return []
        worst = ", ".join(f"{d.key[0]}.{d.key[1]}" for d in moved[:_LISTED])
        self._log.warning("thresholds have drifted", signals=worst, way_out="graynode thresholds fit")
        return [drift_finding(self.config.cluster, moved, day)]


def drift_finding(cluster: str, moved: list[Drift], day: datetime) -> dict[str, Any]:
    """A line of the digest: healthy days are no longer those that the thresholds were made of."""
    first = min(moved, key=lambda d: d.p_value)
    signals = ", ".join(f"{d.key[0]}.{d.key[1]}" for d in moved[:_LISTED])
    return _about_thresholds(cluster, "drift", day) | {
        "value": float(first.above),
        "baseline": first.expected,
        "p_value": first.p_value,
        "message": f"Healthy node-days of the last week are not those that the thresholds were made of: {signals}",
        "action": "Look for what has changed in the fleet; then graynode thresholds fit, and accept",
        "evidence": json.dumps(
            [{"signal": ".".join(map(str, d.key)), "above": d.above, "of": d.node_days, "expected": d.expected,
              "nodes": d.nodes, "p": d.p_value} for d in moved]
        ),
    }  # fmt: skip


def _about_thresholds(cluster: str, signal: str, day: datetime) -> dict[str, Any]:
    return {
        "ts": day,
        "cluster": cluster,
        "node_id": f"cluster:{cluster}",
        "node": f"cluster {cluster}",
        "finding_id": stable_id(cluster, "thresholds", signal, day.isoformat()),
        "detector": "thresholds",
        "version": 1,
        "subject": "cluster",
        "cause": "fleet_shift",
        "signal": signal,
        "unit": "node-days",
        "since": day - timedelta(days=7),
        "severity": "digest",
        "live": True,
    }
