"""Which Parquet files have the same columns: those can be read without looking into each before a question.

Files of one table differ where an older contract wrote some. DuckDB's ``union_by_name`` finds that out by opening
every file, each time; here a file is looked into once, for files of a lake never change.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

_MOST: Final = 100_000
_LOCAL: Final = "://"


class FileColumns:
    """Remembers the columns of each file by its path."""

    def __init__(self) -> None:
        self._schemas: dict[pa.Schema, int] = {}
        self._of_file: dict[str, int] = {}
        self._lock = threading.Lock()

    def groups(self, files: Sequence[str]) -> list[list[str]] | None:
        """The files by equal columns, in their order; ``None`` where they cannot be looked into from here."""
        if any(_LOCAL in file for file in files):
            return None
        found: dict[int, list[str]] = {}
        with self._lock:
            if len(self._of_file) > _MOST:
                self._of_file.clear()
            for file in files:
                if (number := self._of_file.get(file)) is None:
                    try:
                        schema = pq.read_schema(file).remove_metadata()
                    except (OSError, pa.ArrowException):  # gone meanwhile, or broken: whoever reads it says so
                        return None
                    number = self._of_file[file] = self._schemas.setdefault(schema, len(self._schemas))
                found.setdefault(number, []).append(file)
        return list(found.values())
