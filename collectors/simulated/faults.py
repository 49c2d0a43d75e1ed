"""Faults of the simulated fleet: the file that asks for them, checked, and where they were put.

``docs/faults.md`` describes the file. This module knows what a fault *is*, not how it is found: it shares
nothing with the detectors, so that what they find is not what they were told.
"""

# ruff: noqa: ANN401 (a TOML value is any value until it has been checked)
from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal

Target = Literal["gpu", "link", "node"]


class FaultsError(ValueError):
    """The faults file cannot be used; the text names file, entry, key, value and what is allowed."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault: what it strikes, what ``size`` means, and how large it may be."""

    name: str
    target: Target
    size: str
    default: float
    lo: float
    hi: float
    extra: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


KINDS: Final[Mapping[str, Kind]] = {
    k.name: k
    for k in (
        Kind("slow_gpu", "gpu", "share of speed lost under load, 0.05 is 5 %", 0.05, 0.001, 0.9),
        Kind("thermal", "gpu", "°C that cooling is worse at full power", 25.0, 1.0, 60.0),
        Kind("power_brake", "node", "share of clock lost while the brake is asserted", 0.5, 0.05, 0.9),
        Kind("pcie_width", "gpu", "lanes that are left of 16", 8, 1, 8, {"gen": (1, 2, 3, 4, 5)}),
        Kind("ecc_growth", "gpu", "corrected errors per day on the last day; begins near none", 40.0, 0.1, 1e6),
        Kind("link_flap", "link", "outages per hour", 6.0, 0.1, 120.0, {"outage_s": (1, 60)}),
        Kind("link_down", "link", "not used: down from start to end in one piece", 1.0, 1.0, 1.0),
        Kind("stuck_sensor", "gpu", "not used: the value of the first moment stays", 1.0, 1.0, 1.0,
             {"signal": ("temp_c", "power_w", "sm_clock_mhz")}),
        Kind("gpu_lost", "gpu", "not used: gone until the node is rebooted", 1.0, 1.0, 1.0),
    )
}  # fmt: skip
"""What can be asked for. ``extra`` holds further keys: a list of allowed values, or (lowest, highest)."""

NATURAL_MIX: Final[Mapping[str, float]] = {
    "ecc_growth": 0.438, "link_down": 0.200, "link_flap": 0.159, "gpu_lost": 0.115, "thermal": 0.237,
    "pcie_width": 0.202, "power_brake": 0.180, "slow_gpu": 0.180, "stuck_sensor": 0.060,
}  # fmt: skip
"""Hardware faults per 1,000 node-days by kind, grouped from the classes of InfiniteHBD-Trace (400 nodes, 348
days): double- and single-bit errors → ecc_growth; cable down, split by its repeats → link_down and link_flap; GPU
lost and Xid → gpu_lost; fan and temperature → thermal; PCIe width → pcie_width; power supply → power_brake. The
trace has no class for slow GPUs and stuck sensors: slow_gpu is set as often as power supplies, a stated guess."""

_TOP: Final = ("natural", "fault", "ends")
_SPAN: Final = re.compile(r"([+-]?)(\d+(?:\.\d+)?)(s|m|h|d)")
_UNIT_S: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True)
class Wanted:
    """One entry of the file. Times are seconds from the fleet's *now*; ``None`` places are chosen by the seed."""

    kind: Kind
    start_s: float
    duration_s: float
    size: float
    node: int | str | None = None
    gpu: int | None = None
    link: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    natural: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole file: faults by name, and the rate of those that simply happen (per 1,000 node-days).

    ``hardware_ends``: share of the jobs that fail which do so by a machine, beside those that a fault of the plan ends.
    """

    wanted: tuple[Wanted, ...] = ()
    natural_rate: float = 0.0
    hardware_ends: float = 0.0


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault in its place: ``start`` and ``end`` are seconds on the fleet's own axis."""

    kind: str
    node: int
    gpu: int
    link: int
    start: float
    end: float
    size: float
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)
    natural: bool = False

    def active(self, t: float) -> bool:
        """True while the fault lasts."""
        return self.start <= t < self.end


def demo() -> Plan:
    """The plan of the shipped demonstration (``demo_faults.toml``)."""
    return parse(Path(__file__).with_name("demo_faults.toml").read_text(encoding="utf-8"), "demo_faults.toml")


