"""Where the dashboards are (uids that never change) and how one leads to another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TAG: Final = "graynode"
PREFIX: Final = "graynode-"
FOLDER_UID: Final = "graynode"
UIDS: Final[Mapping[str, str]] = {
    name: f"{PREFIX}{name}" for name in ("fleet", "node", "incident", "links", "ecc", "job", "cost", "health")
}
"""By name of the dashboard. What is marked by this prefix and the tag is ours; nothing else is touched."""


def url_of(name: str, values: Mapping[str, str]) -> str:
    """A link to a dashboard. ``values``: by its variable the column of the row that it is set from, or ``$variable`` of
    this dashboard. ``from`` and ``to`` name columns of times; without them the range stays as it is.
    """
    told = []
    for variable, column in values.items():
        if variable in ("from", "to"):
            told.append(f"{variable}=${{__data.fields.{column}.numeric}}")
        elif column.startswith("$"):
            told.append(f"var-{variable}=${{{column[1:]}:percentencode}}")
        else:
            told.append(f"var-{variable}=${{__data.fields.{column}:percentencode}}")
    if "from" not in values:
        told.append("${__url_time_range}")
    return f"/d/{UIDS[name]}?{'&'.join(told)}"
