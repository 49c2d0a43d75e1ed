"""Dashboards as JSON, and the API over a lake in which each has something to show; each made once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from grafana_lake import NOW, make_lake, make_site
from litestar.testing import TestClient
from served_site import ServedSite

Json = dict[str, Any]


@pytest.fixture(scope="session")
def boards() -> dict[str, Json]:
    """By name, as the files say them."""
    from graynode.dashboards.grafana import sdk
    from graynode.dashboards.grafana.boards import BOARDS

    made = [make() for make in BOARDS]
    return {board.name: json.loads(sdk.text(board.build())) for board in made}


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedSite]:
    """The API over the lake."""
    folder = tmp_path_factory.mktemp("grafana")
    made = make_site(folder / "site", make_lake(folder / "lake"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def client(site: ServedSite) -> Iterator[TestClient[Any]]:
    """Grafana's way to it: a token that may read."""
    with site.client(site.token("grafana", now=NOW, days=90)) as made:
        yield made