def read(path: Path, now: datetime | None = None) -> Plan:
    """The plan in a file; ``now`` is what absolute times are measured against. ``FaultsError`` where it is wrong."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise FaultsError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise FaultsError(f"{path}: not UTF-8 text: {error.reason}") from error
    return parse(text, str(path), now)


def parse(text: str, source: str, now: datetime | None = None) -> Plan:
    """The plan in a text of TOML."""
    try:
        told = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FaultsError(f"{source}: not TOML: {error}") from error
    _known(told, _TOP, source)
    entries = told.get("fault", [])
    if not isinstance(entries, list):
        raise FaultsError(f"{source}: fault = {entries!r}: write each as its own [[fault]]")
    return Plan(
        tuple(_wanted(entry, f"{source}: fault {i}", now) for i, entry in enumerate(entries, 1)),
        _rate(told, "natural", "rate_per_1000_node_days", source, 1000),
        _rate(told, "ends", "hardware_share", source, 1),
    )


def _rate(file: Mapping[str, Any], table: str, key: str, source: str, most: float) -> float:
    told = file.get(table, {})
    if not isinstance(told, Mapping):
        raise FaultsError(f"{source}: {table} = {told!r}: a table [{table}] is wanted")
    _known(told, (key,), f"{source}: [{table}]")
    return _number(told.get(key, 0.0), key, f"{source}: [{table}]", 0, most)


def _wanted(told: Any, where: str, now: datetime | None) -> Wanted:
    if not isinstance(told, Mapping):
        raise FaultsError(f"{where}: {told!r} is not a table; write [[fault]] and its keys below")
    name = told.get("kind")
    if not isinstance(name, str) or name not in KINDS:
        raise FaultsError(f"{where}: kind = {name!r}: {_one_of(name, KINDS)}")
    kind = KINDS[name]
    where = f"{where} ({name})"
    places = {"gpu": ("node", "gpu"), "link": ("node", "link"), "node": ("node",)}[kind.target]
    _known(told, ("kind", "start", "duration", "size", *places, *kind.extra), where)
    if "start" not in told:
        raise FaultsError(f"{where}: start is missing; say -3h, +60s or 2026-01-31T12:00:00Z")
    return Wanted(
        kind=kind,
        start_s=_moment(told["start"], where, now),
        duration_s=_duration(told.get("duration", "forever"), where),
        size=_number(told.get("size", kind.default), "size", where, kind.lo, kind.hi, kind.size),
        node=_node(told.get("node"), where),
        gpu=_place(told.get("gpu"), "gpu", where),
        link=_place(told.get("link"), "link", where),
        extra={key: _extra(told[key], key, kind.extra[key], where) for key in kind.extra if key in told},
    )


def _moment(told: Any, where: str, now: datetime | None) -> float:
    if isinstance(told, datetime) or (isinstance(told, str) and "T" in told):
        return _absolute(told, where, now)
    match = _SPAN.fullmatch(told.replace(" ", "")) if isinstance(told, str) else None
    if match is None or not match[1]:
        raise FaultsError(f"{where}: start = {told!r}: say -3h (before now), +60s (after) or 2026-01-31T12:00:00Z")
    return float(match[2]) * _UNIT_S[match[3]] * (-1 if match[1] == "-" else 1)


def _absolute(told: datetime | str, where: str, now: datetime | None) -> float:
    try:
        moment = datetime.fromisoformat(told) if isinstance(told, str) else told
    except ValueError as error:
        raise FaultsError(f"{where}: start = {told!r}: not a time: {error}") from error
    if moment.tzinfo is None:
        raise FaultsError(f"{where}: start = {str(told)!r}: has no zone; add Z for UTC")
    if now is None:
        raise FaultsError(f"{where}: start = {str(told)!r}: a shipped plan has relative times only")
    return (moment - now).total_seconds()


def _duration(told: Any, where: str) -> float:
    if told == "forever":
        return float("inf")
    match = _SPAN.fullmatch(told.replace(" ", "")) if isinstance(told, str) else None
    if match is None or match[1] or float(match[2]) <= 0:
        raise FaultsError(f"{where}: duration = {told!r}: say 90s, 30m, 6h, 2d or forever")
    return float(match[2]) * _UNIT_S[match[3]]


def _number(told: Any, key: str, where: str, lo: float, hi: float, meaning: str = "") -> float:
    if isinstance(told, bool) or not isinstance(told, int | float) or not lo <= told <= hi:
        raise FaultsError(
            f"{where}: {key} = {told!r}: a number from {lo:g} to {hi:g}" + (f" ({meaning})" if meaning else "")
        )
    return float(told)


def _node(told: Any, where: str) -> int | str | None:
    return told if isinstance(told, str) else _place(told, "node", where)


def _place(told: Any, key: str, where: str) -> int | None:
    if told is not None and (isinstance(told, bool) or not isinstance(told, int) or told < 0):
        raise FaultsError(f"{where}: {key} = {told!r}: a number from 0, or leave it out and the seed chooses")
    return told


def _extra(told: Any, key: str, allowed: Sequence[Any], where: str) -> Any:
    if key == "outage_s":
        return _number(told, key, where, allowed[0], allowed[1], "seconds of one outage")
    if told not in allowed or isinstance(told, bool):
        raise FaultsError(f"{where}: {key} = {told!r}: one of {', '.join(map(str, allowed))}")
    return told


def _known(told: Mapping[str, Any], allowed: Sequence[str], where: str) -> None:
    for key, value in told.items():
        if key not in allowed:
            raise FaultsError(f"{where}: unknown key {key} = {value!r}; {_one_of(key, allowed)}")


def _one_of(told: Any, allowed: Any) -> str:
    near = difflib.get_close_matches(str(told), list(allowed), n=1)
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(allowed)}"


def truth(fault: Fault, node: str, node_id: str, gpu_uuid: str | None, link: str | None, origin: datetime) -> str:
    """One line of ``truth.jsonl``: what was wrong, where, from when until when, and how much."""
    kind = KINDS[fault.kind]
    end = None if fault.end == float("inf") else _iso(origin + timedelta(seconds=fault.end))
    return json.dumps(
        {
            "kind": fault.kind, "node": node, "node_id": node_id, "gpu_uuid": gpu_uuid, "link": link,
            "from": _iso(origin + timedelta(seconds=fault.start)), "until": end, "size": fault.size,
            "size_means": kind.size, **fault.extra, "natural": fault.natural,
        },
        ensure_ascii=False,
    )  # fmt: skip


def _iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat()
