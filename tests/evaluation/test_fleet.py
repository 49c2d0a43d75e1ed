"""The fleet track's arithmetic and promises, on sizes that take seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graynode.benchmarks.detection import delays, fleet, fleet_figures, fleet_natural, fleet_sweep, fleet_train
from graynode.benchmarks.detection.faults import FAMILIES
from graynode.benchmarks.detection.fleet_core import Limits, Method, Size
from graynode.benchmarks.detection.fleet_sweep import BASE, CELLS, Case, NodeDays, generator
from graynode.benchmarks.detection.frozen import frozen
from graynode.benchmarks.detection.result import DataError, Figure

SLOW = FAMILIES[0]
LIMITS = Limits(0.18, 0.18)
SMALL = Size(jobs=25, gpus=40)


def test_misses_are_infinite_delays() -> None:
    """Half found within 5 minutes, the other half never: the median is 5, the 95th percentile never comes."""
    delay = np.array([1.0, 3.0, 5.0, np.inf, np.inf, np.inf])
    assert delays.quantile(delay, 0.5) == 5.0
    assert delays.quantile(delay, 0.95) == np.inf
    assert delays.quantile(np.full(3, np.inf), 0.5) == np.inf


def test_a_fault_that_was_watched_for_less_counts_as_long_as_it_was() -> None:
    """Kaplan and Meier by hand: of four, one is lost to view at 2; then one of two at risk at 3: 1 − 3/4 · 1/2."""
    delay = np.array([1.0, np.inf, 3.0, np.inf])
    followed = np.array([9.0, 2.0, 9.0, 9.0])
    assert delays.quantile(delay, 0.25, followed) == 1.0
    assert delays.quantile(delay, 0.625, followed) == 3.0
    assert delays.quantile(delay, 0.63, followed) == np.inf


def test_bounds_hold_the_median() -> None:
    """The bootstrap's bounds lie about the sample's own median, misses included."""
    delay = np.r_[np.random.default_rng(1).exponential(5.0, 95), np.full(5, np.inf)]
    low, high = delays.bounds(delay, 0.5, np.random.default_rng(2))
    assert low <= delays.quantile(delay, 0.5) <= high < np.inf


def test_no_fault_is_found_at_chance_level() -> None:
    """A severity of zero gives findings as seldom as a healthy day: none of 25 in four hours."""
    nothing = Case(SLOW, 0.0)
    found = fleet_sweep.enriched(BASE, [nothing], 25, LIMITS, generator(3), size=SMALL)
    assert np.isinf(found.delay_min[nothing.name]).all()


def test_a_large_fault_is_found_in_minutes_and_moves_its_fleet_by_less_than_a_tenth_sigma() -> None:
    """20 % slower: everyone, within three minutes in the middle; no fleet's mean moves by 0.1 sigma."""
    case = Case(SLOW, 0.20)
    found = fleet_sweep.enriched(BASE, [case], 12, LIMITS, generator(4), size=SMALL)
    assert np.isfinite(found.delay_min[case.name]).mean() >= 0.95
    assert 1.0 < delays.quantile(found.delay_min[case.name], 0.5) <= 3.5
    assert 0.0 < found.fleet_moved < 0.1


def test_the_same_seed_gives_the_same_delays_and_another_others() -> None:
    """Nothing but the seed decides."""
    case = Case(SLOW, 0.05)
    one, two, other = (fleet_sweep.enriched(BASE, [case], 10, LIMITS, generator(s), size=SMALL) for s in (5, 5, 6))
    assert (one.delay_min[case.name] == two.delay_min[case.name]).all()
    assert (one.delay_min[case.name] != other.delay_min[case.name]).any()


def test_training_and_test_never_draw_the_same_numbers() -> None:
    """The same seed and part: other numbers, because the first word of the sequence differs."""
    drawn = [generator(1, 0, training=t).random(4) for t in (True, False)]
    assert (drawn[0] != drawn[1]).all()


