"""Operation traces: slow hardware on every victim, application causes, and what each method makes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from graynode.benchmarks.detection import attribution_faults as faults
from graynode.benchmarks.detection.attribution_baselines import methods
from graynode.benchmarks.detection.attribution_cases import ABLATIONS, Case, Judge, Seen, as_work, ours, share
from graynode.benchmarks.detection.attribution_faults import Profile, Sums
from graynode.benchmarks.detection.attribution_trace import Trace
from graynode.benchmarks.detection.intervals import FloatArray, IntArray
from graynode.benchmarks.detection.result import Figure, Figures, Result
from graynode.detectors.straggler import Limits
from graynode.detectors.stragglers import judge
from graynode.detectors.work import Work

EXCESSES: Final = (0.05, 0.1, 0.2, 0.5)
_MOST_VICTIMS: Final = 64
_APPLICATION: Final = 40
_FULL: Final = 5
"""With ``--full``: every victim, and five times as many application cases."""
_FEW_STEPS: Final = 10
_NAMED_FAILURES: Final = 12


def evaluate(trace: Trace, limits: Limits, seed: tuple[int, int], result: Result, *, full: bool) -> None:
    """Put the figures of one trace into ``result``; their names begin with the trace's."""
    base, profile = faults.healthy(trace)
    views = [Seen(g, p) for g in ((True, False) if trace.role is not None else (False,)) for p in (False, True)]
    result.notes.extend(_notes(trace, profile))
    count = _APPLICATION * (_FULL if full else 1)
    most = len(trace.rank) if full else _MOST_VICTIMS
    mine = _Method(ours(limits), views, most, count)
    figures, failures = mine.measure(base, profile, seed)
    figures = _recorded(trace, limits, views) | figures | _wall_only(base, profile, limits)
    _into(result.figures, trace.name, figures)
    result.failures.extend(f"{trace.name}: {line}" for line in failures[:_NAMED_FAILURES])
    if len(failures) > _NAMED_FAILURES:
        result.failures.append(f"{trace.name}: and {len(failures) - _NAMED_FAILURES} more")
    for name, without in ABLATIONS.items():
        part, _ = _Method(without(limits), views, most, count).measure(base, profile, seed, few=False)
        _into(result.ablations.setdefault(name, {}), trace.name, part)
    for name, method in methods().items():
        # These see no roles and no names: one view stands for all
        part, _ = _Method(_plain(method), views[:1], most, count).measure(base, profile, seed, few=False)
        _into(result.baselines.setdefault(name, {}), trace.name, part)


def _into(figures: Figures, name: str, more: Mapping[str, Figure]) -> None:
    figures.update({f"{name}.{figure}": value for figure, value in more.items()})


def _plain(method: Callable[[Sums], set[int]]) -> Judge:
    def judged(_trace: Trace, job: Sums, _seen: Seen, _rng: np.random.Generator) -> tuple[frozenset[int], str]:
        named = frozenset(method(job))
        return named, "hardware" if named else ""

    return judged


def _notes(trace: Trace, profile: Profile) -> list[str]:
    lines = [*trace.notes]
    if profile.worker is not None and profile.ratio is not None:
        lines.append(
            f"{trace.name}: worker {profile.worker} is recorded at {profile.ratio:.2f} times its stage; it is made well "
            "for the base of all cases, and its excess, scaled, is the hardware fault"
        )
    else:
        lines.append(f"{trace.name}: no worker far above its stage: the hardware fault is a flat excess of all compute")
    if trace.role is None:
        lines.append(f"{trace.name}: no stages are told, so only learned roles are evaluated")
    lines.append(f"{trace.name}: application causes are synthetic, made from the trace's own microbatches")
    return lines


