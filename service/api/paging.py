"""Pages of a list by key: a cursor is the last row's key, so rows that come or go meanwhile shift nothing."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import polars as pl

from graynode.pipeline.queries import quoted
from graynode.service.api.answers import Page, Row
from graynode.service.api.problems import Problem
from graynode.service.api.spans import sql_time
from graynode.service.times import parsed

MOST: Final = 5000
USUAL: Final = 500
Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Paging:
    """How many rows, and after which."""

    limit: int = USUAL
    cursor: str = ""

    def after(self, kinds: str) -> Key | None:
        """The key to go on behind. ``kinds``: a letter a part, ``t`` time, ``s`` text, ``i`` whole number.

        ``Problem`` 400 for a cursor that none of ours is.
        """
        if not self.cursor:
            return None
        try:
            raw = base64.urlsafe_b64decode(self.cursor.encode("ascii") + b"=" * (-len(self.cursor) % 4))
            parts = msgspec.json.decode(raw, type=list[str | int])
            return tuple(_part(kind, part) for kind, part in zip(kinds, parts, strict=True))
        except (ValueError, OverflowError, UnicodeError, binascii.Error, msgspec.MsgspecError):
            raise Problem(400, "cursor: is none of this list; begin again without it") from None


def _part(kind: str, part: str | int) -> Any:  # noqa: ANN401 (as ``kind`` says)
    if isinstance(part, int) != (kind == "i"):
        raise ValueError(kind)
    return parsed(part) if kind == "t" and isinstance(part, str) else part


def cursor_of(key: Key) -> str:
    """The cursor of a key."""
    parts = [part.astimezone(UTC).isoformat() if isinstance(part, datetime) else part for part in key]
    return base64.urlsafe_b64encode(msgspec.json.encode(parts)).rstrip(b"=").decode()


def limit_of(limit: int) -> int:
    """A limit as it is kept: between 1 and the most that one page has."""
    if limit < 1:
        raise Problem(400, f"limit={limit}: from 1 to {MOST}")
    return min(limit, MOST)


def page_sql(sql: str, keys: tuple[str, ...], kinds: str, paging: Paging, *, newest_first: bool) -> str:
    """``sql`` as one page and a row more. Keys are columns of ``sql`` without nulls, all in one direction."""
    after = paging.after(kinds)
    named, way, than = ", ".join(keys), "DESC" if newest_first else "ASC", "<" if newest_first else ">"
    where = "" if after is None else f"WHERE ({named}) {than} ({', '.join(map(_literal, after))})"
    order = ", ".join(f"{key} {way}" for key in keys)
    return f"FROM ({sql}) {where} ORDER BY {order} LIMIT {paging.limit + 1}"


def page_rows(rows: list[Row], keys: tuple[str, ...], paging: Paging, at: datetime | None) -> Page:
    """The page of rows that ``page_sql`` gave."""
    more = len(rows) > paging.limit
    rows = rows[: paging.limit]
    last = cursor_of(tuple(rows[-1][key] for key in keys)) if more else None
    return Page(rows, at, last)


def page_frame(frame: pl.DataFrame, keys: tuple[str, str], paging: Paging, at: datetime | None) -> Page:
    """One page of a frame, in the order of two text columns."""
    first, second = (pl.col(key).fill_null("") for key in keys)
    after = paging.after("ss")
    if after is not None:
        frame = frame.filter((first > after[0]) | ((first == after[0]) & (second > after[1])))
    held = frame.sort(first, second).head(paging.limit + 1)
    more = held.height > paging.limit
    rows = held.head(paging.limit).to_dicts()
    last = cursor_of(tuple(rows[-1][key] or "" for key in keys)) if more else None
    return Page(rows, at, last)


def page_newest(frame: pl.DataFrame, keys: tuple[str, str], paging: Paging, at: datetime | None) -> Page:
    """One page of a frame, by a time and a text column without nulls, both descending."""
    first, second = map(pl.col, keys)
    after = paging.after("ts")
    if after is not None:
        frame = frame.filter((first < after[0]) | ((first == after[0]) & (second < after[1])))
    held = frame.sort(keys, descending=True).head(paging.limit + 1)
    return page_rows(held.to_dicts(), keys, paging, at)


def _literal(part: Any) -> str:  # noqa: ANN401 (a key's part)
    if isinstance(part, datetime):
        return sql_time(part)
    return quoted(part) if isinstance(part, str) else str(int(part))
