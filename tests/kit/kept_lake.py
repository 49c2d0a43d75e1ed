"""Lakes for tests: one that keeps rows in memory, and one whose process dies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import polars as pl

from graynode.pipeline.lake import Lake
from graynode.pipeline.lake_format import conform, frame_schema


class KeptLake(Lake):
    """Remembers what is written and gives it back; offsets too."""

    def __init__(self) -> None:
        super().__init__("memory://")
        self.frames: dict[str, list[pl.DataFrame]] = {}
        self._reached: dict[tuple[str, str], int] = {}

    def exists(self, table: str) -> bool:
        """True once rows were written."""
        return table in self.frames

    def offset(self, table: str, id_: str) -> int | None:
        """As it was written last."""
        return self._reached.get((table, id_))

    def read(
        self,
        table: str,
        since: datetime | None = None,
        until: datetime | None = None,
        columns: Sequence[str] | None = None,
        node: str | Sequence[str] | None = None,
    ) -> pl.DataFrame:
        """Rows as the lake gives them."""
        rows = pl.concat([pl.DataFrame(schema=frame_schema(table)), *self.frames.get(table, [])])
        if since is not None:
            rows = rows.filter(pl.col("ts") >= since)
        if until is not None:
            rows = rows.filter(pl.col("ts") < until)
        if node is not None:
            rows = rows.filter(pl.col("node_id").is_in([node] if isinstance(node, str) else list(node)))
        return rows.select(list(columns)) if columns is not None else rows

    def write(
        self,
        table: str,
        frame: pl.DataFrame,
        offsets: Mapping[str, int] | None = None,
        marks: Mapping[str, int] | None = None,
    ) -> int:
        """Keep the rows."""
        del marks
        self.frames.setdefault(table, []).append(conform(table, frame))
        self._reached.update({(table, id_): offset for id_, offset in (offsets or {}).items()})
        return len(self.frames[table])


class DyingLake(Lake):
    """A lake whose process ends at a write: ``left`` writes are well."""

    left = 0

    def write(
        self,
        table: str,
        frame: pl.DataFrame,
        offsets: Mapping[str, int] | None = None,
        marks: Mapping[str, int] | None = None,
    ) -> int:
        """As the lake does, while it lives."""
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        return super().write(table, frame, offsets, marks)
