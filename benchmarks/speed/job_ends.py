"""Ends of jobs of a simulated fleet, judged: is the lost GPU's node named, and is anybody blamed who should not be?

    python benchmarks/speed/job_ends.py --seed 1

Events and jobs of a fleet with faults of every kind (ports that flap, GPUs that are lost, slow, hot …); no windows, no
logs. A job that met a lost GPU ends as ``node_fail``; every other end has nothing to do with the machines, whatever
they show around it. The simulation shares nothing with the rules but NVIDIA's numbers.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from graynode.collectors.simulated import faults
from graynode.collectors.simulated.fleet import Fleet, Spec
from graynode.detectors.attribution import Judgement, judge
from graynode.detectors.attribution_job import Placement
from graynode.pipeline.lake import Lake
from graynode.service import simulate
from graynode.service.attribution_jobs import Jobs
from graynode.service.attribution_read import Reader

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
_CLUSTER = "simulated"


def fleet_of(seed: int, nodes: int, days: float) -> Fleet:
    """Faults of every kind at ten times the natural rate, and a GPU lost every seven hours."""
    lost = "".join(
        f'[[fault]]\nkind = "gpu_lost"\nstart = "-{5 + 7 * i}h"\nduration = "1h"\nnode = {(7 * i) % nodes}\n'
        for i in range(int(24 * days / 7) - 1)
    )
    plan = faults.parse(f"[natural]\nrate_per_1000_node_days = 40\n{lost}", "job_ends", NOW)
    return Fleet(Spec(NOW, nodes, 8, seed, days, cluster=_CLUSTER), plan)


def judged(lake: Lake) -> Iterator[tuple[Placement, Judgement]]:
    """Every end of a job of several machines that did not go well, as six minutes after it."""
    jobs, reader = Jobs(lake), Reader(lake)
    for job_id in jobs.ended(_CLUSTER, NOW - timedelta(days=365), NOW):
        for placed in jobs.attempts(_CLUSTER, job_id):
            if placed.end is not None and placed.size > 1 and placed.state != "completed":
                yield placed, judge(reader.case(placed, placed.end + timedelta(minutes=6)))


def main() -> int:
    """Measure, print, and end with 1 where a node was missed or blamed for nothing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--days", type=float, default=7.0)
    given = parser.parse_args()
    fleet = fleet_of(given.seed, given.nodes, given.days)
    lost = [(fleet.node_ids[f.node], fleet.moment(f.start + 30.0)) for f in fleet.faults if f.kind == "gpu_lost"]
    counted: Counter[tuple[str | None, str, str]] = Counter()
    by_machine = named = blamed = 0
    with tempfile.TemporaryDirectory(prefix="graynode-bench-") as folder:
        lake = Lake(folder)
        simulate._write_rows(fleet, lake, NOW - timedelta(days=given.days), NOW, simulate.Written())
        began = time.perf_counter()
        for placed, answer in judged(lake):
            counted[placed.state, answer.verdict, answer.kind] += 1
            guilty = {node for node, end in lost if abs((placed.end or NOW) - end) < timedelta(seconds=5)}
            is_machine = bool(guilty & set(placed.machines))
            by_machine += is_machine
            culprit = answer.first.node_id if answer.first and answer.verdict == "infrastructure" else None
            named += is_machine and culprit in guilty
            blamed += not is_machine and answer.verdict == "infrastructure"
        took_s = time.perf_counter() - began
    print(f"seed {given.seed}: {given.nodes} nodes, {given.days:g} days, {len(fleet.faults)} faults")
    for (state, verdict, kind), count in sorted(counted.items(), key=str):
        print(f"  {state:<10} {verdict} / {kind}: {count}")
    others = sum(counted.values()) - by_machine
    print(f"by a lost GPU: {named} of {by_machine} name its node; of {others} other ends {blamed} blame a machine")
    print(f"{sum(counted.values())} ends in {took_s:.1f} s")
    return 0 if named == by_machine and not blamed else 1


if __name__ == "__main__":
    sys.exit(main())
