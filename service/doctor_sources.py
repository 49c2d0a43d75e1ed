"""A few rounds of every configured collector, as a dry run has them: what each gives, what not and why, and its cost.

The collectors work in a state folder of their own, so positions and locks of an agent that runs are left alone.
"""

from __future__ import annotations

import contextlib
import shutil
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from graynode.collectors.base import CADENCES_S, Collector, Machine, NoSource, Round, Row, Rows, utc_now
from graynode.collectors.context import JobContext
from graynode.collectors.health import Health, process_tree
from graynode.collectors.release import REQUEST
from graynode.pipeline.schema import TABLES
from graynode.service.agent_jobs import wanted
from graynode.service.agent_parts import Given, connect, make_one, probes
from graynode.service.config import Config, ConfigError
from graynode.service.doctor_cost import SAMPLED, bytes_per_day

ALL: Final = frozenset(CADENCES_S)
_FAST: Final = frozenset({1})
_PLAN: Final = (ALL, _FAST, _FAST, _FAST, _FAST, _FAST, frozenset({1, 10}))
"""After the warm-up: one round of each class, and five of the fast one to take the middle of."""
_WARM_UP: Final = 24
"""Rounds that sources which start in the background (NVML's reader) are given."""
_FAILING: Final = ("error", "lost")
_SPACING_S: Final = 0.25
"""Between two rounds. The agent's are a second apart; nobody wants to wait for that."""


@dataclass(slots=True)
class Trial:
    """What one collector did. ``us`` are microseconds of a round by its slowest class (1, 10, 60)."""

    name: str
    state: Literal["works", "silent", "absent", "fails", "hangs"] = "silent"
    reason: str = ""
    rows: Counter[str] = field(default_factory=Counter)
    fields: dict[str, set[str]] = field(default_factory=dict)
    us: dict[int, list[float]] = field(default_factory=dict)
    last: dict[int, list[tuple[str, Row]]] = field(default_factory=dict)
    """Rows of sampled tables of the rounds after the warm-up, by the slowest class that was due."""
    quality: list[Row] = field(default_factory=list)
    bytes_per_day: int = 0
    call_max_ms: float | None = None
    """The slowest NVML call, where the collector tells."""

    @property
    def failing(self) -> list[str]:
        """What it says, by ``quality``, that it cannot read as a whole (field ``*``) and has not read again since."""
        last = {(r.get("table_name"), r.get("entity")): r for r in self.quality if r.get("field") == "*"}
        return [f"{r.get('reason')}" for r in last.values() if r.get("state") in _FAILING]

    def cost_us(self, every_s: int) -> float | None:
        """The middle of what a round of this class took."""
        taken = self.us.get(every_s)
        return statistics.median(taken) if taken else None


@dataclass(frozen=True, slots=True)
class Tried:
    """All of them. ``cpu_percent`` is processor time of one core, children included, were the rounds a second apart."""

    trials: Sequence[Trial]
    cpu_percent: float
    bytes_per_day: int
    nulls: Mapping[str, Mapping[str, str]]
    """By sampled table the fields that stayed null, and why."""


def harmless(config: Config, folder: Path) -> Config:
    """The configuration without what would take something from a running agent: the socket of ``steps``.

    Where the agent has let go of the GPUs (``graynode agent release``), nobody touches them here either.
    """
    with contextlib.suppress(OSError):
        shutil.copy(config.agent.state_dir / REQUEST, folder / REQUEST)
    if "steps" not in wanted(config):
        return config
    return msgspec.structs.replace(config, steps=msgspec.structs.replace(config.steps, socket=folder / "steps.sock"))


def try_sources(
    config: Config,
    machine: Machine,
    *,
    make: Callable[[str, Given], Collector] = make_one,
    pause: Callable[[float], None] = time.sleep,
    monotonic: Callable[[], float] = time.monotonic,
) -> Tried:
    """Run the rounds. ``ConfigError`` for settings that a collector cannot use."""
    health = Health(monotonic, machine.proc)
    given = Given(config, machine, health, JobContext())
    trials, collectors = _make(wanted(config), given, make)
    connect(list(collectors.values()))
    health.probes += probes(list(collectors.values()))
    run = _Run(trials, collectors, health, config.agent.deadline_s, monotonic, pause)
    try:
        run.warm_up()
        before = process_tree()[0]
        for due in _PLAN:
            run.round(due, measured=True)
        spent = process_tree()[0] - before
    finally:
        run.close()
    for trial in trials:
        trial.bytes_per_day = bytes_per_day(config.agent.batch_s, machine, [trial.last])
    every = bytes_per_day(config.agent.batch_s, machine, [t.last for t in trials])
    return Tried(trials, 100 * spent / len(_PLAN), every, nulls(trials))


