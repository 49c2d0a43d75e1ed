"""``rules``: what the vendor says needs no statistics, on window rows (``rule_table``).

A condition is told when it begins, again every half hour while it lasts, and once more, as contrary evidence
(``clears``), when it has ended. Null changes nothing: what cannot be read is neither well nor ill. Events are not
read here: ``event_rules`` does that without waiting for windows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Final

import numpy as np
import polars as pl

from graynode.detectors import gpu_count, shifts
from graynode.detectors import rule_table as table
from graynode.detectors.base import FINDING_COLUMNS, Round, Scored, State
from graynode.detectors.event_rules import EventRules, from_events
from graynode.detectors.findings import FINDING_SCHEMA
from graynode.detectors.frames import Bools, Floats, View, gpus, moment
from graynode.detectors.gpu_words import named
from graynode.detectors.memory import Arrays, recall, remember
from graynode.detectors.places import Place
from graynode.detectors.policy import Policy, shipped
from graynode.detectors.return_rules import LEVELS
from graynode.detectors.rule_table import Rule
from graynode.pipeline.schema import stable_id

__all__ = ["EventRules", "Rules", "from_events"]

_NUMBERS: Final = (
    *(r.column for r in (*table.FLAGS, table.ECC)), *dict.fromkeys(c for level in LEVELS for c in level.columns),
    "hw_power_brake_s", "hw_thermal_s", "hw_slowdown_s",
    table.RECOVERY_COLUMN, "samples",
)  # fmt: skip
_SIGNALS: Final = (
    *(r.signal for r in (*table.FLAGS, *(level.rule for level in LEVELS), *table.PERSISTENT)), "recovery_action",
)  # fmt: skip
_COLUMNS: Final = (
    *(f"{signal}.{what}" for signal in _SIGNALS for what in ("since", "told")),
    *(f"{r.signal}.mask" for r in table.PERSISTENT),
    "recovery_action.value",
    "last",
)
_SHARED: Final = frozenset({*(r.signal for r in table.PERSISTENT), "gpus_unread"})
Finding = dict[str, Any]


class Rules:
    """The detector; ``policy`` gives the meaning of recovery actions."""

    name: ClassVar[str] = "rules"
    version: ClassVar[int] = 2

    def __init__(self, policy: Policy | None = None) -> None:
        self._policy = policy or shipped()

    def score(self, round_: Round, state: State) -> Scored:
        """Findings of one window, and the memory of which conditions run."""
        view = gpus(round_.gpu, _NUMBERS)
        kept = recall(state.get("gpu"), view.keys, _COLUMNS)
        found = [*self._gpu_findings(view, kept, round_.window_s)]
        hosts, host_memory = gpu_count.score(round_, state.get("host"))
        found += hosts
        now_s = round_.start.timestamp()
        kept["last"] = view.t_s.copy()
        rows = [_row(f, round_) for f in _grouped(found, round_)]
        frame = pl.DataFrame(rows, schema=FINDING_SCHEMA, orient="row").select(FINDING_COLUMNS)
        ordered = frame.sort("node_id", "gpu_uuid", "signal", nulls_last=False)
        return Scored(ordered, {"gpu": remember(state.get("gpu"), view.keys, kept, now_s), "host": host_memory})

    def _gpu_findings(self, view: View, kept: Arrays, window_s: int) -> Iterator[Finding]:
        for rule in table.FLAGS:
            value = view.x[rule.column]
            yield from _condition(view, kept, rule, value, on=value >= 1, off=value < 1)
        for level in LEVELS:
            value = level.value(view)
            yield from _condition(view, kept, level.rule, value, on=value >= level.least, off=value < level.least)
        for rule in table.PERSISTENT:
            value = _held_s(view, rule)
            on, off = _persists(kept, rule, view, value, window_s)
            yield from _condition(view, kept, rule, value, on=on, off=off)
        yield from self._recovery(view, kept)
        grown = view.x[table.ECC.column]
        for i in np.flatnonzero(grown > 0):
            yield _finding(view, int(i), table.ECC, float(grown[i]), view.t_s[i], hold=False)

    def _recovery(self, view: View, kept: Arrays) -> Iterator[Finding]:
        value, before = view.x[table.RECOVERY_COLUMN], kept["recovery_action.value"]
        changed = ~np.isnan(value) & ~np.isnan(before) & (value != before) & (value > 0)
        kept["recovery_action.told"][changed] = np.nan  # another action is news
        for wanted in sorted({int(v) for v in value[value > 0]}):
            verdict = self._policy.recovery(wanted)
            rule = Rule("recovery_action", table.RECOVERY_COLUMN, verdict.cause, verdict.severity, verdict.owner,
                        verdict.title, verdict.action, "Read it again afterwards; it must be none.",
                        verdict.action_source, unit="enumeration")  # fmt: skip
            yield from _condition(view, kept, rule, value, on=value == wanted, off=np.zeros(len(view), dtype=bool))
        over = Rule("recovery_action", "", "recovery_requested", "digest", "platform", "no recovery action any more",
                    "", "", "graynode rules")  # fmt: skip
        yield from _condition(view, kept, over, value, on=np.zeros(len(view), dtype=bool), off=value == 0)
        kept["recovery_action.value"] = np.where(np.isnan(value), before, value)


def _held_s(view: View, rule: Rule) -> Floats:
    if rule.column in view.x:
        return view.x[rule.column]
    named = np.nan_to_num(view.x["hw_thermal_s"]) + np.nan_to_num(view.x["hw_power_brake_s"])
    return np.where(named > 0, 0.0 * view.x["hw_slowdown_s"], view.x["hw_slowdown_s"])


def _persists(kept: Arrays, rule: Rule, view: View, seconds: Floats, window_s: int) -> tuple[Bools, Bools]:
    """Where the rule holds and where it has ended, by its bit in each of the last windows."""
    long = window_s >= table.LONG_WINDOW_S
    bad = seconds >= (table.LONG_WINDOW_LEAST_S if long else table.PART_OF_WINDOW * window_s)
    known = ~np.isnan(seconds)
    if long:
        return bad & known, known & ~bad
    gap = (view.t_s - kept["last"]) > (table.WINDOWS_KEPT * window_s)
    before = np.where(gap, 0.0, np.nan_to_num(kept[f"{rule.signal}.mask"])).astype(np.int64)
    mask = ((before << 1) | bad) & ((1 << table.WINDOWS_KEPT) - 1)
    mask = np.where(known, mask, before)
    kept[f"{rule.signal}.mask"] = mask.astype(np.float64)
    hits = np.bitwise_count(mask & ((1 << rule.of) - 1))
    return known & (hits >= rule.hits), known & (hits == 0)


def _condition(view: View, kept: Arrays, rule: Rule, value: Floats, *, on: Bools, off: Bools) -> Iterator[Finding]:
    """Findings where a condition begins, lasts for another half hour, or ends; its memory follows."""
    since, told = kept[f"{rule.signal}.since"], kept[f"{rule.signal}.told"]
    since[on & np.isnan(since)] = view.t_s[on & np.isnan(since)]
    due = on & (np.isnan(told) | (view.t_s - told >= table.AGAIN_S))
    ended = off & ~np.isnan(since)
    for i in np.flatnonzero(due):
        told[i] = view.t_s[i]
        yield _finding(view, int(i), rule, float(value[i]), since[i], hold=True)
    for i in np.flatnonzero(ended):
        over = _finding(view, int(i), rule, float(value[i]), since[i], hold=False)
        yield over | {"severity": "digest", "message": f"over: {over['message']}", "clears": [rule.signal]}
    since[ended] = told[ended] = np.nan


def _finding(view: View, i: int, rule: Rule, value: float, since_s: float, *, hold: bool) -> Finding:
    gpu = named(view.text("gpu_index")[i], view.text("pci_bus_id_last")[i], view.text("gpu_uuid")[i])
    return {
        **view.identity(i),
        "subject": "gpu",
        "cause": rule.cause,
        "severity": rule.severity,
        "signal": rule.signal,
        "value": value,
        "unit": rule.unit,
        "since": moment(since_s),
        "message": f"{gpu}: {rule.words}",
        "action": rule.action,
        "owner": rule.owner,
        "next_step": rule.next_step,
        "action_source": rule.source,
        "hold": hold,
    }


_EVIDENCE: Final = (
    "pci_bus_id",
    "gpu_index",
    "owner",
    "next_step",
    "action_source",
    "hold",
    "clears",
    "nodes",
    "nodes_told",
    "nodes_seen",
    "shared",
    "of_cause",
    "title",
    "expected",
)


def _row(finding: Finding, round_: Round) -> Finding:
    """A row of table ``finding``."""
    entity = [finding.get(key) or "" for key in ("node_id", "gpu_uuid", "node")]
    window = f"{round_.start.isoformat()}/{round_.window_s}"
    identity = stable_id(
        "finding", finding.get("cluster"), *entity, Rules.name, Rules.version, finding["signal"], window
    )
    more = {key: finding[key] for key in _EVIDENCE if finding.get(key) is not None}
    return {
        **{key: value for key, value in finding.items() if key not in _EVIDENCE},
        "ts": round_.start,
        "finding_id": identity,
        "detector": Rules.name,
        "version": Rules.version,
        "evidence": json.dumps(more, ensure_ascii=False, sort_keys=True),
        "live": True,
    }


def _grouped(found: Iterable[Finding], round_: Round) -> list[Finding]:
    """Throttling that begins in a rack, or on a fifth of the cluster, is one event of power, cooling or software."""
    shared: list[Finding] = []
    kept: list[Finding] = []
    for finding in found:
        (shared if finding["signal"] in _SHARED and not finding.get("clears") else kept).append(finding)
    return kept + (shifts.named(shared, round_, _shift) if shared else [])


def _shift(group: Sequence[Finding], place: Place, of: int) -> Finding:
    first = min(group, key=lambda f: (f["since"], str(f["node_id"]), str(f.get("gpu_uuid"))))
    said = shifts.about([first, *(f for f in group if f is not first)], place, of)
    evidence = said.pop("evidence")
    count = float(evidence["nodes_told"])
    return {**said, **evidence, "severity": "ticket", "value": count, "peers": of, "unit": "nodes"}
