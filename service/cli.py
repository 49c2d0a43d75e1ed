"""``graynode``: the command line. Each command hands over to its module, imported only then."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from graynode.service.cli_answers import answers
from graynode.service.cli_base import ConfigPath, Verbose
from graynode.service.cli_base import call as _call
from graynode.service.cli_base import load_config as _load
from graynode.service.cli_cost import costs
from graynode.service.cli_dashboards import dashboards_app
from graynode.service.cli_init import Role, setup
from graynode.service.cli_people import people
from graynode.service.cli_report import reports
from graynode.service.cli_respond import telling
from graynode.service.cli_serve import serving

app = typer.Typer(
    name="graynode",
    help="Finds GPU nodes that are up but not well.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
config_app = typer.Typer(help="The configuration in force.", no_args_is_help=True)
app.add_typer(config_app, name="config")
agent_app = typer.Typer()
app.add_typer(agent_app, name="agent")
app.add_typer(answers)
app.add_typer(people)
app.add_typer(telling)
app.add_typer(serving)
app.add_typer(reports)
app.add_typer(costs)
app.add_typer(setup)
app.add_typer(dashboards_app, name="dashboards")


class ImportFormat(StrEnum):
    """Formats that can be imported."""

    nvidia_smi = "nvidia-smi"
    parquet = "parquet"
    csv = "csv"
    prometheus = "prometheus"
    longhorn_sgemm = "longhorn-sgemm"
    infinitehbd = "infinitehbd"


def _seconds(text: str) -> float:
    """A length of time: ``300``, ``5m``, ``30s`` or ``1h``."""
    number, unit = (text[:-1], text[-1:]) if text[-1:] in "smh" else (text, "s")
    try:
        seconds = float(number) * {"s": 1.0, "m": 60.0, "h": 3600.0}[unit]
    except ValueError:
        raise typer.BadParameter("a number of seconds, or a time such as 30s, 5m or 1h") from None
    if not 0.001 <= seconds <= 86400.0:
        raise typer.BadParameter("between a millisecond and a day")
    return seconds


def _role(role: str, path: Path | None, verbose: bool) -> NoReturn:
    from graynode.service.process import set_up_logs, stop_on_signals

    config = _load(path)
    set_up_logs(role, verbose=verbose)
    _call(role, config, stop_on_signals())


@app.command()
def up(
    data: Annotated[Path, typer.Option(help="Folder for everything that this run keeps.")] = Path("graynode-data"),
    nodes: Annotated[int, typer.Option(min=2, max=1024, help="Simulated nodes where there is no GPU.")] = 64,
    days: Annotated[int, typer.Option(min=1, max=90, help="Days of simulated history.")] = 35,
    seed: Annotated[int, typer.Option(help="Seed of the simulated fleet.")] = 1,
    faults: Annotated[Path | None, typer.Option(help="Faults file of the simulated fleet (docs/faults.md).")] = None,
    once: Annotated[bool, typer.Option("--once", help="End after the summary.")] = False,
) -> None:
    """All of it on this machine: collect, land, detect, tell. Ctrl-C ends it; the lake stays."""
    _call("up", data, nodes=nodes, days=days, seed=seed, faults=faults, once=once)


@agent_app.callback(invoke_without_command=True)
def agent(
    context: typer.Context,
    config: ConfigPath = None,
    once: Annotated[bool, typer.Option("--once", help="One round, then end.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print rows, send nothing.")] = False,
    verbose: Verbose = False,
) -> None:
    """Collect on this node; or ask the agent that runs here to let go of the GPUs for a while."""
    if context.invoked_subcommand is not None:
        context.obj = config
        return
    _load(config)  # a wrong file is said here, before the hand-over
    words = [*(("--config", str(config)) if config else ())]
    words += [flag for flag, on in (("--once", once), ("--dry-run", dry_run), ("--verbose", verbose)) if on]
    # A fresh interpreter without this command line's libraries: the agent is a guest on its node.
    os.execv(sys.executable, [sys.executable, "-m", "graynode.service.agent_main", *words])  # noqa: S606 (an argument list)


@agent_app.command()
def release(
    context: typer.Context,
    for_: Annotated[str, typer.Option("--for", help="How long: 30m, 90s, 1h30m; at most 24h.")],
    reason: Annotated[str, typer.Option(help="What for; it is kept with the planned blindness.")] = "",
    config: ConfigPath = None,
) -> None:
    """Close NVML, so that a GPU reset, a MIG change or a driver upgrade can go on. It comes back by itself."""
    _call("release", _load(config or context.obj), for_, reason, function="release")


@agent_app.command()
def resume(context: typer.Context, config: ConfigPath = None) -> None:
    """Read NVML again before the time of ``release`` is over."""
    _call("release", _load(config or context.obj), function="resume")


@app.command()
def pipeline(config: ConfigPath = None, verbose: Verbose = False) -> None:
    """Carry samples and events from the bus to the lake."""
    _role("pipeline", config, verbose)


@app.command()
def detect(config: ConfigPath = None, verbose: Verbose = False) -> None:
    """Name the nodes that are not well."""
    _role("detect", config, verbose)


@app.command()
def respond(config: ConfigPath = None, verbose: Verbose = False) -> None:
    """Tell incidents to their receivers."""
    _role("respond", config, verbose)


@app.command()
def simulate(
    out: Annotated[Path, typer.Option(help="Folder of the new lake.")] = Path("graynode-simulated"),
    nodes: Annotated[int, typer.Option(min=1)] = 64,
    days: Annotated[float, typer.Option(min=0.05)] = 35,
    seed: Annotated[int, typer.Option()] = 1,
    faults: Annotated[Path | None, typer.Option(help="Faults file (docs/faults.md).")] = None,
    config: ConfigPath = None,
) -> None:
    """Write a lake of a simulated fleet, with the truth beside it."""
    _call("simulate", _load(config), nodes=nodes, days=days, seed=seed, faults=faults, out=out)


@app.command("import")
def import_(
    format_: Annotated[ImportFormat, typer.Option("--format", help="What the data is.")],
    paths: Annotated[list[Path] | None, typer.Argument(help="Files to import.")] = None,
    config: ConfigPath = None,
    lake: Annotated[str | None, typer.Option(help="Lake to import into, instead of the configured one.")] = None,
    map_: Annotated[Path | None, typer.Option("--map", help="Map of a parquet or csv file (docs/import.md).")] = None,
    node: Annotated[str, typer.Option(help="Host that an nvidia-smi file comes from, where it does not say.")] = "",
    node_id: Annotated[
        str, typer.Option(help="Its node_id, where an agent runs there now; else made of its name.")
    ] = "",
    zone: Annotated[str, typer.Option(help="Time zone of an nvidia-smi file: its times name none.")] = "UTC",
    at: Annotated[str | None, typer.Option(help="Time of a file that has none, ISO 8601; default its mtime.")] = None,
    query: Annotated[str, typer.Option(help="What --query-gpu asked, for its CSV without header.")] = "",
    step: Annotated[
        float | None,
        typer.Option(
            parser=_seconds,
            metavar="5m",
            help="Time between samples, where few say it; of prometheus, the spacing asked for (default 5m).",
        ),
    ] = None,
    url: Annotated[str | None, typer.Option(help="Address of a Prometheus or VictoriaMetrics.")] = None,
    since: Annotated[str, typer.Option(help="prometheus: from when on: 90d ago, or a date.")] = "90d",
    until: Annotated[str, typer.Option(help="prometheus: until when: 1d ago, or a date; default now.")] = "",
    match: Annotated[str, typer.Option(help="prometheus: further label matchers, such as 'cluster=\"a\"'.")] = "",
    rate: Annotated[float, typer.Option(help="prometheus: queries a second, at most.")] = 20.0,
    timeout: Annotated[float, typer.Option(help="prometheus: seconds for one query.")] = 60.0,
    samples: Annotated[bool, typer.Option("--samples", help="prometheus: keep raw samples of any age.")] = False,
    user: Annotated[str, typer.Option(help="prometheus: user of basic authentication.")] = "",
    password_file: Annotated[Path | None, typer.Option(help="prometheus: file that holds the password.")] = None,
    token_file: Annotated[Path | None, typer.Option(help="prometheus: file that holds a bearer token.")] = None,
    ca_file: Annotated[Path | None, typer.Option(help="prometheus: certificates of a private CA.")] = None,
) -> None:
    """Bring data that is there already into the lake; twice is as good as once."""
    loaded = _load(config, lake__path=lake)
    if format_ is ImportFormat.prometheus:
        asked: dict[str, Any] = {
            "url": url,
            "since": since,
            "until": until,
            "match": match,
            "rate": rate,
            "timeout_s": timeout,
        }
        asked |= {"user": user, "password_file": password_file, "token_file": token_file, "ca_file": ca_file}
        _call("prometheus.command", loaded, paths or [], step, samples=samples, function="run_asked", **asked)
    said = {"map_path": map_, "node": node, "node_id": node_id, "zone": zone, "at": at, "query": query, "step": step}
    _call("importing", loaded, format_.value, paths or [], function="run_asked", **said)


@app.command()
def replay(
    path: Annotated[Path | None, typer.Argument(help="Recording: JSON lines, Parquet, or a folder of them.")] = None,
    from_lake: Annotated[str | None, typer.Option(help="Lake whose raw rows are the recording.")] = None,
    since: Annotated[str, typer.Option(help="With --from-lake: from when on.")] = "",
    until: Annotated[str, typer.Option(help="With --from-lake: until when.")] = "",
    pace: Annotated[float, typer.Option(min=0, help="Recorded seconds a second; 0: as fast as it goes.")] = 0.0,
    out: Annotated[Path, typer.Option(help="Folder of the replay's own lake and bus.")] = Path("graynode-replay"),
    cluster: Annotated[str, typer.Option(help="Cluster name of the replay; default its own.")] = "",
    config: ConfigPath = None,
) -> None:
    """Run the whole path over a recording as if it were live, and say what would have been told when."""
    said = {"from_lake": from_lake, "since": since, "until": until, "pace": pace, "out": out, "cluster": cluster}
    _call("replaying", _load(config), path, function="run_asked", **said)


@app.command()
def doctor(
    config: ConfigPath = None,
    as_json: Annotated[bool, typer.Option("--json", help="For a machine.")] = False,
    role: Annotated[Role, typer.Option(help="agent: this node; server: bus, lake, detection, receivers.")] = Role.agent,
) -> None:
    """What this node gives, what not, why, what it costs, and what to mend; or how the server does. Changes nothing."""
    _call("doctor", _load(config), as_json, whose=role.value)


@config_app.command("check")
def config_check(config: ConfigPath = None) -> None:
    """Say whether the configuration is right, and show it with every default."""
    _call("config_check", _load(config))


@app.command()
def version() -> None:
    """The installed version."""
    from importlib.metadata import version as installed

    print(f"graynode {installed('graynode')}")


def main() -> None:
    """Entry point of the ``graynode`` command."""
    app()


if __name__ == "__main__":
    main()
