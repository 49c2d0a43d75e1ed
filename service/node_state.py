"""A node's state: one rule for ``graynode nodes``, the API, the pages and the reports.

The state is what was written last of ours (table ``node_state``); where nothing was, it follows from what is known:
silent is *unknown*, an open hardware incident is *suspect*, a return within the week is *probation*, else *healthy*.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import polars as pl

STATES: Final = ("quarantined", "in_repair", "unknown", "suspect", "probation", "healthy")
"""Worst first: the order in which nodes are listed."""
SILENT: Final = timedelta(minutes=10)
"""A machine whose newest window is older than this beside the cluster's newest is silent."""
_TIME: Final = pl.Datetime("us", "UTC")
EVIDENCE: Final = {
    "written": pl.String(), "written_ts": _TIME, "written_why": pl.String(),
    "heard": _TIME, "newest": _TIME,
    "title": pl.String(), "open_since": _TIME,
    "down": pl.Boolean(), "last_fault": _TIME, "last_kind": pl.String(),
    "probation_until": _TIME, "last_return": _TIME,
}  # fmt: skip
"""What a state rests on: our own last word, the newest window of the node and of its cluster (null: there are no
windows, and nobody is silent), the open hardware incident, and what ``graynode lemons`` knows of the node."""

WRITTEN: Final = """
SELECT cluster, node_id, state AS written, ts AS written_ts, reason AS written_why FROM node_state
WHERE state IS NOT NULL AND node_id IS NOT NULL AND ts < TIMESTAMPTZ '{at}'
QUALIFY row_number() OVER (PARTITION BY cluster, node_id ORDER BY ts DESC) = 1
"""
OPEN: Final = """
SELECT cluster, node_id, arg_min(title, (severity <> 'page', since)) AS title, min(since) AS open_since FROM (
  FROM incident WHERE ts < TIMESTAMPTZ '{at}'
  QUALIFY row_number() OVER (PARTITION BY incident_id ORDER BY revision DESC) = 1)
WHERE state <> 'resolved' AND severity <> 'digest' AND subject IN ('node', 'gpu', 'link') AND node_id IS NOT NULL
GROUP BY ALL
"""
"""Evidence before a moment ``at`` (ISO), a row a node."""


def judge(nodes: pl.DataFrame) -> pl.DataFrame:
    """The rows with ``state``, ``since`` and ``why`` added; evidence that a frame lacks is null.

    The first that holds counts: written, silent, an open incident, down, on probation, else healthy.
    """
    known = nodes.with_columns(
        (pl.col(name) if name in nodes.columns else pl.lit(None)).cast(kind) for name, kind in EVIDENCE.items()
    )
    col = pl.col
    silent = col("newest").is_not_null() & (col("heard").is_null() | (col("newest") - col("heard") > SILENT))
    incident = col("open_since").is_not_null() | col("title").is_not_null()
    probation = pl.format("until {} UTC", col("probation_until").dt.strftime("%Y-%m-%d %H:%M"))
    down = pl.format("down: {}", _or(col("last_kind"), "a fault that has not ended"))
    rule = (
        (col("written").is_not_null(), col("written"), col("written_ts"), col("written_why").fill_null("")),
        (silent, pl.lit("unknown"), col("heard"), pl.lit("nothing has been heard of it since")),
        (incident, pl.lit("suspect"), col("open_since"), _or(col("title"), "an incident is open")),
        (col("down").fill_null(value=False), pl.lit("suspect"), col("last_fault"), down),
        (col("probation_until").is_not_null(), pl.lit("probation"), col("last_return"), probation),
    )
    end = (pl.lit("healthy"), pl.lit(None, _TIME), pl.lit(""))
    told = [_first([(case[0], case[i + 1]) for case in rule], end[i]) for i in range(3)]
    return known.with_columns(one.alias(name) for name, one in zip(("state", "since", "why"), told, strict=True))


def place(state: pl.Expr) -> pl.Expr:
    """Where a state stands in the order of listing; words that are not ours come first."""
    return state.replace_strict({s: i for i, s in enumerate(STATES)}, default=-1, return_dtype=pl.Int32)


def _or(text: pl.Expr, instead: str) -> pl.Expr:
    """``text``, or that where it is null or empty."""
    return pl.when(text.fill_null("") != "").then(text).otherwise(pl.lit(instead))


def _first(cases: list[tuple[pl.Expr, pl.Expr]], otherwise: pl.Expr) -> pl.Expr:
    """The value of the first case that holds."""
    found = otherwise
    for holds, value in reversed(cases):
        found = pl.when(holds).then(value).otherwise(found)
    return found
