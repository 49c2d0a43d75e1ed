"""After an import: who is to be looked at first, why, and what could not be judged.

Two questions are asked of the imported hours: what has changed (the detectors, in the order of time, over the last
part of it, the rest being what is normal) and who is worse than its peers now (``imports.levels``).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import polars as pl

from graynode.detectors import make
from graynode.detectors.accumulate import TAU
from graynode.detectors.base import TOLD
from graynode.detectors.event_rules import from_events, is_clearing
from graynode.detectors.gpu_words import named
from graynode.pipeline.lake import Lake
from graynode.service.imports.levels import COLUMNS, Level, Levels
from graynode.service.prometheus.answer import plain
from graynode.service.prometheus.importing import Found
from graynode.service.prometheus.wanted import GPU, NODE
from graynode.service.prometheus.xid import NAMES as XID_NAMES
from graynode.service.rounds import Rounds

DETECTORS: Final = ("rules", "ecc", "links", "pcie", "slow", "thermal")
"""Those whose evidence imported hours can hold. ``blind`` would speak of every gap of the server, ``forest`` never
names anybody alone."""
_JUDGED_PART: Final = 3
_MOST_JUDGED: Final = timedelta(days=14)
_LEAST_JUDGED: Final = timedelta(hours=12)
_LAST_DAYS: Final = (7, 2)
_MINUTE: Final = "%Y-%m-%d %H:%M"
_SHOWN: Final = 20
_REASONS_SHOWN: Final = 3
_STATISTICS: Final = ("slow", "thermal")
_LASTING_H: Final = 6
"""Hours in which a statistical detector has to tell a thing before it counts in full: thresholds of hour windows are
provisional, and a past of days is short."""
_STRONG: Final = 1.0
_WEAK_SHOWN: Final = 5
_SEVERITY_WEIGHT: Final = {"page": 3.0, "ticket": 2.0, "digest": 1.0}


@dataclass(slots=True)
class Suspect:
    """One GPU, link or node, and what speaks against it, each with a weight that ranks it."""

    name: str
    node: str
    reasons: list[tuple[float, str]] = field(default_factory=list)

    @property
    def weight(self) -> float:
        """The strongest reason counts, each further one a little."""
        ordered = sorted((w for w, _ in self.reasons), reverse=True)
        return ordered[0] + 0.1 * sum(min(w, 1.0) for w in ordered[1:]) if ordered else 0.0


@dataclass(slots=True)
class Judged:
    """What the imported hours say."""

    suspects: list[Suspect]
    gpus: int
    gpu_hours: int
    shared: list[str]
    """Findings about many at once: a job, a driver, the cluster."""
    jobs_known: bool
    models: list[str]


def judge(lake: Lake, cluster: str, start: datetime, end: datetime) -> Judged:
    """Everything above, over the cluster's hours in that time. ``LakeError`` where it cannot be read."""
    levels, seen = Levels(), _Seen()
    for day in _days(start, end):
        hours = _hours(lake, cluster, day, min(day + timedelta(days=1), end))
        seen.add(hours)
        levels.add(hours)
    suspects: dict[tuple[str, str], Suspect] = {}
    span_d = (end - start) / timedelta(days=1) / _JUDGED_PART
    for level in levels.found([max(1, min(days, round(span_d))) for days in _LAST_DAYS]):
        _suspect(suspects, seen, level.node_id, level.key).reasons.append(_of_level(level))
    shared = _of_findings(_findings(lake, cluster, start, end), suspects, seen, levels)
    _ended(suspects, seen, end)
    ranked = sorted(suspects.values(), key=lambda s: (-s.weight, s.name))
    return Judged(ranked, len(seen.gpus), seen.hours, shared, seen.jobs, sorted(seen.models))


def _days(start: datetime, end: datetime) -> Iterator[datetime]:
    at = start.replace(hour=0, minute=0, second=0, microsecond=0)
    while at < end:
        yield at
        at += timedelta(days=1)


_KEPT: Final = (
    "ts", "cluster", "node_id", "node", "boot_id", "gpu_uuid", "mig_instance", "gpu_index", "gpu_model_last",
    "pci_bus_id_last", "job_id_last", "job_role_last", *COLUMNS,
)  # fmt: skip


def _hours(lake: Lake, cluster: str, since: datetime, until: datetime) -> pl.DataFrame:
    rows = lake.read("gpu_1h", since, until, list(dict.fromkeys(_KEPT)))
    return rows.filter(pl.col("cluster") == cluster)


