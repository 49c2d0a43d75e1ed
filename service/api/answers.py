"""How an answer looks: flat rows under ``rows``, where to go on under ``next``, the data's time under ``at``."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import msgspec
from litestar import Response

Row = dict[str, Any]
KEEP: Final = "private, no-cache"
"""A browser may keep an answer, and asks each time whether it still holds."""
_ENCODE: Final = msgspec.json.Encoder(enc_hook=str).encode


@dataclass(frozen=True, slots=True)
class Page:
    """Rows of a list. ``next`` is the cursor of the following page, none at the end; ``notes`` are for a person;
    ``about`` stands beside the rows and holds for all of them."""

    rows: Sequence[Mapping[str, Any]]
    at: datetime | None = None
    next: str | None = None
    notes: Sequence[str] = ()
    about: Mapping[str, Any] = field(default_factory=dict)


def page(found: Page) -> Response[bytes]:
    """A list as JSON. Its ``ETag`` covers the rows, not ``at``: the same rows a minute later are the same answer."""
    rows = _ENCODE(list(found.rows))
    rest: dict[str, Any] = {"next": found.next, "at": found.at, **found.about}
    if found.notes:
        rest["notes"] = list(found.notes)
    tail = _ENCODE(rest)
    return json(b'{"rows":' + rows + b"," + tail[1:], tag(rows, found.next, found.notes, found.about))


def one(row: Mapping[str, Any]) -> Response[bytes]:
    """One thing as JSON."""
    body = _ENCODE(dict(row))
    return json(body, tag(body))


def tag(*parts: Any) -> str:  # noqa: ANN401 (bytes, or whatever JSON can say)
    """A weak ``ETag`` of what an answer is made of."""
    made = hashlib.blake2b(digest_size=12)
    for part in parts:
        made.update(part if isinstance(part, bytes) else _ENCODE(part))
    return f'W/"{made.hexdigest()}"'


def json(body: bytes, etag: str, status: int = 200) -> Response[bytes]:
    """Encoded JSON with its ``ETag``."""
    return Response(
        body, status_code=status, media_type="application/json", headers={"ETag": etag, "Cache-Control": KEEP}
    )
