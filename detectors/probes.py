"""Active checks: which GPU is slow at the same work as the others of its model, and which has become slow.

``rank`` is a level test: it ranks a GPU that was always slow. A GPU's result is the median of its runs, so one odd run
decides nothing. Listed are GPUs that are at least τ slower than the median of the others *and* pass Benjamini–Hochberg
at 5 % over the tail of a robust z whose null depends on the number of peers.

``changes`` judges each GPU's latest run by its own earlier ones and by those beside it (``run_level``, measured by
``graynode evaluate slow``): a single run, so it asks for another and accuses nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import numpy as np
import polars as pl

from graynode.detectors import conformal, residual, run_level
from graynode.detectors.accumulate import TAU
from graynode.detectors.frames import Floats, Ints, codes

MIN_RUNS: Final = 3
"""Fewer runs ask for another run, they accuse nobody."""
CHANGED: Final = 6.0
"""Spreads from which a run is no longer as the earlier ones: sgemm on Longhorn's V100s passes it in 1 of 6,927 runs."""
_LEAST_JUDGED: Final = 2 * run_level.PRIOR_RUNS
"""Runs with a past at this work before its usual spread is known."""
_Q: Final = 0.05
_Z_FLOOR: Final = 0.002
"""Least MAD in log units: 0.2 %, about twice a V100's own run-to-run spread in sgemm (0.107 %)."""
_EARLIEST: Final = datetime(2000, 1, 1, tzinfo=UTC)
_SAME_WORK: Final = ("gpu_model", "operation", "dtype", "variant")
_SAME_RUN: Final = ("gpu_uuid", *_SAME_WORK, "ts", "value", "sm_clock_mhz", "power_w", "temp_c")
_TEXTS: Final = ("cluster", "node_id", "node", "boot_id", "gpu_uuid", *_SAME_WORK, "unit", "better")
_FLOATS: Final = ("value", "sm_clock_mhz", "power_w", "temp_c")


@dataclass(frozen=True, slots=True)
class Ranking:
    """``table`` has one row per GPU and kind of work, slowest first: runs, value, peer_median, peers, effect, z,
    p_value, rank, flagged. ``refused`` counts results that cannot be one, ``duplicates`` exact repeats."""

    table: pl.DataFrame
    refused: int
    duplicates: int


def clean(probes: pl.DataFrame) -> tuple[pl.DataFrame, int, int]:
    """Usable results, how many were refused (no GPU, no positive value, no possible time, no direction) and how
    many were exact repeats of another."""
    known = set(probes.columns)
    rows = probes.select(
        (pl.col("ts") if "ts" in known else pl.lit(None)).cast(pl.Datetime("us", "UTC")).alias("ts"),
        *((pl.col(c) if c in known else pl.lit(None)).cast(pl.String).alias(c) for c in _TEXTS),
        *((pl.col(c) if c in known else pl.lit(None)).cast(pl.Float64).alias(c) for c in _FLOATS),
    )
    usable = rows.filter(
        pl.col("gpu_uuid").is_not_null()
        & pl.col("value").is_finite()
        & (pl.col("value") > 0)
        & (pl.col("ts") >= _EARLIEST)
        & pl.col("better").is_in(["higher", "lower"])
    )
    once = usable.unique(subset=_SAME_RUN, keep="first").sort(*_SAME_RUN, "node_id", nulls_last=True)
    return once, rows.height - usable.height, usable.height - once.height


def rank(probes: pl.DataFrame) -> Ranking:
    """Rank the results of any number of kinds of work, each among GPUs of the same model."""
    rows, refused, duplicates = clean(probes)
    per_gpu = (
        rows.group_by("gpu_uuid", *_SAME_WORK, "better", maintain_order=True)
        .agg(
            pl.col("cluster", "node_id", "node", "boot_id", "unit").last(),
            pl.len().alias("runs"),
            pl.col("value").median(),
            pl.col("ts").min().alias("since"),
        )
        .sort("gpu_uuid", *_SAME_WORK, nulls_last=True)
    )
    table = per_gpu.with_columns(_judged(per_gpu))
    flagged = _listed(table)
    table = (
        table.with_columns(flagged=pl.Series(flagged, dtype=pl.Boolean))
        .sort("effect", "gpu_uuid", descending=[True, False], nulls_last=True)
        .with_columns(rank=pl.int_range(1, pl.len() + 1).over(*_SAME_WORK, "better"))
    )
    return Ranking(table, refused, duplicates)


