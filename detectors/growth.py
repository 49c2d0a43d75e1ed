"""Growth of error counters: is this record of errors more than this entity and its fleet explain?

Counted are error-hours per powered hour: an hour from an error on is one, whatever else comes in it. Errors come in
bursts (94 % of gaps between corrected errors are under an hour, and one GPU once gave 112,656 in a day), so lines and
raw counts mean little, and a burst across the full hour must not count twice. Rates over a fleet are Gamma distributed
(most GPUs never show one, a few often do), so a count given the entity's own history is negative binomial, and its
upper tail is the p-value: of the last day, and of its last three clock hours, in which growth that has just begun
stands out; of the two the smaller, each paid for (Bonferroni, weighted). The Gamma is fitted per group (GPU model,
kind of link). Bursts longer than an hour come in runs of error-hours; how long, the group's own past says
(``cluster``), and runs are counted instead: otherwise one long burst would look like many errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from graynode.detectors.conformal import negative_binomial_tail
from graynode.detectors.frames import Bools, Floats, Ints, View, finite
from graynode.detectors.memory import Arrays, recall, remember

HOURS: Final = 24
_EPISODE_S: Final = 3600.0
_DAY_WEIGHT, _NOW_WEIGHT = 0.6, 0.4
"""A day keeps the larger part of the false findings allowed: three error-hours in it are still told."""
_NOW_HOURS: Final = 3
"""This clock hour and two before: a second error-hour that begins within two hours of the first is in them."""
_FLEET_HOURS: Final = 5_000.0
_FLEET_ENTITIES: Final = 5
"""With less history than this the fleet's own fit would be a guess, and the shipped prior stands."""


@dataclass(frozen=True, slots=True)
class Prior:
    """Gamma(shape, rate) of error-hours per hour over entities."""

    shape: float
    rate_h: float


@dataclass(frozen=True, slots=True)
class Growth:
    """``count`` error-hours in ``exposure_h`` hours of the last day, against ``history`` of them in ``history_h``.

    ``cluster``: error-hours that come together in the entity's group on an ordinary error-day, 1 where they come alone.
    ``new_hour``: this window begins an error-hour.
    """

    count: Floats
    exposure_h: Floats
    history: Floats
    history_h: Floats
    p: Floats
    since_s: Floats
    first_ever: Bools
    cluster: Floats
    new_hour: Bools


def columns() -> tuple[str, ...]:
    """Names under which an entity's record is remembered."""
    rings = [f"{kind}.{h}" for kind in ("hits", "powered") for h in range(HOURS)]
    return ("hour", "episode", "past_hits", "past_powered", "past_squares", *rings)


def advance(
    memory: Arrays, grew: Floats, powered_h: Floats, now_s: Floats, prior: Prior, groups: Ints | None = None
) -> Growth:
    """Count this window in, in place. ``grew`` is 1 or 0, NaN where the counter's growth is unknown.

    ``groups`` numbers the groups that share a law; without them all entities do.
    """
    hits, powered, new_hour = count_in(memory, grew, powered_h, now_s)
    one = np.zeros(len(grew), dtype=np.int64)
    return _judge(memory, hits, powered, prior, one if groups is None else groups, new_hour)


def count_in(memory: Arrays, grew: Floats, powered_h: Floats, now_s: Floats) -> tuple[Floats, Floats, Bools]:
    """Count this window into the last day, in place.

    Gives the rings of error-hours and of powered hours, an hour a row, and where this window begins an error-hour.
    """
    hits, powered = _ring(memory, "hits"), _ring(memory, "powered")
    hour, before = np.floor(now_s / 3600.0), memory["hour"]
    past_hits, past_powered = np.nan_to_num(memory["past_hits"]), np.nan_to_num(memory["past_powered"])
    new_day = np.floor(hour / HOURS) > np.floor(before / HOURS)  # NaN is no day
    squares = np.nan_to_num(memory["past_squares"])
    if new_day.any():
        squares += np.where(new_day, (hits > 0).sum(axis=0).astype(np.float64) ** 2, 0.0)
    if np.any(hour > before):  # in most windows no hour has passed
        gone = _gone(before, hour)
        past_hits += ((hits > 0) & gone).sum(axis=0)
        past_powered += np.where(gone, powered, 0.0).sum(axis=0)
        hits, powered = np.where(gone, 0.0, hits), np.where(gone, 0.0, powered)
    known, grown = ~np.isnan(grew), np.nan_to_num(grew)
    here = ((hour % HOURS).astype(np.int64), np.arange(len(hour)))
    began = memory["episode"]
    new_hour = np.asarray(known & (grown > 0) & ~(np.abs(now_s - began) < _EPISODE_S), dtype=np.bool_)
    hits[here] += new_hour
    powered[here] += np.where(known, powered_h, 0.0)
    memory.update(
        hour=hour,
        episode=np.where(new_hour, now_s, began),
        past_hits=past_hits,
        past_powered=past_powered,
        past_squares=squares,
    )
    for h in range(HOURS):
        memory[f"hits.{h}"], memory[f"powered.{h}"] = hits[h], powered[h]
    return hits, powered, new_hour


def recent(
    state: pl.DataFrame | None, view: View, columns: Sequence[str], grew: Floats, powered_h: Floats
) -> pl.DataFrame | None:
    """A state frame (of ``columns``) whose last day holds the hour windows of the day before the first round."""
    for now_s in np.unique(view.t_s):
        here = np.flatnonzero(view.t_s == now_s)
        keys = view.keys.gather(here)
        remembered = recall(state, keys, columns)
        count_in(remembered, grew[here], powered_h[here], view.t_s[here])
        state = remember(state, keys, remembered, float(now_s))
    return state


