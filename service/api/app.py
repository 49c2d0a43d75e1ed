"""The application: routes, guard, limits, problem+json. ``create_app(served)`` is all that ``serve`` and tests need."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from importlib.metadata import version
from typing import Any, Final

from litestar import Litestar
from litestar.datastructures import State
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.types import ControllerRouterHandler

from graynode.service.api import (
    acts,
    band,
    docs,
    fleet,
    health,
    incidents,
    jobs,
    metrics,
    money,
    nodes,
    reliability,
    series,
    sessions,
    sql,
    stream,
)
from graynode.service.api.access import Gate, guard
from graynode.service.api.asked import DEPENDENCIES
from graynode.service.api.feed import Feed
from graynode.service.api.metrics import Measured, OfFleet, Own
from graynode.service.api.problems import HANDLERS
from graynode.service.api.state import Served
from graynode.service.api.turns import Turns
from graynode.service.api.wire import COMPRESSION, Wire
from graynode.service.tokens import Tokens

LARGEST_BODY: Final = 64 * 1024
"""Nothing that is sent here is larger than a page of text."""
_PARTS: Final = (
    health, fleet, nodes, incidents, band, jobs, money, reliability, series, acts, sessions, stream, metrics, sql, docs,
)  # fmt: skip
ROUTES: Final[Sequence[ControllerRouterHandler]] = tuple(route for part in _PARTS for route in part.ROUTES)


_DESCRIBED: Final = OpenAPIConfig(
    "graynode",
    version("graynode"),
    path="/openapi",
    render_plugins=[JsonRenderPlugin()],
    use_handler_docstrings=True,
)
"""Litestar wants an address of its own for it; ours (``docs``) are /openapi.json and /docs. The guard is before all."""


def create_app(served: Served, routes: Sequence[Any] | None = None) -> Litestar:
    """The application over ``served``. ``routes`` beside the API's own; by default the pages.

    Every route denies unknown callers unless it has ``opt={"public": True}``; one that acts needs ``opt={"scope":
    "act"}`` (any that is no GET needs it by itself); ``opt={"page": True}`` sends unknown callers to ``/signin``.
    """
    config = served.config.serve
    own = Own()
    own.registry.register(OfFleet(served))
    feed, desk = Feed(served, most=config.streams), sql.Desk(served)
    gate = Gate(Tokens(config.tokens_file), timedelta(hours=config.session_h))
    app = Litestar(
        route_handlers=[*ROUTES, *(_pages() if routes is None else routes)],
        guards=[guard],
        dependencies=DEPENDENCIES,
        exception_handlers=HANDLERS,
        compression_config=COMPRESSION,
        request_max_body_size=LARGEST_BODY,
        state=State({"served": served, "gate": gate, "feed": feed, "desk": desk, "own": own}),
        lifespan=[_looking(feed, desk)],
        openapi_config=_DESCRIBED,
        debug=False,
        pdb_on_exception=False,
        logging_config=None,
    )
    # Around all of it, for Litestar's own layers stand behind its router: an unknown path would pass them by.
    app.asgi_handler = Measured(Wire(Turns(app.asgi_handler), config.hosts), own)
    return app


def _looking(feed: Feed, desk: sql.Desk) -> Callable[[Litestar], AbstractAsyncContextManager[None]]:
    """The feed looks while the application runs."""

    @asynccontextmanager
    async def running(_app: Litestar) -> AsyncIterator[None]:
        task = asyncio.create_task(feed.run())
        try:
            yield
        finally:
            feed.close()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            desk.close()

    return running


def _pages() -> Sequence[Any]:
    from graynode.service.pages import ROUTES as PAGES

    return list(PAGES)
