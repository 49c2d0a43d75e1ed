"""Dashboards over a lake that is not there yet: no query fails, so each panel says what to do."""

from __future__ import annotations

import contextlib
from pathlib import Path

from grafana_panels import INFINITY, Json, Query, Viewer, Wrong, queries
from served_site import ServedSite

ONE = ("/api/v1/incidents/$", "/api/v1/jobs/$")
"""Of one thing that is not chosen there is no answer, and Grafana shows the API's own words."""


def _sort(query: Query) -> str:
    """Questions of one sort are asked once: a path with its parameters, a metric of any name as any other."""
    url, params = query.target["url"], query.target["url_options"]["params"]
    one = next((one for one in ONE if url.startswith(one)), "")
    kept = [p["key"] if p["key"] == "metric" else f"{p['key']}={p['value']}" for p in params]
    return one or f"{url} {kept}"


def test_nothing_fails_where_there_is_nothing(boards: dict[str, Json], tmp_path: Path) -> None:
    """Lists are empty and numbers null: 200 for every query of every panel, variable and annotation."""
    site = ServedSite(tmp_path / "site", tmp_path / "lake")
    with site.client(site.token()) as client:
        viewer, asked = Viewer(client, site.served.clock()), set(ONE)
        for dashboard in boards.values():
            with contextlib.suppress(Wrong):  # a variable that offers nothing
                viewer.open(dashboard)
            for variable in dashboard["templating"]["list"]:
                viewer.values.setdefault(variable["name"], "*" if variable.get("includeAll") else "")
            for query in queries(dashboard):
                if query.target["datasource"]["type"] == INFINITY and _sort(query) not in asked:
                    asked.add(_sort(query))
                    viewer.rows(query)
    site.close()
