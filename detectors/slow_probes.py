"""Probe results within ``slow``: kept per GPU and kind of work, ranked when new ones come, never a page."""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from graynode.detectors import probes
from graynode.detectors.accumulate import TAU
from graynode.detectors.findings import Candidate
from graynode.detectors.gpu_words import short

_KEPT: Final = 40
"""Latest results of one GPU and kind of work: a week of hourly probes would be 168, and the median needs far fewer."""


def keep(kept: pl.DataFrame | None, new: pl.DataFrame) -> pl.DataFrame | None:
    """What is kept with the new results in it; the same frame where there are none."""
    if new.is_empty():
        return kept
    rows, _, _ = probes.clean(new if kept is None else pl.concat([kept, new], how="diagonal_relaxed"))
    same = ("gpu_uuid", "gpu_model", "operation", "dtype", "variant")
    return (
        rows.sort("ts", maintain_order=True)
        .group_by(*same, maintain_order=True)
        .tail(_KEPT)
        .sort(*same, "ts", "value", nulls_last=True)
    )


def ranked(kept: pl.DataFrame) -> list[Candidate]:
    """Findings about GPUs that are slow in a probe, and about those that are slower than in their earlier ones."""
    flagged = probes.rank(kept).table.filter("flagged")
    slower = probes.changes(kept).filter("flagged")
    return [
        *(_probe(row) for row in flagged.iter_rows(named=True)),
        *(_change(row) for row in slower.iter_rows(named=True)),
    ]


def _change(row: dict[str, Any]) -> Candidate:
    beside = f", {row['peers']} others beside it considered" if row["peers"] else ""
    return {
        **{k: row[k] for k in ("cluster", "node_id", "node", "boot_id", "gpu_uuid", "value", "unit", "baseline")},
        **{k: row[k] for k in ("effect", "score", "peers")},
        "since": row["ts"],
        "subject": "gpu",
        "cause": "slow_gpu",
        "signal": "probe_change",
        "threshold": probes.CHANGED,
        "severity": "digest",
        "message": f"{short(row['gpu_uuid'])} on {row['node']}: {row['operation']} is {row['effect']:.1%} slower than "
        f"in its own {row['earlier']} earlier runs{beside}",
        "action": "Run the probe once more on an idle node: one run alone accuses nobody",
        "evidence": {k: row[k] for k in ("operation", "dtype", "variant", "earlier")},
    }


def _probe(row: dict[str, Any]) -> Candidate:
    return {
        **{
            k: row[k]
            for k in ("cluster", "node_id", "node", "boot_id", "gpu_uuid", "value", "unit", "peer_median", "peers")
        },
        **{k: row[k] for k in ("effect", "p_value", "since")},
        "subject": "gpu",
        "cause": "slow_gpu",
        "signal": "probe",
        "score": row["effect"],
        "threshold": TAU,
        "severity": "ticket",
        "message": f"{short(row['gpu_uuid'])} on {row['node']}: {row['operation']} is {row['effect']:.1%} slower "
        f"than on {row['peers']} GPUs of its model, median of {row['runs']} runs",
        "action": "Run the probe once more on an idle node; if it confirms, take the node out and open a vendor case",
        "evidence": {
            "operation": row["operation"],
            "dtype": row["dtype"],
            "variant": row["variant"],
            "runs": row["runs"],
            "rank": row["rank"],
        },
    }