class _Method:
    """One method over all cases of one trace."""

    def __init__(self, judged: Judge, views: list[Seen], victims: int, application: int) -> None:
        self.judged, self.views, self.victims, self.application = judged, views, victims, application

    def measure(
        self, base: Trace, profile: Profile, seed: tuple[int, int], *, few: bool = True
    ) -> tuple[Figures, list[str]]:
        """Figures by name, and the cases that went wrong."""
        figures: Figures = {}
        failures: list[str] = []
        made = faults.sums(base)
        for seen in self.views:
            rng = np.random.default_rng([*seed, seen.roles_given, seen.permuted])
            figures |= self._hardware(base, made, profile, seen, rng, failures)
            if few:
                figures |= self._few_steps(base, made, profile, seen, rng)
            figures |= self._application(base, made, profile, seen, seed, failures)
        figures["application.hardware_flags"] = _total(figures)
        return figures, failures

    def _hardware(
        self, base: Trace, made: Sums, profile: Profile, seen: Seen, rng: np.random.Generator, failures: list[str]
    ) -> Figures:
        figures: Figures = {}
        for kind, groups in _victims(base, self.victims, rng).items():
            for excess in EXCESSES:
                cases = [self._case(base, made, profile, v, excess, seen, rng) for v in groups]
                name = f"{kind}.{seen.name}"
                figures[f"{name}.recall_{excess:.0%}".replace("%", "pct")] = share(c.right for c in cases)
                figures[f"{name}.wrong_{excess:.0%}".replace("%", "pct")] = share(c.wrong for c in cases)
                failures.extend(_missed(base, c) for c in cases if c.wrong or not c.right)
        return figures

    def _case(
        self, base: Trace, made: Sums, profile: Profile, victims: IntArray, excess: float, seen: Seen,
        rng: np.random.Generator,
    ) -> Case:  # fmt: skip
        job = faults.slow_hardware(made, profile, victims, excess)
        named, cause = self.judged(base, job, seen, rng)
        return Case(frozenset(victims.tolist()), named, cause, f"{excess:.0%}, {seen.name}")

    def _few_steps(self, base: Trace, made: Sums, profile: Profile, seen: Seen, rng: np.random.Generator) -> Figures:
        if base.steps <= _FEW_STEPS or seen.permuted:
            return {}
        first = int(rng.integers(0, base.steps - _FEW_STEPS + 1))
        steps = np.arange(first, first + _FEW_STEPS)
        short = Profile({p: e[steps] for p, e in profile.parts.items()}, profile.optimizer[steps])
        groups = _victims(base, self.victims, rng)["rank"]
        cases = [self._case(base, _taken(made, steps), short, v, 0.1, seen, rng) for v in groups]
        return {
            f"rank.{seen.name}.recall_10pct_in_{_FEW_STEPS}_steps": share(c.right for c in cases),
            f"rank.{seen.name}.wrong_10pct_in_{_FEW_STEPS}_steps": share(c.wrong for c in cases),
        }

    def _application(
        self, base: Trace, made: Sums, profile: Profile, seen: Seen, seed: tuple[int, int], failures: list[str]
    ) -> Figures:
        figures: Figures = {}
        with_fault: list[Case] = []
        for place, (cause, maker) in enumerate(faults.makers(base).items()):
            cases = []
            for number in range(self.application):
                # The same cases for every method and view
                rng = np.random.default_rng([*seed, 1000 + place, number])
                job = faults.waiting(made, faults.sums(maker(base, rng)))
                named, said = self.judged(base, job, seen, rng)
                cases.append(Case(frozenset(), named, said, f"{cause} {number}, {seen.name}"))
                if cause == "combined":
                    victim = np.array([int(rng.integers(len(base.rank)))])
                    both = faults.slow_hardware(job, profile, victim, 0.2)
                    named, said = self.judged(base, both, seen, rng)
                    with_fault.append(Case(frozenset(victim.tolist()), named, said, f"20% and {cause} {number}"))
            figures[f"application.{cause}.{seen.name}.hardware_flag_rate"] = share(c.wrong for c in cases)
            figures[f"application.{cause}.{seen.name}.called_application"] = share(
                c.cause == "application" for c in cases
            )
            failures.extend(_missed(base, c) for c in cases if c.wrong)
        name = f"rank_with_application.{seen.name}"
        figures[f"{name}.recall_20pct"] = share(c.right for c in with_fault)
        figures[f"{name}.wrong_20pct"] = share(c.wrong for c in with_fault)
        return figures


