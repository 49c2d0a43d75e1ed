"""Commands of the Grafana dashboards. ``graynode.service.cli`` takes them in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from graynode.service.cli_base import call, fail

dashboards_app = typer.Typer(help="Grafana dashboards: as files, or onto a server.", no_args_is_help=True)
_PLACE: Final = "/var/lib/grafana/dashboards/graynode"


def _need_library() -> None:
    """The way out where the extra is not installed; found without importing, which takes seconds."""
    import importlib.util

    for name in ("grafana_foundation_sdk", "grafana_client"):
        if importlib.util.find_spec(name) is None:
            fail(f"{name} is not installed: pip install 'graynode[server,grafana]'")


@dashboards_app.command()
def export(
    folder: Annotated[Path, typer.Argument(help="Folder for provisioning/, dashboards/ and a README.")],
    dashboards_path: Annotated[str, typer.Option(help="Where Grafana will find the dashboards.")] = _PLACE,
) -> None:
    """Write Grafana's provisioning files (docs/grafana.md). No token is written; the environment names it."""
    _need_library()
    call("dashboards_export", folder, place=dashboards_path)


@dashboards_app.command()
def push(
    url: Annotated[str, typer.Option(help="Address of Grafana; https beyond this machine.")],
    token_file: Annotated[Path, typer.Option(help="File with a service account's token, mode 600.")],
    folder: Annotated[str, typer.Option(help="Title of the folder, where it is new.")] = "graynode",
    api_url: Annotated[str, typer.Option(help="Address of graynode serve, as Grafana reaches it.")] = "",
    api_token_file: Annotated[Path | None, typer.Option(help="File with a token of graynode, scope read.")] = None,
    prometheus_url: Annotated[str, typer.Option(help="Address of the Prometheus that scrapes graynode serve.")] = "",
    keep: Annotated[bool, typer.Option("--keep", help="Leave dashboards of ours that are made no more.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without this it only says what would change.")] = False,
) -> None:
    """Bring folder, data sources and dashboards onto a Grafana server; only what is ours is touched."""
    _need_library()
    call(
        "dashboards_push", url=url, token_file=token_file, folder=folder, api_url=api_url,
        api_token_file=api_token_file, prometheus_url=prometheus_url, keep=keep, yes=yes,
    )  # fmt: skip
