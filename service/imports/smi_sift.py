"""Values of one GPU by the fields that they are about; where several are about one, which of them counts. Pure."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from graynode.pipeline.schema import INT32_BLANK, TABLES
from graynode.service.imports.smi_fields import Entry, Form, entries
from graynode.service.imports.smi_ledger import OTHER, SAME, Ledger, Reading
from graynode.service.imports.smi_unused import unused
from graynode.service.imports.smi_values import Absent, Unreadable, Value, absent

Row = dict[str, Any]
ELSEWHERE: Final = "absent here, while another value of its field was taken"
_INT32: Final = (-(2**31), INT32_BLANK[0] - 1)


@dataclass(frozen=True, slots=True)
class _Refused:
    """A text that is no value of its field, and why."""

    reason: str


@dataclass(slots=True)
class Sifted:
    """The values of one device by what they are for, and fields without a value with why."""

    gpu: Row = field(default_factory=dict)
    inventory: Row = field(default_factory=dict)
    attributes: Row = field(default_factory=dict)
    facts: Row = field(default_factory=dict)
    absent: dict[str, tuple[str, str]] = field(default_factory=dict)
    spent: Counter[str] = field(default_factory=Counter)
    """Values by the table that takes them: in the ledger only once the rows are made."""


_Candidate = tuple[Entry, Value | Absent]


def sift(form: Form, readings: Iterable[Reading], ledger: Ledger) -> Sifted:
    """Read every value, and choose where several are about one field."""
    known, out = entries(form), Sifted()
    found: dict[str, list[_Candidate]] = {}
    for name, text in readings:
        entry = known.get(name)
        if entry is None:
            _unknown(form, name, ledger)
            continue
        value = _read(form, name, text)
        if isinstance(value, _Refused):
            ledger.refuse(value.reason)
        elif isinstance(value, Absent):
            for one in entry.names:
                found.setdefault(one, []).append((entry, value))
            out.spent[_table(entry, value)] += 1
        else:
            found.setdefault(entry.names[0], []).append((entry, value))
    for name, candidates in found.items():
        entry, value = candidates[0]
        if len(candidates) > 1 or isinstance(value, Absent):
            _settle(name, candidates, out, ledger)
        else:
            out.spent[_table(entry, value)] += 1
            _place(name, entry, value, out, 1)
    return out


def _unknown(form: Form, name: str, ledger: Ledger) -> None:
    reason = unused(form, name)
    if reason is None:
        ledger.new(name)
    else:
        ledger.refuse(reason)


@functools.lru_cache(maxsize=16_384)  # a log says the same few texts over and over
def _read(form: Form, name: str, text: str) -> Value | Absent | _Refused:
    entry = entries(form)[name]
    gone = absent(text)
    if gone is not None:
        return gone
    try:
        return entry.convert(text)
    except Unreadable as reason:
        return _Refused(f"{entry.names[0]}: {reason}" if str(reason) != "empty" else "empty")
    except ValueError:
        return _Refused(f"{entry.names[0]} and its group: not a value")


def _table(entry: Entry, value: Value | Absent) -> str:
    """The table whose row shows the value."""
    if isinstance(value, Absent):
        return "quality" if entry.place == "gpu" else "absent"
    return "gpu" if entry.place in ("gpu", "fact") else "inventory"


def _settle(name: str, candidates: Sequence[_Candidate], out: Sifted, ledger: Ledger) -> None:
    """The best rank with a value is taken; values of other ranks are the same again, or others."""
    ranks: dict[int, list[_Candidate]] = defaultdict(list)
    for entry, value in candidates:
        ranks[entry.rank].append((entry, value))
    taken: Value | None = None
    for rank in sorted(ranks):
        group = ranks[rank]
        values = [value for _, value in group if not isinstance(value, Absent)]
        combined = _combined(group, values)
        if combined is None:
            ledger.refuse(f"{name}: a part of the sum is absent", len(values))
        elif taken is None:
            taken = combined
            own = group[0][0]
            used = values if own.combine != "first" else values[:1]
            out.spent[_table(own, combined)] += len(used)
            _again(values[len(used) :], taken, ledger)
            _place(name, own, taken, out, len(used))
        elif group[0][0].combine == "or" and isinstance(taken, int):
            _again([combined] * len(values), taken & 0xFF if combined == taken & 0xFF else taken, ledger)
        else:
            _again([combined] * len(values), taken, ledger)
    gone = [(entry, value) for entry, value in candidates if isinstance(value, Absent)]
    if taken is None and gone and gone[0][0].place == "gpu":
        out.absent[name] = (gone[0][1].state, gone[0][1].text)
    elif taken is not None:
        alone = [entry for entry, value in gone if len(entry.names) == 1]
        out.spent.subtract(_table(entry, gone[0][1]) for entry in alone)
        ledger.refuse(ELSEWHERE, len(alone))


def _again(values: Sequence[Value], taken: Value, ledger: Ledger) -> None:
    for value in values:
        ledger.refuse(SAME if value == taken else OTHER)


def _combined(group: Sequence[_Candidate], values: Sequence[Value]) -> Value | None:
    if not values:
        return None
    how = group[0][0].combine
    if how == "first":
        return values[0]
    if len(values) < len(group) and how == "sum":
        return None
    total = 0
    for value in values:
        assert isinstance(value, int)  # noqa: S101 (only whole numbers are summed; narrows the type)
        total = total | value if how == "or" else total + value
    return total


def _place(name: str, entry: Entry, value: Value, out: Sifted, count: int) -> None:
    if entry.place == "gpu":
        wrong = implausible(name, value)
        if wrong is None:
            out.gpu[name] = value
            return
        out.absent[name] = ("implausible", wrong)
        out.spent["gpu"] -= count
        out.spent["quality"] += count
        return
    {"inventory": out.inventory, "attribute": out.attributes, "fact": out.facts}[entry.place][name] = value


def implausible(name: str, value: Value) -> str | None:
    """Why the device cannot mean that value, by the contract's own range; ``None`` where it can."""
    if isinstance(value, str):
        return None
    low, high = _bounds(name)
    if low <= value <= high:
        return None
    return f"{value} is below {low:g}" if value < low else f"{value} is above {high:g}"


@functools.cache
def _bounds(name: str) -> tuple[float, float]:
    f = TABLES["gpu"].field(name)
    low = f.lo if f.lo is not None else (0.0 if f.kind == "counter" else float("-inf"))
    high = f.hi if f.hi is not None else float("inf")
    return (max(low, _INT32[0]), min(high, _INT32[1])) if f.type == "int32" else (low, high)
