"""Files that can be imported, parsed: text in, rows of a contract table out. No file, no clock, no lake."""

from __future__ import annotations

import csv
import io
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from graynode.pipeline.schema import stable_id

Row = dict[str, Any]


class NotThisFormat(ValueError):
    """The text is no file of this format; the message says what was looked for and what was found."""


@dataclass(slots=True)
class Parsed:
    """Rows to store, and what became of the others. ``read`` is their sum."""

    rows: list[Row] = field(default_factory=list)
    duplicates: int = 0
    refused: Counter[str] = field(default_factory=Counter)

    @property
    def read(self) -> int:
        """Records in the file."""
        return len(self.rows) + self.duplicates + self.refused.total()


@dataclass(frozen=True, slots=True)
class Format:
    """One format: the table it fills, the cluster that its data is of, and its parser of (text, cluster)."""

    name: str
    table: str
    cluster: str
    parse: Callable[[str, str], Parsed]


class _Refused(ValueError):
    """One record is not stored; the text is the reason that is counted."""


def _parsed(records: Iterable[Any], to_row: Callable[[Any], Row], id_column: str) -> Parsed:
    """The records' rows, each id once; a record that is refused costs only itself."""
    parsed, seen = Parsed(), set()
    for record in records:
        try:
            row = to_row(record)
        except _Refused as reason:
            parsed.refused[str(reason)] += 1
            continue
        if row[id_column] in seen:
            parsed.duplicates += 1
            continue
        seen.add(row[id_column])
        parsed.rows.append(row)
    return parsed


# --- Longhorn: sgemm runs per GPU ------------------------------------------------------------------------

_SGEMM_COLUMNS: Final = ("exp", "input_size", "uuid", "cabinet", "node", "ts", "kern", "perf", "freq", "temp", "pwr")
_SGEMM_MODEL: Final = "Tesla V100"
_FIRST_S: Final = datetime(2010, 1, 1, tzinfo=UTC).timestamp()
_LAST_S: Final = datetime(2100, 1, 1, tzinfo=UTC).timestamp()
_UNKNOWN: Final = "-1"
"""How the file says that it does not know: cabinet, node and, in some rows, the time."""


