"""The status page's routes: read by the API's own functions, shown by templates of ``dashboards.pages``."""

from typing import Any, Final

from graynode.service.pages import fleet, incidents, jobs, money, nodes, session, users

ROUTES: Final[tuple[Any, ...]] = (
    *session.ROUTES, *fleet.ROUTES, *nodes.ROUTES, *incidents.ROUTES, *jobs.ROUTES, *users.ROUTES, *money.ROUTES,
)  # fmt: skip
