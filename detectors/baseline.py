"""An entity's own normal: the median over days −28…−7 of its daily centres, and when that normal ends.

Days are kept, not samples: one number per entity, signal and day, 35 days deep. A day's centre is the mean of its
clipped windows where it was gathered live, and the median of its hours where it was learned from history. The last
week is left out so that a slow decline does not become its own normal; a moving average would swallow ramps.
Windows of a suspect are not learned, and while it is one its baseline stays what it was, however many days that takes.
A repair, or another driver, VBIOS, power limit or MIG profile, ends the baseline; a new job does not.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from graynode.detectors.frames import Bools, Floats
from graynode.detectors.memory import Arrays

DAY_S: Final = 86_400.0
_OLDEST_D: Final = 28
_NEWEST_D: Final = 7
KEPT_D: Final = 35
FIRM_DAYS: Final = 3
"""Days inside −28…−7 that make a baseline firm. With fewer, the days since then serve, provisionally."""
_MIN_WINDOWS: Final = 10
"""Windows that a day needs to have a centre."""


def columns(signals: tuple[str, ...]) -> tuple[str, ...]:
    """Names under which the baselines of ``signals`` are remembered."""
    parts = ("base", "days", "firm", "day_total", "day_windows")
    return ("day", *(f"{s}.{part}" for s in signals for part in parts))


def learn(memory: Arrays, signal: str, excess: Floats, healthy: Bools, clip: float) -> None:
    """Count this window into today's centre, in place, where ``healthy``; ``clip`` bounds one window's say."""
    base = memory[f"{signal}.base"]
    around = np.where(np.isnan(base), 0.0, base)
    taken = healthy & ~np.isnan(excess)
    bounded = np.clip(excess, around - clip, around + clip)
    bounded = np.where(np.isnan(base), excess, bounded)
    for part, add in (("day_total", np.where(taken, bounded, 0.0)), ("day_windows", taken.astype(np.float64))):
        before = memory[f"{signal}.{part}"]
        memory[f"{signal}.{part}"] = np.where(np.isnan(before), 0.0, before) + add


def roll(
    memory: Arrays,
    history: pl.DataFrame | None,
    keys: pl.Series,
    signals: tuple[str, ...],
    now_s: float,
    suspect: Bools | None = None,
) -> pl.DataFrame | None:
    """At the first window of a day: yesterday's centres into ``history``, baselines anew. In place for ``memory``.

    Whoever is ``suspect`` keeps the baseline that it was found against: in weeks the days it rests on leave its reach,
    and a fault that lasts would end by becoming the normal. The same frame comes back where no entity began a day.
    """
    today = np.floor(now_s / DAY_S)
    turning = ~(memory["day"] >= today)
    if not turning.any():
        return history
    history = join(history, _finished(memory, keys, signals, turning), today)
    _anew(memory, history, keys, signals, turning & ~suspect if suspect is not None else turning, today)
    _next_day(memory, signals, turning, today)
    return history


def join(history: pl.DataFrame | None, days: pl.DataFrame, today: float) -> pl.DataFrame:
    """History with further days, in order of day and key; a day said twice counts as last said; old days are dropped.

    Only days that are not older than the new ones can be said twice, so five weeks are not sorted again each midnight.
    """
    in_reach = pl.col("day") >= today - KEPT_D
    if history is None or history.is_empty() or days.is_empty():
        only = days if history is None or history.is_empty() else history
        return only.filter(in_reach).unique(["key", "day"], keep="last", maintain_order=True).sort("day", "key")
    since = days.get_column("day").min()
    again = pl.concat([history.filter(pl.col("day") >= since), days], how="diagonal").filter(in_reach)
    last = again.unique(["key", "day"], keep="last", maintain_order=True).sort("day", "key")
    return pl.concat([history.filter(in_reach & (pl.col("day") < since)), last], how="diagonal")


def by_day(history: pl.DataFrame | None, keys: pl.Series, signals: tuple[str, ...], today: float) -> dict[str, Floats]:
    """Daily centres as a row for each key and a column for each day kept, yesterday's last; NaN where none is."""
    rows = {s: np.full((len(keys), KEPT_D), np.nan) for s in signals}
    if history is None or history.is_empty() or not len(keys):
        return rows
    place = pl.DataFrame([keys.alias("key"), pl.Series("row", np.arange(len(keys)))]).lazy()
    held = [s for s in signals if s in history.columns]
    told = (
        history.lazy()
        .filter((pl.col("day") < today) & (pl.col("day") >= today - KEPT_D))
        .join(place, on="key")
        .select("row", "day", *(pl.col(s).cast(pl.Float64).fill_null(float("nan")) for s in held))
        .collect()
    )
    row = told.get_column("row").to_numpy()
    column = (told.get_column("day").to_numpy() - (today - KEPT_D)).astype(np.int64)
    for s in held:
        rows[s][row, column] = told.get_column(s).to_numpy()
    return rows


