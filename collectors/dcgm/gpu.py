"""One GPU, or MIG instance, of one exporter: the page's values, held against what came before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from graynode.collectors.dcgm.labels import About
from graynode.collectors.dcgm.values import Number, Refused
from graynode.pipeline.schema import TABLES

Tell = Callable[[str, str, str, str], None]
"""Takes entity, field, state and reason of one change."""

_NEEDS_ECC: Final = ("row_remap", "bank_remap")
_HELD: Final = frozenset(f.name for f in TABLES["gpu"].fields if f.name.endswith("_ns"))
"""Times in which clocks were held."""
_PACE_MAX: Final = 1.1
"""Seconds held back per second: none can grow faster than time; a tenth for when two pages were read."""
_PACE_AFTER_S: Final = 120.0
_PACE_SLACK_S: Final = 60.0
"""The exporter reads every 30 s by default, so a page may hold what happened up to a minute before."""
_VANISHED: Final = Refused(
    "stale", "no longer on the page: the exporter leaves out what DCGM cannot read (N/A is not zero)"
)


class Gpu:
    """Its values on the page that is being read, and the state of each field.

    ``fields`` are those measured on its last page, shared between GPUs that have the same; ``bad`` the state of those
    that were not measured when last met.
    """

    __slots__ = (
        "about", "bad", "entity", "fields", "gone", "inventory", "job", "others", "pace", "page", "refused", "row",
        "series", "told",
    )  # fmt: skip

    def __init__(self, of: About) -> None:
        self.about = of
        self.entity = of.uuid if of.instance is None else f"{of.uuid}/{of.instance}"
        self.page = 0
        self.row: dict[str, Number] = {}
        self.refused: dict[str, Refused] = {}
        self.fields: frozenset[str] = frozenset()
        self.bad: dict[str, str] = {}
        self.pace: dict[str, tuple[Number, float]] = {}
        self.told = self.gone = False
        self.inventory: object = None
        self.series: object = None
        self.job: str | None = None
        self.others: set[str] = set()

    def begin(self, page: int, series: object, job: str | None) -> None:
        """A new page has its first line of this GPU."""
        self.page, self.series, self.job = page, series, job
        self.row, self.refused = {}, {}
        if self.others:
            self.others = set()

    def add_job(self, job: str | None) -> None:
        """Another line of this page names a job; two different ones share the GPU."""
        if self.job is None:
            self.job = job
        elif job is not None and job != self.job:
            self.others.add(job)

    def check(self, at_s: float) -> int:
        """Move what cannot be from ``row`` to ``refused``; how many. ``at_s`` is monotonic."""
        reasons = self._implausible(at_s)
        for name, why in reasons.items():
            del self.row[name]
            self.refused[name] = Refused("implausible", why)
        return len(reasons)

    def _implausible(self, at_s: float) -> dict[str, str]:
        row = self.row
        reasons: dict[str, str] = {}
        if row.get("energy_mj") == 0:
            reasons["energy_mj"] = "0 mJ from a GPU that runs"
        if row.get("ecc_mode") == 0:
            reasons |= {name: "a remap count from a GPU without ECC" for name in row if name.startswith(_NEEDS_ECC)}
        for name in row.keys() & _HELD:
            why = self._too_fast(name, row[name], at_s)
            if why:
                reasons[name] = why
        return reasons

    def _too_fast(self, name: str, value: Number, at_s: float) -> str:
        """Whether a time has grown faster than time: then its unit is another than nanoseconds."""
        since = self.pace.get(name)
        if since is None or value < since[0]:
            self.pace[name] = (value, at_s)
            return ""
        grown_s, passed_s = (value - since[0]) / 1e9, at_s - since[1]
        if grown_s > _PACE_MAX * (passed_s + _PACE_SLACK_S):
            return f"grew by {grown_s:.3g} s in {passed_s:.0f} s: not nanoseconds, or another field"
        if passed_s > _PACE_AFTER_S:
            self.pace[name] = (value, at_s)
        return ""

    def tell_changes(self, whole: bool, shared: Mapping[frozenset[str], frozenset[str]], tell: Tell) -> None:
        """Tell fields whose state is another than when last met. Of a page that was cut nothing is called gone."""
        if not self.told or self.gone:
            tell(self.entity, "*", "measured", "back on the page" if self.told else "first seen")
            self.told, self.gone = True, False
        self._tell_job(tell)
        if not self.refused and not self.bad and self.row.keys() == self.fields:
            return
        for name, refused in self.refused.items():
            self._set(name, refused, tell)
        for name in [name for name in self.bad if name in self.row]:
            del self.bad[name]
            tell(self.entity, name, "measured", "")
        vanished = self.fields - self.row.keys() - self.refused.keys()
        if whole:
            for name in sorted(vanished):
                self._set(name, _VANISHED, tell)
            vanished = frozenset()
        now = frozenset((*self.row, *vanished))
        self.fields = shared.get(now, now)

    def _set(self, name: str, refused: Refused, tell: Tell) -> None:
        if self.bad.get(name) != refused.state:
            self.bad[name] = refused.state
            tell(self.entity, name, *refused)

    def _tell_job(self, tell: Tell) -> None:
        if self.others:
            names = ", ".join(sorted({*self.others, self.job or ""})[:8])
            self.job = None
            self._set("job_id", Refused("error", f"shared by several jobs: {names}"), tell)
        elif "job_id" in self.bad:
            del self.bad["job_id"]
            tell(self.entity, "job_id", "measured", "")
