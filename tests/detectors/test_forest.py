"""The forest: never pages, says nothing before it knows, and never by ``contamination``."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import polars as pl
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


def test_importing_the_list_and_the_detector_imports_no_scikit_learn() -> None:
    """A second and 130 MiB, only where there is something to fit."""
    code = "import sys; import graynode.detectors.forest; assert 'sklearn' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    code = "import sys; import graynode.detectors; assert 'polars' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
