"""The parts of grafana-foundation-sdk that we use, from one place, for importing its builders warns (it prefers a newer
dashboard format that Grafana's file provisioning and HTTP API do not ask for)."""

from __future__ import annotations

import json
import warnings
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, table, timeseries
    from grafana_foundation_sdk.cog import builder, runtime, variants
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models import common as common_model
    from grafana_foundation_sdk.models import dashboard as model
    from grafana_foundation_sdk.models import units

__all__ = [
    "builder", "common", "common_model", "dashboard", "model", "prometheus", "read", "runtime", "stat", "table", "text",
    "timeseries", "units", "variants",
]  # fmt: skip


def text(made: model.Dashboard) -> str:
    """A dashboard as the JSON of a file: the same text for the same dashboard."""
    return json.dumps(made, cls=JSONEncoder, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def read(told: dict[str, Any]) -> model.Dashboard:
    """A dashboard from JSON, through the SDK's types. They take nearly anything: what is lost shows in ``text``."""
    from graynode.dashboards.grafana.infinity import register

    register_default_plugins()
    register()
    return model.Dashboard.from_json(told)
