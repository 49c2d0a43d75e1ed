"""From what a detector noticed to rows of table ``finding``.

Here and nowhere else: what is stored and what is told, one finding per entity and window, stable ids, and one
name for a shift that many nodes share.
"""

from __future__ import annotations

import functools
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import polars as pl

from graynode.detectors import shifts
from graynode.detectors.base import FINDING_COLUMNS, Detector, Round
from graynode.detectors.places import Place
from graynode.pipeline import schema

_TYPES: Final[Mapping[str, pl.DataType]] = {
    "int32": pl.Int32(),
    "int64": pl.Int64(),
    "float32": pl.Float32(),
    "float64": pl.Float64(),
    "bool": pl.Boolean(),
    "string": pl.String(),
    "timestamp": pl.Datetime("us", "UTC"),
}
FINDING_SCHEMA: Final = {f.name: _TYPES[f.type] for f in schema.TABLES["finding"].fields}
_P_STORED: Final = 1e-3
_PLACE: Final = ("pci_bus_id", "gpu_index")
"""Where a GPU sits: candidates bring it beside their own evidence."""

Candidate = dict[str, Any]
"""Columns of ``finding`` (``evidence`` as a mapping); everything this module fills may be absent."""


@functools.cache
def none() -> pl.DataFrame:
    """No finding, with all columns."""
    return pl.DataFrame(schema=FINDING_SCHEMA)


def collect(detector: Detector, round_: Round, candidates: Iterable[Candidate]) -> pl.DataFrame:
    """The findings of one round: worth storing, one per entity, in order of entity.

    Stored from half the threshold or p ≤ 1e-3; below the threshold the severity is ``digest`` (watched, not told).
    """
    stored = [_settled(c) for c in candidates if _worth_storing(c)]
    kept = _name_the_shift(list(_worst(stored).values()), round_)
    if not kept:
        return none()
    rows = [_row(detector, round_, c) for c in kept]
    frame = pl.DataFrame(rows, schema=FINDING_SCHEMA, orient="row")
    return frame.select(FINDING_COLUMNS).sort("node_id", "gpu_uuid", "link", "signal", nulls_last=False)


def is_told(candidate: Candidate) -> bool:
    """Whether the score has reached the threshold."""
    return bool(candidate["score"] >= candidate["threshold"])


def _worth_storing(c: Candidate) -> bool:
    p = c.get("p_value")
    return bool(c["score"] >= c["threshold"] / 2 or (p is not None and p <= _P_STORED))


def _settled(c: Candidate) -> Candidate:
    return c if is_told(c) else {**c, "severity": "digest"}


def _entity(c: Candidate) -> tuple[str, str, str]:
    return (c.get("node_id") or "", c.get("gpu_uuid") or "", c.get("link") or "")


def _rank(c: Candidate) -> tuple[bool, int, float, str]:
    return (is_told(c), -schema.SEVERITIES.index(c["severity"]), c["score"] / c["threshold"], c["signal"])


def _worst(candidates: Sequence[Candidate]) -> dict[tuple[str, str, str], Candidate]:
    groups: dict[tuple[str, str, str], list[Candidate]] = defaultdict(list)
    for c in candidates:
        groups[_entity(c)].append(c)
    worst = {}
    for entity, group in groups.items():
        first, *others = sorted(group, key=_rank, reverse=True)
        if others:
            also = [{"signal": o["signal"], "score": _short(o["score"]), "message": o["message"]} for o in others]
            first = {**first, "evidence": {**first.get("evidence", {}), "also": also}}
        worst[entity] = first
    return worst


def _name_the_shift(candidates: list[Candidate], round_: Round) -> list[Candidate]:
    """Told findings of one signal on many nodes become one, about what these nodes share."""
    told = [c for c in candidates if is_told(c) and c.get("node_id")]
    if not told:
        return candidates
    others = [c for c in candidates if not (is_told(c) and c.get("node_id"))]
    return [*others, *shifts.named(told, round_, _shift)]


def _shift(told: Sequence[Candidate], place: Place, of: int) -> Candidate:
    worst = max(told, key=lambda c: (_rank(c), _entity(c)))
    said = shifts.about([worst, *(c for c in told if c is not worst)], place, of)
    kept = ("value", "baseline", "peer_median", "peers", "unit", "effect", "score", "threshold", "p_value")
    return {
        **{k: worst.get(k) for k in kept},
        **said,
        "severity": min("ticket", worst["severity"], key=lambda s: -schema.SEVERITIES.index(s)),
        "_entity": f"{place.kind}/{place.name}/{worst['signal']}/{worst['cause']}",
    }


def _row(detector: Detector, round_: Round, c: Candidate) -> dict[str, Any]:
    entity = c.get("_entity") or "/".join(_entity(c))
    window = f"{round_.start.isoformat()}/{round_.window_s}"
    place = {k: c[k] for k in _PLACE if c.get(k) is not None}
    evidence = {k: _short(v) for k, v in (place | c.get("evidence", {})).items()}
    row = {k: v for k, v in c.items() if k in FINDING_SCHEMA}
    row.update(
        ts=round_.start,
        finding_id=schema.stable_id(c.get("cluster"), entity, detector.name, detector.version, window),
        detector=detector.name,
        version=detector.version,
        evidence=json.dumps(evidence, ensure_ascii=False, sort_keys=True, default=str),
        live=c.get("live", True),
        since=c.get("since") or round_.start,
    )
    for name in ("value", "baseline", "peer_median", "effect", "score", "threshold", "p_value"):
        row[name] = _number(row.get(name))
    row["peers"] = None if row.get("peers") is None else int(row["peers"])
    return row


def _number(value: Any) -> float | None:  # noqa: ANN401 (numpy or Python number)
    return None if value is None or value != value else float(value)


def _short(value: Any) -> Any:  # noqa: ANN401 (any JSON value)
    if isinstance(value, (list, dict, str, bool, int)) or value is None:
        return value
    number = _number(value)
    return None if number is None else round(number, 6)
