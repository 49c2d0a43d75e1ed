"""``POST /api/v1/sql``: one read-only question, off until ``serve.sql`` is on, with limits and a database of its own.

What it may not do it cannot do: statements that change anything are refused, files outside the lake are closed to it,
settings are locked, nothing spills to disk. Time, memory and rows are bounded by ``serve.sql_*``.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import duckdb
import msgspec
from litestar import Request, Response, post
from litestar.params import JSONBody
from msgspec import Meta

from graynode.pipeline.queries import Queries, QueryError
from graynode.service.api.answers import KEEP, Row
from graynode.service.api.asked import ServedHere
from graynode.service.api.bounded import deadline, lake_problems
from graynode.service.api.problems import Problem, shown
from graynode.service.api.state import Served

_BATCH: Final = 1000
_LONGEST: Final = 20_000
_LARGEST: Final = 64 << 20
"""Bytes of an answer, as Arrow holds it."""


class Asked(msgspec.Struct, forbid_unknown_fields=True):
    """One statement."""

    sql: Annotated[str, Meta(max_length=_LONGEST)]


@dataclass(slots=True)
class Desk:
    """Where questions in SQL are answered: one at a time, in a database of their own."""

    served: Served
    _queries: Queries | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, sql: str) -> tuple[list[Row], bool]:
        """Rows, and whether there were more. ``Problem`` 400 for SQL that will not do."""
        config = self.served.config.serve
        if not self._lock.acquire(timeout=config.sql_deadline_s):
            raise Problem(503, "another question is being answered; ask again", {"Retry-After": "5"})
        try:
            return self._rows(sql, config.sql_rows, config.sql_deadline_s)
        except duckdb.OutOfMemoryException as error:
            raise Problem(400, f"the question needs more than serve.sql_memory = {config.sql_memory}") from error
        except OverflowError as error:  # an interval or a date that Python has no room for
            raise Problem(400, f"the answer cannot be told: {shown(error)}; cast it to VARCHAR") from error
        except (QueryError, duckdb.Error) as error:
            raise Problem(400, shown(str(error).partition("\n")[0])) from error
        finally:
            self._lock.release()

    def _rows(self, sql: str, most: int, seconds: float) -> tuple[list[Row], bool]:
        if self._queries is None:
            with lake_problems():
                memory = self.served.config.serve.sql_memory
                self._queries = Queries(self.served.lake, memory_limit=memory, threads=1, spill=False)
        cursor = self._queries.cursor()
        rows: list[Row] = []
        size = 0
        with cursor, deadline(cursor, seconds):
            for batch in self._queries.ask(sql, cursor).to_arrow_reader(_BATCH):
                size += batch.nbytes
                if size > _LARGEST:
                    raise Problem(400, f"the answer is larger than {_LARGEST >> 20} MiB; ask for less")
                rows += batch.to_pylist()
                if len(rows) > most:
                    return rows[:most], True
        return rows, False

    def close(self) -> None:
        """Let the database go."""
        if self._queries is not None:
            self._queries.close()
            self._queries = None


@post("/api/v1/sql", opt={"scope": "read"}, sync_to_thread=True, status_code=200)
def sql(served: ServedHere, request: Request[Any, Any, Any], data: JSONBody[Asked]) -> Response[bytes]:
    """One SELECT over the lake's tables; off by default (serve.sql)."""
    if not served.config.serve.sql:
        raise Problem(403, "SQL is off here: serve.sql = true opens it")
    desk: Desk = request.app.state.desk
    rows, more = desk.answer(data.sql)
    told = {"rows": rows, "next": None, "at": served.at(), "truncated": more}
    body = msgspec.json.encode(told, enc_hook=str)
    return Response(body, media_type="application/json", headers={"Cache-Control": KEEP})


ROUTES: Final[tuple[Any, ...]] = (sql,)
