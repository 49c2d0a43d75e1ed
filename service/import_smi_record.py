"""Values of one GPU in one capture as rows of ``gpu``, ``inventory`` and ``quality``; every value has one end.

Pure. The ledger counts where each value went: into a row of which table, or refused and why. Nothing is left out.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from graynode.collectors.pci import pci_address
from graynode.pipeline.schema import INT32_BLANK, TABLES, stable_id
from graynode.service.import_smi_fields import Entry, Form, entries
from graynode.service.import_smi_unused import unused
from graynode.service.import_smi_values import Absent, Unreadable, Value, absent

Row = dict[str, Any]
Reading = tuple[str, str]
"""A value's name in its form, and its text."""

SAME: Final = "says the same as another value of its field"
OTHER: Final = "another value of its field was taken"
NEW: Final = "a name that this version does not know"
NO_UUID: Final = "its GPU has no UUID here, so nothing tells which GPU it is: add uuid to --query-gpu"
NO_TIME: Final = "its capture's time cannot be read"
_MOST_NAMES: Final = 200
_INT32: Final = (-(2**31), INT32_BLANK[0] - 1)


@dataclass(slots=True)
class Ledger:
    """What became of every value: stored by table, refused by reason. ``read`` is the sum of both."""

    stored: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    new_names: Counter[str] = field(default_factory=Counter)
    sections: Counter[str] = field(default_factory=Counter)
    """Lines that are of none of the three forms, by the title that they stand under."""
    captures: Counter[str] = field(default_factory=Counter)
    """How many captures of which form and schema."""
    notes: dict[str, None] = field(default_factory=dict)
    """What a person should know of the file, in the order met."""

    @property
    def read(self) -> int:
        """Values in the file."""
        return self.stored.total() + self.refused.total()

    def refuse(self, reason: str, count: int = 1) -> None:
        """Count values that are not stored."""
        if count:
            self.refused[reason] += count

    def new(self, name: str, count: int = 1) -> None:
        """Count a value that only a newer nvidia-smi has, under its name."""
        self.refused[NEW] += count
        if name in self.new_names or len(self.new_names) < _MOST_NAMES:
            self.new_names[name] += count


@dataclass(slots=True)
class Device:
    """One GPU, or one MIG instance of it, as read: values in the order met, and its instances."""

    readings: list[Reading] = field(default_factory=list)
    parts: list[Device] = field(default_factory=list)

    def count(self) -> int:
        """Its values and those of its instances."""
        return len(self.readings) + sum(part.count() for part in self.parts)


@dataclass(frozen=True, slots=True)
class Where:
    """What the import knows that the text does not say."""

    cluster: str
    node: str
    file_id: str
    """Stands for the machine where neither a host nor a UUID does: the file's hash."""
    source: str


@dataclass(slots=True)
class Told:
    """The rows of one GPU."""

    gpu: list[Row] = field(default_factory=list)
    inventory: list[Row] = field(default_factory=list)
    quality: list[Row] = field(default_factory=list)


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
    found: dict[str, list[_Candidate]] = defaultdict(list)
    for name, text in readings:
        entry = known.get(name)
        if entry is None:
            _unknown(form, name, ledger)
            continue
        value = _read(entry, text, ledger)
        if value is None:
            continue
        if isinstance(value, Absent):
            for one in entry.names:
                found[one].append((entry, value))
            out.spent[_table(entry, value)] += 1
        else:
            found[entry.names[0]].append((entry, value))
    for name, candidates in found.items():
        _settle(name, candidates, out, ledger)
    return out


def _unknown(form: Form, name: str, ledger: Ledger) -> None:
    reason = unused(form, name)
    if reason is None:
        ledger.new(name)
    else:
        ledger.refuse(reason)


def _read(entry: Entry, text: str, ledger: Ledger) -> Value | Absent | None:
    gone = absent(text)
    if gone is not None:
        return gone
    try:
        return entry.convert(text)
    except Unreadable as reason:
        ledger.refuse(f"{entry.names[0]}: {reason}" if str(reason) != "empty" else "empty")
    except ValueError:
        ledger.refuse(f"{entry.names[0]} and its group: not a value")
    return None


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
    if taken is None:
        gone = next((value for _, value in candidates if isinstance(value, Absent)), None)
        if gone is not None and candidates[0][0].place == "gpu":
            out.absent[name] = (gone.state, gone.text)


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
    f = TABLES["gpu"].field(name)
    low = f.lo if f.lo is not None else (0 if f.kind == "counter" else float("-inf"))
    high = f.hi if f.hi is not None else float("inf")
    if f.type == "int32":
        low, high = max(low, _INT32[0]), min(high, _INT32[1])
    if low <= value <= high:
        return None
    return f"{value} is below {low:g}" if value < low else f"{value} is above {high:g}"


# --- rows ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Moment:
    """When, and how well that is known: ``approximate`` (local time, zone assumed), ``observed`` (not in the text)."""

    ts: datetime
    quality: str


MomentOf = Callable[[str | None], Moment]
"""From a capture's own time, or ``None`` where it has none; ``Unreadable`` where it cannot be."""


