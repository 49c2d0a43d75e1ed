"""Ends of jobs of a simulated fleet, judged against the simulation's truth.

    python benchmarks/speed/job_ends.py --seeds 1 2 3

Events, jobs and outputs of a fleet with faults of every kind (ports that flap, GPUs that are lost, slow, hot …); no
windows. What ended a job is drawn by ``collectors.simulated.ends``, which knows nothing of how an end is judged; that
truth is made, and so are the shares. 1: a machine was blamed with confidence for what the program did.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from graynode.collectors.simulated import ends, faults
from graynode.collectors.simulated.fleet import Fleet, Spec
from graynode.detectors.attribution import Judgement, judge
from graynode.detectors.attribution_job import Placement
from graynode.detectors.exact_bounds import clopper_pearson
from graynode.pipeline.lake import Lake
from graynode.service import simulate
from graynode.service.attribution_jobs import Jobs
from graynode.service.attribution_read import Reader

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
SAID = ("infrastructure, high", "infrastructure, less", "application", "unknown", "scheduler or neither")
_CLUSTER = "simulated"
_SAME_S = 1.0


@dataclass
class Counts:
    """Ends by truth and answer; ``named``: infrastructure whose own machine was named; ``by_kind``: misses by kind."""

    told: Counter[tuple[str, str]] = field(default_factory=Counter)
    by_kind: Counter[tuple[str, str]] = field(default_factory=Counter)
    named: int = 0
    judged: int = 0
    seconds: float = 0.0


def fleet_of(seed: int, nodes: int, days: float, share: float) -> Fleet:
    """Faults of every kind at ten times the natural rate, a GPU lost every seven hours, and hardware ends beside."""
    lost = "".join(
        f'[[fault]]\nkind = "gpu_lost"\nstart = "-{5 + 7 * i}h"\nduration = "1h"\nnode = {(7 * i) % nodes}\n'
        for i in range(int(24 * days / 7) - 1)
    )
    asked = f"[natural]\nrate_per_1000_node_days = 40\n[ends]\nhardware_share = {share}\n{lost}"
    return Fleet(Spec(NOW, nodes, 8, seed, days, cluster=_CLUSTER), faults.parse(asked, "job_ends", NOW))


def judged(lake: Lake) -> Iterator[tuple[Placement, Judgement]]:
    """Every end of a job of several machines that did not go well, as six minutes after it."""
    jobs, reader = Jobs(lake), Reader(lake)
    for job_id in jobs.ended(_CLUSTER, NOW - timedelta(days=365), NOW):
        for placed in jobs.attempts(_CLUSTER, job_id):
            if placed.end is not None and placed.size > 1 and placed.state != "completed":
                yield placed, judge(reader.case(placed, placed.end + timedelta(minutes=6)))


def count(fleet: Fleet, counts: Counts) -> None:
    """Judge all ends of a fleet and add them up."""
    jobs = {(str(job.number), job.requeues): job for job in fleet.jobs}
    with tempfile.TemporaryDirectory(prefix="graynode-bench-") as folder:
        lake = Lake(folder)
        simulate._write_rows(fleet, lake, NOW - timedelta(days=fleet.spec.days), NOW, simulate.Written())
        began = time.process_time()
        for placed, answer in judged(lake):
            job = jobs[placed.job_id, placed.attempt]
            true = ends.end(fleet.spec.seed, job, fleet.plan.hardware_ends)
            said = _said(answer)
            counts.told[true.kind.truth, said] += 1
            counts.by_kind[f"{true.kind.truth}: {true.kind.name}{'' if true.read else ' (output not read)'}", said] += 1
            guilty = fleet.node_ids[_machine(fleet, job, true)]
            counts.named += (
                true.kind.truth == "infrastructure" and answer.first is not None and answer.first.node_id == guilty
                and answer.verdict == "infrastructure"
            )  # fmt: skip
            counts.judged += 1
        counts.seconds += time.process_time() - began


def _machine(fleet: Fleet, job: ends.Job, true: ends.End) -> int:
    """The machine on which it began; of a lost GPU, that GPU's."""
    lost = [f.node for f in fleet.faults if f.kind == "gpu_lost" and abs(f.start + 30.0 - job.end) < _SAME_S]
    mine = {gpu // fleet.spec.per_node for gpu in job.gpus}
    return next((node for node in lost if node in mine), job.gpus[true.rank] // fleet.spec.per_node)


def _said(answer: Judgement) -> str:
    if answer.verdict == "infrastructure":
        return SAID[0] if answer.confidence == "high" else SAID[1]
    return answer.verdict if answer.verdict in ("application", "unknown") else SAID[4]


def _rate(part: int, of: int) -> str:
    low, high = clopper_pearson(part, of)
    return f"{part} of {of} ({low:.3f} to {high:.3f})"


def main() -> int:
    """Measure, print, and end with 1 where a machine was blamed with confidence for nothing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--days", type=float, default=7.0)
    parser.add_argument("--hardware-share", type=float, default=0.15)
    given = parser.parse_args()
    counts = Counts()
    for seed in given.seeds:
        count(fleet_of(seed, given.nodes, given.days, given.hardware_share), counts)
    print(f"seeds {given.seeds}: {given.nodes} nodes, {given.days:g} days; {counts.judged} ends")
    print("| truth | " + " | ".join(SAID) + " |")
    for truth in ("infrastructure", "application", "neither"):
        print(f"| {truth} | " + " | ".join(str(counts.told[truth, said]) for said in SAID) + " |")
    for (kind, said), n in sorted(counts.by_kind.items()):
        print(f"  {kind} → {said}: {n}")
    machines = sum(n for (truth, _), n in counts.told.items() if truth == "infrastructure")
    others = counts.judged - machines
    blamed = sum(n for (truth, said), n in counts.told.items() if truth != "infrastructure" and said == SAID[0])
    programs = sum(n for (truth, _), n in counts.told.items() if truth == "application")
    print(f"blamed with confidence for what a machine did not do: {_rate(blamed, others)}")
    print(f"infrastructure whose own machine is named: {_rate(counts.named, machines)}")
    print(f"the program's called the program's: {_rate(counts.told['application', 'application'], programs)}")
    print(f"{counts.seconds / max(counts.judged, 1):.3f} s of CPU an end")
    return 1 if blamed else 0


if __name__ == "__main__":
    sys.exit(main())
