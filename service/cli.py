"""``graynode``: the command line. Each command hands over to its module, imported only then."""

from __future__ import annotations

import importlib
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from graynode.service.config import Config, ConfigError, load

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
thresholds_app = typer.Typer()
app.add_typer(thresholds_app, name="thresholds")

ConfigPath = Annotated[
    Path | None, typer.Option("--config", "-c", help="TOML file; default /etc/graynode/graynode.toml if it exists.")
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")]


class SqlFormat(StrEnum):
    """Forms of an answer."""

    table = "table"
    csv = "csv"
    json = "json"
    parquet = "parquet"


class Verdict(StrEnum):
    """What a person may say of an incident."""

    true = "true"
    false = "false"
    unsure = "unsure"


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


def _fail(text: str) -> NoReturn:
    print(f"graynode: {text}", file=sys.stderr)
    raise typer.Exit(2)


def _call(role: str, *arguments: Any, function: str = "run", **keywords: Any) -> NoReturn:  # noqa: ANN401 (each main has its own)
    """Run a role's main. A missing server library is said with the way out, not as a traceback."""
    try:
        module = importlib.import_module(f"graynode.service.{role}")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("graynode"):
            raise
        _fail(f"{error.name} is not installed: this command needs the server part: pip install 'graynode[server]'")
    try:
        code = getattr(module, function)(*arguments, **keywords)
    except ConfigError as error:
        _fail(str(error))
    except PermissionError as error:
        _fail(f"{error.filename}: no permission; choose another place in the configuration, or run as its owner")
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    raise typer.Exit(code)


def _load(path: Path | None, **flags: Any) -> Config:  # noqa: ANN401 (any TOML value)
    try:
        return load(path, {key.replace("__", "."): value for key, value in flags.items()})
    except ConfigError as error:
        _fail(str(error))


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
def sql(
    command: Annotated[str | None, typer.Option("-c", "--command", help="One statement; without it, a prompt.")] = None,
    format_: Annotated[SqlFormat, typer.Option("--format", help="Form of the answer.")] = SqlFormat.table,
    output: Annotated[Path | None, typer.Option(help="File for the answer.")] = None,
    lake: Annotated[str | None, typer.Option(help="Lake to ask, instead of the configured one.")] = None,
    config: Annotated[Path | None, typer.Option("--config", help="Configuration file.")] = None,
) -> None:
    """Ask the lake in SQL; it is never changed."""
    _call("sql", _load(config, lake__path=lake), command, format_.value, output)


@app.command()
def explain(
    incident: Annotated[str, typer.Argument(help="Incident id, or its beginning.")] = "",
    job: Annotated[str, typer.Option(help="Instead of an incident: a job, and why it ended.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="For a machine.")] = False,
    lake: Annotated[str | None, typer.Option(help="Lake to ask, instead of the configured one.")] = None,
    config: ConfigPath = None,
) -> None:
    """What was seen, against what, since when, and what to do."""
    if bool(incident) == bool(job):
        _fail("explain: name an incident, or a job by --job ID")
    if job:
        _call("explain_job", _load(config, lake__path=lake), job, as_json=as_json)
    _call("explain", _load(config, lake__path=lake), incident, as_json=as_json)


@app.command()
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
    loaded = _load(config)
    if summary:
        _call("audit", loaded, since, as_json=as_json, function="summary_asked")
    if verdict is None or not about:
        _fail("label INCIDENT true|false|unsure --why TEXT, or label --summary; 'graynode explain' shows incidents")
    _call("labels", loaded, about, verdict.value, why=why, by=by, function="label")


@app.command()
def audit(
    week: Annotated[str, typer.Option(help="ISO week such as 2026-W48; default the last whole one.")] = "",
    n: Annotated[int, typer.Option("-n", "--n", min=1, max=1000, help="How many nodes.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="For a machine.")] = False,
    config: ConfigPath = None,
) -> None:
    """Nodes of a week of which nobody was told, drawn at random, to be looked at: what was missed?"""
    _call("audit", _load(config), week, n, as_json=as_json, function="audit")


@app.command()
def ack(
    incident: Annotated[str, typer.Argument(help="Incident id, or its beginning.")],
    why: Annotated[str, typer.Option(help="In a few words.")] = "",
    by: Annotated[str, typer.Option(help="Who takes it; default the user.")] = "",
    config: ConfigPath = None,
) -> None:
    """Take an incident: receivers hear of it again only when it gets worse or is over."""
    _call("labels", _load(config), incident, why=why, by=by, function="ack")


@app.command()
def mute(
    node: Annotated[str, typer.Argument(help="Host name, node_id, or its name in Slurm or Kubernetes.")],
    for_: Annotated[str, typer.Option("--for", help="How long: 2d, 12h, 1d12h.")] = "",
    why: Annotated[str, typer.Option(help="In a few words.")] = "",
    end: Annotated[bool, typer.Option("--end", help="Let the node be heard again.")] = False,
    by: Annotated[str, typer.Option(help="Who says so; default the user.")] = "",
    config: ConfigPath = None,
) -> None:
    """Tell receivers nothing of a node for a while; what is found is stored all the same."""
    _call("labels", _load(config), node, for_=for_, why=why, end=end, by=by, function="mute")


@app.command()
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
    _call("labels", _load(config), node, what=what, at=at, gpu=gpu, incident=incident, by=by, function="repair")


@thresholds_app.callback(invoke_without_command=True)
def thresholds(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="For a machine.")] = False,
    config: ConfigPath = None,
) -> None:
    """Thresholds in force, their data and budget, and what the site's own days say of them."""
    if context.invoked_subcommand is None:
        _call("thresholds", _load(config), as_json=as_json, function="show")
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
    _call("thresholds", _load(config or context.obj), function="fit", **said)


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
    _call("thresholds", _load(config or context.obj), set_id, fitted=fitted, why=why, by=by, function="accept")


@app.command()
def lemons(
    at: Annotated[str, typer.Option(help="Rank by what was known then, ISO 8601; default now.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="For a machine; all nodes.")] = False,
    most: Annotated[int, typer.Option(min=1, help="Rows of the table.")] = 20,
    lake: Annotated[str | None, typer.Option(help="Lake to ask, instead of the configured one.")] = None,
    config: ConfigPath = None,
) -> None:
    """Nodes by how likely they are to fault next, why, and which are on probation after a repair."""
    _call("lemons", _load(config, lake__path=lake), at, as_json=as_json, most=most)


@app.command()
def evaluate(
    track: Annotated[str, typer.Argument(help="slow, attribution, lemons, fleet or host (docs/evaluation.md).")],
    data: Annotated[Path | None, typer.Option(help="Folder of the track's data, in its public set's format.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything that is drawn.")] = 1,
    json_: Annotated[Path | None, typer.Option("--json", help="File for all figures as JSON.")] = None,
    full: Annotated[bool, typer.Option("--full", help="The sizes that certify; takes long.")] = False,
) -> None:
    """How well detection does on a track, with intervals, beside the usual methods."""
    _call("evaluate", track, data, seed, json_, full=full)


@app.command()
def doctor(
    config: ConfigPath = None,
    as_json: Annotated[bool, typer.Option("--json", help="For a machine.")] = False,
) -> None:
    """What this node gives, what not, why, what it costs, and what to mend. Changes nothing."""
    _call("doctor", _load(config), as_json)


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
