"""MIG: who is whose peer, and what a reconfiguration ends."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from window_rounds import Change, Cluster, Columns

from graynode.detectors import residual
from graynode.detectors.base import TOLD, Detector, Round, State
from graynode.detectors.blind import Blind
from graynode.detectors.forest import Forest
from graynode.detectors.frames import gpus
from graynode.detectors.pcie import Pcie
from graynode.detectors.rules import Rules
from graynode.detectors.slow import Slow
from graynode.detectors.thermal import Thermal

SPLIT = 16
"""GPUs of the first two nodes have MIG on: a 3g and a 4g instance each, the last of them a 3g and a 2g."""


KEPT = {
    "n", "ts", "cluster", "node_id", "node", "boot_id", "gpu_uuid", "gpu_model_last", "pci_bus_id_last", "samples",
    "job_id_last", "job_role_last", "samples_expected", "sm_active_ratio_mean", "dram_active_ratio_mean",
}  # fmt: skip


def with_mig(round_: Round, *, halves: float = 0.5) -> Round:
    """The round with instances: rows of their own, which have engine activity and memory and nothing else."""
    gpu = round_.gpu.with_row_index("n").with_columns(
        pl.when(pl.col("n") < SPLIT - 1).then(pl.lit("3g.40gb,4g.40gb"))
        .when(pl.col("n") == SPLIT - 1).then(pl.lit("3g.40gb,2g.20gb")).alias("mig_profile_last"),
        pl.when(pl.col("n") < SPLIT).then(1.0).otherwise(pl.col("mig_mode_last")).alias("mig_mode_last"),
        pl.when(pl.col("n") >= SPLIT).then(pl.col("gpu_util_percent_mean")).alias("gpu_util_percent_mean"),
    )  # fmt: skip
    parents = gpu.filter(pl.col("n") < SPLIT)
    bare = parents.with_columns(pl.lit(None).alias(c) for c in gpu.columns if c not in KEPT)
    made = []
    for instance in ("1", "2"):
        profile = "3g.40gb" if instance == "1" else "4g.40gb"
        last = "3g.40gb" if instance == "1" else "2g.20gb"
        made.append(bare.with_columns(
            pl.lit(instance).alias("mig_instance"),
            pl.when(parents["n"] == SPLIT - 1).then(pl.lit(last)).otherwise(pl.lit(profile)).alias("mig_profile_last"),
            (pl.col("sm_active_ratio_mean") * halves).alias("sm_active_ratio_mean"),
        ))  # fmt: skip
    whole = pl.concat([gpu, *made], how="vertical_relaxed").drop("n")
    return Round(**{f: getattr(round_, f) for f in Round.__dataclass_fields__} | {"gpu": whole})


def test_peers_are_of_one_profile() -> None:
    """Whole GPUs are compared with whole ones, 3g with 3g, and a parent with parents that are split as it is."""
    (round_,) = (with_mig(r) for r in Cluster().rounds(1))
    view = gpus(round_.gpu, ("sm_active_ratio_mean",))
    groups = residual.peers(view).exact
    profile, instance = view.text("mig_profile_last").fill_null("whole"), view.keys.str.contains("/")
    in_first_job = view.text("job_id_last") == "job-0"
    kinds = {}
    for name in profile.unique():
        for is_part in (True, False):
            rows = np.flatnonzero((profile == name) & (instance == is_part) & in_first_job)
            if rows.size:
                kinds[name, is_part] = set(groups[rows])
    assert all(len(numbers) == 1 for numbers in kinds.values())
    assert len({next(iter(numbers)) for numbers in kinds.values()}) == len(kinds) == 6
    part = np.flatnonzero((profile == "3g.40gb") & in_first_job)
    assert len(part) == SPLIT


@pytest.mark.parametrize("detector", [Slow, Thermal, Forest, Pcie, Blind, Rules], ids=lambda d: d.name)
def test_a_healthy_fleet_with_mig_is_quiet(detector: type[Detector]) -> None:
    """Instances beside whole GPUs make nobody odd, slow or blind, though half a GPU has half of everything."""
    found, made = [], detector()
    state: State = {}
    for round_ in Cluster().rounds(30):
        scored = made.score(with_mig(round_), state)
        state = scored.state
        found.append(scored.findings)
    assert pl.concat(found).filter(TOLD).height == 0


def test_whole_gpus_are_judged_as_without_mig() -> None:
    """What is found among whole GPUs does not change because others are split."""

    def clock(by: float) -> Change:
        def change(_: int, c: Columns) -> None:
            c["sm_clock_mhz_mean"][40] *= 1 - by

        return change

    past = Slow().learn(Cluster().history(step_h=12), {})
    told = []
    for split in (False, True):
        state, found = past, []
        for round_ in Cluster(gpu_fault=clock(0.12)).rounds(45):
            scored = Slow().score(with_mig(round_) if split else round_, state)
            state = scored.state
            found.append(scored.findings)
        told.append(set(pl.concat(found).filter(TOLD)["gpu_uuid"]))
    assert told == [{"GPU-005-0"}] * 2
