"""Fault traces in InfiniteHBD's format: ``fault_trace.json``, an array of fault starts and ends with their class.

The number of nodes is not in the trace, for nodes without a fault are not: ``fleet.json`` ({"nodes": 400}) says it, or
README or ORIGIN.txt beside it ("400 GPU servers"); else only the nodes that the trace names are counted, which is said.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from graynode.benchmarks.detection.result import DataError
from graynode.detectors.fault_history import Faults

NAME: Final = "fault_trace.json"
_SIZE: Final = re.compile(
    r"\*{0,2}(\d[\d,]*)\*{0,2}\s+(?:distinct\s+)?(?:GPU\s+)?(?:servers|nodes|machines)", re.IGNORECASE
)
_START: Final = "fault_start"
_KINDS: Final = (_START, "fault_end")

Event = tuple[float, str, bool, str]
"""Day, node, whether it is a start, class."""


@dataclass(frozen=True, slots=True)
class Trace:
    """``days`` is the time of the last event; ``names`` and ``kinds`` give the numbers in ``faults`` their words."""

    faults: Faults
    names: list[str]
    kinds: list[str]
    days: float
    files: list[Path]
    notes: list[str] = field(default_factory=list)


def read(folder: Path) -> Trace:
    """The trace of a folder. ``DataError`` says the file, what is wrong and what was expected."""
    file = folder / NAME
    if not file.is_file():
        raise DataError(f"{file}: is not there; track lemons reads InfiniteHBD's {NAME} (docs/evaluation.md)")
    try:
        told = json.loads(file.read_text("utf-8-sig"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise DataError(f"{file}: cannot be read as JSON: {error}") from error
    if not isinstance(told, list) or not told:
        raise DataError(f"{file}: a JSON array of fault_start and fault_end events is wanted, and it must not be empty")
    events = [_event(file, number, entry) for number, entry in enumerate(told)]
    notes: list[str] = []
    # at one moment the file's own order holds: a fault may end in the very moment in which it was noted
    rows = _paired(sorted(dict.fromkeys(events), key=lambda event: event[0]), notes)
    if len(set(events)) < len(events):
        notes.append(f"{len(events) - len(set(events))} exact repeats of an event were dropped")
    if not rows:
        raise DataError(f"{file}: no fault_start in it, so there is nothing to foretell")
    names, kinds = sorted({r[0] for r in rows}), sorted({r[3] for r in rows})
    size = _size(folder, len(names), notes)
    rows.sort(key=lambda r: (r[1], r[0]))
    number, code = ({word: i for i, word in enumerate(words)} for words in (names, kinds))
    faults = Faults(
        size,
        np.array([number[r[0]] for r in rows], dtype=np.int64),
        np.array([r[1] for r in rows]),
        np.array([r[2] for r in rows]),
        np.array([code[r[3]] for r in rows], dtype=np.int64),
    )
    return Trace(faults, names, kinds, max(e[0] for e in events), [file], notes)


def _event(file: Path, number: int, entry: Any) -> Event:  # noqa: ANN401 (any JSON)
    def wrong(what: str) -> DataError:
        return DataError(f"{file}: event {number}: {what}")

    if not isinstance(entry, dict):
        raise wrong("is no object with node_id, event_time, event_type and fault_type")
    node, day, kind, fault = (entry.get(key) for key in ("node_id", "event_time", "event_type", "fault_type"))
    if isinstance(node, bool) or not isinstance(node, str | int) or node == "":
        raise wrong(f"node_id {node!r} is no name or number of a node")
    if isinstance(day, bool) or not isinstance(day, int | float) or not 0 <= day < 1e5:
        raise wrong(f"event_time {day!r} is no number of days from 0 on")
    if kind not in _KINDS:
        raise wrong(f"event_type {kind!r} is neither of {' and '.join(_KINDS)}")
    words = fault if isinstance(fault, dict) else {}
    return float(day), str(node), kind == _START, "/".join(str(words.get(k, "")) for k in ("Class", "Desc"))


def _paired(events: list[Event], notes: list[str]) -> list[tuple[str, float, float, str]]:
    """Faults as (node, start, end, class): an end closes the oldest open fault of its class, else the oldest."""
    open_: dict[str, list[tuple[float, str]]] = defaultdict(list)
    faults: list[tuple[str, float, float, str]] = []
    strays = 0
    for day, node, starts, kind in events:
        if starts:
            open_[node].append((day, kind))
        elif open_[node]:
            same = [o for o in open_[node] if o[1] == kind]
            began = (same or open_[node])[0]
            open_[node].remove(began)
            faults.append((node, began[0], day, began[1]))
        else:
            strays += 1
    left = [(node, day, float("inf"), kind) for node, begun in open_.items() for day, kind in begun]
    if strays:
        notes.append(f"{strays} ends without a start were left out: these faults began before the trace")
    if left:
        notes.append(f"{len(left)} faults had not ended when the trace did")
    return faults + left


def _size(folder: Path, named: int, notes: list[str]) -> int:
    told = _told_size(folder)
    if told is None:
        notes.append(f"the number of nodes is not told (fleet.json or README.md); the {named} nodes of the trace count")
        return named
    if told < named:
        notes.append(f"{told} nodes are told, but the trace names {named}: these count")
    return max(told, named)


def _told_size(folder: Path) -> int | None:
    fleet = folder / "fleet.json"
    if fleet.is_file():
        try:
            nodes = json.loads(fleet.read_text("utf-8"))["nodes"]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f'{fleet}: {{"nodes": 400}} is expected: {error!r}') from error
        if isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 1:
            raise DataError(f"{fleet}: nodes is {nodes!r}, a whole number from 1 on is expected")
        return nodes
    for name in ("README.md", "README.txt", "README", "ORIGIN.txt"):
        if (folder / name).is_file():
            said = _SIZE.findall((folder / name).read_text("utf-8", errors="replace"))
            if said:
                return max(int(number.replace(",", "")) for number in said)
    return None
