"""A detector's memory of its entities, across versions of the detector."""

from __future__ import annotations

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from graynode.detectors import memory

KEYS = pl.Series("key", ["a", "b", "c"])


def test_what_an_older_detector_did_not_keep_is_not_remembered_and_the_rest_is() -> None:
    """A column more, one less and another order: by name, never by place."""
    older = memory.remember(None, KEYS, {"gone": np.zeros(3), "x": np.arange(3.0), "y": np.full(3, 7.0)}, 100.0)
    held = memory.recall(older, KEYS, ["y", "fresh", "x"])
    assert list(held) == ["y", "fresh", "x"]
    assert held["x"].tolist() == [0.0, 1.0, 2.0]
    assert held["y"].tolist() == [7.0] * 3
    assert np.isnan(held["fresh"]).all()


def test_who_is_not_here_in_the_first_round_of_a_new_version_is_not_forgotten() -> None:
    """Its old values stay, with NaN for what is new."""
    older = memory.remember(None, KEYS, {"x": np.arange(3.0)}, 100.0)
    here = KEYS.head(1)
    after = memory.remember(older, here, {"x": np.array([9.0]), "fresh": np.array([1.0])}, 130.0)
    assert after["key"].to_list() == ["a", "b", "c"]
    assert after["x"].to_list() == [9.0, 1.0, 2.0]
    assert after["fresh"].is_nan().to_list() == [False, True, True]
    assert after["seen"].to_list() == [130.0, 100.0, 100.0]


@given(st.permutations(["a", "b", "c", "d"]), st.integers(0, 4))
def test_what_was_remembered_is_recalled_in_any_order(order: list[str], known: int) -> None:
    """An oracle by dictionary; NaN for whom nobody knows."""
    state = memory.remember(None, pl.Series("key", list("abcd")[:known]), {"x": np.arange(float(known))}, 1.0)
    held = memory.recall(state, pl.Series("key", order), ["x"])["x"]
    there = {k: float(i) for i, k in enumerate("abcd") if i < known}
    assert np.array_equal(held, [there.get(k, np.nan) for k in order], equal_nan=True)
