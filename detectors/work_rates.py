"""How much more often errors come in one kind of work than on average: an hour of heavy work is a longer exposure.

A small memory of its own: error-hours and powered hours by group (GPU model) and kind of work, over all GPUs. The
ratio is drawn towards 1 while there is little of it, so that a kind of work seen for a day explains nothing away.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from graynode.detectors.frames import Floats, View, finite

_WORTH: Final = 20.0
"""So many expected error-hours at the average rate weigh as much as what was seen."""
_LEAST, _MOST = 0.2, 5.0
_KINDS: Final = 200
_SCHEMA: Final = {"kind": pl.String, "hits": pl.Float64, "hours": pl.Float64}


def kinds(view: View, jobs: pl.DataFrame) -> pl.Series:
    """Model and kind of work of each row: ``model|work``; ``model|`` where no job is known or its kind is not."""
    model = view.text("gpu_model_last").fill_null("").alias("model")
    if not {"job_id", "work"} <= set(jobs.columns) or jobs.is_empty() or not len(view):
        return (model + "|").alias("kind")
    known = jobs.select("job_id", "work").drop_nulls().unique("job_id", keep="first", maintain_order=True)
    here = view.text("job_id_last").alias("job_id").to_frame()
    work = here.join(known, on="job_id", how="left", maintain_order="left").get_column("work").fill_null("")
    return (model + "|" + work).alias("kind")


def ratios(known: pl.DataFrame | None, of: pl.Series) -> Floats:
    """Rate of each row's kind of work against the rate of its model, 0.2 to 5."""
    if known is None or known.is_empty() or not len(of):
        return np.ones(len(of))
    model = pl.col("kind").str.split("|").list.first()
    rate = pl.col("hits").sum().over(model) / pl.col("hours").sum().over(model)
    expected = rate * pl.col("hours")
    ratio = ((pl.col("hits") + _WORTH) / (expected + _WORTH)).clip(_LEAST, _MOST).alias("ratio")
    here = of.alias("kind").to_frame()
    found = here.join(known.select("kind", ratio), on="kind", how="left", maintain_order="left")
    return np.nan_to_num(finite(found.get_column("ratio")), nan=1.0)


def learnt(known: pl.DataFrame | None, of: pl.Series, hits: Floats, hours: Floats) -> pl.DataFrame:
    """``known`` with these rows counted in; the least seen kinds go beyond two hundred."""
    rows = pl.DataFrame({"kind": of, "hits": hits, "hours": hours}, schema_overrides=_SCHEMA).fill_nan(0.0)
    before = known if known is not None else pl.DataFrame(schema=_SCHEMA)
    sums = (
        pl.concat([before, rows]).group_by("kind", maintain_order=True).agg(pl.col("hits").sum(), pl.col("hours").sum())
    )
    return sums.sort(["hours", "kind"], descending=[True, False]).head(_KINDS).sort("kind")