def test_node_days_are_maxima_of_nodes() -> None:
    """Two nodes' day: a finding on any GPU, by either reference, makes the node-day one false finding."""
    days = NodeDays(np.array([0.1, 0.3, 0.1], np.float32), np.array([0.1, 0.3, 0.4], np.float32))
    assert days.told(Limits(0.2, 0.35)) == 2
    assert days.told(Limits(None, 0.35)) == 1
    assert days.told(Limits(None, None)) == 0


def test_without_accumulation_one_window_is_enough_and_that_is_wrong_often() -> None:
    """The ablation is another method: at τ alone nearly every healthy node is named within a day."""
    small = Size(jobs=2, gpus=16)
    plain = fleet_sweep.node_days(BASE, small, 1, generator(7), Method(accumulation=False))
    whole = fleet_sweep.node_days(BASE, small, 1, generator(7))
    assert plain.told(Limits(0.05, 0.05)) > 0.9 * len(plain)
    assert whole.told(LIMITS) == 0


def test_natural_faults_are_found_and_healthy_nodes_are_not() -> None:
    """Faults at a hundred times the natural rate in a small fleet: most found, none invented; the counts add up."""
    result = fleet_natural.natural(BASE, Size(jobs=10, gpus=16), 1, LIMITS, generator(8), 500.0)
    assert result.node_days == 20
    assert len(result.faults) >= 3
    assert result.found >= len(result.faults) - 1
    assert result.false == 0
    assert all(f.found is None or f.start <= f.found < f.end for f in result.faults)


def test_without_faults_nothing_is_found() -> None:
    """Rate zero."""
    result = fleet_natural.natural(BASE, Size(jobs=3, gpus=16), 1, LIMITS, generator(9), 0.0)
    assert (result.faults, result.found, result.false) == ([], 0, 0)


def test_the_budgets_arithmetic() -> None:
    """Precision .95 at recall .95 and 4.2 faults per 1,000 node-days takes 2.1e-4 false findings (METHODS §4)."""
    recall = fleet_figures.share(95, 100)
    false = fleet_figures.rate(21, 100_000)
    assert fleet_figures.precision(recall, false, 4.2).value == pytest.approx(0.95, abs=0.001)
    assert fleet_figures.precision(recall, false, 2.14).value == pytest.approx(0.906, abs=0.001)


def test_a_threshold_follows_the_tail_and_never_lies_below_what_was_seen() -> None:
    """Exponential maxima: the quantile at the target and a tenth; what healthy GPUs take further tells nothing."""
    maxima = np.random.default_rng(1).exponential(0.02, 200_000).astype(np.float32)
    wanted = 1.1 * 0.02 * np.log(1.0 / fleet_train.TARGET)
    assert fleet_train.threshold(maxima) == pytest.approx(wanted, rel=0.05)
    assert fleet_train.threshold(np.r_[maxima, np.float32(0.9)]) == pytest.approx(0.99, abs=0.001)
    assert fleet_train.threshold(np.r_[maxima, np.float32(5.0)]) is None


def test_every_noise_of_the_sweep_has_frozen_thresholds() -> None:
    """Four correlations, two laws, three offsets; in the job always, across jobs wherever offsets allow it."""
    cells, digest = frozen("fleet")
    assert set(cells["cells"]) == {n.name for n in CELLS}
    assert len(CELLS) == 24
    assert len(digest) == 64
    for noise in CELLS:
        cell = cells["cells"][noise.name]
        assert cell["in_job"] > 0
        assert (cell["across"] is None) == (noise.offset == 0.01)


def test_it_makes_its_own_data(tmp_path: Path) -> None:
    """A folder of data is refused with the way out."""
    with pytest.raises(DataError, match="leave --data out"):
        fleet.run(tmp_path, 1)


def test_false_findings_above_the_budget_are_failures() -> None:
    """A rate above it is listed with its name, one within it is not, whatever the bound."""
    rates = {"a.false_per_node_day": 8e-4, "b.false_per_node_day": 0.0, "c.recall": 0.5}
    figures = {name: Figure(value, note="3 events") for name, value in rates.items()}
    (said,) = fleet.over_budget(figures)
    assert said.startswith("a.false_per_node_day: 0.0008")
