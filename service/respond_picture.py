"""The picture of an incident as PNG, for messages to people: drawn by the dashboards' own charts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog

from graynode.responders.message import clean, evidence


def picture(incident: Mapping[str, Any]) -> bytes | None:
    """PNG; none where there is nothing to draw, or it could not be drawn in time: the words go alone then."""
    entries = evidence(dict(incident))
    if not entries:
        return None
    try:
        from graynode.dashboards.charts import incident_chart
        from graynode.dashboards.render import png

        return png(incident_chart(entries, title=clean(incident.get("title"), 120)))
    except Exception as error:  # a picture is never worth a message
        structlog.get_logger().warning("no picture of an incident", reason=str(error)[:300])
        return None
