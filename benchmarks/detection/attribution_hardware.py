"""Operation traces: slow hardware on every victim, application causes, and what each method makes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from graynode.benchmarks.detection import attribution_faults as faults
from graynode.benchmarks.detection.attribution_baselines import methods
from graynode.benchmarks.detection.attribution_cases import ABLATIONS, Case, Judge, Seen, as_work, ours, share
from graynode.benchmarks.detection.attribution_faults import Sums
from graynode.benchmarks.detection.attribution_job import Trace
from graynode.benchmarks.detection.attribution_made import EXCESSES, Made, Sizes, make
from graynode.benchmarks.detection.result import Figure, Figures, Result
from graynode.detectors.straggler import Limits
from graynode.detectors.stragglers import judge
from graynode.detectors.work import Work

_NAMED_FAILURES: Final = 12


def evaluate(trace: Trace, limits: Limits, seed: tuple[int, int], result: Result, sizes: Sizes) -> None:
    """Put the figures of one trace into ``result``; their names begin with the trace's."""
    made = make(trace, seed, sizes)
    given = (True, False) if trace.role is not None else (False,)
    views = [Seen(g, p) for g in given for p in (False, True)]
    result.notes.extend(made.notes)
    figures, failures = measured(ours(limits), made, views, seed)
    figures = _recorded(trace, limits, views) | figures | _wall_only(made, limits)
    _into(result.figures, trace.name, figures)
    result.failures.extend(f"{trace.name}: {line}" for line in failures[:_NAMED_FAILURES])
    if len(failures) > _NAMED_FAILURES:
        result.failures.append(f"{trace.name}: and {len(failures) - _NAMED_FAILURES} more")
    for name, without in ABLATIONS.items():
        part, _ = measured(without(limits), made, [v for v in views if not v.permuted], seed)
        _into(result.ablations.setdefault(name, {}), trace.name, part)
    for name, method in methods().items():
        # These see no roles and no names: one view stands for all
        part, _ = measured(_plain(method), made, views[:1], seed)
        _into(result.baselines.setdefault(name, {}), trace.name, part)


def _into(figures: Figures, name: str, more: Mapping[str, Figure]) -> None:
    figures.update({f"{name}.{figure}": value for figure, value in more.items()})


def _plain(method: Callable[[Sums], set[int]]) -> Judge:
    def judged(_trace: Trace, job: Sums, _seen: Seen, _rng: np.random.Generator) -> tuple[frozenset[int], str]:
        named = frozenset(method(job))
        return named, "hardware" if named else ""

    return judged


def measured(judged: Judge, made: Made, views: list[Seen], seed: tuple[int, int]) -> tuple[Figures, list[str]]:
    """One method over all cases: figures by name, and the cases that went wrong."""
    figures: Figures = {}
    failures: list[str] = []
    for seen in views:
        rng = np.random.default_rng([*seed, seen.roles_given, seen.permuted])
        figures |= _hardware(judged, made, seen, rng, failures)
        figures |= _application(judged, made, seen, rng, failures)
    figures["application.hardware_flags"] = _total(figures)
    return figures, failures


def _hardware(judged: Judge, made: Made, seen: Seen, rng: np.random.Generator, failures: list[str]) -> Figures:
    figures: Figures = {}
    for kind, groups in made.victims.items():
        for excess in EXCESSES:
            cases = []
            for victims in groups:
                job = faults.slow_hardware(made.sums, made.profile, victims, excess)
                cases.append(_case(judged, made, job, victims.tolist(), seen, rng, f"{excess:.0%}"))
            figures |= _figures(f"{kind}.{seen.name}", _percent(excess), cases)
            failures.extend(_missed(made.base, c) for c in cases if c.wrong or not c.right)
    for name, group in made.within.items():
        cases = [_case(judged, made, job, [v], seen, rng, name) for v, job in group]
        figures |= _figures(f"rank.{seen.name}", name, cases)
        failures.extend(_missed(made.base, c) for c in cases if c.wrong)
    return figures


def _application(judged: Judge, made: Made, seen: Seen, rng: np.random.Generator, failures: list[str]) -> Figures:
    figures: Figures = {}
    for cause, jobs in made.application.items():
        cases = [_case(judged, made, job, [], seen, rng, f"{cause} {number}") for number, job in enumerate(jobs)]
        name = f"application.{cause}.{seen.name}"
        figures[f"{name}.hardware_flag_rate"] = share((c.wrong for c in cases), "to reach: 0")
        figures[f"{name}.called_application"] = share(c.cause == "application" for c in cases)
        failures.extend(_missed(made.base, c) for c in cases if c.wrong)
    return figures


def _case(
    judged: Judge, made: Made, job: Sums, victims: list[int], seen: Seen, rng: np.random.Generator, label: str
) -> Case:
    named, cause = judged(made.base, job, seen, rng)
    return Case(frozenset(victims), named, cause, f"{label}, {seen.name}")


def _figures(name: str, label: str, cases: list[Case]) -> Figures:
    return {
        f"{name}.recall_{label}": share(c.right for c in cases),
        f"{name}.wrong_{label}": share(c.wrong for c in cases),
    }


def _percent(excess: float) -> str:
    return f"{100 * excess:.0f}pct"


def _total(figures: Figures) -> Figure:
    rates = [f for name, f in figures.items() if name.endswith(".hardware_flag_rate") and f.value is not None]
    flags = sum(round((f.value or 0.0) * (f.n or 0)) for f in rates)
    return Figure(float(flags), n=sum(f.n or 0 for f in rates), note="cases with a hardware flag, of n; to reach: 0")


def _missed(base: Trace, case: Case) -> str:
    def names(rows: frozenset[int]) -> str:
        return ", ".join(str(base.rank[r]) for r in sorted(rows)) or "nobody"

    return f"{case.label}: slow {names(case.victims)}, named {names(case.named)} (first cause: {case.cause or 'none'})"


def _recorded(trace: Trace, limits: Limits, views: list[Seen]) -> Figures:
    """The job as it was recorded: nobody says here who is slow in truth."""
    figures: Figures = {}
    for seen in (v for v in views if not v.permuted):
        said = judge(as_work(trace, faults.sums(trace), seen), limits)
        named = [s for s in said if s.cause == "hardware"]
        words = [f"{s.where} {', '.join(map(str, s.ranks))} at {1 + (s.excess or 0.0):.2f}x" for s in named]
        others = [f"{s.cause} {s.reason} at {s.where}" for s in said if s.cause != "hardware"]
        note = "; ".join([*words, *others[:4]]) or "nobody stands out"
        name = f"recorded.{seen.name.partition('.')[0]}.hardware_flags"
        figures[name] = Figure(float(len(named)), n=len(trace.rank), note=note)
    return figures


def _wall_only(made: Made, limits: Limits) -> Figures:
    """The largest faults where only wall seconds are known: a hardware flag would be a guess."""
    flags = []
    for victims in made.victims["rank"]:
        job = faults.slow_hardware(made.sums, made.profile, victims, EXCESSES[-1])
        said = judge(Work(rank=made.base.rank, node=made.base.node, wall=job.wall), limits)
        flags.append(any(s.cause == "hardware" for s in said))
    return {"wall_only.hardware_flag_rate_50pct": share(flags, "wall seconds alone; to reach: 0")}