@dataclass(slots=True)
class _Seen:
    """Who was there: names, and when each was seen last."""

    gpus: dict[str, tuple[str, str, datetime]] = field(default_factory=dict)
    nodes: dict[str, tuple[str, datetime]] = field(default_factory=dict)
    models: set[str] = field(default_factory=set)
    hours: int = 0
    jobs: bool = False

    def add(self, hours: pl.DataFrame) -> None:
        self.hours += hours.height
        self.jobs = self.jobs or hours["job_id_last"].null_count() < hours.height
        self.models |= set(hours["gpu_model_last"].drop_nulls().unique())
        newest = hours.sort("ts").group_by("gpu_uuid").last()
        for row in newest.iter_rows(named=True):
            node, ts = row["node"] or row["node_id"], row["ts"]
            name = f"{named(row['gpu_index'], row['pci_bus_id_last'], row['gpu_uuid'])} on {node}"
            self.gpus[row["gpu_uuid"]] = (name, row["node_id"], ts)
            before = self.nodes.get(row["node_id"])
            self.nodes[row["node_id"]] = (node, max(ts, before[1]) if before else ts)


def _suspect(suspects: dict[tuple[str, str], Suspect], seen: _Seen, node_id: str, key: str) -> Suspect:
    """The suspect of that GPU, port or (``key`` empty) node, made at its first reason."""
    node = seen.nodes.get(node_id, (node_id, None))[0]
    uuid = key.partition("/")[0]
    name = seen.gpus[uuid][0] if uuid in seen.gpus else f"{key} on {node}" if key else f"node {node}"
    return suspects.setdefault((node_id, key), Suspect(name, node))


def _of_level(level: Level) -> tuple[float, str]:
    against = ""
    if level.value is not None and level.peer_median is not None:
        against = f" ({level.value:,.0f} against {level.peer_median:,.0f} {level.unit})"
    since = datetime.fromtimestamp(level.since_day * 86400, UTC)
    of = (
        f"{level.hours:,} hours, {level.peers:,} compared, p = {level.p:.0e}"
        if level.peers
        else f"{level.hours:,} hours"
    )
    said = f"{level.words}{against}; {of}, since {since:%Y-%m-%d}"
    return _SEVERITY_WEIGHT["ticket"] + min(level.weight, 9.0) / 10.0, said


# --- what has changed ----------------------------------------------------------------------------------------


def _findings(lake: Lake, cluster: str, start: datetime, end: datetime) -> list[Mapping[str, Any]]:
    """All told findings of the last part of the time; those of events come last."""
    since = end - min(max((end - start) / _JUDGED_PART, _LEAST_JUDGED), _MOST_JUDGED)
    since = max(since.replace(minute=0, second=0, microsecond=0), start)
    rounds = Rounds(lake, cluster, {name: make(name) for name in DETECTORS}, window="1h")
    rounds.prime(since)
    found: list[Mapping[str, Any]] = []
    for day in _days(since, end):
        for round_ in rounds.rounds(max(day, since), min(day + timedelta(days=1), end)):
            found += rounds.score(round_).findings.filter(TOLD).to_dicts()
    events = lake.read("event", since, end).filter((pl.col("cluster") == cluster) & (pl.col("kind") == "xid"))
    return found + [f for f in from_events(events.sort("ts")) if not is_clearing(f)]


