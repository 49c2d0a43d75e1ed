"""What is found in the demonstration's fleet, against its truth.

Run as ``python benchmarks/speed/demo_accuracy.py --seeds 1 2 3``.

The whole way of detection without bus and processes: a simulated lake (35 days of hours, six hours of 30 s windows and
some minutes beyond), priming, every round, hard events, incidents. ``--healthy`` leaves the faults out, so that every
incident is false; ``--maxima`` writes each healthy node-day's largest accumulated sums, which thresholds are made from.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import polars as pl

from graynode.collectors.simulated.events import Told
from graynode.collectors.simulated.faults import Fault, Plan, demo, read
from graynode.collectors.simulated.fleet import Fleet, Spec
from graynode.collectors.simulated.links import Outages
from graynode.collectors.simulated.windows import history
from graynode.detectors import NAMES, make, memory, slow, thermal
from graynode.detectors.event_rules import EventRules
from graynode.detectors.incidents import Incidents
from graynode.pipeline.codec import to_batch
from graynode.pipeline.lake import Lake
from graynode.pipeline.schema import TABLES
from graynode.service.rounds import Result, Rounds
from graynode.service.simulate import FINE, write

CAUSES: Final = {
    "ecc_growth": {"memory_errors", "memory_degraded"},
    "link_flap": {"link_flap", "link_down", "link_errors"},
    "link_down": {"link_flap", "link_down", "link_errors"},
    "pcie_width": {"pcie_degraded", "pcie_errors"},
    "slow_gpu": {"slow_gpu"},
    "thermal": {"thermal"},
    "power_brake": {"power_brake"},
    "gpu_lost": {"gpu_lost", "monitoring_blind"},
    "stuck_sensor": {"unusual", "monitoring_blind", "thermal"},
}
"""Which causes tell which fault. Any other incident on a machine that has a fault is listed as such, not as false."""
CHUNK: Final = 60


def main() -> None:
    """Every seed in turn."""
    asked = _arguments()
    print(f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, "
          f"polars {version('polars')}, numpy {version('numpy')}; {datetime.now(UTC):%Y-%m-%d %H:%M} UTC; "
          f"python {' '.join(sys.argv)}")  # fmt: skip
    plan = Plan() if asked.healthy else read(asked.faults, asked.now) if asked.faults else demo()
    for seed in asked.seeds:
        folder = (
            Path(asked.keep) / f"seed-{seed}-{asked.now:%d-%H}"
            if asked.keep
            else Path(tempfile.mkdtemp(prefix="accuracy-"))
        )
        try:
            _one(asked, seed, plan, folder)
        finally:
            if not asked.keep:
                shutil.rmtree(folder, ignore_errors=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--days", type=float, default=35.0)
    parser.add_argument("--beyond-min", type=float, default=10.0, help="minutes after the end of history")
    parser.add_argument("--now", type=datetime.fromisoformat, default=datetime(2026, 11, 2, 9, 0, tzinfo=UTC),
                        help="end of history, with its zone")  # fmt: skip
    parser.add_argument("--healthy", action="store_true")
    parser.add_argument("--faults", type=Path)
    parser.add_argument("--maxima", type=Path, help="append node-day maxima as JSON lines to this file")
    parser.add_argument("--keep", help="a folder in which lakes stay, and are used again")
    parser.add_argument("--verbose", action="store_true", help="every revision as it is told")
    return parser.parse_args()


def _one(asked: argparse.Namespace, seed: int, plan: Plan, folder: Path) -> None:
    spec = Spec(asked.now, asked.nodes, 8, seed, asked.days, cluster="demo")
    fleet, lake, began = Fleet(spec, plan), Lake(str(folder)), time.perf_counter()
    beyond = timedelta(minutes=asked.beyond_min)
    if not lake.exists("gpu_30s"):
        write(fleet, lake)
        _write_beyond(fleet, lake, beyond)
    wrote, began = time.perf_counter() - began, time.perf_counter()
    rounds = Rounds(lake, "demo", {n: make(n) for n in NAMES})
    first = max(asked.now - FINE, asked.now - timedelta(days=asked.days))
    rounds.prime(first)
    primed, began, cpu = time.perf_counter() - began, time.perf_counter(), time.process_time()
    maxima = _Maxima(fleet) if asked.maxima else None
    told = _Told(Incidents("demo"), asked.verbose)
    for result, events in _scored(rounds, first, asked.now + beyond):
        told.take(result, events)
        if maxima is not None:
            maxima.see(rounds)
    spent = time.perf_counter() - began
    print(f"\nseed {seed}, {asked.nodes} nodes: lake {wrote:.0f} s, priming {primed:.1f} s, {told.rounds} rounds "
          f"{spent:.1f} s ({time.process_time() - cpu:.1f} s of CPU)")  # fmt: skip
    _report(fleet, told, (asked.now + beyond - first) / timedelta(days=1))
    if maxima is not None:
        with asked.maxima.open("a") as out:
            out.writelines(json.dumps({"seed": seed, **row}) + "\n" for row in maxima.rows())


def _write_beyond(fleet: Fleet, lake: Lake, beyond: timedelta) -> None:
    """What the live collector adds: the next minutes' windows, and their events."""
    for table, frame in history(fleet, fleet.spec.now, fleet.spec.now + beyond, 30):
        lake.write(table, frame)
    since = fleet.now_s
    rows: dict[str, list[Any]] = {"job": [], "event": [], "job_log": []}
    for table, row in Told(fleet, Outages(fleet)).between(since, since + beyond.total_seconds()):
        rows[table].append(row)
    for table, some in rows.items():
        if some:
            made = pl.from_arrow(to_batch(TABLES[table], some))
            assert isinstance(made, pl.DataFrame)  # noqa: S101 (narrows the type)
            lake.write(table, made)


