"""The base cell at full size, five seeds: what the budget and the figures to reach say of it (minutes a seed)."""

from __future__ import annotations

import math

import pytest

from graynode.benchmarks.detection import fleet_figures, fleet_natural, fleet_sweep
from graynode.benchmarks.detection.delays import quantile
from graynode.benchmarks.detection.faults import FAMILIES
from graynode.benchmarks.detection.fleet_core import Limits, Size
from graynode.benchmarks.detection.fleet_sweep import BASE, Case, generator
from graynode.benchmarks.detection.frozen import frozen

SEEDS, DAYS = 5, 30


@pytest.fixture(scope="module")
def limits() -> Limits:
    cell = frozen("fleet")[0]["cells"][BASE.name]
    return Limits(cell["across"], cell["in_job"])


@pytest.mark.long
def test_healthy_node_days_stay_within_the_budget(limits: Limits) -> None:
    """At most 27 false findings in 187,500 node-days, which bounds the rate by 2e-4; at most 2 in any 37,500."""
    told = [
        fleet_sweep.node_days(BASE, Size(), DAYS, generator(901, i), limits=limits).told(limits) for i in range(SEEDS)
    ]
    pooled = fleet_figures.pooled(told, Size().nodes * DAYS)
    assert pooled.ci_high is not None
    assert pooled.ci_high <= 2e-4
    assert max(told) <= 2


@pytest.mark.long
def test_precision_and_recall_at_natural_rates(limits: Limits) -> None:
    """Both at least .95, lower bounds at least .92, at 4.2 faults per 1,000 node-days."""
    runs = [fleet_natural.natural(BASE, Size(), DAYS, limits, generator(902, i), 4.2) for i in range(SEEDS)]
    found, false, faults = (sum(x) for x in zip(*((r.found, r.false, len(r.faults)) for r in runs), strict=True))
    for figure in (fleet_figures.share(found, found + false), fleet_figures.share(found, faults)):
        assert figure.value is not None
        assert figure.ci_low is not None
        assert figure.value >= 0.95
        assert figure.ci_low >= 0.92


@pytest.mark.long
def test_five_percent_is_told_within_five_minutes(limits: Limits) -> None:
    """Median delay of 300 faults, misses infinite."""
    case = Case(FAMILIES[0], 0.05)
    delay = fleet_sweep.enriched(BASE, [case], 300, limits, generator(903)).delay_min[case.name]
    assert quantile(delay, 0.5) <= 5.0
    assert math.isfinite(quantile(delay, 0.95))
