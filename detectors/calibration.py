"""Thresholds from healthy node-days, accepted by the upper bound of what they would have told falsely.

U(node, day) is the largest score of a node's day in parts of its threshold; a node-day with U ≥ 1 is a false finding
where the node was healthy. Quantiles of healthy maxima on some days propose thresholds; other, later days judge them:
they are accepted where the one-sided 95 % upper bound of the false rate there is within the budget.
No day proposes and judges. Findings cluster (a warm week, one odd node), so where there are any the bound is also
taken from a bootstrap over whole nodes and whole days, and the worse of the two counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from graynode.detectors.exact_bounds import clopper_pearson

Floats = npt.NDArray[np.float64]
Key = tuple[str, str, int]
"""Detector, signal, window length in seconds."""

CONFIDENCE: Final = 0.95
USUAL: Final = 0.99
"""The quantile of healthy maxima that is kept for noticing drift: one node-day in a hundred is above it, so that a
change shows within days and not after the thousands of node-days that the threshold itself is about."""
_TAIL: Final = 0.95
"""The tail of a signal's maxima is taken for exponential from this quantile on: so is the stationary law of a CUSUM
(Siegmund 1985), and days that mix calm and noisy nodes show in the mean excess."""
_AIM: Final = 50.0
"""Thresholds aim at this part of the budget: about 3 / budget node-days certify it only if they see no finding at
all, and a fiftieth leaves room for nodes that differ. Against a twentieth it costs about one window of delay."""
LEAST_PART: Final = 0.25
"""A site's threshold is not below a quarter of the shipped one: weeks as calm as that have not shown what a new kind of
work does, and for a shift of tau a quarter of the shipped sum is reached within minutes."""
_STEPS: Final = 1.02
_LARGEST: Final = 4.0
_DRAWS: Final = 1000

COLUMNS: Final[Mapping[str, pl.DataType]] = {
    "node_id": pl.String(),
    "day": pl.Date(),
    "detector": pl.String(),
    "signal": pl.String(),
    "window_s": pl.Int32(),
    "maximum": pl.Float64(),
}
"""Columns of node-day maxima: one row a node, day, detector, signal and window length; ``maximum`` is a score."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A false rate on node-days: how many were told, the rate, its upper bound, and by which bound."""

    told: int
    node_days: int
    nodes: int
    days: int
    rate: float
    upper: float
    by: str


@dataclass(frozen=True, slots=True)
class Fitted:
    """Thresholds with what stands behind them. ``top`` are the node-days that set them, the most telling first."""

    values: Mapping[Key, float]
    usual_most: Mapping[Key, float]
    proposed_on: tuple[date, date]
    judged_on: tuple[date, date]
    proposed_node_days: int
    judged: Rate
    budget: float
    digest: str
    top: pl.DataFrame
    capped: tuple[Key, ...]

    @property
    def accepted(self) -> bool:
        """Whether the bound on the judging days is within the budget."""
        return self.judged.upper <= self.budget


class TooFewDays(Exception):
    """Not enough healthy node-days. ``have`` and ``need`` are those for the judging days."""

    def __init__(self, have: int, need: int, days: int) -> None:
        super().__init__(f"{have} healthy node-days of {need}")
        self.have, self.need, self.days = have, need, days


def needed(budget: float, confidence: float = CONFIDENCE) -> int:
    """Healthy node-days without a false finding that certify ``budget``: −ln(1 − confidence) / budget, 3 / budget."""
    return int(np.ceil(np.log1p(-confidence) / np.log1p(-budget)))


def upper_share(told: int, of: int, confidence: float = CONFIDENCE) -> float:
    """One-sided exact upper bound of a share; 1 where nothing was seen."""
    return clopper_pearson(told, of, confidence, one_sided=True)[1]


