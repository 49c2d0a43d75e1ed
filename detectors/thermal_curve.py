"""A GPU's own curve: how warm it is over its neighbours at each power, as a line learned from its own past.

How well a chip is cooled shows the more the more power it takes, and what its place in the chassis does stays: so the
line has a level and a slope of its own. Days −28 to −7 teach it, each with a weight of at most one, in sums from
which the line follows; a day that lies apart counts less (Huber 1964). The slope leans on that of all GPUs of the model
until its own days speak, so a GPU that always took the same power is not trusted at another: the line knows how
unsure it is where it is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from graynode.detectors.baseline import DAY_S, FIRM_DAYS, join
from graynode.detectors.frames import Bools, Floats, Ints
from graynode.detectors.memory import Arrays

_SUMS: Final = ("n", "p", "y", "pp", "py")
_FIT: Final = ("level", "at", "slope", "level_var", "slope_var", "days", "firm")
_FULL_DAY_S: Final = 7200.0
"""Judged seconds that make a day count as one: temperature repeats itself within the hour."""
_NEWEST_D, _OLDEST_D = 7, 28
_DAY_VAR: Final = 0.5
"""°C²: what a day's mean is off, 0.7 °C: a sensor's step of one degree and air that is not the same every day."""
_SLOPE_VAR: Final = 0.0057**2
"""(°C per W)²: a tenth in cooling, 4 °C at 700 W."""
_APART_C: Final = 3.0
"""A day further from the line than this counts less: four times what days differ by."""


def columns(signals: Sequence[str]) -> tuple[str, ...]:
    """Names under which the curves of ``signals`` are remembered."""
    return ("day", *(f"{s}.{part}" for s in signals for part in (*_SUMS, *_FIT)))


@dataclass(frozen=True, slots=True)
class Curve:
    """A line for each entity; NaN where nothing is known of it."""

    level: Floats
    at: Floats
    slope: Floats
    level_var: Floats
    slope_var: Floats
    days: Floats
    firm: Floats

    def expected(self, power: Floats) -> Floats:
        """°C over the neighbours at that power."""
        return self.level + self.slope * (power - self.at)

    def doubt(self, power: Floats) -> Floats:
        """Standard error of ``expected``, °C."""
        return np.sqrt(self.level_var + (power - self.at) ** 2 * self.slope_var)


def recall(memory: Arrays, signal: str) -> Curve:
    """The remembered curve of a signal."""
    return Curve(*(memory[f"{signal}.{part}"] for part in _FIT))


def learn(memory: Arrays, signal: str, power: Floats, over: Floats, healthy: Bools, clip: float) -> None:
    """Take this window into today's sums, in place, where ``healthy``; ``clip`` bounds one window's say."""
    expected = recall(memory, signal).expected(power)
    bounded = np.where(np.isnan(expected), over, np.clip(over, expected - clip, expected + clip))
    taken = healthy & ~np.isnan(bounded) & ~np.isnan(power)
    for part, add in zip(_SUMS, _terms(power, bounded), strict=True):
        memory[f"{signal}.{part}"] = np.nan_to_num(memory[f"{signal}.{part}"]) + np.where(taken, add, 0.0)


def _terms(power: Floats, over: Floats) -> tuple[Floats, ...]:
    return np.ones(len(power)), power, over, power * power, power * over


def roll(
    memory: Arrays,
    history: pl.DataFrame | None,
    keys: pl.Series,
    models: Ints,
    signals: Sequence[str],
    now_s: float,
    window_s: int,
    suspect: Bools,
) -> pl.DataFrame | None:
    """At the first window of a day: yesterday into ``history``, curves anew save those of a ``suspect``. In place."""
    today = np.floor(now_s / DAY_S)
    turning = ~(memory["day"] >= today)
    if not turning.any():
        return history
    history = join(history, _finished(memory, keys, signals, turning, window_s), today)
    for s in signals:
        fresh = fit(history, keys, models, s, today)
        anew = turning & ~suspect & ~np.isnan(fresh.level)
        for part in _FIT:
            memory[f"{s}.{part}"] = np.where(anew, getattr(fresh, part), memory[f"{s}.{part}"])
        for part in _SUMS:
            memory[f"{s}.{part}"] = np.where(turning, 0.0, memory[f"{s}.{part}"])
    memory["day"] = np.where(turning, today, memory["day"])
    return history


def _finished(memory: Arrays, keys: pl.Series, signals: Sequence[str], turning: Bools, window_s: int) -> pl.DataFrame:
    some = turning & np.any([memory[f"{s}.n"] > 0 for s in signals], axis=0)
    columns = {f"{s}.{part}": memory[f"{s}.{part}"][some] for s in signals for part in _SUMS}
    for s in signals:
        _weigh(columns, s, window_s)
    key, day = keys.filter(pl.Series(some, dtype=pl.Boolean)).alias("key"), memory["day"][some]
    return pl.DataFrame([key, pl.Series("day", day), *(pl.Series(n, c, dtype=pl.Float32) for n, c in columns.items())])


def _weigh(columns: dict[str, Floats], signal: str, window_s: int) -> None:
    """Sums as weight, mean power, mean excess and the spreads around them, in place."""
    n, p, y, pp, py = (columns[f"{signal}.{part}"] for part in _SUMS)
    count = np.where(n > 0, n, np.nan)
    mean_p, mean_y = p / count, y / count
    made = (
        np.minimum(n * window_s / _FULL_DAY_S, 1.0),
        mean_p,
        mean_y,
        pp / count - mean_p**2,
        py / count - mean_p * mean_y,
    )
    columns.update({f"{signal}.{part}": value for part, value in zip(_SUMS, made, strict=True)})


def days_of(keys: pl.Series, t_s: Floats, power: Floats, over: dict[str, Floats], window_s: int) -> pl.DataFrame:
    """History's form of past windows: a row for each entity and day."""
    base = pl.DataFrame([keys.alias("key"), pl.Series("day", np.floor(t_s / DAY_S))])
    made = []
    for s, y in over.items():
        known = ~(np.isnan(y) | np.isnan(power))
        made += [
            pl.Series(f"{s}.{part}", np.where(known, term, 0.0))
            for part, term in zip(_SUMS, _terms(power, y), strict=True)
        ]
    days = pl.DataFrame([*base, *made]).group_by("key", "day").sum().sort("key", "day")
    columns = {name: days.get_column(name).to_numpy().copy() for name in days.columns[2:]}
    for s in over:
        _weigh(columns, s, window_s)
    frame = pl.DataFrame([
        days.get_column("key"), days.get_column("day"), *(pl.Series(n, c, dtype=pl.Float32) for n, c in columns.items())
    ])  # fmt: skip
    return frame.filter(pl.any_horizontal(pl.col(f"{s}.n") > 0 for s in over))


