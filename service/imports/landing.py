"""Rows of an import into the lake: once each, a chunk at a time, each chunk whole or not at all.

The transaction that stores a chunk also holds its number under the import's own application id (``mark``), so a
killed import leaves whole chunks only and the next run goes on after the last one. Rows that another file brought
are found by their entity and time and are not stored again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import polars as pl

from graynode.pipeline.codec import to_batch
from graynode.pipeline.lake import Lake
from graynode.pipeline.lake_format import conform
from graynode.pipeline.schema import TABLES


@dataclass(slots=True)
class Landed:
    """Rows stored, and rows that were there already."""

    stored: int = 0
    there: int = 0

    def __iadd__(self, other: Landed) -> Landed:
        self.stored += other.stored
        self.there += other.there
        return self


def land(lake: Lake, table: str, frame: pl.DataFrame, mark: str, number: int = 1) -> Landed:
    """Write what the lake lacks of one chunk, with ``mark`` at ``number``; chunks are numbered from 1, in order.

    A chunk whose number the mark has reached is not looked at. ``SecondWriter``: another process imports the same;
    ``LakeError``: not now. ``KeyError``/``ValueError``: columns that the contract has not.
    """
    reached = lake.offset(table, mark)
    if reached is not None and reached >= number:
        return Landed(0, frame.height)
    if not frame.height:
        return Landed()
    keys = [*TABLES[table].entity, "ts"]
    first, last = frame["ts"].min(), frame["ts"].max()
    assert isinstance(first, datetime)  # noqa: S101 (there are rows with a time; narrows the type)
    assert isinstance(last, datetime)  # noqa: S101 (there are rows with a time; narrows the type)
    whole = conform(table, frame)
    once = whole.unique(keys, keep="first", maintain_order=True)
    nodes = once["node_id"].drop_nulls().unique().to_list()
    known = lake.read(table, first, last + timedelta(microseconds=1), keys, node=nodes)
    fresh = once.join(known, on=keys, how="anti", nulls_equal=True).sort(keys)
    lake.write(table, fresh, offsets={mark: number})
    return Landed(fresh.height, frame.height - fresh.height)


def land_rows(lake: Lake, table: str, rows: Sequence[dict[str, Any]], mark: str, number: int = 1) -> Landed:
    """The same for rows as dictionaries, checked against the contract's types as an agent's are."""
    if not rows:
        return Landed()
    frame = pl.from_arrow(to_batch(TABLES[table], rows))
    assert isinstance(frame, pl.DataFrame)  # noqa: S101 (a batch gives a frame; narrows the type)
    return land(lake, table, frame, mark, number)
