"""What every command of ``graynode`` shares: the configuration, and handing over to the module that does the work."""

from __future__ import annotations

import contextlib
import importlib
import sys
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer

from graynode.service.config import Config, ConfigError, load

ConfigPath = Annotated[
    Path | None, typer.Option("--config", "-c", help="TOML file; default /etc/graynode/graynode.toml if it exists.")
]
_ASK_THE_LAKE: Final = frozenset(
    {"audit", "cost_commands", "explain", "explain_job", "labels", "lemons", "nodes", "report", "sql", "thresholds"}
)
"""Roles that answer from the lake: where there is none, every answer is "nothing", and the reason is a wrong path."""
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")]


def fail(text: str) -> NoReturn:
    """Say what is wrong and end with code 2."""
    print(f"graynode: {text}", file=sys.stderr)
    raise typer.Exit(2)


def call(role: str, *arguments: Any, function: str = "run", **keywords: Any) -> NoReturn:  # noqa: ANN401 (each main has its own)
    """Run a role's main. A missing server library is said with the way out, not as a traceback."""
    try:
        module = importlib.import_module(f"graynode.service.{role}")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("graynode"):
            raise
        fail(f"{error.name} is not installed: this command needs the server part: pip install 'graynode[server]'")
    if role in _ASK_THE_LAKE:
        _say_if_no_lake(arguments[0])
    try:
        code = getattr(module, function)(*arguments, **keywords)
    except ConfigError as error:
        fail(str(error))
    except PermissionError as error:
        fail(f"{error.filename}: no permission; choose another place in the configuration, or run as its owner")
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    raise typer.Exit(code)


def _say_if_no_lake(config: Config) -> None:
    """A line on standard error where the lake's folder is not there; an object store is not looked at."""
    path, there = config.lake.path, True
    if "://" not in path:
        with contextlib.suppress(OSError):  # no permission to look is no proof that it is not there
            there = Path(path).exists()
    if not there:
        print(
            f"graynode: no lake is at {path} (yet); --config FILE names the configuration of the roles that run",
            file=sys.stderr,
        )


def load_config(path: Path | None, **flags: Any) -> Config:  # noqa: ANN401 (any TOML value)
    """The configuration in force; ``lake__path=…`` is the flag ``lake.path``."""
    try:
        return load(path, {key.replace("__", "."): value for key, value in flags.items()})
    except ConfigError as error:
        fail(str(error))
