"""Corrected errors that grow, a first one ever, and banks that run out of spare rows."""

from __future__ import annotations

import numpy as np
import polars as pl
from window_rounds import Change, Cluster, Columns

from graynode.detectors import growth
from graynode.detectors.base import TOLD, State
from graynode.detectors.ecc import Ecc

SICK = 11


def play(fault: Change, windows: range, state: State | None = None) -> pl.DataFrame:
    c, held, found = Cluster(nodes=4, gpu_fault=fault), state or {}, []
    for w in windows:
        scored = Ecc().score(c.round(w, c.start_of(w)), held)
        held = scored.state
        found.append(scored.findings)
    return pl.concat(found)


def test_a_first_error_ever_goes_to_the_digest_only() -> None:
    """10,000 GPUs give about one a day: it is kept in view and nobody is told."""

    def first(w: int, c: Columns) -> None:
        if w == 5:
            c["ecc_sbe_volatile_delta"][SICK] = c["ecc_sbe_aggregate_last"][SICK] = 1.0

    found = play(first, range(10))
    assert found.select("signal", "severity", "gpu_uuid").rows() == [("first_ever", "digest", "GPU-001-3")]


def test_a_burst_of_a_hundred_thousand_in_one_hour_is_one_error_hour() -> None:
    """Lines mean little: one GPU once gave 112,656 in a day."""

    def burst(w: int, c: Columns) -> None:
        if 130 <= w < 200:
            c["ecc_sbe_volatile_delta"][SICK] = 2000.0
        c["ecc_sbe_aggregate_last"][SICK] = 1e6

    assert play(burst, range(0, 220, 10)).filter(TOLD).is_empty()


def test_errors_hour_after_hour_are_told_with_the_count_and_the_past() -> None:
    """A GPU that was clean for weeks and has errors in four hours of a day: a ticket."""

    def growing(w: int, c: Columns) -> None:
        if w >= 0 and w % 240 == 0:
            c["ecc_sbe_volatile_delta"][SICK] = 3.0
        c["ecc_sbe_aggregate_last"][SICK] = 99.0

    past = Ecc().learn(Cluster(nodes=4).history(days=30, step_h=1), {})
    found = play(growing, range(0, 240 * 5, 60), past).filter(TOLD)
    assert set(found["gpu_uuid"]) == {"GPU-001-3"}
    assert set(found["severity"]) == {"ticket"}
    assert set(found["cause"]) == {"memory_errors"}
    assert found["p_value"].max() <= 1e-6
    assert "corrected memory errors in" in found["message"][0]


def test_a_gpu_that_always_has_some_is_not_told_for_having_some() -> None:
    """Its own rate is what it is measured against."""
    prior = growth.Prior(0.05, 25.0)
    memory = {c: np.full(1, np.nan) for c in growth.columns()}
    told = []
    for hour in range(24 * 40):
        had = 1.0 if hour % 6 == 0 else 0.0
        g = growth.advance(memory, np.array([had]), np.ones(1), np.array([hour * 3600.0]), prior)
        told.append(g.p[0] < 1e-6)
    assert not any(told[24 * 3 :])


def test_an_unknown_hour_is_neither_clean_nor_powered() -> None:
    """Where the counter's growth is unknown (a reset, a reload), exposure does not grow."""
    memory = {c: np.full(1, np.nan) for c in growth.columns()}
    for hour in range(30):
        grew = np.array([np.nan if hour % 2 else 0.0])
        g = growth.advance(memory, grew, np.ones(1), np.array([hour * 3600.0]), growth.Prior(0.05, 25.0))
    assert g.exposure_h[0] == 12
    assert g.history_h[0] == 3


def test_the_fleet_s_own_law_takes_over_when_there_is_enough_of_it() -> None:
    """Moments of a simulated Gamma-Poisson fleet give its mean back; without history the shipped prior stands."""
    rng = np.random.default_rng(4)
    hours = np.full(4000, 600.0)
    errors = rng.poisson(rng.gamma(0.2, 1 / 20.0, 4000) * hours).astype(np.float64)
    law = growth.fitted(errors, hours, growth.Prior(1.0, 1.0))
    assert 0.15 < law.shape < 0.27
    assert abs(law.shape / law.rate_h - 0.01) < 0.0015
    assert growth.fitted(errors[:5], hours[:5], growth.Prior(1.0, 1.0)) == growth.Prior(1.0, 1.0)


def test_a_bank_that_runs_low_is_a_ticket_and_one_that_begins_to_is_watched() -> None:
    """Falling from max to high is normal wear; low or none makes the next remap fail."""

    def wear(w: int, c: Columns) -> None:
        if w >= 3:
            c["bank_remap_max_last"][SICK], c["bank_remap_high_last"][SICK] = 639.0, 1.0
        if w >= 6:
            c["bank_remap_high_last"][SICK], c["bank_remap_low_last"][SICK] = 0.0, 1.0

    found = play(wear, range(10))
    assert found["severity"].to_list() == ["digest", "ticket"]
    assert found.filter(TOLD)["cause"].to_list() == ["memory_degraded"]
