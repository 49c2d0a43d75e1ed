"""``graynode report``. ``graynode.service.cli`` takes it in."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from graynode.service.cli_base import ConfigPath, call, load_config

reports = typer.Typer()


class ReportFormat(StrEnum):
    """Forms of a report."""

    html = "html"
    md = "md"
    json = "json"


@reports.command()
def report(
    week: Annotated[str, typer.Option(help="ISO week, such as 2026-W48; default the last whole one.")] = "",
    format_: Annotated[ReportFormat, typer.Option("--format", help="Form of the report.")] = ReportFormat.html,
    out: Annotated[Path | None, typer.Option(help="File to write; without it, standard output.")] = None,
    send: Annotated[bool, typer.Option("--send", help="Send it to the addresses of report.urls_file.")] = False,
    nodes: Annotated[int, typer.Option(min=0, help="Machines there are, where the lake knows only some.")] = 0,
    lake: Annotated[str | None, typer.Option(help="Lake to ask, instead of the configured one.")] = None,
    config: ConfigPath = None,
) -> None:
    """A week of the cluster in one file: availability, failures, losses, precision, spares, and what is not known."""
    call("report", load_config(config, lake__path=lake), week, format_.value, out, send=send, nodes=nodes)