def fit(history: pl.DataFrame | None, keys: pl.Series, models: Ints, signal: str, today: float) -> Curve:
    """The curves of ``keys`` from the days −28 to −7, or from all days where those are fewer than three.

    ``models`` are group numbers: a model's GPUs share the slope that a GPU leans on.
    """
    n = len(keys)
    if history is None or history.is_empty() or not n:
        return Curve(*(np.full(n, np.nan) for _ in _FIT))
    place = pl.DataFrame([keys.alias("key"), pl.Series("row", np.arange(n))]).lazy().unique("key", keep="first")
    told = (
        history.lazy()
        .filter((pl.col("day") < today) & (pl.col(f"{signal}.n") > 0))
        .join(place, on="key")
        .select("row", "day", *(pl.col(f"{signal}.{part}").cast(pl.Float64) for part in _SUMS))
        .sort("row", "day")  # a join gives its rows in any order, and the last digits of sums follow it
        .collect()
    )
    row, age = told.get_column("row").to_numpy(), today - told.get_column("day").to_numpy()
    in_reach = (age >= _NEWEST_D) & (age <= _OLDEST_D)
    firm = np.bincount(row[in_reach], minlength=n) >= FIRM_DAYS
    told = told.filter(pl.Series(in_reach | ~firm[row], dtype=pl.Boolean))
    made = _lines(told, n, models, signal)
    return Curve(
        *(np.where(made.days > 0, value, np.nan) for value in (*made.line, made.days, firm.astype(np.float64)))
    )


@dataclass(frozen=True, slots=True)
class _Lines:
    line: tuple[Floats, Floats, Floats, Floats, Floats]
    days: Floats


def _lines(told: pl.DataFrame, n: int, models: Ints, signal: str) -> _Lines:
    row = told.get_column("row").to_numpy()
    w, p, y, pp, py = (told.get_column(f"{signal}.{part}").to_numpy() for part in _SUMS)

    def total(values: Floats) -> Floats:
        return np.bincount(row, values, minlength=n).astype(np.float64)

    centre = _medians(row, y, n)
    line = (centre, np.zeros(n), np.zeros(n))
    for _ in range(2):
        off = np.abs(y - line[0][row] - line[2][row] * (p - line[1][row]))
        v = w * np.minimum(1.0, _APART_C / np.maximum(off, 1e-9))
        weight = np.maximum(total(v), 1e-9)
        at, level = total(v * p) / weight, total(v * y) / weight
        dp, dy = p - at[row], y - level[row]
        spp, spy = total(v * (dp * dp + pp)), total(v * (dp * dy + py))
        usual = _usual_slope(spp, spy, models)
        lean = _DAY_VAR / _SLOPE_VAR
        line = (level, at, (spy + lean * usual) / (spp + lean))
    return _Lines((*line, _DAY_VAR / weight, _DAY_VAR / (spp + lean)), np.bincount(row, minlength=n).astype(np.float64))


def _medians(row: Ints, values: Floats, n: int) -> Floats:
    frame = pl.DataFrame({"row": row, "v": values}).lazy().group_by("row").agg(pl.col("v").median()).collect()
    found = np.full(n, np.nan)
    found[frame.get_column("row").to_numpy()] = frame.get_column("v").to_numpy()
    return found


def _usual_slope(spp: Floats, spy: Floats, models: Ints) -> Floats:
    """The slope within GPUs, over all of a model; 0 where none took different powers."""
    group = models - models.min(initial=0)
    power, both = np.bincount(group, spp), np.bincount(group, spy)
    lean = _DAY_VAR / _SLOPE_VAR
    return np.asarray((both / (power + lean))[group], dtype=np.float64)
