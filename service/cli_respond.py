"""Commands about who is told: routes and maintenance windows. ``graynode.service.cli`` takes them in."""

from __future__ import annotations

from typing import Annotated

import typer

from graynode.service.cli_base import ConfigPath, call, load_config

telling = typer.Typer()
routes_app = typer.Typer(help="Who is told of what.", no_args_is_help=True)
maintenance_app = typer.Typer(help="Times in which receivers are told nothing of some nodes.", no_args_is_help=True)
telling.add_typer(routes_app, name="routes")
telling.add_typer(maintenance_app, name="maintenance")

Why = Annotated[str, typer.Option(help="In a few words.")]
By = Annotated[str, typer.Option(help="Who says so; default the user.")]
Json = Annotated[bool, typer.Option("--json", help="For a machine.")]


@routes_app.command("test")
def routes_test(
    incident: Annotated[str, typer.Argument(help="Incident id or its beginning; or describe one by the options.")] = "",
    severity: Annotated[str, typer.Option(help="page, ticket or digest.")] = "",
    cause: Annotated[str, typer.Option(help="Such as gpu_lost.")] = "",
    owner: Annotated[str, typer.Option(help="Such as platform.")] = "",
    cluster: Annotated[str, typer.Option(help="Default the configured one.")] = "",
    partition: Annotated[str, typer.Option(help="Partition or queue of the node.")] = "",
    rack: Annotated[str, typer.Option(help="Rack of the node.")] = "",
    at: Annotated[str, typer.Option(help="When; default now.")] = "",
    as_json: Json = False,
    config: ConfigPath = None,
) -> None:
    """Who would be told of an incident, how and why. Nobody is told by asking."""
    said = {"severity": severity, "cause": cause, "owner": owner, "cluster": cluster}
    said |= {"partition": partition, "rack": rack}
    call("respond_routes", load_config(config), incident, said=said, at=at, as_json=as_json, function="look")


@maintenance_app.command("add")
def maintenance_add(
    node: Annotated[str, typer.Option(help="Host name, node_id, or its name in Slurm or Kubernetes.")] = "",
    rack: Annotated[str, typer.Option(help="Rack, as the inventory or the places file has it.")] = "",
    partition: Annotated[str, typer.Option(help="Partition or queue.")] = "",
    all_: Annotated[bool, typer.Option("--all", help="The whole cluster.")] = False,
    from_: Annotated[str, typer.Option("--from", help="When it begins; default now.")] = "",
    for_: Annotated[str, typer.Option("--for", help="How long: 2h, 1d12h.")] = "",
    why: Why = "",
    by: By = "",
    config: ConfigPath = None,
) -> None:
    """Tell receivers nothing of these nodes in that time; at its end they are told what is open then."""
    said = {"node": node, "rack": rack, "partition": partition, "all_": all_, "from_": from_, "for_": for_}
    call("maintenance_window", load_config(config), **said, why=why, by=by, function="add")


@maintenance_app.command("list")
def maintenance_list(as_json: Json = False, config: ConfigPath = None) -> None:
    """Windows that are now or to come."""
    call("maintenance_window", load_config(config), as_json=as_json, function="show")


@maintenance_app.command("end")
def maintenance_end(
    window: Annotated[str, typer.Argument(help="Its id, or the beginning of it.")],
    why: Why = "",
    by: By = "",
    config: ConfigPath = None,
) -> None:
    """End a window before its time, or call one off."""
    call("maintenance_window", load_config(config), window, why=why, by=by, function="end")
