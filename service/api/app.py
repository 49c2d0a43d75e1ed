"""The application: routes, guard, limits, problem+json. ``create_app(served)`` is all that ``serve`` and tests need."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from litestar import Litestar
from litestar.datastructures import State
from litestar.middleware import DefineMiddleware
from litestar.openapi import OpenAPIConfig
from litestar.types import ControllerRouterHandler

from graynode.service.api import health, incidents, nodes
from graynode.service.api.access import Gate, guard
from graynode.service.api.asked import DEPENDENCIES
from graynode.service.api.problems import HANDLERS
from graynode.service.api.state import Served
from graynode.service.api.wire import COMPRESSION, Wire
from graynode.service.tokens import Tokens

LARGEST_BODY: Final = 64 * 1024
"""Nothing that is sent here is larger than a page of text."""
ROUTES: Final[Sequence[ControllerRouterHandler]] = (*health.ROUTES, *nodes.ROUTES, *incidents.ROUTES)


def create_app(served: Served, routes: Sequence[Any] | None = None) -> Litestar:
    """The application over ``served``. ``routes`` beside the API's own; by default the pages.

    Every route denies unknown callers unless it has ``opt={"public": True}``; one that acts needs ``opt={"scope":
    "act"}`` (any that is no GET needs it by itself); ``opt={"page": True}`` sends unknown callers to ``/signin``.
    """
    config = served.config.serve
    gate = Gate(Tokens(config.tokens_file), timedelta(hours=config.session_h))
    return Litestar(
        route_handlers=[*ROUTES, *(_pages() if routes is None else routes)],
        guards=[guard],
        dependencies=DEPENDENCIES,
        exception_handlers=HANDLERS,
        middleware=[DefineMiddleware(Wire, hosts=config.hosts)],
        compression_config=COMPRESSION,
        request_max_body_size=LARGEST_BODY,
        state=State({"served": served, "gate": gate}),
        openapi_config=None,
        debug=False,
        pdb_on_exception=False,
        logging_config=None,
    )


def _pages() -> Sequence[Any]:
    from graynode.service.pages import ROUTES as PAGES

    return list(PAGES)
