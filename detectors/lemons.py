"""Lemons: which nodes will fault next, ranked, with the reasons; and which are on probation after a repair.

A history of faults in, one row a node out. The rank is by expected faults a day
(``graynode.detectors.lemon_rates``); the probability of a fault within a week is that of a returned node while it is on
probation (``graynode.detectors.refault``), else that of its rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np
import polars as pl

from graynode.detectors.fault_history import Faults, Floats, down, returns
from graynode.detectors.lemon_rates import outlook
from graynode.detectors.refault import PROBATION_D, hazard, probation_until

HORIZON_D: Final = 7.0
WINDOWS_D: Final = (7, 28, 90)
LEAST_DAYS: Final = 28.0
LEAST_FAULTS: Final = 10
"""With less history the order says little: a rank over ten faults is mostly chance."""
HISTORY_SCHEMA: Final = {
    "node_id": pl.String(),
    "start": pl.Datetime("us", "UTC"),
    "end": pl.Datetime("us", "UTC"),
    "kind": pl.String(),
}
"""A fault a row; ``end`` null while it lasts."""
RANKED_SCHEMA: Final = {
    "rank": pl.Int64(),
    "node_id": pl.String(),
    "faults_per_1000_days": pl.Float64(),
    "times_fleet": pl.Float64(),
    "p_fault_7d": pl.Float64(),
    **{f"faults_{days}d": pl.Int64() for days in WINDOWS_D},
    "faults": pl.Int64(),
    "last_fault": pl.Datetime("us", "UTC"),
    "last_kind": pl.String(),
    "kind_again": pl.Boolean(),
    "last_return": pl.Datetime("us", "UTC"),
    "repairs_in_a_row": pl.Int64(),
    "down": pl.Boolean(),
    "probation_until": pl.Datetime("us", "UTC"),
    "reason": pl.String(),
}
_DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Ranking:
    """``nodes``: a row a node, likeliest to fault first (``RANKED_SCHEMA``); equal nodes share their rank.

    ``days`` and ``faults`` say how much history it rests on.
    """

    nodes: pl.DataFrame
    days: float
    faults: int

    @property
    def enough(self) -> bool:
        """Whether there is history enough for the order to mean something."""
        return self.days >= LEAST_DAYS and self.faults >= LEAST_FAULTS


def rank(
    history: pl.DataFrame,
    fleet: Sequence[str],
    at: datetime,
    since: datetime | None = None,
    apart: timedelta = timedelta(minutes=10),
) -> Ranking:
    """Rank every node of ``fleet`` and of ``history`` by what was known just before ``at``.

    ``since`` is when watching began, by default at the first fault: days without faults are evidence too. Faults of a
    node that overlap, or begin within ``apart`` of the end of those before, are one fault told by several witnesses.
    """
    past = history.select(pl.col(name).cast(type_) for name, type_ in HISTORY_SCHEMA.items()).filter(
        pl.col("start") < at
    )
    past = past.drop_nulls(["node_id", "start"]).sort("start", "node_id", "kind")
    names = sorted({*fleet, *past.get_column("node_id")})
    first = past.get_column("start").min()
    began = min(t for t in (since, first, at) if isinstance(t, datetime)).astimezone(UTC)
    at_d = max((at - began) / _DAY, 0.0)
    if not names:
        return Ranking(pl.DataFrame(schema=RANKED_SCHEMA), at_d, 0)
    told, kinds = _arrays(past, names, began)
    faults = told.known(at_d).merged(apart / _DAY)
    return Ranking(_table(faults, names, kinds, began, at_d), at_d, len(faults))


def _arrays(past: pl.DataFrame, names: Sequence[str], began: datetime) -> tuple[Faults, list[str]]:
    number = {name: i for i, name in enumerate(names)}
    kinds = sorted(set(past.get_column("kind").fill_null("")))
    start_d = _days(past.get_column("start"), began)
    end_d = np.where(past.get_column("end").is_null().to_numpy(), np.inf, _days(past.get_column("end"), began))
    return Faults(
        len(names),
        np.array([number[n] for n in past.get_column("node_id")], dtype=np.int64),
        start_d,
        np.maximum(end_d, start_d),
        np.array([kinds.index(k) for k in past.get_column("kind").fill_null("")], dtype=np.int64),
    ), kinds


def _days(times: pl.Series, began: datetime) -> Floats:
    microseconds = (times - began).dt.total_microseconds().cast(pl.Float64).fill_null(float("nan"))
    return np.asarray(microseconds.to_numpy() / _DAY.total_seconds() / 1e6, dtype=np.float64)


def _table(faults: Faults, names: Sequence[str], kinds: Sequence[str], began: datetime, at_d: float) -> pl.DataFrame:
    ahead = outlook(faults, at_d, HORIZON_D)
    is_down, last_return, chain = down(faults), *_last_return(faults)
    on_probation = at_d - last_return < PROBATION_D
    age_d = np.where(on_probation, at_d - last_return, 0.0)
    after_return = hazard(faults, at_d).p_refault(chain, age_d, HORIZON_D)
    counts = {f"faults_{d}d": faults.counts(at_d - d, at_d) for d in WINDOWS_D}
    columns: dict[str, Any] = {
        "faults_per_1000_days": 1000.0 * ahead.rate_per_day,
        "times_fleet": ahead.rate_per_day / ahead.rate_per_day.mean(),
        "p_fault_7d": np.where(on_probation, after_return, ahead.p_fault),
        **counts,
        "repairs_in_a_row": np.where(on_probation, chain + 1.0, 0.0).astype(np.int64),
        "down": is_down,
    }
    facts = _facts(faults, kinds)
    rows = []
    for i, name in enumerate(names):
        back = _moment(began, float(last_return[i]))
        row = {"node_id": name, "faults": 0, "last_return": back, **{k: v[i].item() for k, v in columns.items()}}
        row["probation_until"] = probation_until(back) if on_probation[i] else None
        known = facts.get(i)
        row |= {} if known is None else {**known, "last_fault": _moment(began, known["last_fault"])}
        rows.append({**row, "reason": reason(row)})
    frame = pl.DataFrame(rows, schema={k: v for k, v in RANKED_SCHEMA.items() if k != "rank"}, orient="row")
    place = pl.col("faults_per_1000_days").rank("min", descending=True).cast(pl.Int64).alias("rank")
    return frame.with_columns(place).sort("rank", "node_id").select(list(RANKED_SCHEMA))


def _last_return(faults: Faults) -> tuple[Floats, Floats]:
    """When each node last came back (NaN: never, or it is down now), and how many repairs before did not hold."""
    back = returns(faults)
    at_d, chain = np.full(faults.nodes, np.nan), np.zeros(faults.nodes)
    at_d[back.node], chain[back.node] = back.at_d, back.chain  # in order of time: the last one stays
    is_down = down(faults)
    return np.where(is_down, np.nan, at_d), np.where(is_down, 0.0, chain)


def _facts(faults: Faults, kinds: Sequence[str]) -> dict[int, dict[str, Any]]:
    """Of each node with faults: how many, the last, its class, and whether a fault before was of that class."""
    found: dict[int, dict[str, Any]] = {}
    for node in np.unique(faults.node):
        own = np.flatnonzero(faults.node == node)
        last = own[-1]
        found[int(node)] = {
            "faults": len(own),
            "last_fault": float(faults.start_d[last]),
            "last_kind": kinds[int(faults.kind[last])] or None,
            "kind_again": bool((faults.kind[own[:-1]] == faults.kind[last]).any()),
        }
    return found


def _moment(began: datetime, days: float) -> datetime | None:
    return None if np.isnan(days) else began + timedelta(days=float(days))


def reason(row: dict[str, Any]) -> str:
    """Why a node stands where it stands, in one line, from its row without ``reason``."""
    if not row["faults"]:
        return "no fault known"
    times = ", ".join(f"{row[f'faults_{d}d']} in {d} d" for d in WINDOWS_D)
    said = [f"{row['faults']} fault{'s' * (row['faults'] != 1)} ({times})"]
    if row.get("last_kind"):
        said.append(f"last: {row['last_kind']}" + (", the same class as one before" if row.get("kind_again") else ""))
    if row["down"]:
        said.append("the last one has not ended")
    if row["repairs_in_a_row"] > 1:
        before = row["repairs_in_a_row"] - 1
        said.append(f"{before} repairs in a row" if before > 1 else "the repair before")
        said[-1] += " did not hold a week"
    if row["probation_until"] is not None:
        said.append(f"on probation until {row['probation_until']:%Y-%m-%d %H:%M} UTC")
    return "; ".join(said)
