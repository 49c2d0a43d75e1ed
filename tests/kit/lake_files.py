"""A lake for query tests: plain Parquet files in date folders, as ``Queries`` sees a lake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from graynode.pipeline.codec import to_batch
from graynode.pipeline.schema import TABLES


class LakeFiles:
    """Keeps what it was given, a file per date and call; ``version`` counts the changes."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder)
        self._files: dict[str, list[str]] = {}
        self._changes: dict[str, int] = {}
        self._written = 0

    def put(self, table: str, rows: Sequence[Mapping[str, Any]], drop: Sequence[str] = ()) -> None:
        """Write rows; ``drop`` leaves columns out, as an older contract did."""
        by_date: dict[str, list[Mapping[str, Any]]] = {}
        for row in rows:
            by_date.setdefault(row["ts"].date().isoformat(), []).append(row)
        files = self._files.setdefault(table, [])
        for date, dated in by_date.items():
            data = pa.Table.from_batches([to_batch(TABLES[table], dated)]).drop_columns(list(drop))
            self._written += 1
            file = Path(self.path) / table / f"date={date}" / f"{self._written}.parquet"
            file.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(data, file)
            files.append(str(file))
        self._changes[table] = self.version(table) + 1

    def clear(self) -> None:
        """Forget all rows, as if it were a new lake: one ``Queries`` serves a whole module."""
        for table in self._files:
            self._changes[table] = self.version(table) + 1
        self._files.clear()

    def version(self, table: str) -> int:
        """How often the table has changed, less one."""
        return self._changes.get(table, -1)

    def files(self, table: str, since: datetime | None = None, until: datetime | None = None) -> list[str]:
        """All files."""
        return list(self._files.get(table, []))