def _total(figures: Figures) -> Figure:
    rates = [f for name, f in figures.items() if name.endswith(".hardware_flag_rate") and f.value is not None]
    flags = sum(round((f.value or 0.0) * (f.n or 0)) for f in rates)
    return Figure(float(flags), n=sum(f.n or 0 for f in rates), note="cases with a hardware flag, of n; to reach: 0")


def _victims(base: Trace, most: int, rng: np.random.Generator) -> dict[str, list[IntArray]]:
    """Rows of each single victim and of each whole node that is not all of its stage; by chance where there are many."""
    ranks = [np.array([r]) for r in range(len(base.rank))]
    nodes = [np.flatnonzero(base.node == n) for n in np.unique(base.node)]
    return {"rank": _drawn(ranks, most, rng), "node": _drawn([n for n in nodes if len(n) > 1], most, rng)}


def _drawn(groups: list[IntArray], most: int, rng: np.random.Generator) -> list[IntArray]:
    if len(groups) <= most:
        return groups
    return [groups[i] for i in sorted(rng.choice(len(groups), size=most, replace=False).tolist())]


def _taken(made: Sums, steps: IntArray) -> Sums:
    def part(table: FloatArray | None) -> FloatArray | None:
        return None if table is None else table[:, steps]

    return Sums(
        busy={p: s[:, steps] for p, s in made.busy.items()},
        optimizer=part(made.optimizer),
        steady=made.steady[:, steps],
        input=part(made.input),
        wait=made.wait[:, steps],
        wall=made.wall[:, steps],
    )


def _missed(base: Trace, case: Case) -> str:
    def names(rows: frozenset[int]) -> str:
        return ", ".join(str(base.rank[r]) for r in sorted(rows)) or "nobody"

    return f"{case.label}: slow {names(case.victims)}, named {names(case.named)} (first cause: {case.cause or 'none'})"


def _recorded(trace: Trace, limits: Limits, views: list[Seen]) -> Figures:
    """The job as it was recorded: nobody says here who is slow in truth."""
    figures: Figures = {}
    for seen in (v for v in views if not v.permuted):
        said = judge(as_work(trace, faults.sums(trace), seen), limits)
        named = [(s.where, s.ranks, s.excess) for s in said if s.cause == "hardware"]
        others = [f"{s.cause} {s.reason} at {s.where}" for s in said if s.cause != "hardware"]
        words = [f"{w} {', '.join(map(str, r))} at {1 + (e or 0.0):.2f}x" for w, r, e in named]
        note = "; ".join([*words, *others[:4]]) or "nobody stands out"
        figures[f"recorded.{seen.name.split('.')[0]}.hardware_flags"] = Figure(
            float(len(named)), n=len(trace.rank), note=note
        )
    return figures


def _wall_only(base: Trace, profile: Profile, limits: Limits) -> Figures:
    """The same faults where only wall seconds are known: a hardware flag would be a guess."""
    made = faults.sums(base)
    flags = []
    for victims in _drawn([np.array([r]) for r in range(len(base.rank))], _MOST_VICTIMS, np.random.default_rng(0)):
        job = faults.slow_hardware(made, profile, victims, EXCESSES[-1])
        said = judge(Work(rank=base.rank, node=base.node, wall=job.wall), limits)
        flags.append(any(s.cause == "hardware" for s in said))
    return {"wall_only.hardware_flag_rate_50pct": share(flags, "wall seconds alone; to reach: 0")}
