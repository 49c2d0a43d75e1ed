"""A query of the Infinity data source (``yesoreyeram-infinity-datasource``, JSON by its backend parser).

The SDK has no builder for it. The fields are those of the plugin's query type: ``url`` is a path below the data
source's base URL, to which the plugin appends ``url_options.params``, encoded; ``root_selector`` names the list in the
answer; columns pick and type its fields, and ``text`` becomes the field's name in Grafana.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self

from graynode.dashboards.grafana.sdk import builder, common_model, runtime, variants

PLUGIN: Final = "yesoreyeram-infinity-datasource"
UID: Final = "graynode-api"
Kind = Literal["string", "number", "timestamp"]
_FIXED: Final[Mapping[str, Any]] = {
    "type": "json", "parser": "backend", "source": "url", "format": "table", "filters": [],
}  # fmt: skip


def source() -> common_model.DataSourceRef:
    """Our API as a data source."""
    return common_model.DataSourceRef(type_val=PLUGIN, uid=UID)


@dataclass(frozen=True, slots=True)
class Picked:
    """A field of the answer's rows: ``selector`` there, ``text`` in Grafana."""

    selector: str
    text: str
    kind: Kind


@dataclass(slots=True)
class InfinityQuery(variants.Dataquery):
    """One query. ``params`` may repeat a key."""

    url: str
    columns: list[Picked]
    params: list[tuple[str, str]] = field(default_factory=list)
    root: str = "rows"
    ref_id: str = "A"

    def to_json(self) -> dict[str, object]:
        """As a panel's target holds it."""
        return {
            **_FIXED,
            "refId": self.ref_id,
            "datasource": {"type": PLUGIN, "uid": UID},
            "url": self.url,
            "url_options": {"method": "GET", "params": [{"key": k, "value": v} for k, v in self.params]},
            "root_selector": self.root,
            "columns": [{"selector": c.selector, "text": c.text, "type": c.kind} for c in self.columns],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Back; ``ValueError`` for what this class does not hold, so that nothing is lost unseen."""
        made = cls(
            data["url"],
            [Picked(c["selector"], c["text"], c["type"]) for c in data["columns"]],
            [(p["key"], p["value"]) for p in data["url_options"]["params"]],
            data["root_selector"],
            data["refId"],
        )
        if made.to_json() != data:
            raise ValueError(f"query {data.get('refId')!r}: is none that graynode makes: {sorted(data)}")
        return made


@dataclass(frozen=True, slots=True)
class Ask(builder.Builder[InfinityQuery]):
    """Builds a query: ``Ask("/api/v1/nodes", columns, {"state": "suspect"})``."""

    url: str
    columns: Sequence[Picked]
    params: Mapping[str, str] = field(default_factory=dict)
    root: str = "rows"
    ref_id: str = "A"

    def build(self) -> InfinityQuery:
        """The query."""
        return InfinityQuery(self.url, list(self.columns), list(self.params.items()), self.root, self.ref_id)


def register() -> None:
    """Tell the SDK how such a query is read."""
    runtime.register_dataquery_variant(runtime.DataqueryConfig(PLUGIN, InfinityQuery.from_json))