def _of_findings(
    found: Sequence[Mapping[str, Any]], suspects: dict[tuple[str, str], Suspect], seen: _Seen, levels: Levels
) -> list[str]:
    """Each finding's reason to its suspect; gives those that are about many at once."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for row in sorted(found, key=lambda row: row["ts"]):
        if row["severity"] != "digest":
            groups[
                tuple(row.get(name) for name in ("subject", "node_id", "gpu_uuid", "link", "cause", "signal"))
            ].append(row)
    shared = []
    for (subject, node_id, uuid, link, _, _), rows in groups.items():
        reason = _of_rows(rows, levels)
        if subject in ("gpu", "link", "node"):
            _suspect(suspects, seen, node_id, uuid or link or "").reasons.append(reason)
        else:
            shared.append(reason[1])
    return shared


def _of_rows(rows: Sequence[Mapping[str, Any]], levels: Levels) -> tuple[float, str]:
    last = rows[-1]
    weight = max(_SEVERITY_WEIGHT[row["severity"]] for row in rows)
    if last["detector"] in _STATISTICS and (len(rows) < _LASTING_H or not _confirmed(rows, levels)):
        weight = 0.0
    ratio = max((row["score"] / row["threshold"] for row in rows if row.get("threshold")), default=1.0)
    since = min(row.get("since") or row["ts"] for row in rows)
    said = str(last["message"]).partition(": ")[2] or str(last["message"])
    return weight + min(ratio, 9.0) / 10.0, (
        f"{said}; told {len(rows):,} times, since {since:{_MINUTE}}, last {last['ts']:{_MINUTE}}"
    )


def _confirmed(rows: Sequence[Mapping[str, Any]], levels: Levels) -> bool:
    """Of clocks: whether they are below those of peers that take no less power, by what is worth a name.

    The detector may take that for granted where the scheduler says that peers do the same work. Labels say less.
    """
    if rows[-1]["signal"] not in ("clock", "power_at_clock"):
        return True
    since = min(row.get("since") or row["ts"] for row in rows)
    return levels.clock_excess(rows[-1]["gpu_uuid"], int(since.timestamp() // 86400)) >= math.log1p(TAU) / 2


def _ended(suspects: dict[tuple[str, str], Suspect], seen: _Seen, end: datetime) -> None:
    """GPUs whose series ended while those of their node went on: an exporter leaves a lost GPU out."""
    for uuid, (_, node_id, last) in seen.gpus.items():
        node_last = seen.nodes[node_id][1]
        if node_last - last >= timedelta(hours=2):
            said = (
                f"its series ended after {last:%Y-%m-%d %H:%M}, those of its node went on to {node_last:%Y-%m-%d %H:%M}"
            )
            _suspect(suspects, seen, node_id, uuid).reasons.append((_SEVERITY_WEIGHT["ticket"], said))


# --- in words ------------------------------------------------------------------------------------------------


def report(lake: Lake, cluster: str, found: Sequence[Found], start_s: int, end_s: int) -> Iterator[str]:
    """Lines for a person: the ranked list, and what could not be judged."""
    start, end = datetime.fromtimestamp(start_s, UTC), datetime.fromtimestamp(end_s, UTC)
    judged = judge(lake, cluster, start, end)
    yield ""
    if judged.gpus:
        yield from _ranked(judged)
        yield from _shared(judged)
    else:
        yield "No GPU has an hour in that time: nothing to judge."
    yield from unjudged(found, judged.jobs_known)


def _ranked(judged: Judged) -> Iterator[str]:
    over = f"{judged.gpus:,} GPUs over {judged.gpu_hours:,} GPU-hours"
    strong = [s for s in judged.suspects if s.weight >= _STRONG]
    weak = [s for s in judged.suspects if s.weight < _STRONG]
    if strong:
        yield f"Of {over}, {len(strong):,} to be looked at, the first first:"
    else:
        yield f"Of {over}, none stands out in what could be judged: nobody is worse than peers or than before."
    for place, suspect in enumerate(strong[:_SHOWN], 1):
        yield f"{place:>3}. {plain(suspect.name)}"
        for _, said in sorted(suspect.reasons, reverse=True)[:_REASONS_SHOWN]:
            yield f"       {plain(said)}"
    if len(strong) > _SHOWN:
        yield f"     … and {len(strong) - _SHOWN:,} more"
    if weak:
        yield f"Weaker signs ({len(weak):,}), of a few hours or not at equal power:"
    for suspect in weak[:_WEAK_SHOWN]:
        yield f"     {plain(suspect.name)}: {plain(max(suspect.reasons)[1])}"


def _shared(judged: Judged) -> Iterator[str]:
    for said in judged.shared:
        yield f"Many at once: {plain(said)}"


_NEEDS: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "clocks under load": (("sm_clock_mhz",), ("gpu_util_percent",)),
    "time held below the clocks by heat or power brake": (("clock_event_reasons", "throttle_hw_thermal_ns"),),
    "power at the same clock": (("power_w",), ("sm_clock_mhz",), ("gpu_util_percent",)),
    "temperature at the same power": (("temp_c",), ("power_w",), ("gpu_util_percent",)),
    "memory temperature over the core's": (("mem_temp_c",), ("temp_c",)),
    "growth of corrected memory errors": (("ecc_sbe_volatile", "ecc_sbe_aggregate"),),
    "uncorrected memory errors": (("ecc_dbe_volatile",),),
    "rows remapped": (("row_remaps_uncorrectable",),),
    "failed row remaps": (("row_remap_failed",),),
    "pending row remaps": (("row_remap_pending",),),
    "spare rows of memory banks": (("bank_remap_max",),),
    "PCIe width": (("pcie_width",),),
    "PCIe generation": (("pcie_gen",),),
    "PCIe replays": (("pcie_replays",), ("pcie_gen",), ("pcie_width",)),
    "what the driver asks for (recovery action)": (("recovery_action",),),
    "Xids (changes of the last one only)": (("xid",),),
    "network ports": (("link_downed", "symbol_errors", "tx_bytes"),),
}
"""What is judged, and the fields it takes: one of each group."""


def unjudged(found: Sequence[Found], jobs_known: bool) -> Iterator[str]:
    """What could not be judged because a series is missing, with the metric that would change it."""
    have = {w.field for one in found for w in one.wanted} | {"xid" for one in found if one.xids}
    lines = []
    for what, groups in _NEEDS.items():
        missing = [group for group in groups if not have.intersection(group)]
        if missing:
            lines.append(f"  {what}: no {' and no '.join(_metric(group) for group in missing)}")
    if not jobs_known:
        lines.append("  jobs: no series names one, so GPUs were compared with the others of their node only")
    if lines:
        yield "Could not be judged, because the series is missing:"
        yield from lines


def _metric(group: Iterable[str]) -> str:
    """Names of exporters' metrics that would give one of these fields."""
    names: dict[str, list[str]] = {"xid": [XID_NAMES[0]]}
    for w in (*GPU, *NODE):
        names.setdefault(w.field, []).append(w.needs[0])
    return " or ".join(" / ".join(names.get(name, [name])[:2]) for name in group)
