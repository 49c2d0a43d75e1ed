"""Whether a site still looks like the days behind its thresholds, and keeps its budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl
from scipy import special

from graynode.detectors.calibration import USUAL, Key, rows_of

_DRIFT_P: Final = 1e-3
_DRIFT_NODES: Final = 3


@dataclass(frozen=True, slots=True)
class Drift:
    """A signal whose healthy maxima are no longer those behind its threshold."""

    key: Key
    above: int
    node_days: int
    expected: float
    nodes: int
    p_value: float


def drifted(recent: pl.DataFrame, usual_most: Mapping[Key, float], share: float = 1.0 - USUAL) -> list[Drift]:
    """Signals of which more recent healthy node-days are above the kept quantile than ``share`` explains.

    The exact binomial tail, at 0.001 over the number of signals; and three nodes or more, because one node that
    exceeds every day is a node to look at and no drift of the fleet.
    """
    found = []
    for key, limit in sorted(usual_most.items()):
        rows = rows_of(recent, key)
        n, above = rows.height, rows.filter(pl.col("maximum") > limit)
        x, nodes = above.height, above.get_column("node_id").n_unique()
        p = float(special.betainc(x, n - x + 1, share)) if x else 1.0
        if p <= _DRIFT_P / len(usual_most) and nodes >= _DRIFT_NODES:
            found.append(Drift(key, x, n, n * share, nodes, p))
    return found


def over_budget(told: int, node_days: int, budget: float) -> float:
    """P(as many false findings or more) if the true rate were ``budget``: small means that the budget is not kept."""
    return float(special.betainc(told, node_days - told + 1, budget)) if told else 1.0
