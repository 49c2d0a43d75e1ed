"""What the doctor found, for a person or for a machine. Neither decides anything."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graynode.collectors.base import Machine
from graynode.pipeline.schema import TABLES
from graynode.service.doctor_checks import Check
from graynode.service.doctor_cost import SAMPLED
from graynode.service.doctor_sources import Trial, Tried


def to_mend(checks: Sequence[Check], tried: Tried) -> int:
    """How many lines ask a person to do something."""
    return sum(c.state == "mend" for c in checks) + sum(
        t.state in ("fails", "hangs") or bool(t.failing) for t in tried.trials
    )


def as_object(machine: Machine, checks: Sequence[Check], tried: Tried) -> dict[str, Any]:
    """For ``--json``; names are those of the contract."""
    return {
        "node": machine.node,
        "node_id": machine.node_id,
        "node_id_source": machine.node_id_source,
        "cluster": machine.cluster,
        "to_mend": to_mend(checks, tried),
        "checks": as_checks(checks),
        "collectors": [_trial(trial) for trial in tried.trials],
        "null_fields": tried.nulls,
        "cpu_percent": round(tried.cpu_percent, 3),
        "bytes_per_day": tried.bytes_per_day,
    }


def as_checks(checks: Sequence[Check]) -> list[dict[str, Any]]:
    """Checks for ``--json``."""
    return [{"about": c.about, "state": c.state, "said": c.said, "way_out": c.way_out or None} for c in checks]


def lines_of(checks: Sequence[Check]) -> Iterator[str]:
    """Checks for a person: a line each, and the way out below."""
    for check in checks:
        yield f"  {_mark(check.state)}  {check.about:<16} {_line(check.said)}"
        if check.way_out:
            yield f"{'':25}→ {_line(check.way_out)}"


def _trial(trial: Trial) -> dict[str, Any]:
    return {
        "name": trial.name,
        "state": trial.state,
        "reason": trial.reason or None,
        "failing": trial.failing,
        "rows": dict(trial.rows),
        "fields_measured": {table: sorted(names) for table, names in sorted(trial.fields.items())},
        "us_per_round": {str(every): round(us) for every in (1, 10, 60) if (us := trial.cost_us(every)) is not None},
        "nvml_call_max_ms": trial.call_max_ms,
        "bytes_per_day": trial.bytes_per_day,
        "not_measured": [
            {name: row.get(name) for name in ("table_name", "entity", "field", "state", "reason")}
            for row in trial.quality
            if row.get("state") != "measured"
        ],
    }


def for_person(machine: Machine, checks: Sequence[Check], tried: Tried) -> Iterator[str]:
    """Lines of text: the node, the sources, what is null and why, what it costs, and what is to mend."""
    yield f"{machine.node}  ({machine.node_id} by {machine.node_id_source}, cluster {machine.cluster})"
    yield ""
    yield from lines_of(checks)
    yield ""
    yield "Sources, each a few rounds:"
    for trial in tried.trials:
        yield from _source(trial)
    yield ""
    yield from _nulls(tried.nulls)
    yield (
        f"Cost of all: {tried.cpu_percent:.2f} % of one core at a round a second, one in seven of the 60 s class, "
        f"{_megabytes(tried.bytes_per_day)} of samples a day; changes and events come on top."
    )
    mend = to_mend(checks, tried)
    yield f"{mend} to mend." if mend else "Nothing to mend."


def _mark(state: str) -> str:
    return "MEND" if state in ("mend", "fails", "hangs") else {"absent": "none", "silent": "----"}.get(state, state[:4])


def _source(trial: Trial) -> Iterator[str]:
    if trial.state in ("absent", "fails", "hangs"):
        yield f"  {_mark(trial.state)}  {trial.name:<16} {trial.state}: {_line(trial.reason)}"
        if trial.state != "absent":
            yield f"{'':25}→ look at it alone: graynode agent --once --dry-run --verbose"
        return
    told = [f"{count} {table}" for table, count in sorted(trial.rows.items())]
    fields = [f"{len(names - _keys(t))} fields of {t}" for t, names in sorted(trial.fields.items()) if t in SAMPLED]
    said = ", ".join(told) if told else "nothing yet: it speaks when something happens"
    more = f" ({', '.join(fields)})" if fields else ""
    mark = "MEND" if trial.failing else "well" if told else _mark(trial.state)
    yield f"  {mark}  {trial.name:<16} {said}{more}"
    costs = [f"{us:.0f} µs in a {every} s round" for every in (1, 10, 60) if (us := trial.cost_us(every)) is not None]
    if trial.call_max_ms is not None:
        costs.append(f"slowest NVML call {trial.call_max_ms:.1f} ms")
    if trial.bytes_per_day:
        costs.append(f"{_megabytes(trial.bytes_per_day)} a day")
    if costs:
        yield f"{'':25}{', '.join(costs)}"
    yield from _not_measured(trial)


def _not_measured(trial: Trial) -> Iterator[str]:
    """``quality`` by reason: a reason that holds for a hundred fields is one line."""
    by: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in trial.quality:
        if row.get("state") != "measured":
            by[str(row.get("state")), str(row.get("reason"))].append(f"{row.get('entity')} {row.get('field')}")
    for (state, reason), what in list(by.items())[:12]:
        fields = list(dict.fromkeys(item.rpartition(" ")[2] for item in what))
        yield f"{'':25}{state}: {_line(reason)} [{_few(fields)}]"
    if len(by) > 12:
        yield f"{'':25}… and {len(by) - 12} more reasons (--json has all)"


def _nulls(nulls: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    for table, fields in nulls.items():
        by: dict[str, list[str]] = defaultdict(list)
        for name, reason in fields.items():
            by[reason].append(name)
        of = sum(f.kind != "key" for f in TABLES[table].fields)
        yield f"Table {table}: {of - len(fields)} of {of} fields measured. Null here:"
        for reason, names in sorted(by.items(), key=lambda item: -len(item[1])):
            yield f"    {len(names):3}  {_line(reason)}: {_few(names)}"
        yield ""


def _line(text: str) -> str:
    """What a program said, as one line without control characters."""
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split()))


def _few(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 6 else f"{', '.join(names[:5])} and {len(names) - 5} more"


def _keys(table: str) -> set[str]:
    return {f.name for f in TABLES[table].fields if f.kind == "key"}


def _megabytes(number: float) -> str:
    return f"{number / 1e6:.1f} MB"