def end(
    memory: Arrays, history: pl.DataFrame | None, keys: pl.Series, signals: tuple[str, ...], where: Bools
) -> pl.DataFrame | None:
    """Forget the normal of some entities: what made it no longer holds."""
    if not where.any():
        return history
    for name in columns(signals)[1:]:
        memory[name] = np.where(where, np.nan, memory[name])
    return None if history is None else history.filter(~pl.col("key").is_in(keys.filter(where).implode()))


def known(history: pl.DataFrame | None, keys: pl.Series, signals: tuple[str, ...]) -> Arrays:
    """What is known of each entity so far, the median of all its days; NaN where nothing is."""
    if history is None or history.is_empty():
        return {s: np.full(len(keys), np.nan) for s in signals}
    medians = history.lazy().group_by("key").agg(pl.col(s).fill_nan(None).median().cast(pl.Float64) for s in signals)
    wanted = keys.alias("key").to_frame().lazy().join(medians, on="key", how="left", maintain_order="left").collect()
    return {s: wanted.get_column(s).fill_null(float("nan")).to_numpy() for s in signals}


def _finished(memory: Arrays, keys: pl.Series, signals: tuple[str, ...], turning: Bools) -> pl.DataFrame:
    centres: dict[str, Floats] = {}
    for s in signals:
        total, windows = memory[f"{s}.day_total"], memory[f"{s}.day_windows"]
        enough = windows >= _MIN_WINDOWS
        centres[s] = np.divide(total, windows, out=np.full(len(total), np.nan), where=enough)
    told = turning & ~np.all([np.isnan(c) for c in centres.values()], axis=0)
    days = pl.DataFrame(
        {"key": keys, "day": memory["day"], **{s: c.astype(np.float32) for s, c in centres.items()}},
        schema_overrides={"key": pl.String},
    )
    return days.filter(told)


def _anew(
    memory: Arrays, history: pl.DataFrame, keys: pl.Series, signals: tuple[str, ...], turning: Bools, today: float
) -> None:
    for s, days in by_day(history, keys, signals, today).items():
        base, count, is_firm = _choose(days)
        # Without days in reach the last known normal is better than none, and is no longer firm
        base, is_firm = np.where(np.isnan(base), memory[f"{s}.base"], base), np.where(np.isnan(base), 0.0, is_firm)
        for part, value in (("base", base), ("days", count), ("firm", is_firm)):
            memory[f"{s}.{part}"] = np.where(turning, value, memory[f"{s}.{part}"])


def _next_day(memory: Arrays, signals: tuple[str, ...], turning: Bools, today: float) -> None:
    for name in (f"{s}.{part}" for s in signals for part in ("day_total", "day_windows")):
        memory[name] = np.where(turning, 0.0, memory[name])
    memory["day"] = np.where(turning, today, memory["day"])


def _choose(days: Floats) -> tuple[Floats, Floats, Floats]:
    """Baseline of each row of days, how many days it rests on, and 1 where it is firm."""
    firm_base, firm_days = _median(days[:, KEPT_D - _OLDEST_D : KEPT_D - _NEWEST_D + 1])
    recent_base, recent_days = _median(days[:, KEPT_D - _NEWEST_D + 1 :])
    firm = firm_days >= FIRM_DAYS
    provisional = ~firm & (firm_days + recent_days >= 2)
    recent = np.where(np.isnan(recent_base), firm_base, recent_base)
    base = np.where(firm, firm_base, np.where(provisional, recent, np.nan))
    return base, np.where(firm, firm_days, firm_days + recent_days), firm.astype(np.float64)


def _median(days: Floats) -> tuple[Floats, Floats]:
    """Median of what is known in each row, and how many that is."""
    ordered, known = np.sort(days, axis=1), (~np.isnan(days)).sum(axis=1)  # NaN is sorted last
    row, n = np.arange(len(days)), np.maximum(known, 1)
    middle = (ordered[row, (n - 1) // 2] + ordered[row, n // 2]) / 2
    return np.asarray(middle, dtype=np.float64), known.astype(np.float64)


def daily_medians(keys: pl.Series, t_s: Floats, excess: dict[str, Floats]) -> pl.DataFrame:
    """History's form of past windows: the median of each entity's day."""
    frame = pl.DataFrame({"key": keys, "day": np.floor(t_s / DAY_S), **excess}, schema_overrides={"key": pl.String})
    signals = list(excess)
    return (
        frame.with_columns(pl.col(s).fill_nan(None) for s in signals)
        .group_by("key", "day")
        .agg(pl.col(s).median().cast(pl.Float32) for s in signals)
        .filter(pl.any_horizontal(pl.col(s).is_not_null() for s in signals))
        .sort("key", "day")
    )