def false_rate(node_days: pl.DataFrame, seed: int = 1) -> Rate:
    """The rate of ``told`` (bool) over rows of ``node_id``, ``day``, and its one-sided upper bound.

    Independent node-days give the exact bound. From two findings on, nodes and days are drawn whole as well (Owen's
    pigeonhole bootstrap, 2007), because one odd node or one hot day tells many times.
    """
    told, of = int(node_days.get_column("told").sum()), node_days.height
    nodes, days = node_days.get_column("node_id").n_unique(), node_days.get_column("day").n_unique()
    exact = upper_share(told, of)
    clustered = _by_blocks(node_days, np.random.default_rng(seed)) if told > 1 else 0.0
    by = "exact binomial" if exact >= clustered else "bootstrap over nodes and days"
    return Rate(told, of, nodes, days, told / of if of else 0.0, max(exact, clustered), by)


def _by_blocks(node_days: pl.DataFrame, rng: np.random.Generator) -> float:
    node = node_days.get_column("node_id").rank("dense").to_numpy().astype(np.int64) - 1
    day = node_days.get_column("day").rank("dense").to_numpy().astype(np.int64) - 1
    hit = node_days.get_column("told").to_numpy()
    n, d = int(node.max()) + 1, int(day.max()) + 1
    rates = np.zeros(_DRAWS)
    table = np.zeros((n, d))
    np.add.at(table, (node, day), 1.0)
    events_node, events_day = node[hit], day[hit]
    for draw in range(_DRAWS):
        of_node = rng.multinomial(n, np.full(n, 1.0 / n)).astype(np.float64)
        of_day = rng.multinomial(d, np.full(d, 1.0 / d)).astype(np.float64)
        exposure = float(of_node @ table @ of_day)
        rates[draw] = float((of_node[events_node] * of_day[events_day]).sum()) / exposure if exposure else np.nan
    return float(np.nanquantile(rates, CONFIDENCE))


def exceeding(maxima: pl.DataFrame, values: Mapping[Key, float]) -> pl.DataFrame:
    """Node-days with ``told``: whether any of its maxima reaches its threshold; signals without one do not count."""
    limits = _frame(values, "limit")
    return (
        maxima.join(limits, on=["detector", "signal", "window_s"], how="left")
        .group_by("node_id", "day")
        .agg(told=(pl.col("maximum") >= pl.col("limit")).fill_null(False).any())
        .sort("node_id", "day")
    )


def fit(
    maxima: pl.DataFrame,
    shipped: Mapping[Key, float],
    budget: float,
    *,
    in_force: Mapping[Key, float] | None = None,
    seed: int = 1,
) -> Fitted:
    """Thresholds for the signals of ``shipped`` from healthy node-days; ``TooFewDays`` where they cannot be judged.

    The latest days judge: as many as ``needed`` and at least half. ``in_force`` were the thresholds while the maxima
    were taken: scores are kept up to twice those, so a fit that comes near is ``capped``.
    """
    rows = maxima.join(_frame(shipped, "shipped"), on=["detector", "signal", "window_s"], how="semi")
    propose, judge = split(rows, needed(budget))
    start = _start(propose, shipped, budget)
    values = _raised(propose, start, budget)
    rate = false_rate(exceeding(judge, values), seed)
    held = in_force or shipped
    capped = tuple(key for key, value in values.items() if key in held and value >= 1.9 * held[key])
    return Fitted(
        values,
        _quantiles(rows, USUAL, values),
        _span(propose),
        _span(judge),
        _count(propose),
        rate,
        budget,
        digest(rows),
        _top(rows, values),
        capped,
    )


