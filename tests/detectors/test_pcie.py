"""PCIe: width always, generation under load, replays by lane and generation."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from window_rounds import Change, Cluster, Columns

from graynode.detectors import pcie
from graynode.detectors.base import TOLD

SICK = 11


def told(fault: Change, windows: int = 12) -> pl.DataFrame:
    c, state, found = Cluster(nodes=4, gpu_fault=fault), {}, []
    for round_ in c.rounds(windows):
        scored = pcie.Pcie().score(round_, state)
        state = dict(scored.state)
        found.append(scored.findings)
    return pl.concat(found).filter(TOLD)


def test_width_is_judged_idle_or_not_and_after_four_windows() -> None:
    """Half of the lanes: told from the fourth window, with what it should be."""

    def narrow(_: int, c: Columns) -> None:
        c["pcie_width_last"][SICK], c["gpu_util_percent_mean"][SICK], c["gpu_idle_s"][SICK] = 8.0, 0.0, 30.0

    found = told(narrow)
    assert found.height == 9
    assert found["message"][0] == "GPU 0000:14:00.0 on node001: PCIe runs on 8 of 16 lanes"
    assert set(found["effect"]) == {0.5}


def test_where_the_gpu_does_not_say_its_most_its_model_s_others_do() -> None:
    """A slot that came up narrow may claim that this is all there is."""

    def narrow(_: int, c: Columns) -> None:
        c["pcie_width_last"][SICK] = c["pcie_width_max_last"][SICK] = 8.0

    assert told(narrow).is_empty()  # the GPU and slot say 8: a design, as far as this table knows

    def all_narrow(_: int, c: Columns) -> None:
        c["pcie_width_last"][:] = 8.0

    assert told(all_narrow).is_empty()  # every GPU of the model: that is how these servers are wired


def test_a_low_generation_counts_under_load_only() -> None:
    """Idle links drop to generation 1 and are well."""

    def low(_: int, c: Columns) -> None:
        c["pcie_gen_last"][SICK] = 1.0
        c["pcie_gen_last"][5], c["gpu_util_percent_mean"][5], c["gpu_idle_s"][5] = 1.0, 0.0, 30.0

    found = told(low)
    assert set(found["gpu_uuid"]) == {"GPU-001-3"}
    assert set(found["signal"]) == {"generation"}


@pytest.mark.parametrize(("gen", "width", "limit"), [(1, 16, 3), (3, 16, 8), (4, 8, 8), (5, 16, 31), (6, 16, 62)])
def test_the_replay_limit_is_rate_times_lanes_rounded_up(gen: int, width: int, limit: int) -> None:
    """DCGM's table: per minute and lane 0.15, 0.3, 0.48, 0.96, 1.92 and 3.84 for generations 1 to 6."""
    assert pcie.replay_limit(np.array([float(gen)]), np.array([float(width)]))[0] == limit


def test_an_unknown_generation_has_no_limit() -> None:
    """Generation 9 and null: cannot tell."""
    assert np.isnan(pcie.replay_limit(np.array([9.0, np.nan]), np.array([16.0, 16.0]))).all()


def test_replays_beyond_the_limit_are_told_after_two_minutes() -> None:
    """40 a minute on generation 5 with 16 lanes is too many, 30 is not."""

    def replays(_: int, c: Columns) -> None:
        c["pcie_replays_delta"][SICK], c["pcie_replays_delta"][5] = 20.0, 15.0

    found = told(replays)
    assert set(found["gpu_uuid"]) == {"GPU-001-3"}
    assert set(found["cause"]) == {"pcie_errors"}
    assert found.height == 9