def changes(probes: pl.DataFrame) -> pl.DataFrame:
    """The latest run of every GPU at every kind of work: value, own ``baseline`` of so many ``earlier`` runs, peers
    beside it, ``effect`` and ``score`` in spreads, and whether both say that it has become slower (``flagged``).

    Null where it cannot be told: no earlier run, or too few runs at this work to know how much they usually differ.
    """
    rows = clean(probes)[0]
    sign = np.where((rows.get_column("better") == "lower").to_numpy(), 1.0, -1.0)
    work = _groups(rows)
    judged = run_level.judge(
        run_level.Runs(
            history=codes(rows.get_column("gpu_uuid"), pl.Series(work)),
            beside=codes(rows.get_column("node_id"), pl.Series(work), rows.get_column("ts").cast(pl.Int64)),
            time_s=rows.get_column("ts").cast(pl.Int64).to_numpy() / 1e6,
            worse=sign * np.log(rows.get_column("value").to_numpy()),
        )
    )
    score, excess = _scores(judged, work), judged.excess
    told = (score >= CHANGED) & (excess >= np.log1p(TAU)) & (judged.earlier >= MIN_RUNS)
    return (
        rows.with_columns(
            pl.Series("baseline", np.exp(sign * judged.baseline), nan_to_null=True),
            pl.Series("earlier", judged.earlier, dtype=pl.Int32),
            pl.Series("peers", judged.peers, dtype=pl.Int32),
            pl.Series("effect", np.where(np.isnan(score), np.nan, np.expm1(excess)), nan_to_null=True),
            pl.Series("score", score, nan_to_null=True),
            pl.Series("flagged", told, dtype=pl.Boolean),
        )
        .sort("gpu_uuid", *_SAME_WORK, "better", "ts", nulls_last=True, maintain_order=True)
        .unique(subset=["gpu_uuid", *_SAME_WORK, "better"], keep="last", maintain_order=True)
        .sort("effect", "gpu_uuid", descending=[True, False], nulls_last=True)
    )


def _scores(judged: run_level.Judged, work: Ints) -> Floats:
    """Excess in spreads, each kind of work having its usual one. A loop over kinds of work: there are few."""
    score, known = np.full(len(work), np.nan), ~np.isnan(judged.excess)
    for kind in np.unique(work[known]):
        here = known & (work == kind)
        if here.sum() >= _LEAST_JUDGED:
            usual = run_level.usual_spread(judged, run_level.resolution(judged.worse[work == kind]), here)
            score[here] = judged.score(usual)[here]
    return score


def _judged(per_gpu: pl.DataFrame) -> list[pl.Series]:
    sign = np.where((per_gpu.get_column("better") == "lower").to_numpy(), 1.0, -1.0)
    worse = sign * np.log(per_gpu.get_column("value").to_numpy())
    groups = _groups(per_gpu)
    z, excess, peers = residual.robust_z(worse, groups, _Z_FLOOR)
    few = peers < residual.MIN_PEERS
    excess = np.where(few, np.nan, excess)
    p = np.where(np.isnan(z), np.nan, conformal.robust_tail(np.nan_to_num(z), peers))
    return [
        pl.Series("peer_median", np.exp(sign * (worse - excess)), nan_to_null=True),
        pl.Series("peers", peers, dtype=pl.Int32),
        pl.Series("effect", np.expm1(excess), nan_to_null=True),
        pl.Series("z", z, nan_to_null=True),
        pl.Series("p_value", p, nan_to_null=True),
    ]


def _groups(per_gpu: pl.DataFrame) -> Ints:
    return codes(pl.repeat("", per_gpu.height, eager=True), *(per_gpu.get_column(c) for c in (*_SAME_WORK, "better")))


def _listed(table: pl.DataFrame) -> list[bool]:
    p = table.get_column("p_value").cast(pl.Float64).fill_null(float("nan")).to_numpy()
    listed = np.zeros(table.height, dtype=np.bool_)
    groups = _groups(table)
    for group in np.unique(groups):
        here = groups == group
        listed[here] = conformal.benjamini_hochberg(p[here], _Q)
    effect = table.get_column("effect").cast(pl.Float64).fill_null(0.0).to_numpy()
    runs = table.get_column("runs").to_numpy()
    return list(listed & (effect >= TAU) & (runs >= MIN_RUNS))
