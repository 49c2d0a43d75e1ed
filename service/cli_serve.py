"""Commands of the HTTP API: ``serve`` and ``token``. ``graynode.service.cli`` takes them in."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from graynode.service.cli_base import ConfigPath, Verbose, call, load_config

serving = typer.Typer()
token_app = typer.Typer(help="Tokens of the HTTP API: make, list, revoke.", no_args_is_help=True)
serving.add_typer(token_app, name="token")


class ScopeOf(StrEnum):
    """What a token may."""

    read = "read"
    act = "act"


@serving.command()
def serve(config: ConfigPath = None, verbose: Verbose = False) -> None:
    """Answer the HTTP API and the pages (docs/api.md), over the lake."""
    from graynode.service.process import set_up_logs, stop_on_signals

    loaded = load_config(config)
    set_up_logs("serve", verbose=verbose)
    call("serve", loaded, stop_on_signals())


@token_app.command("create")
def create(
    name: Annotated[str, typer.Option(help="Whose it is; it signs what is done with it.")],
    scope: Annotated[ScopeOf, typer.Option(help="read, or act: label, acknowledge and mute too.")] = ScopeOf.read,
    for_: Annotated[str, typer.Option("--for", help="How long: 90d, 12h; without it until it is revoked.")] = "",
    config: ConfigPath = None,
) -> None:
    """Make a token. It is shown this once; the file keeps a hash."""
    call("tokens", load_config(config), name, scope.value, for_, function="create")


@token_app.command("list")
def list_(config: ConfigPath = None) -> None:
    """Names, scopes and ends of tokens."""
    call("tokens", load_config(config), function="show")


@token_app.command("revoke")
def revoke(name: Annotated[str, typer.Argument(help="Name of the token.")], config: ConfigPath = None) -> None:
    """Refuse a token from now on, and its sessions with it."""
    call("tokens", load_config(config), name, function="revoke")
