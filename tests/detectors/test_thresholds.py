"""Shipped thresholds: data with source, version and hash; and the healthy noise they stand above."""

from __future__ import annotations

import json

import numpy as np
import pytest

from graynode.detectors import accumulate, thresholds


def healthy_node_day_maxima(
    node_days: int, *, correlation: float, sigma: float, offset: float, seed: int
) -> np.ndarray:
    """Maxima of S over days of 8 healthy GPUs: AR(1) noise with Student's t4 innovations, a constant offset per GPU."""
    rng = np.random.default_rng(seed)
    n = node_days * 8
    bias, noise = rng.normal(0, offset, n), np.zeros(n)
    total, most = np.zeros(n), np.zeros(n)
    for _ in range(2880):
        noise = correlation * noise + np.sqrt(1 - correlation**2) * rng.standard_t(4, n) / np.sqrt(2)
        total = accumulate.cusum(total, sigma * noise + bias)
        most = np.maximum(most, total)
    return most.reshape(node_days, 8).max(axis=1)


def test_every_threshold_has_a_source_and_the_set_a_version_and_a_hash() -> None:
    """A finding can say by which rule it was told."""
    shipped = thresholds.shipped()
    assert shipped.version
    assert len(shipped.digest) == 64
    assert all(row.source and row.unit and row.value > 0 for row in shipped.rows.values())
    assert thresholds.shipped() is shipped


def test_what_is_no_quantile_of_healthy_node_days_says_so() -> None:
    """Halves and ratios of other thresholds are provisional, and the set says what it was checked on."""
    rows = thresholds.shipped().rows.values()
    guessed = [r for r in rows if "half of the 30 s value" in r.source or "the ratio of slow.clock" in r.source]
    assert guessed
    assert all(r.provisional for r in guessed)
    assert not thresholds.shipped().rows["slow", "clock", 30].provisional


def test_the_clock_threshold_stands_above_healthy_node_days() -> None:
    """0.6 is above the 0.9998 quantile of 40,000 simulated healthy node-days (0.483); 400 of them stay below half.

    Noise as published for training: sigma 1 %, lag-1 correlation 0.8, t4, GPU × job offset 0.3 %.
    """
    maxima = healthy_node_day_maxima(400, correlation=0.8, sigma=0.01, offset=0.003, seed=7)
    h = thresholds.shipped().value("slow", "clock", 30)
    assert np.median(maxima) == pytest.approx(0.139, abs=0.02)
    assert np.quantile(maxima, 0.9) == pytest.approx(0.217, abs=0.03)
    assert maxima.max() < h


def test_a_five_percent_slowdown_is_told_within_a_quarter_of_an_hour() -> None:
    """24 windows of 5 % reach the threshold: 12 minutes."""
    h, s, windows = thresholds.shipped().value("slow", "clock", 30), np.zeros(1), 0
    while s[0] < h - 1e-9:
        s, windows = accumulate.cusum(s, np.array([0.05])), windows + 1
    assert windows == 24


def test_the_next_shorter_window_serves_where_none_is_given() -> None:
    """A length of zero means any; a detector that is not in the data is named."""
    shipped = thresholds.shipped()
    assert shipped.value("ecc", "growth", 3600) == shipped.value("ecc", "growth", 30)
    assert shipped.value("slow", "clock", 60) == shipped.value("slow", "clock", 30)
    with pytest.raises(KeyError, match="nosuch"):
        shipped.value("nosuch", "clock", 30)


def test_the_hash_follows_the_data_and_a_threshold_of_zero_is_refused() -> None:
    """Another value, another hash; a threshold that everything passes is no threshold."""
    row = {"detector": "d", "signal": "s", "window_s": 0, "value": 1.0, "unit": "u", "source": "here"}
    one = thresholds.parse(json.dumps({"version": "1", "thresholds": [row]}))
    two = thresholds.parse(json.dumps({"version": "1", "thresholds": [{**row, "value": 2.0}]}))
    assert one.digest != two.digest
    with pytest.raises(ValueError, match=r"d\.s"):
        thresholds.parse(json.dumps({"version": "1", "thresholds": [{**row, "value": 0.0}]}))
