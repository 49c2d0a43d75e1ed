"""``GET /api/v1/stream``: server-sent events ``fleet`` (numbers and version) and ``incident`` (a changed incident).

Each has an ``id``; a browser that comes back sends it as ``Last-Event-ID`` and is told what it missed. ``reset`` says
that too much was missed: load anew. ``alive`` says every 15 s that nothing changed and keeps the line open;
whoever's token has gone is let go.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

import msgspec
from litestar import Request, get
from litestar.concurrency import sync_to_thread
from litestar.params import HeaderParameter, QueryParameter
from litestar.response import Stream

from graynode.service.api.access import Gate
from graynode.service.api.asked import ServedHere
from graynode.service.api.feed import Feed, Place, changed, summary
from graynode.service.api.problems import Problem
from graynode.service.api.state import Served

RETRY_MS: Final = 3000
BEAT_S: Final = 15.0
"""Proxies close a silent connection after 30 to 60 s."""
_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_MOST_MISSED: Final = 400


@get("/api/v1/stream", opt={"as_it_is": True}, media_type="text/event-stream")
async def stream(
    served: ServedHere,
    request: Request[Any, Any, Any],
    last: Annotated[str, HeaderParameter(name="Last-Event-ID", max_length=100)] = "",
    last_event_id: Annotated[
        str, QueryParameter(max_length=100, description="the same, where a header cannot be sent")
    ] = "",
) -> Stream:
    """Changes of the fleet and of incidents as they happen (text/event-stream)."""
    feed: Feed = request.app.state.feed
    if feed.listeners >= feed.most:
        raise Problem(503, f"{feed.most} listen already; serve.streams allows more", {"Retry-After": "30"})
    feed.listeners += 1
    return Stream(
        _Told(served, feed, request, last or last_event_id).go(), media_type="text/event-stream", headers=_HEADERS
    )


class _Told:
    """One listener."""

    def __init__(self, served: Served, feed: Feed, request: Request[Any, Any, Any], last: str) -> None:
        self._served, self._feed, self._request, self._last = served, feed, request, last

    async def go(self) -> AsyncIterator[bytes]:
        """All that it is told, until it or the server goes."""
        try:
            await self._feed.first_look()
            number = self._feed.number
            yield f"retry: {RETRY_MS}\n\n".encode()
            for piece in await sync_to_thread(self._missed):
                yield piece
            while not self._feed.closing and self._welcome():
                await self._feed.changes(BEAT_S)
                new = self._feed.after(number)
                if new is None:
                    new, number = [], self._feed.number
                    yield message("reset", self._feed.place.id, b"{}")
                for event in new:
                    number = event.number
                    yield message(event.name, event.id, event.data)
                if not new:
                    yield message("alive", self._feed.place.id, b"{}")
        finally:
            self._feed.listeners -= 1

    def _missed(self) -> list[bytes]:
        """What happened since the id that it came with; the fleet as it is, unless it knows that."""
        place = Place.of(self._last)
        now = summary(self._served)
        told: list[bytes] = []
        if place is not None:
            rows = changed(self._served, place.told)
            if len(rows) > _MOST_MISSED:
                return [message("reset", self._feed.place.id, b"{}")]
            told = [message("incident", Place(row["ts"], place.version).id, msgspec.json.encode(row)) for row in rows]
        if place is None or place.version != now["version"]:
            newest = max(place.told if place else self._feed.place.told, self._feed.place.told)
            told.append(message("fleet", Place(newest, str(now["version"])).id, msgspec.json.encode(now)))
        return told

    def _welcome(self) -> bool:
        gate: Gate = self._request.app.state.gate
        try:
            gate.caller(self._request, self._served.clock())
        except Problem:
            return False
        return True


def message(name: str, id_: str, data: bytes) -> bytes:
    """One event on the wire. JSON has no line breaks of its own, so neither has ``data``."""
    return f"id: {id_}\nevent: {name}\ndata: ".encode() + data + b"\n\n"


ROUTES: Final[tuple[Any, ...]] = (stream,)