def rows(
    form: Form, device: Device, shared: Sifted, moment_of: MomentOf, where: Where, ledger: Ledger
) -> tuple[Told, Sifted]:
    """Rows of one GPU, and its values. ``shared`` is what its capture says once for all; the caller counts that."""
    own, told = sift(form, device.readings, ledger), Told()
    uuid = own.gpu.get("gpu_uuid")
    try:
        moment = moment_of(own.facts.get("timestamp") or shared.facts.get("timestamp"))
    except Unreadable:
        return _without(NO_TIME, own, device, ledger)
    if not isinstance(uuid, str):
        return _without(NO_UUID, own, device, ledger)
    who = _who(own, shared, moment, where, uuid, ledger)
    told.gpu.append({**who, **_measured(own.gpu)})
    parts = _parts(form, device, told, who, where, ledger)
    told.inventory.append(_inventory(own, shared, who, moment, where, parts))
    told.quality += _quality(own, who, uuid, where)
    _spend(own, ledger)
    return told, own


def _without(reason: str, own: Sifted, device: Device, ledger: Ledger) -> tuple[Told, Sifted]:
    ledger.refuse(reason, own.spent.total() + sum(part.count() for part in device.parts))
    return Told(), own


def _spend(sifted: Sifted, ledger: Ledger) -> None:
    ledger.refuse("N/A, and no field of the contract", sifted.spent.pop("absent", 0))
    ledger.stored.update(+sifted.spent)


def spend_shared(shared: Sifted, any_row: bool, ledger: Ledger) -> None:
    """Count the values that a capture has once for all of its GPUs, after the rows are made."""
    if any_row:
        _spend(shared, ledger)
    else:
        ledger.refuse("its capture has no GPU", shared.spent.total())


def _who(own: Sifted, shared: Sifted, moment: Moment, where: Where, uuid: str, ledger: Ledger) -> Row:
    host = where.node or own.facts.get("hostname") or shared.facts.get("hostname")
    masked = not uuid.removeprefix("GPU-").strip("0-")
    if masked:
        ledger.notes["its GPU UUIDs are masked (all zeros): GPUs are told apart by machine only"] = None
    if host:
        node_id = stable_id("import", where.cluster, str(host))
    else:
        ledger.notes["it names no host: give --node, else its machines have no name"] = None
        known = shared.facts.get("machine") or uuid
        node_id = stable_id("import", where.cluster, "of", where.file_id if masked else str(known))
    return {
        "ts": moment.ts, "cluster": where.cluster, "node_id": node_id, "node": str(host) if host else None,
        "gpu_uuid": uuid, "vendor": "NVIDIA",
    }  # fmt: skip


def _measured(gpu: Row) -> Row:
    row = dict(gpu)
    if "pci_bus_id" in row:
        row["pci_bus_id"] = pci_address(row["pci_bus_id"])
    return row


def _parts(form: Form, device: Device, told: Told, who: Row, where: Where, ledger: Ledger) -> list[Row]:
    """A row for each GPU instance; compute instances of one share its memory and are listed in the inventory."""
    listed: list[Row] = []
    seen: set[str] = set()
    for part in device.parts:
        own = sift(form, part.readings, ledger)
        instance = own.facts.get("gpu_instance")
        if instance is None:
            ledger.refuse("a MIG instance without its number", own.spent.total())
            continue
        own.spent["inventory"] += own.spent.pop("gpu", 0) if str(instance) in seen else 0
        listed.append({**own.facts, **own.attributes})
        if str(instance) not in seen:
            seen.add(str(instance))
            told.gpu.append(
                {**who, "gpu_model": told.gpu[0].get("gpu_model"), "mig_instance": str(instance), **own.gpu}
            )
            told.quality += _quality(own, who, f"{who['gpu_uuid']}/{instance}", where)
        _spend(own, ledger)
    return listed


def _inventory(own: Sifted, shared: Sifted, who: Row, moment: Moment, where: Where, parts: list[Row]) -> Row:
    facts = {**shared.inventory, **own.inventory}
    cluster, clique = facts.pop("cluster_uuid", None), facts.pop("clique", None)
    attributes = {**shared.attributes, **own.attributes, "ts_quality": moment.quality, "source": where.source}
    if parts:
        attributes["mig_instances"] = parts
    if cluster is None and clique is not None:
        attributes["clique"] = clique
    return {
        **{key: who[key] for key in ("ts", "cluster", "node_id", "node")},
        "kind": "gpu", "entity": who["gpu_uuid"], "model": own.gpu.get("gpu_model"),
        "slot": _measured(own.gpu).get("pci_bus_id"),
        "domain": f"{str(cluster).replace('-', '')}.{clique}" if cluster is not None and clique is not None else None,
        **facts,
        "attributes": json.dumps(attributes, sort_keys=True),
    }  # fmt: skip


def _quality(own: Sifted, who: Row, uuid: str, where: Where) -> list[Row]:
    return [
        {
            **{key: who[key] for key in ("ts", "cluster", "node_id", "node")},
            "table_name": "gpu", "entity": uuid, "field": name, "state": state, "reason": f"{where.source}: {text}",
        }
        for name, (state, text) in sorted(own.absent.items())
    ]  # fmt: skip
