"""The forest: never pages, says nothing before it knows, and never by ``contamination``."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import polars as pl
from sklearn.ensemble import IsolationForest
from window_rounds import Cluster, Columns

from graynode.detectors.base import TOLD
from graynode.detectors.forest import EVERY, Forest


def test_it_scores_every_tenth_round_and_leaves_the_state_alone_in_between() -> None:
    """A slow detector has its turn every five minutes."""
    forest, c, state = Forest(), Cluster(nodes=4), {}
    for w, round_ in enumerate(c.rounds(21)):
        scored = forest.score(round_, state)
        assert (scored.state is state) == (w % EVERY != 0)
        state = dict(scored.state) if w % EVERY == 0 else state


def test_what_it_tells_is_a_digest_with_a_conformal_p_value() -> None:
    """An odd combination that no rule names, on one GPU, after it knows them for an hour."""

    def odd(w: int, c: Columns) -> None:
        if w >= 200:
            c["dram_active_ratio_mean"][11], c["power_w_mean"][11] = 0.9, 400.0

    forest, c, state, found = Forest(), Cluster(nodes=32, gpu_fault=odd), {}, []
    for w in range(0, 430, EVERY):
        scored = forest.score(c.round(w, c.start_of(w)), state)
        state = dict(scored.state)
        found.append(scored.findings)
    told = pl.concat(found).filter(TOLD)
    assert set(told["gpu_uuid"]) == {"GPU-001-3"}
    assert set(told["severity"]) == {"digest"}
    n = state["history"].height / 2
    assert np.isclose(told["p_value"].min(), 1 / (n + 1), rtol=0.2)


def test_contamination_decides_nothing_that_is_used() -> None:
    """Whatever share of windows the library is told are outliers, its scores, and so the p-values, are the same."""
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(500, 4))
    scores = [
        IsolationForest(n_estimators=20, contamination=c, random_state=1).fit(rows).score_samples(rows)
        for c in ("auto", 0.01, 0.4)
    ]
    assert np.array_equal(scores[0], scores[1])
    assert np.array_equal(scores[0], scores[2])


def test_one_window_of_each_gpu_and_day_calibrates() -> None:
    """Of an hour of scorings each GPU gives one row, and the next day one more."""
    forest, c, state = Forest(), Cluster(nodes=4), {}
    for w in [*range(0, 200, EVERY), *range(2880, 3000, EVERY)]:
        state = dict(forest.score(c.round(w, c.start_of(w)), state).state)
    rows = state["history"].group_by("key", "day").len()
    assert set(rows["len"]) == {1}
    assert rows.height == 2 * c.size


def test_gpus_at_another_power_limit_are_no_peers() -> None:
    """One GPU at 500 W in a job at 700 W is compared with nobody, so nothing of it is learned."""

    def capped(_: int, columns: Columns) -> None:
        columns["power_limit_enforced_w_last"] = np.where(np.arange(32) == 11, 500.0, 700.0)

    forest, c, state = Forest(), Cluster(nodes=4, gpu_fault=capped), {}
    for w in range(0, 200, EVERY):
        state = dict(forest.score(c.round(w, c.start_of(w)), state).state)
    assert set(c.uuids) - set(state["history"]["key"]) == {"GPU-001-3"}


def test_importing_the_list_and_the_detector_imports_no_scikit_learn() -> None:
    """A second and 130 MiB, only where there is something to fit."""
    code = "import sys; import graynode.detectors.forest; assert 'sklearn' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    code = "import sys; import graynode.detectors; assert 'polars' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
