"""A sensor that stands still is in the digest once a day, for as long as the log of ``quality`` says so."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import polars as pl
from window_rounds import START, Cluster

from graynode.detectors.base import TOLD
from graynode.detectors.blind import Blind
from graynode.pipeline.lake_format import conform
from graynode.pipeline.schema import BY_HOURS

AT = START - timedelta(hours=3)


def said(hours: float, state: str, reason: str = f"{BY_HOURS}41 all the time", **more: Any) -> dict[str, Any]:
    row = {"cluster": "test", "node_id": "id-node001", "node": "node001", "table_name": "gpu", "entity": "GPU-001-3"}
    return {**row, "ts": AT + timedelta(hours=hours), "field": "temp_c", "state": state, "reason": reason, **more}


def found(rows: list[dict[str, Any]], windows: list[int]) -> pl.DataFrame:
    """What is told in these windows of a healthy cluster with that log."""
    quality = conform("quality", pl.DataFrame(rows)) if rows else pl.DataFrame()
    c, state, parts = Cluster(nodes=2), {}, []
    for w in windows:
        scored = Blind().score(replace(c.round(w, c.start_of(w)), quality=quality), state)
        state = scored.state
        parts.append(scored.findings)
    return pl.concat(parts).filter(TOLD)


def test_it_is_told_once_a_day_for_the_digest() -> None:
    """Three windows today, one tomorrow: two findings, which open no incident."""
    told = found([said(0, "stale")], [0, 1, 2, 2881])
    assert told.select("gpu_uuid", "signal", "severity", "cause").unique().rows() == [
        ("GPU-001-3", "stuck_temp_c", "digest", "monitoring_blind")
    ]
    assert told.height == 2
    assert told["since"].unique().to_list() == [AT]
    assert "41 all the time" in told["message"][0]


def test_what_moves_again_is_over_and_other_reasons_are_none() -> None:
    """The last word counts; a value out of range, or a lost GPU, is told by others."""
    over = [said(0, "stale"), said(1, "measured", f"{BY_HOURS}it moves again")]
    assert found(over, [0]).is_empty()
    assert found([said(0, "implausible", "normaliser: 999 is above 150"), said(0, "lost", "gone")], [0]).is_empty()
    assert found([], [0]).is_empty()


def test_a_model_that_never_counts_is_one_finding() -> None:
    """Every L40S of the cluster at once is a property of the model, not of forty nodes."""
    nodes = [said(0, "implausible", node_id=f"id-node{n:03d}", entity=f"GPU-{n:03d}-0") for n in range(6)]
    told = found(nodes, [0])
    assert told.height == 1
    assert told["severity"].to_list() == ["digest"]