def learn(
    state: pl.DataFrame | None, view: View, columns: Sequence[str], grew: Floats, powered_h: Floats, last: Arrays
) -> pl.DataFrame | None:
    """A state frame (of ``columns``) with the error-hours and powered hours of past hour windows counted in.

    ``last`` names further columns whose newest known value is remembered.
    """
    if not len(view):
        return state
    known = ~np.isnan(grew)
    hours = pl.DataFrame(
        {
            "key": view.keys,
            "t": view.t_s,
            "past_hits": np.nan_to_num(grew) > 0,
            "past_powered": np.where(known, powered_h, 0.0),
            **last,
        },
        schema_overrides={"key": pl.String, "past_hits": pl.Float64},
        strict=False,
    ).sort("key", "t")
    newest = [pl.col(c).fill_nan(None).drop_nulls().last().alias(c) for c in last]
    day = (pl.col("t") // 86_400.0).alias("day")
    days = hours.group_by("key", day, maintain_order=True).agg(pl.col("past_hits").sum())
    squares = days.group_by("key").agg((pl.col("past_hits") ** 2).sum().alias("past_squares"))
    sums = hours.group_by("key", maintain_order=True).agg(pl.col("past_hits", "past_powered").sum(), *newest)
    sums = sums.join(squares, on="key", how="left", maintain_order="left")
    keys = sums.get_column("key")
    remembered = recall(state, keys, columns)
    for c in ("past_hits", "past_powered", "past_squares"):
        remembered[c] = np.nan_to_num(remembered[c]) + finite(sums.get_column(c))
    for c in last:
        now = finite(sums.get_column(c))
        remembered[c] = np.where(np.isnan(now), remembered[c], now)
    return remember(state, keys, remembered, float(view.t_s.max()))


def fitted(history: Floats, history_h: Floats, prior: Prior) -> Prior:
    """The fleet's own Gamma by moments, or ``prior`` where the fleet has not enough history."""
    total, hours = float(history.sum()), float(history_h.sum())
    if hours < _FLEET_HOURS or int((history > 0).sum()) < _FLEET_ENTITIES:
        return prior
    expected = total / hours * history_h
    beyond_poisson = float(((history - expected) ** 2 - expected).sum())
    shape = float((expected**2).sum()) / beyond_poisson if beyond_poisson > 0 else 5.0
    shape = min(max(shape, 0.02), 5.0)
    return Prior(shape, shape * hours / total)


def clustered(history: Floats, squares: Floats) -> float:
    """Error-hours that come together on an error-day: the median over entities of Σc²/Σc of their days, 1 to 6.

    A median, so that a few sick entities, whose days are all full, do not teach that full days are ordinary.
    """
    had = history > 0
    if int(had.sum()) < _FLEET_ENTITIES:
        return 1.0
    return float(np.clip(np.median(squares[had] / history[had]), 1.0, 6.0))


def _judge(memory: Arrays, hits: Floats, powered: Floats, prior: Prior, groups: Ints, new_hour: Bools) -> Growth:
    hour, past_hits, past_powered = memory["hour"], memory["past_hits"], memory["past_powered"]
    count, exposure = (hits > 0).sum(axis=0).astype(np.float64), powered.sum(axis=0)
    late = [(hour.astype(np.int64) - back) % HOURS for back in range(_NOW_HOURS)]
    each = np.arange(len(hour))
    now_count = sum(((hits[at, each] > 0).astype(np.float64) for at in late), np.zeros(len(hour)))
    now_exposure = sum((powered[at, each] for at in late), np.zeros(len(hour)))
    p, cluster = np.ones(len(count)), np.ones(len(count))
    for group in np.unique(groups):
        of = groups == group
        size = clustered(past_hits[of], memory["past_squares"][of])
        law = fitted(past_hits[of] / size, past_powered[of], prior)
        shape, rate = law.shape + past_hits[of] / size, law.rate_h + past_powered[of]
        day = negative_binomial_tail(count[of] / size, shape, rate, exposure[of]) / _DAY_WEIGHT
        now = negative_binomial_tail(now_count[of] / size, shape, rate, now_exposure[of]) / _NOW_WEIGHT
        p[of], cluster[of] = np.minimum(np.minimum(day, now), 1.0), size
    since, some = np.full(len(count), np.nan), np.flatnonzero(count > 0)
    age = (hour[some] - np.arange(HOURS)[:, None]) % HOURS
    since[some] = (hour[some] - np.where(hits[:, some] > 0, age, -1.0).max(axis=0, initial=-1.0)) * 3600.0
    return Growth(
        count, exposure, past_hits, past_powered, p, since, (past_hits == 0) & (count == 1), cluster, new_hour
    )


def _ring(memory: Arrays, kind: str) -> Floats:
    ring = np.stack([memory[f"{kind}.{h}"] for h in range(HOURS)])
    np.copyto(ring, 0.0, where=np.isnan(ring))
    return ring


def _gone(before: Floats, hour: Floats) -> Bools:
    """Which slots of the ring belong to hours that are a day old or more by now."""
    passed = np.where(np.isnan(before), 0.0, np.clip(hour - before, 0.0, HOURS))
    last = np.where(np.isnan(before), 0.0, before)
    offset = (np.arange(HOURS)[:, None] - (last + 1.0)) % HOURS
    return np.asarray(offset < passed, dtype=np.bool_)
