"""What Grafana and its Infinity plugin do with a dashboard, as far as its queries go: variables are put in, the API is
asked, the list in the answer is found, fields are picked. Strict where they are lenient."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote, urlencode

from litestar.testing import TestClient

from graynode.service.api.spans import moment

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_.]*)(?::([a-z]+))?\}|\$([A-Za-z_][A-Za-z0-9_]*)")
INFINITY, PROMETHEUS = "yesoreyeram-infinity-datasource", "prometheus"
Json = dict[str, Any]


class Wrong(AssertionError):
    """A dashboard asks for what there is not."""


@dataclass(frozen=True)
class Query:
    """One query of a dashboard: whose it is, and what it asks."""

    of: str
    panel: Json | None
    target: Json

    @property
    def columns(self) -> list[tuple[str, str, str]]:
        """Selector, name in Grafana, type."""
        return [(c["selector"], c["text"], c["type"]) for c in self.target["columns"]]


def panels(dashboard: Json) -> Iterator[Json]:
    """Panels, those within rows too; not the rows."""
    for panel in dashboard["panels"]:
        yield from panel.get("panels") or []
        if panel["type"] != "row":
            yield panel


def queries(dashboard: Json) -> Iterator[Query]:
    """Of panels, annotations and variables."""
    for panel in panels(dashboard):
        for target in panel["targets"]:
            yield Query(f"{dashboard['uid']}, panel {panel['title']!r}, {target['refId']}", panel, target)
    for mark in dashboard["annotations"]["list"]:
        yield Query(f"{dashboard['uid']}, annotation {mark['name']!r}", None, mark["target"])
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield Query(f"{dashboard['uid']}, variable {variable['name']!r}", None, variable["query"]["infinityQuery"])


@dataclass
class Viewer:
    """Who looks at a dashboard at a moment; ``chosen`` are variables that are not left as they come."""

    client: TestClient[Any]
    now: datetime
    chosen: Mapping[str, str] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    """By URL: many panels ask the same, and the lake does not change."""

    def open(self, dashboard: Json) -> None:
        """Take the default range and choose variables, from the first to the last."""
        since = moment("from", dashboard["time"]["from"], self.now)
        until = moment("to", dashboard["time"]["to"], self.now, end=True)
        long = until - since > timedelta(days=1)
        self.values = {
            "__from": str(int(since.timestamp() * 1000)), "__to": str(int(until.timestamp() * 1000)),
            "__interval": "1h" if long else "5m", "__rate_interval": "5m",
        }  # fmt: skip
        for variable in dashboard["templating"]["list"]:
            self.values[variable["name"]] = self._chosen(dashboard["uid"], variable)

    def _chosen(self, uid: str, variable: Json) -> str:
        name = variable["name"]
        if variable["type"] == "custom":
            return str(variable["current"]["value"])
        told = Query(f"{uid}, variable {name!r}", None, variable["query"]["infinityQuery"])
        offered = [row["__value"] for row in self.picked(told) if row["__value"] is not None]
        if not offered:
            raise Wrong(f"{told.of}: offers nothing")
        if name in self.chosen:
            if self.chosen[name] not in offered:
                raise Wrong(f"{told.of}: does not offer {self.chosen[name]!r}")
            return self.chosen[name]
        return str(variable["allValue"]) if variable.get("includeAll") else str(offered[0])

    def filled(self, text: str) -> str:
        """Variables put in; ``Wrong`` for one that there is not."""

        def put(found: re.Match[str]) -> str:
            name = found[1] or found[3]
            if name not in self.values:
                raise Wrong(f"{text!r}: there is no variable {name!r}")
            value = self.values[name]
            if found[2] not in (None, "percentencode"):
                raise Wrong(f"{text!r}: format {found[2]!r}")
            return quote(value, safe="") if found[2] else value

        return _VARIABLE.sub(put, text)

    def answer(self, query: Query) -> Any:
        """What the API answers; ``Wrong`` where that is no 200."""
        target = query.target
        params = [(p["key"], self.filled(p["value"])) for p in target["url_options"]["params"]]
        url = self.filled(target["url"]) + ("?" + urlencode(params) if params else "")
        if url not in self.answers:
            told = self.client.get(url)
            if told.status_code != 200:
                raise Wrong(f"{query.of}: {url}: {told.status_code} {told.text}")
            self.answers[url] = told.json()
        return self.answers[url]

    def rows(self, query: Query) -> list[Json]:
        """The list that the root selector finds, one thing as a list of one."""
        found = self.answer(query)
        for part in filter(None, query.target["root_selector"].split(".")):
            if not isinstance(found, dict) or part not in found:
                raise Wrong(f"{query.of}: the answer has no {part!r}")
            found = found[part]
        return [found] if isinstance(found, dict) else list(found)

    def picked(self, query: Query) -> list[Json]:
        """Fields under their names in Grafana; ``Wrong`` for one that the answer lacks or that is of another type."""
        made, columns = [], query.columns
        for row in self.rows(query):
            lacks = [selector for selector, _, _ in columns if selector not in row]
            if lacks:
                raise Wrong(f"{query.of}: the answer has no {', '.join(lacks)}; it has {', '.join(sorted(row))}")
            made.append({text: _typed(query, selector, kind, row[selector]) for selector, text, kind in columns})
        return made


_FITS = {
    "number": lambda v: isinstance(v, int | float) and not isinstance(v, bool),
    "string": lambda v: isinstance(v, str | bool),
    "timestamp": lambda v: isinstance(v, str) and v.endswith("Z") and len(v) >= len("2026-11-30T10:00:00Z"),
}


def _typed(query: Query, selector: str, kind: str, value: Any) -> Any:
    if value is None:
        return None
    if not _FITS[kind](value):
        raise Wrong(f"{query.of}: {selector} is picked as {kind}, and is {value!r}")
    return str(value).lower() if isinstance(value, bool) else value