def split(maxima: pl.DataFrame, need: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Whole days that propose, and the later ones that judge: half of the node-days, and not fewer than ``need``."""
    counts = maxima.select("node_id", "day").unique().group_by("day").len().sort("day", descending=True)
    have = int(counts.get_column("len").sum())
    goal = max(need, have // 2)
    later = counts.get_column("len").cum_sum()
    enough = np.flatnonzero(later.to_numpy() >= goal)
    if have < need or not enough.size or int(enough[0]) + 1 >= counts.height:
        raise TooFewDays(have, need, counts.height)
    first = counts.get_column("day")[int(enough[0])]
    return maxima.filter(pl.col("day") < first), maxima.filter(pl.col("day") >= first)


def _start(propose: pl.DataFrame, shipped: Mapping[Key, float], budget: float) -> dict[Key, float]:
    """Each signal's quantile at its even part of what is aimed at, by its tail; not below the largest it may pass."""
    days, signals = _count(propose), max(len(shipped), 1)
    allowed = int(days * budget / signals)
    found: dict[Key, float] = {}
    for key, least in shipped.items():
        highest = np.sort(_of(propose, key))[::-1]
        most = float(highest[min(allowed, len(highest) - 1)]) if len(highest) else 0.0
        found[key] = max(most, _tail_quantile(highest, budget / _AIM / signals), LEAST_PART * least)
    return found


def _tail_quantile(values: Floats, share: float) -> float:
    """The value that ``share`` of days are above, by the mean excess over the tail's beginning."""
    if not len(values):
        return 0.0
    begin = float(np.quantile(values, _TAIL))
    excess = values[values > begin] - begin
    return begin + float(excess.mean()) * np.log((1.0 - _TAIL) / share) if len(excess) else begin


def _raised(propose: pl.DataFrame, start: Mapping[Key, float], budget: float) -> dict[Key, float]:
    """All by one factor, until the proposing days themselves keep the budget, as far as they are enough to say so.

    One factor, so that the balance between the signals stays that of their own tails. A value just reached is passed:
    a score equal to its threshold is told.
    """
    values = {key: float(np.nextafter(value, np.inf)) for key, value in start.items()}
    best = upper_share(0, _count(propose))
    factor = 1.0
    while factor < _LARGEST:
        now = {key: value * factor for key, value in values.items()}
        told = exceeding(propose, now).get_column("told").sum()
        if told == 0 or upper_share(int(told), _count(propose)) <= max(budget, best):
            return {key: round(value, 6) for key, value in now.items()}
        factor *= _STEPS
    return {key: round(value * _LARGEST, 6) for key, value in values.items()}


def digest(maxima: pl.DataFrame) -> str:
    """SHA-256 of node-day maxima, whatever the order of rows."""
    ordered = maxima.select(list(COLUMNS)).sort(list(COLUMNS)).with_columns(pl.col("maximum").round(9))
    return hashlib.sha256(ordered.write_csv(float_precision=9).encode()).hexdigest()


def _top(maxima: pl.DataFrame, values: Mapping[Key, float], most: int = 5) -> pl.DataFrame:
    return (
        maxima.join(_frame(values, "limit"), on=["detector", "signal", "window_s"])
        .with_columns(part=pl.col("maximum") / pl.col("limit"))
        .sort("part", "node_id", "day", "signal", descending=[True, False, False, False])
        .head(most)
        .select("node_id", "day", "detector", "signal", "window_s", "maximum", "part")
    )


def _quantiles(maxima: pl.DataFrame, level: float, keys: Mapping[Key, float]) -> dict[Key, float]:
    return {key: float(np.quantile(found, level)) for key in keys if len(found := _of(maxima, key))}


def rows_of(maxima: pl.DataFrame, key: Key) -> pl.DataFrame:
    """The rows of one signal."""
    detector, signal, window_s = key
    return maxima.filter(
        (pl.col("detector") == detector) & (pl.col("signal") == signal) & (pl.col("window_s") == window_s)
    )


def _of(maxima: pl.DataFrame, key: Key) -> Floats:
    return rows_of(maxima, key).get_column("maximum").drop_nulls().to_numpy().astype(np.float64)


def _frame(values: Mapping[Key, float], name: str) -> pl.DataFrame:
    rows = [(*key, value) for key, value in values.items()]
    schema = {"detector": pl.String, "signal": pl.String, "window_s": pl.Int32, name: pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _count(maxima: pl.DataFrame) -> int:
    return maxima.select("node_id", "day").unique().height


def _span(maxima: pl.DataFrame) -> tuple[date, date]:
    day = maxima.get_column("day")
    first, last = day.min(), day.max()
    assert isinstance(first, date)  # noqa: S101 (a part of a split has days; narrows the type)
    assert isinstance(last, date)  # noqa: S101
    return first, last
