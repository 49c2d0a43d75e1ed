"""What Grafana reads from files: data sources, a provider of dashboards, the dashboards, and three steps to take.

The same input gives the same files. No token is ever written: Grafana puts in what its environment names
(``GRAYNODE_URL``, ``GRAYNODE_TOKEN``, ``GRAYNODE_PROMETHEUS_URL``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from graynode.dashboards.grafana.links import FOLDER_UID

FOLDER: Final = "graynode"
API_NAME: Final = "graynode"
PROMETHEUS_NAME: Final = "graynode Prometheus"
PLACE: Final = "/var/lib/grafana/dashboards/graynode"
"""Where Grafana finds the dashboards, unless said otherwise."""
PLUGIN_TIMEOUT_S: Final = 60


def dashboards() -> dict[str, str]:
    """The text of every dashboard by its uid, in the order in which a person comes to them."""
    from graynode.dashboards.grafana import sdk
    from graynode.dashboards.grafana.boards import BOARDS

    made = [board().build() for board in BOARDS]
    return {str(dashboard.uid): sdk.text(dashboard) for dashboard in made}


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the API and Prometheus are, as Grafana reaches them; the name of an environment variable with its ``$``."""

    api_url: str = "$GRAYNODE_URL"
    prometheus_url: str = "$GRAYNODE_PROMETHEUS_URL"

    def api(self) -> dict[str, Any]:
        """The Infinity data source over our API, without its token. Only our address may be asked through it."""
        from graynode.dashboards.grafana.infinity import PLUGIN, UID

        return {
            "name": API_NAME, "uid": UID, "type": PLUGIN, "access": "proxy", "url": self.api_url,
            "jsonData": {
                "auth_method": "bearerToken", "allowedHosts": [self.api_url], "timeoutInSeconds": PLUGIN_TIMEOUT_S,
                "customHealthCheckEnabled": True, "customHealthCheckUrl": f"{self.api_url}/api/v1/fields",
            },
        }  # fmt: skip

    def prometheus(self) -> dict[str, Any]:
        """The Prometheus that scrapes ``/metrics``."""
        from graynode.dashboards.grafana.scraped import PLUGIN, UID

        return {
            "name": PROMETHEUS_NAME, "uid": UID, "type": PLUGIN, "access": "proxy", "url": self.prometheus_url,
            "jsonData": {"httpMethod": "POST", "timeInterval": "15s"},
        }  # fmt: skip


def files(place: str = PLACE) -> dict[str, str]:
    """All files by their path below the folder."""
    sources = Sources()
    api = {**sources.api(), "editable": False, "secureJsonData": {"bearerToken": "$GRAYNODE_TOKEN"}}
    told = {"apiVersion": 1, "datasources": [api, {**sources.prometheus(), "editable": False}]}
    provider = {
        "name": "graynode", "orgId": 1, "folder": FOLDER, "folderUid": FOLDER_UID, "type": "file",
        "disableDeletion": False, "updateIntervalSeconds": 60, "allowUiUpdates": False,
        "options": {"path": place.replace("$", "$$"), "foldersFromFilesStructure": False},
    }  # fmt: skip
    return {
        "provisioning/datasources/graynode.yaml": _yaml(_ABOUT_SOURCES, told),
        "provisioning/dashboards/graynode.yaml": _yaml(_ABOUT_PROVIDER, {"apiVersion": 1, "providers": [provider]}),
        **{f"dashboards/{uid}.json": text for uid, text in dashboards().items()},
        "README.md": _README.format(place=place),
    }


def write(folder: Path, made: Mapping[str, str]) -> list[str]:
    """Write what is new or changed; the paths of these."""
    changed = []
    for name, text in made.items():
        path = folder / name
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        changed.append(name)
    return changed


def _yaml(about: str, told: Mapping[str, Any]) -> str:
    """YAML, in the part of it that needs no library: blocks, and every value as JSON writes it."""
    return "".join(f"# {line}\n" for line in about.splitlines()) + "\n".join(_block(told, 0)) + "\n"


def _block(told: Mapping[str, Any], depth: int) -> list[str]:
    space, lines = "  " * depth, []
    for key, value in told.items():
        if isinstance(value, dict):
            lines += [f"{space}{key}:", *_block(value, depth + 1)]
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            lines.append(f"{space}{key}:")
            for item in value:
                first, *rest = _block(item, depth + 2)
                lines += [f"{space}  - {first.strip()}", *rest]
        else:
            lines.append(f"{space}{key}: {json.dumps(value, ensure_ascii=False)}")
    return lines


_ABOUT_SOURCES: Final = """Data sources of graynode's dashboards. Grafana reads these from its environment:
GRAYNODE_URL (such as https://graynode.example.org:9405, no slash at the end), GRAYNODE_TOKEN (of scope read),
GRAYNODE_PROMETHEUS_URL (a Prometheus that scrapes /metrics of graynode serve)."""
_ABOUT_PROVIDER: Final = "Where Grafana finds graynode's dashboards; a change of their files shows within a minute."
_README: Final = """# graynode in Grafana, from files

Needs Grafana 11 or newer. Nothing here is unsigned: the Infinity data source is signed by Grafana Labs.

1. Install the plugin and make a token that may read:

       grafana cli plugins install yesoreyeram-infinity-datasource
       graynode token create --name grafana --scope read --for 365d

2. Copy `provisioning/` over Grafana's (`/etc/grafana/provisioning`), `dashboards/` to
   `{place}`,
   and put into Grafana's environment (`/etc/default/grafana-server`, or the container's):

       GRAYNODE_URL=https://graynode.example.org:9405
       GRAYNODE_TOKEN=the token of step 1
       GRAYNODE_PROMETHEUS_URL=http://127.0.0.1:9090

3. Restart Grafana and open the folder graynode. In Connections, Data sources, "Save & test" says whether both answer.

These files are made by `graynode dashboards export`; make them anew after an upgrade.
"""
