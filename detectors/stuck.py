"""Sensors that stand still and rates that never count, as the pipeline's log ``quality`` has them: for the digest.

Found there over hours (``pipeline/still.py``) and told here once a day, so that a person learns of a dead sensor before
a verdict hangs on it. Nothing is measured here. False alarms are those of that log: hours of load on a GPU whose
sensor is too coarse to move.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import polars as pl

from graynode.detectors.findings import Candidate
from graynode.detectors.frames import epoch_s
from graynode.pipeline.schema import BY_HOURS

_AGAIN_S: Final = 86_400.0
_KEY: Final = ["cluster", "node_id", "entity", "field"]
_SCHEMA: Final = {**dict.fromkeys(_KEY, pl.String), "told": pl.Float64}
_ACTION: Final = "Do not judge this GPU by that field; reset the GPU at the next occasion, else ask the vendor"


def stuck(quality: pl.DataFrame, known: pl.DataFrame | None, now_s: float) -> tuple[pl.DataFrame, list[Candidate]]:
    """What to remember, and a candidate per field that stands still and was not told today."""
    before = known if known is not None else pl.DataFrame(schema=_SCHEMA)
    if not {*_KEY, "ts", "state", "reason", "node", "boot_id"} <= set(quality.columns):
        return before, []
    ours = quality.lazy().filter(pl.col("reason").str.starts_with(BY_HOURS)).sort("ts", *_KEY)
    latest = ours.unique(_KEY, keep="last", maintain_order=True).filter(pl.col("state") != "measured").collect()
    if not latest.height:
        return before.clear(), []
    seen = latest.join(before, on=_KEY, how="left", nulls_equal=True).sort(_KEY)
    new = pl.col("told").is_null() | (pl.col("told") <= now_s - _AGAIN_S)
    after = seen.select(*_KEY, pl.when(new).then(now_s).otherwise(pl.col("told")).alias("told"))
    return after, [_candidate(row, now_s) for row in seen.filter(new).iter_rows(named=True)]


def _candidate(row: Mapping[str, object], now_s: float) -> Candidate:
    since = row["ts"]
    said = str(row["reason"]).removeprefix(BY_HOURS)
    return {
        **{name: row[name] for name in ("cluster", "node_id", "node", "boot_id")},
        "gpu_uuid": row["entity"],
        "subject": "gpu",
        "cause": "monitoring_blind",
        "signal": f"stuck_{row['field']}",
        "value": (now_s - epoch_s(since)) / 3600.0,  # type: ignore[arg-type]  # a time, by the contract
        "unit": "h",
        "score": 1.0,
        "threshold": 1.0,
        "since": since,
        "severity": "digest",
        "message": f"{row['field']} of {row['entity']} on {row['node'] or row['node_id']}: {said}",
        "action": _ACTION,
        "evidence": {"field": row["field"], "state": row["state"]},
    }
