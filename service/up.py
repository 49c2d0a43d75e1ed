"""``graynode up``: all of it on one machine. Sets up a folder, runs every role, shows what is found and why.

No logic lives here: the roles are the same programs that a fleet runs, over the local spool. What is shown as found
has come through the signed webhook, so the whole way has been gone.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from graynode.dashboards.explain import plain
from graynode.pipeline.lake import Lake, LakeError
from graynode.pipeline.lock_file import LockFile, Taken
from graynode.pipeline.queries import Queries
from graynode.service.config import ConfigError
from graynode.service.process import stop_on_signals
from graynode.service.receiver import Receiver
from graynode.service.supervise import Child, Supervisor, role_command
from graynode.service.up_config import Demo, prepare
from graynode.service.up_summary import line, say_link, summary

ROLES: Final = ("agent", "pipeline", "detect", "respond", "serve")
"""In the order of the data: what one flushes at its end, the next still takes."""
_LEAST_S, _MOST_S = 20.0, 110.0
"""The summary comes when the rounds have caught up, within these times after the roles' start."""
_FRESH: Final = timedelta(minutes=3)


@dataclass(slots=True)
class Shown:
    """What has arrived so far: each incident in its latest revision."""

    incidents: dict[str, dict[str, Any]] = field(default_factory=dict)

    def take(self, arrived: queue.SimpleQueue[dict[str, Any]]) -> list[dict[str, Any]]:
        """Take what has come; what opened, became worse or better, or ended, in order of arrival."""
        news = []
        with suppress(queue.Empty):
            while True:
                incident = arrived.get_nowait()
                held = self.incidents.get(incident["incident_id"])
                if held is None or held["revision"] < incident["revision"]:
                    self.incidents[incident["incident_id"]] = incident
                    if held is None or _news(held, incident):
                        news.append(incident)
        return news


def _news(before: dict[str, Any], now: dict[str, Any]) -> bool:
    """Worth another line on the screen; that there is more of the same evidence is not."""
    return bool(now["state"] == "resolved" or any(before[key] != now[key] for key in ("severity", "title")))


def run(data: Path, *, nodes: int, days: int, seed: int, faults: Path | None, once: bool) -> int:
    """Set up, run all roles until Ctrl-C (or, ``once``, until the summary). 0 ended well, 1 a role had to be killed."""
    console = Console(highlight=False)
    with only_one(data):
        demo = prepare(data, nodes=nodes, seed=seed, faults=faults)
        _say_start(console, demo)
        if demo.history_wanted:
            _write_history(demo, days)
        receiver = Receiver(demo.secret, demo.receiver_port)
        receiver.start()
        try:
            return _roles(console, demo, receiver, stop_on_signals(), once)
        finally:
            receiver.close()


@contextmanager
def only_one(data: Path) -> Iterator[None]:
    """Hold the folder: two would write one lake."""
    try:
        held = LockFile(data / "up.lock")
    except Taken as taken:
        raise ConfigError(
            f"--data {data}: in use by another graynode up (process {taken.owner}); stop it, or name another folder"
        ) from taken
    except OSError as error:
        raise ConfigError(f"--data {data}: cannot be written: {error.strerror}; name another folder") from error
    with held:
        yield


def _say_start(console: Console, demo: Demo) -> None:
    where = "this node's GPUs" if demo.has_gpu else f"this machine, and a simulated fleet of {demo.nodes} nodes"
    console.print(f"[bold]graynode[/] watches {where}; everything is kept in {demo.data}")
    console.print("Statistics speak with the shipped thresholds; a real site starts in shadow (graynode thresholds)")
    if not demo.has_gpu and not demo.history_wanted:
        console.print("The history of an earlier run is taken up; the time between was not watched and stays empty.")


def _write_history(demo: Demo, days: int) -> None:
    """The simulated fleet's past, written as windows: the live collector goes on where it ends."""
    from graynode.collectors.simulated.fleet import Fleet, Spec
    from graynode.service.simulate import progress_bar, read_plan, write, write_truth

    config = demo.config
    now = datetime.fromisoformat(config.simulated.start)
    spec = Spec(now, demo.nodes, config.simulated.gpus_per_node, config.simulated.seed, days, cluster=config.cluster)
    try:
        with progress_bar(f"{days} days of history of {demo.nodes} simulated nodes") as told:
            fleet = Fleet(spec, read_plan(config.simulated.faults, now))
            write(fleet, Lake(config.lake.path), told)
            write_truth(fleet, demo.data)
    except (LakeError, OSError) as error:
        raise ConfigError(f"--data {demo.data}: the lake cannot be written: {error}") from error
    demo.history_done.touch()


def _roles(console: Console, demo: Demo, receiver: Receiver, stop: threading.Event, once: bool) -> int:
    children = [Child(role, role_command(role, demo.config_file), demo.logs / f"{role}.log") for role in ROLES]
    supervisor, shown = Supervisor(children), Shown(_still_open(demo))
    supervisor.start()
    try:
        _until_caught_up(console, demo, supervisor, receiver, shown, stop)
        console.print(summary(list(shown.incidents.values()), demo))
        if not once and not stop.is_set():
            say_link(console, demo)
            console.print("Watching; Ctrl-C ends it and leaves the lake.", style="dim")
        while not once and not stop.wait(0.5):
            _step(console, supervisor, receiver, shown)
    finally:
        killed = supervisor.stop()
    for words in killed:
        console.print(words, style="red")
    console.print(f"Ended. The lake stays in {demo.config.lake.path}", style="dim")
    return 1 if killed else 0


def _still_open(demo: Demo) -> dict[str, dict[str, Any]]:
    """What an earlier run has left open: nobody tells it again until something about it changes."""
    queries = Queries(Lake(demo.config.lake.path))
    try:
        rows = queries.rows("SELECT * FROM incident_now WHERE state <> 'resolved'")
    finally:
        queries.close()
    return {row["incident_id"]: plain(row) for row in rows}


def _step(console: Console, supervisor: Supervisor, receiver: Receiver, shown: Shown) -> None:
    for words in supervisor.check():
        console.print(words, style="red")
    for incident in shown.take(receiver.incidents):
        console.print(line(incident))


def _until_caught_up(
    console: Console, demo: Demo, supervisor: Supervisor, receiver: Receiver, shown: Shown, stop: threading.Event
) -> None:
    """Show what arrives while the rounds go through the last hours."""
    began, lake = time.monotonic(), Lake(demo.config.lake.path)
    with console.status("collecting and looking …") as status:
        while not stop.wait(0.5):
            _step(console, supervisor, receiver, shown)
            past_s, behind = time.monotonic() - began, _behind(lake)
            if past_s > _MOST_S or (past_s > _LEAST_S and behind is not None and behind < _FRESH):
                return
            status.update(_progress(behind))


def _behind(lake: Lake) -> timedelta | None:
    """From the last landed round to now; ``None`` before the first."""
    now = datetime.now(UTC)
    with suppress(LakeError):
        latest = lake.read("round", now - timedelta(days=1), columns=["ts"])["ts"].max()
        if isinstance(latest, datetime):
            return now - latest
    return None


def _progress(behind: timedelta | None) -> str:
    if behind is None:
        return "learning each GPU's own past …"
    return f"looking through the last hours: {behind.total_seconds() / 3600:.1f} h to go …"
