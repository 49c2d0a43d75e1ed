"""Commands about capacity and cost, and a user's view. ``graynode.service.cli`` takes them in."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from graynode.service.cli_base import ConfigPath, call, fail, load_config

costs = typer.Typer()


class Form(StrEnum):
    """Forms of an answer."""

    text = "text"
    json = "json"
    csv = "csv"


class SumBy(StrEnum):
    """What GPU-hours are summed by."""

    category = "category"
    user = "user"
    account = "account"
    team = "team"
    partition_ = "partition"
    work = "work"
    model = "model"


Since = Annotated[str, typer.Option(help="From when on, ISO 8601; default a week before the end.")]
Until = Annotated[str, typer.Option(help="Until when; default the last whole hour.")]
Format = Annotated[Form, typer.Option("--format", help="Form of the answer.")]
LakePath = Annotated[str | None, typer.Option(help="Lake to ask, instead of the configured one.")]


@costs.command()
def cost(
    since: Since = "",
    until: Until = "",
    by: Annotated[SumBy, typer.Option(help="What to sum by.")] = SumBy.category,
    jobs: Annotated[bool, typer.Option("--jobs", help="Instead: each job's phases, cost and losses.")] = False,
    job: Annotated[str, typer.Option(help="The same of one job.")] = "",
    budgets: Annotated[
        bool, typer.Option("--budgets", help="Instead: budgets of the month, of this one or the one that --until ends.")
    ] = False,
    tell: Annotated[bool, typer.Option("--tell", help="With --budgets: tell what is over 80 or 100 %, once.")] = False,
    send: Annotated[
        bool, typer.Option("--send", help="With --tell: to the addresses of report.urls_file, too.")
    ] = False,
    format_: Format = Form.text,
    lake: LakePath = None,
    config: ConfigPath = None,
) -> None:
    """Where the GPU-hours went, what they cost, and utilisation beside what it hides (docs/cost.md)."""
    loaded = load_config(config, lake__path=lake)
    if tell and not budgets:
        fail("--tell goes with --budgets")
    if send and not tell:
        fail("--send goes with --budgets --tell")
    if budgets:
        call("cost_commands", loaded, until=until, tell=tell, send=send, form=format_.value, function="budgets")
    if jobs or job:
        said = {"since": since, "until": until, "job_id": job, "form": format_.value}
        call("cost_commands", loaded, function="jobs", **said)
    said = {"since": since, "until": until, "by": by.value, "form": format_.value}
    call("cost_commands", loaded, function="cost", **said)


@costs.command()
def capacity(
    at: Annotated[str, typer.Option(help="As it was then, ISO 8601; default now.")] = "",
    format_: Format = Form.text,
    lake: LakePath = None,
    config: ConfigPath = None,
) -> None:
    """Who waits for which shape, whether what is free could serve it, and what could be given back. Advice only."""
    call("cost_commands", load_config(config, lake__path=lake), at=at, form=format_.value, function="capacity")


@costs.command()
def user(
    name: Annotated[str, typer.Argument(help="The user, as the scheduler has it.")],
    since: Since = "",
    until: Until = "",
    format_: Format = Form.text,
    lake: LakePath = None,
    config: ConfigPath = None,
) -> None:
    """What happened to somebody's jobs: when, machine or code, GPU-hours lost, and what to do now."""
    said = {"since": since, "until": until, "form": format_.value}
    call("cost_commands", load_config(config, lake__path=lake), name, function="user", **said)
