"""Questions to the lake with a deadline, only so many at a time; and what the lake's errors are to a caller."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Final

import duckdb
import pyarrow as pa

from graynode.pipeline.lake import LakeError, LakeTooNew
from graynode.pipeline.queries import Files, Queries, QueryError
from graynode.service.api.problems import Problem, shown
from graynode.service.config import ConfigError

AT_ONCE: Final = 4
"""Questions that run at a time: DuckDB uses its threads for each, more would only wait for the cores inside of it."""
_TRIES: Final = 6
_END_S: Final = 5.0
_GONE: Final = ("No such file", "No files found", "Cannot open file", "could not open")
"""How a read fails when a compaction took a file between naming and reading it."""


class Bounded(Queries):
    """``Queries`` whose answers (``rows``, ``arrow``, ``frame``) come within ``deadline_s`` or are ``Problem`` 504."""

    def __init__(
        self, lake: Files, *, memory_limit: str = "2GB", threads: int = 2, deadline_s: float = 10.0,
        at_once: int = AT_ONCE, wait_s: float = 10.0,
    ) -> None:  # fmt: skip
        """As ``Queries``; who waits longer than ``wait_s`` for a turn is told 503."""
        super().__init__(lake, memory_limit=memory_limit, threads=threads)
        self._deadline_s, self._wait_s = deadline_s, wait_s
        self._at_once = at_once
        self._turns = threading.BoundedSemaphore(at_once)
        self._running: set[duckdb.DuckDBPyConnection] = set()
        self._closed = False

    def arrow(self, sql: str) -> pa.Table:
        """The answer as an Arrow table. A lake that is being compacted is asked again: its views are made anew."""
        if not self._turns.acquire(timeout=self._wait_s):
            raise Problem(503, "too many questions at a time; ask again", {"Retry-After": "5"})
        try:
            for left in range(_TRIES - 1, -1, -1):
                if self._closed:
                    raise Problem(503, "graynode serve is about to end")
                cursor = self.cursor()
                self._running.add(cursor)
                try:
                    with cursor, deadline(cursor, self._deadline_s):
                        return self.ask(sql, cursor).to_arrow_table()
                except (QueryError, duckdb.IOException) as error:
                    if not left or not any(word in str(error) for word in _GONE):
                        raise
                finally:
                    self._running.discard(cursor)
        finally:
            self._turns.release()
        raise AssertionError("unreachable")

    def break_off(self) -> None:
        """Answer nothing any more; what runs ends now."""
        self._closed = True
        for cursor in list(self._running):
            with contextlib.suppress(duckdb.Error):
                cursor.interrupt()

    def close(self) -> None:
        """Break off what runs, then let the database go: it refuses to be closed while it is asked."""
        self.break_off()
        for _ in range(self._at_once):
            self._turns.acquire(timeout=_END_S)
        with contextlib.suppress(duckdb.Error):
            super().close()


@contextlib.contextmanager
def deadline(cursor: duckdb.DuckDBPyConnection, seconds: float) -> Iterator[None]:
    """Interrupt what ``cursor`` runs after so long; ``Problem`` 504."""
    late = threading.Event()

    def stop() -> None:
        late.set()
        with contextlib.suppress(duckdb.Error):  # it has just been closed: the answer was there in time
            cursor.interrupt()

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (duckdb.Error, QueryError) as error:
        if late.is_set():
            raise Problem(504, f"no answer within {seconds:g} s: ask for less time or fewer nodes") from error
        raise
    finally:
        timer.cancel()


@contextlib.contextmanager
def lake_problems() -> Iterator[None]:
    """What the errors of whatever reads the lake are to a caller: 400 for a wrong question, else 503."""
    try:
        yield
    except ConfigError as error:
        raise Problem(400, shown(str(error).removeprefix("--"))) from error
    except LakeTooNew as error:
        raise Problem(503, shown(error)) from error
    except duckdb.OutOfMemoryException as error:
        raise Problem(503, "the question needs more memory than serve.memory allows: ask for less") from error
    except (LakeError, QueryError, duckdb.Error, OSError) as error:
        raise Problem(503, f"the lake cannot be asked now: {shown(error)}", {"Retry-After": "10"}) from error