def _scored(rounds: Rounds, since: datetime, until: datetime) -> Iterator[tuple[Result, list[dict[str, Any]]]]:
    """Results of all rounds, in chunks as the service reads them, with each round's events."""
    step = timedelta(seconds=rounds.window_s)
    while since < until:
        end = min(since + CHUNK * step, until)
        for round_ in rounds.rounds(since, end):
            yield rounds.score(round_), round_.events.to_dicts()
        since = end


class _Told:
    """Incidents as they would be told, in the time of the windows."""

    def __init__(self, incidents: Incidents, verbose: bool) -> None:
        self._incidents, self._verbose, self._rules = incidents, verbose, EventRules()
        self.rounds = 0
        self.revisions: dict[str, list[dict[str, Any]]] = {}

    def take(self, result: Result, events: list[dict[str, Any]]) -> None:
        """One round's findings and the hard events of its window."""
        self.rounds += 1
        end = result.start + timedelta(seconds=result.window_s)
        found = [*self._rules.findings(events), *result.findings.to_dicts()]
        for revision in self._incidents.add(found, end) + self._incidents.tick(end):
            self.revisions.setdefault(revision["incident_id"], []).append(revision)
            if self._verbose:
                print(f"  {end:%H:%M:%S} r{revision['revision']} {revision['state']:<8} {revision['severity']:<6} "
                      f"{revision['count']:>4} {revision['title']}")  # fmt: skip


class _Maxima:
    """Each node's largest sums of each accumulated signal: what thresholds are quantiles of."""

    def __init__(self, fleet: Fleet) -> None:
        self._node = dict(zip(fleet.gpu_uuids, fleet.node_of_gpu.tolist(), strict=True))
        self._most: dict[tuple[int, str], float] = {}
        self._names = {"slow": slow.columns(), "thermal": thermal.columns()}
        self._signals = {"slow": slow.RUNS, "thermal": thermal.SIGNALS}

    def see(self, rounds: Rounds) -> None:
        """Take the sums after a round."""
        for detector, names in self._names.items():
            state = rounds.states[detector]["gpu"]
            held = memory.recall(state, state.get_column("key"), names)
            nodes = [self._node[k.partition("|")[0]] for k in state.get_column("key")]
            for signal in self._signals[detector]:
                for node, value in zip(nodes, held[f"{signal}.sum"].tolist(), strict=True):
                    if value > self._most.get((node, f"{detector}.{signal}"), 0.0):
                        self._most[node, f"{detector}.{signal}"] = value

    def rows(self) -> Iterator[dict[str, Any]]:
        """One row for each node and signal that ever ran."""
        for (node, signal), value in sorted(self._most.items()):
            yield {"node": node, "signal": signal, "max": round(value, 4)}


def _report(fleet: Fleet, told: _Told, days: float) -> None:
    """Found, missed and false; delays are from the fault's start or the first window, whichever is later."""
    end_s = fleet.now_s + 3600.0
    since_s = fleet.now_s - FINE.total_seconds()
    used: set[str] = set()
    for fault in fleet.faults:
        if fault.start > end_s or fault.end < since_s:
            continue
        mine = [r for r in told.revisions.values() if _of(fleet, r[0], fault)]
        right = [r for r in mine if r[0]["cause"] in CAUSES[fault.kind]]
        used |= {r[0]["incident_id"] for r in mine}
        where = f"{fleet.node_names[fault.node]} {_short(fleet, fault)}"
        if not right:
            print(f"  MISSED {fault.kind} on {where}")
        for r in right:
            late = (fleet.seconds(r[0]["ts"]) - max(fault.start, since_s)) / 60.0
            print(
                f"  found  {fault.kind} on {where} after {late:.1f} min, {len(r)} revisions: {_words(fleet, r, fault)}"
            )
        for r in mine:
            if r not in right:
                print(f"    also {r[0]['cause']} there: {_words(fleet, r, fault)}")
    false = [r for i, r in told.revisions.items() if i not in used]
    for r in false:
        print(f"  FALSE  {r[0]['cause']} {r[0]['severity']} from {r[0]['ts']:%H:%M:%S}: {_words(fleet, r, None)}")
    healthy = (len(fleet.node_names) - len({f.node for f in fleet.faults if f.end > since_s})) * days
    print(f"  {len(false)} false incidents in {healthy:.1f} healthy node-days")


def _of(fleet: Fleet, revision: dict[str, Any], fault: Fault) -> bool:
    return bool(revision["node_id"] == fleet.node_ids[fault.node])


def _short(fleet: Fleet, fault: Fault) -> str:
    return (
        fleet.gpu_uuids[fault.gpu][:12] if fault.gpu >= 0 else fleet.link_names[fault.link] if fault.link >= 0 else ""
    )


def _words(fleet: Fleet, revisions: list[dict[str, Any]], fault: Fault | None) -> str:
    last = revisions[-1]
    wrong = ""
    if fault is not None and fault.gpu >= 0 and last["gpu_uuid"] not in (None, fleet.gpu_uuids[fault.gpu]):
        wrong = " (ANOTHER GPU)"
    return f"{last['title']}{wrong} [{last['state']}, {last['count']} findings, {last['severity']}]"


if __name__ == "__main__":
    main()
