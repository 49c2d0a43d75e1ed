"""Commands of people: verdicts, audits, acks, mutes, repairs and thresholds. ``graynode.service.cli`` takes them in."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from graynode.service.cli_base import ConfigPath, call, fail, load_config

people = typer.Typer()
thresholds_app = typer.Typer()
people.add_typer(thresholds_app, name="thresholds")


class Verdict(StrEnum):
    """What a person may say of an incident."""

    true = "true"
    false = "false"
    unsure = "unsure"


@people.command()
def label(
    about: Annotated[str, typer.Argument(help="Incident id or its beginning; or NODE@2026-W48 of an audit.")] = "",
    verdict: Annotated[Verdict | None, typer.Argument(help="true: something was wrong.")] = None,
    why: Annotated[str, typer.Option(help="In a few words.")] = "",
    by: Annotated[str, typer.Option(help="Who says so; default the user.")] = "",
    summary: Annotated[bool, typer.Option("--summary", help="Measured precision and misses, with intervals.")] = False,
    since: Annotated[str, typer.Option(help="With --summary: from when on.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="With --summary: for a machine.")] = False,
    config: ConfigPath = None,
) -> None:
    """Say whether an incident was one; or what the labels say so far. Nothing is trained by it."""
    loaded = load_config(config)
    if summary:
        call("audit", loaded, since, as_json=as_json, function="summary_asked")
    if verdict is None or not about:
        fail("label INCIDENT true|false|unsure --why TEXT, or label --summary; 'graynode explain' shows incidents")
    call("labels", loaded, about, verdict.value, why=why, by=by, function="label")


@people.command()
def audit(
    week: Annotated[str, typer.Option(help="ISO week such as 2026-W48; default the last whole one.")] = "",
    n: Annotated[int, typer.Option("-n", "--n", min=1, max=1000, help="How many nodes.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="For a machine.")] = False,
    config: ConfigPath = None,
) -> None:
    """Nodes of a week of which nobody was told, drawn at random, to be looked at: what was missed?"""
    call("audit", load_config(config), week, n, as_json=as_json, function="audit")


@people.command()
def ack(
    incident: Annotated[str, typer.Argument(help="Incident id, or its beginning.")],
    why: Annotated[str, typer.Option(help="In a few words.")] = "",
    by: Annotated[str, typer.Option(help="Who takes it; default the user.")] = "",
    config: ConfigPath = None,
) -> None:
    """Take an incident: receivers hear of it again only when it gets worse or is over."""
    call("labels", load_config(config), incident, why=why, by=by, function="ack")


@people.command()
def mute(
    node: Annotated[str, typer.Argument(help="Host name, node_id, or its name in Slurm or Kubernetes.")],
    for_: Annotated[str, typer.Option("--for", help="How long: 2d, 12h, 1d12h.")] = "",
    why: Annotated[str, typer.Option(help="In a few words.")] = "",
    end: Annotated[bool, typer.Option("--end", help="Let the node be heard again.")] = False,
    by: Annotated[str, typer.Option(help="Who says so; default the user.")] = "",
    config: ConfigPath = None,
) -> None:
    """Tell receivers nothing of a node for a while; what is found is stored all the same."""
    call("labels", load_config(config), node, for_=for_, why=why, end=end, by=by, function="mute")


@people.command()
def repair(
    node: Annotated[str, typer.Argument(help="Host name, node_id, or its name in Slurm or Kubernetes.")],
    what: Annotated[str, typer.Option(help="What was done.")] = "",
    at: Annotated[str, typer.Option(help="When; default now.")] = "",
    gpu: Annotated[str, typer.Option(help="UUID of the one GPU that it was about.")] = "",
    incident: Annotated[str, typer.Option(help="Incident that it was for.")] = "",
    by: Annotated[str, typer.Option(help="Who did it; default the user.")] = "",
    config: ConfigPath = None,
) -> None:
    """Log a repair: open incidents of the node end, and its GPUs' own past begins anew."""
    call("labels", load_config(config), node, what=what, at=at, gpu=gpu, incident=incident, by=by, function="repair")


@thresholds_app.callback(invoke_without_command=True)
def thresholds(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="For a machine.")] = False,
    config: ConfigPath = None,
) -> None:
    """Thresholds in force, their data and budget, and what the site's own days say of them."""
    if context.invoked_subcommand is None:
        call("thresholds", load_config(config), as_json=as_json, function="show")
    context.obj = config


@thresholds_app.command("fit")
def thresholds_fit(
    context: typer.Context,
    since: Annotated[str, typer.Option(help="First day; default 90 days ago.")] = "",
    until: Annotated[str, typer.Option(help="Day before which it ends; default today.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="For a machine.")] = False,
    config: ConfigPath = None,
) -> None:
    """Propose thresholds from healthy node-days, judge them on later ones, keep them as a candidate."""
    said = {"since": since, "until": until, "as_json": as_json}
    call("thresholds", load_config(config or context.obj), function="fit", **said)


@thresholds_app.command("accept")
def thresholds_accept(
    context: typer.Context,
    set_id: Annotated[str, typer.Argument(help="A set that 'graynode thresholds' shows, or shipped.")] = "",
    fitted: Annotated[bool, typer.Option("--fitted", help="Fit now, and accept if within the budget.")] = False,
    why: Annotated[str, typer.Option(help="In a few words.")] = "",
    by: Annotated[str, typer.Option(help="Who accepts; default the user.")] = "",
    config: ConfigPath = None,
) -> None:
    """Put a set in force; statistics speak from then on."""
    call("thresholds", load_config(config or context.obj), set_id, fitted=fitted, why=why, by=by, function="accept")
