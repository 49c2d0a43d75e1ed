"""Commands that answer from the lake or from data sets and change nothing. ``graynode.service.cli`` takes them in."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from graynode.service.cli_base import ConfigPath, call, fail, load_config

answers = typer.Typer()


class SqlFormat(StrEnum):
    """Forms of an answer."""

    table = "table"
    csv = "csv"
    json = "json"
    parquet = "parquet"


@answers.command()
def sql(
    command: Annotated[str | None, typer.Option("-c", "--command", help="One statement; without it, a prompt.")] = None,
    format_: Annotated[SqlFormat, typer.Option("--format", help="Form of the answer.")] = SqlFormat.table,
    output: Annotated[Path | None, typer.Option(help="File for the answer.")] = None,
    lake: Annotated[str | None, typer.Option(help="Lake to ask, instead of the configured one.")] = None,
    config: Annotated[Path | None, typer.Option("--config", help="Configuration file.")] = None,
) -> None:
    """Ask the lake in SQL; it is never changed."""
    call("sql", load_config(config, lake__path=lake), command, format_.value, output)


@answers.command()
def explain(
    incident: Annotated[str, typer.Argument(help="Incident id, or its beginning.")] = "",
    job: Annotated[str, typer.Option(help="Instead of an incident: a job, and why it ended.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="For a machine.")] = False,
    lake: Annotated[str | None, typer.Option(help="Lake to ask, instead of the configured one.")] = None,
    config: ConfigPath = None,
) -> None:
    """What was seen, against what, since when, and what to do."""
    if bool(incident) == bool(job):
        fail("explain: name an incident, or a job by --job ID")
    if job:
        call("explain_job", load_config(config, lake__path=lake), job, as_json=as_json)
    call("explain", load_config(config, lake__path=lake), incident, as_json=as_json)


@answers.command()
def lemons(
    at: Annotated[str, typer.Option(help="Rank by what was known then, ISO 8601; default now.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="For a machine; all nodes.")] = False,
    most: Annotated[int, typer.Option(min=1, help="Rows of the table.")] = 20,
    lake: Annotated[str | None, typer.Option(help="Lake to ask, instead of the configured one.")] = None,
    config: ConfigPath = None,
) -> None:
    """Nodes by how likely they are to fault next, why, and which are on probation after a repair."""
    call("lemons", load_config(config, lake__path=lake), at, as_json=as_json, most=most)


@answers.command()
def nodes(
    at: Annotated[str, typer.Option(help="As it was known then, ISO 8601; default now.")] = "",
    state: Annotated[str, typer.Option(help="Only nodes of this state.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="For a machine.")] = False,
    lake: Annotated[str | None, typer.Option(help="Lake to ask, instead of the configured one.")] = None,
    config: ConfigPath = None,
) -> None:
    """Nodes with their state (healthy, suspect, quarantined, in_repair, probation, unknown), since when and why."""
    call("nodes", load_config(config, lake__path=lake), at, as_json=as_json, state=state)


@answers.command()
def evaluate(
    track: Annotated[str, typer.Argument(help="slow, attribution, lemons, fleet or host (docs/evaluation.md).")],
    data: Annotated[Path | None, typer.Option(help="Folder of the track's data, in its public set's format.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything that is drawn.")] = 1,
    json_: Annotated[Path | None, typer.Option("--json", help="File for all figures as JSON.")] = None,
    full: Annotated[bool, typer.Option("--full", help="The sizes that certify; takes long.")] = False,
) -> None:
    """How well detection does on a track, with intervals, beside the usual methods."""
    call("evaluate", track, data, seed, json_, full=full)
