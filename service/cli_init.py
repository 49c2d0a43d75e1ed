"""Commands that set up: ``init`` and ``lake migrate``. ``graynode.service.cli`` takes them in."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from graynode.service.cli_base import ConfigPath, call, load_config

setup = typer.Typer()
lake_app = typer.Typer(help="The lake as a whole.", no_args_is_help=True)
setup.add_typer(lake_app, name="lake")


class Role(StrEnum):
    """What runs on a machine."""

    all = "all"
    agent = "agent"
    server = "server"


@setup.command()
def init(
    role: Annotated[Role, typer.Option(help="What runs on this machine.")] = Role.all,
    kafka: Annotated[
        str | None, typer.Option(help="Brokers, host:port with commas between: the bus of a fleet.")
    ] = None,
    cluster: Annotated[str | None, typer.Option(help="Name of the cluster.")] = None,
    lake: Annotated[str | None, typer.Option(help="Folder of the lake, or s3://bucket/prefix.")] = None,
    partitions: Annotated[int | None, typer.Option(min=1, help="Partitions of topics that are made.")] = None,
    replication: Annotated[int | None, typer.Option(min=1, help="Copies of topics that are made.")] = None,
    agent_user: Annotated[str, typer.Option(help="The agents at the broker, such as User:graynode-agent.")] = "",
    server_user: Annotated[str, typer.Option(help="The server's roles there; default bus.kafka.user.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without it only the plan is shown.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Write a new configuration; the old one is kept.")] = False,
    config: ConfigPath = None,
) -> None:
    """Configuration, folders, lake, topics and rights: shows what is missing, and with --yes makes it."""
    chosen: dict[str, Any] = {
        "cluster": cluster,
        "bus.kind": "kafka" if kafka else None,
        "bus.kafka.bootstrap": kafka,
        "bus.kafka.partitions": partitions,
        "bus.kafka.replication": replication,
        "lake.path": lake,
    }
    said = {"chosen": {key: value for key, value in chosen.items() if value is not None}, "yes": yes, "force": force}
    said |= {"path": config, "role": role.value, "agent_user": agent_user, "server_user": server_user}
    call("init_asked", said)


@lake_app.command("migrate")
def lake_migrate(
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without it only what is due is shown.")] = False,
    lake: Annotated[str | None, typer.Option(help="Lake, instead of the configured one.")] = None,
    config: ConfigPath = None,
) -> None:
    """Bring an older lake forward; goes on where it was if it was killed. Stop whatever writes the lake first."""
    call("lake_migrate", load_config(config, lake__path=lake), yes=yes)