def longhorn_sgemm(text: str, cluster: str) -> Parsed:
    """Runs of one matrix product per GPU as ``probe`` rows: milliseconds, lower is better.

    Exact repeats of a line are dropped and counted. Where a line does not know its node, the node that other lines
    of the file give for the same GPU is taken; without any, the machine is named after the GPU.
    """
    reader = csv.DictReader(io.StringIO(text))
    missing = [name for name in _SGEMM_COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise NotThisFormat(f"the first line lacks the columns {', '.join(missing)}")
    try:
        lines = list(reader)
    except csv.Error as error:
        raise NotThisFormat(f"line {reader.line_num} is no line of a table: {error}") from error
    homes = _homes(lines)
    return _parsed(lines, lambda line: _sgemm_row(line, cluster, homes), "run_id")


def _homes(lines: list[dict[str, str]]) -> Mapping[str, tuple[str, str]]:
    """Cabinet and node of each GPU, where the file gives one place and only one."""
    told: dict[str, set[tuple[str, str]]] = {}
    for line in lines:
        if line["cabinet"] not in (_UNKNOWN, "", None):
            told.setdefault(line["uuid"], set()).add((line["cabinet"], line["node"]))
    return {uuid: next(iter(places)) for uuid, places in told.items() if len(places) == 1}


def _sgemm_row(line: dict[str, str], cluster: str, homes: Mapping[str, tuple[str, str]]) -> Row:
    if None in line or None in line.values():
        raise _Refused("not as many fields as the first line")
    if not line["uuid"].startswith("GPU-"):
        raise _Refused("uuid is no GPU's")
    seconds = _number(line["ts"], "ts")
    if not _FIRST_S <= seconds < _LAST_S:
        raise _Refused(f"ts is no time of a run: {line['ts'][:20]}")
    milliseconds = _number(line["perf"], "perf")
    if milliseconds <= 0:
        raise _Refused("perf is not a positive number of milliseconds")
    place = homes.get(line["uuid"]) if line["cabinet"] in (_UNKNOWN, "") else (line["cabinet"], line["node"])
    size = int(_number(line["input_size"], "input_size"))
    return {
        "ts": datetime.fromtimestamp(seconds, UTC), "cluster": cluster, **_home(cluster, line["uuid"], place),
        "gpu_uuid": line["uuid"], "gpu_model": _SGEMM_MODEL, "operation": "gemm", "dtype": "fp32",
        "variant": f"n={size} {line['kern']}", "ranks": 1, "value": milliseconds, "unit": "ms", "better": "lower",
        "sm_clock_mhz": _optional(line["freq"]), "power_w": _optional(line["pwr"]), "temp_c": _optional(line["temp"]),
        "run_id": stable_id("import", "longhorn-sgemm", cluster, *line.values()), "source": "import",
    }  # fmt: skip


def _home(cluster: str, uuid: str, place: tuple[str, str] | None) -> Row:
    if place is None:
        return {"node": None, "node_id": stable_id("import", cluster, "of", uuid)}
    name = f"{place[0]}-{place[1].zfill(3)}"
    return {"node": name, "node_id": stable_id("import", cluster, name)}


def _number(text: str, column: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise _Refused(f"{column} is not a number") from None
    if not math.isfinite(number):
        raise _Refused(f"{column} is not a finite number")
    return number


def _optional(text: str) -> float | None:
    """A measurement that may be absent: null is "could not tell"."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and number > 0 else None


# --- InfiniteHBD: starts and ends of node faults ------------------------------------------------------------

_TRACE_EPOCH: Final = datetime(2024, 3, 30, tzinfo=UTC)
"""Day 0 of the trace, as its README says; times are days since then in steps of 0.0001 (8.6 s)."""
_KINDS: Final = ("fault_start", "fault_end")
_MOST_DAYS: Final = 36_500.0


def infinitehbd(text: str, cluster: str) -> Parsed:
    """Fault starts and ends of nodes as ``event`` rows; level, class and description are in ``attributes``."""
    try:
        told = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise NotThisFormat(f"not JSON: {error}") from error
    if not isinstance(told, list):
        raise NotThisFormat(f"a JSON array of events is wanted, this is {type(told).__name__}")
    if told and not any(isinstance(e, dict) and "event_type" in e for e in told):
        raise NotThisFormat("no entry has event_type, event_time and fault_type")
    return _parsed(told, lambda event: _fault_row(event, cluster), "event_id")


def _fault_row(event: Any, cluster: str) -> Row:  # noqa: ANN401 (any JSON)
    if not isinstance(event, dict):
        raise _Refused("an entry is no object")
    node, days, kind, fault = (event.get(key) for key in ("node_id", "event_time", "event_type", "fault_type"))
    if not isinstance(node, str) or not node:
        raise _Refused("node_id is missing")
    if isinstance(days, bool) or not isinstance(days, int | float) or not 0 <= days <= _MOST_DAYS:
        raise _Refused("event_time is no number of days")
    if kind not in _KINDS:
        raise _Refused(f"event_type is neither of {' and '.join(_KINDS)}")
    if not isinstance(fault, dict):
        raise _Refused("fault_type is missing")
    level, class_, desc = (str(fault.get(key, "")) for key in ("Level", "Class", "Desc"))
    raw = json.dumps(event, sort_keys=True, ensure_ascii=False)
    return {
        "ts": _TRACE_EPOCH + timedelta(days=days), "cluster": cluster, "node": node, "node_id": node,
        "event_id": stable_id("import", "infinitehbd", cluster, raw), "source": "import", "kind": kind,
        "message": f"{class_}: {desc}", "raw": raw, "ts_quality": "approximate",
        "attributes": json.dumps({"level": level, "class": class_, "desc": desc, "event_time_d": days}),
    }  # fmt: skip


FORMATS: Final[Mapping[str, Format]] = {
    f.name: f
    for f in (
        Format("longhorn-sgemm", "probe", "longhorn", longhorn_sgemm),
        Format("infinitehbd", "event", "infinitehbd", infinitehbd),
    )
}


def reasons(refused: Counter[str]) -> Iterator[str]:
    """Lines for a person: how many records were refused, and why."""
    for reason, count in refused.most_common():
        yield f"{count:>7,} refused: {reason}"
