"""What handlers are given: the parts, the caller, the range and the page asked for. Litestar's dependencies."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Final

from litestar import Request
from litestar.datastructures import State
from litestar.di import NamedDependency, Provide
from litestar.params import QueryParameter

from graynode.service.api.access import Caller
from graynode.service.api.paging import USUAL, Paging, limit_of
from graynode.service.api.spans import Span, span
from graynode.service.api.state import Served

_DAY: Final = timedelta(days=1)
Text = Annotated[str, QueryParameter(max_length=500)]
ANY: Final = ("", "*")
"""Of a filter: all of them. The star is what a dashboard sends for "All"."""
StateIs = Annotated[str, QueryParameter(name="state", max_length=50, description="only those in this state")]
"""``state`` is a reserved name of a handler's parameter."""
ServedHere = NamedDependency[Served]
CallerHere = NamedDependency[Caller]
SpanAsked = NamedDependency[Span]
PageAsked = NamedDependency[Paging]
"""What a handler names as ``served``, ``caller``, ``span`` and ``paging``."""


def served_of(state: State) -> Served:
    """The server's parts."""
    found: Served = state.served
    return found


def caller_of(request: Request[Any, Any, Any]) -> Caller:
    """Who asks, as the guard has found."""
    found: Caller = request.scope["user"]
    return found


def span_of(
    state: State,
    from_: Annotated[str, QueryParameter(name="from", max_length=100, description="ISO 8601, epoch, or now-6h")] = "",
    to: Annotated[str, QueryParameter(name="to", max_length=100, description="the same; default now")] = "",
    step: Annotated[str, QueryParameter(name="step", max_length=20, description="seconds, or 30s, 5m, 1h")] = "",
) -> Span:
    """The range asked for: the last day where none is named."""
    return span(from_, to, step, state.served.clock(), _DAY)


def paging_of(
    limit: Annotated[int, QueryParameter(name="limit", description="rows of a page, at most 5,000")] = USUAL,
    cursor: Annotated[str, QueryParameter(name="cursor", max_length=2000, description="next of the page before")] = "",
) -> Paging:
    """The page asked for."""
    return Paging(limit_of(limit), cursor)


DEPENDENCIES: Final = {
    "served": Provide(served_of, sync_to_thread=False),
    "caller": Provide(caller_of, sync_to_thread=False),
    "span": Provide(span_of, sync_to_thread=False),
    "paging": Provide(paging_of, sync_to_thread=False),
}
"""By name of a handler's parameter."""