def _make(
    names: Sequence[str], given: Given, make: Callable[[str, Given], Collector]
) -> tuple[list[Trial], dict[str, Collector]]:
    trials, made = [Trial(name) for name in dict.fromkeys(names)], {}
    for trial in trials:
        try:
            made[trial.name] = make(trial.name, given)
        except NoSource as none:
            trial.state, trial.reason = "absent", str(none)
        except ConfigError:
            raise
        except Exception as error:
            trial.state, trial.reason = "fails", f"{type(error).__name__}: {error}"
    return trials, made


class _Run:
    """The rounds. A collector that does not come back within the deadline is left alone from then on."""

    def __init__(
        self, trials: Sequence[Trial], collectors: dict[str, Collector], health: Health, deadline_s: float,
        monotonic: Callable[[], float], pause: Callable[[float], None],
    ) -> None:  # fmt: skip
        self._trials = {trial.name: trial for trial in trials}
        self._collectors, self._health, self._deadline_s = collectors, health, deadline_s
        self._monotonic, self._pause = monotonic, pause
        self._last: dict[str, float] = {}

    def warm_up(self) -> None:
        """Until every source that lives has given something, but not for ever."""
        for n in range(_WARM_UP):
            self.round(ALL, measured=False)
            if n and all(trial.rows or trial.state not in ("silent", "works") for trial in self._trials.values()):
                return

    def round(self, due: frozenset[int], *, measured: bool) -> None:
        """One round of all that still run, then the pause before the next."""
        ts, self._health.due = utc_now(), due
        for name in list(self._collectors):
            self._one(self._trials[name], Round(ts, due, self._elapsed(name)), measured=measured)
        self._pause(_SPACING_S)

    def close(self) -> None:
        """Close those that still answer, each within the deadline."""
        for name, collector in self._collectors.items():
            _within(self._deadline_s, collector.close, name)

    def _elapsed(self, name: str) -> float | None:
        last, self._last[name] = self._last.get(name), self._monotonic()
        return None if last is None else self._last[name] - last

    def _one(self, trial: Trial, round_: Round, *, measured: bool) -> None:
        collector = self._collectors[trial.name]
        done = _within(self._deadline_s, lambda: collector.collect(round_), trial.name)
        if done is None:
            trial.state, trial.reason = "hangs", f"a round did not come back within {self._deadline_s:g} s"
            del self._collectors[trial.name]
            return
        rows, error, seconds = done
        if isinstance(error, NoSource):
            trial.state, trial.reason = "absent", str(error)
            del self._collectors[trial.name]
        elif error is not None:
            trial.state, trial.reason = "fails", f"{type(error).__name__}: {error}"
        else:
            _note(trial, rows or {}, round_.due, seconds * 1e6 if measured else None)
        trial.call_max_ms = _most(trial.call_max_ms, getattr(collector, "call_max_ms", None))


def _within(deadline_s: float, call: Callable[[], Any], name: str) -> tuple[Any, Exception | None, float] | None:
    """The call's result or error, and its seconds; ``None`` if it hangs, which ends with the process."""
    done: list[tuple[Any, Exception | None, float]] = []

    def run() -> None:
        began = time.perf_counter()
        try:
            done.append((call(), None, time.perf_counter() - began))
        except Exception as error:
            done.append((None, error, time.perf_counter() - began))

    thread = threading.Thread(target=run, name=f"doctor {name}", daemon=True)
    thread.start()
    thread.join(deadline_s)
    return done[0] if done else None


def _note(trial: Trial, rows: Rows, due: frozenset[int], taken_us: float | None) -> None:
    if any(rows.values()):
        trial.state = "works"
    if trial.state == "fails":
        trial.state, trial.reason = "silent", ""
    for table, some in rows.items():
        trial.rows[table] += len(some)
        for row in some:
            trial.fields.setdefault(table, set()).update(n for n, v in row.items() if v is not None)
    trial.quality += [dict(row) for row in rows.get("quality", ())]
    if taken_us is not None:
        trial.us.setdefault(max(due), []).append(taken_us)
        sampled = [(table, row) for table, some in rows.items() if table in SAMPLED for row in some]
        trial.last.setdefault(max(due), []).extend(sampled)


def nulls(trials: Sequence[Trial]) -> dict[str, dict[str, str]]:
    """Fields of sampled tables that no round gave, with the reason that a ``quality`` row tells, if one does."""
    found: dict[str, dict[str, str]] = {}
    for name in SAMPLED:
        here = [trial.fields[name] for trial in trials if name in trial.fields]
        if not here:
            continue
        given = set().union(*here)
        said = _reasons(name, trials)
        found[name] = {
            f.name: said.get(f.name) or said.get("*") or "none of the collectors here gives it"
            for f in TABLES[name].fields
            if f.kind != "key" and f.name not in given
        }
    return found


def _reasons(table: str, trials: Sequence[Trial]) -> dict[str, str]:
    rows = [row for trial in trials for row in trial.quality if row.get("table_name") == table]
    return {str(r.get("field")): f"{r.get('state')}: {r.get('reason')}" for r in rows if r.get("state") != "measured"}


def _most(one: float | None, other: float | None) -> float | None:
    told = [value for value in (one, other) if value is not None]
    return max(told) if told else None
