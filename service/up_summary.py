"""What ``graynode up`` shows: a line per incident as it arrives, and a summary with what to try next."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from graynode.dashboards.explain import STYLES, one_line
from graynode.service.up_config import Demo

Incident = dict[str, Any]
_ORDER: Final = {"page": 0, "ticket": 1, "digest": 2}


def line(incident: Incident) -> Text:
    """One revision in one line, as it arrives."""
    style = "green" if incident["state"] == "resolved" else STYLES.get(str(incident["severity"]), "")
    return Text(one_line(incident), style=style, overflow="ellipsis", no_wrap=True)


def summary(incidents: list[Incident], demo: Demo) -> RenderableType:
    """All open incidents, worst first, and three lines to type."""
    still = [i for i in incidents if i["state"] != "resolved"]
    ordered = sorted(still, key=lambda i: (_ORDER.get(str(i["severity"]), 3), str(i["since"])))
    if not ordered:
        return Group(Text("\nNothing is wrong so far.", style="bold"), _next(demo, None))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("", "node", "cause", "why", "id"):
        table.add_column(name, overflow="fold" if name == "why" else "ellipsis", no_wrap=name != "why")
    for i in ordered:
        severity = Text(str(i["severity"]), style=STYLES.get(str(i["severity"]), ""))
        words = (str(i["node"] or ""), str(i["cause"]), _why(i), i["incident_id"][:8])
        table.add_row(severity, *(Text(word) for word in words))
    nodes = len({i["node_id"] for i in ordered})
    head = Text(f"\n{len(ordered)} incidents on {nodes} machines, told through the signed webhook", style="bold")
    return Group(head, Padding(table, (0, 0, 1, 0)), _next(demo, ordered[0]))


def say_link(console: Console, demo: Demo) -> None:
    """The link to the pages, never broken by a narrow terminal: it is to be clicked or copied. It lets in whoever has
    it."""
    console.print(Text(f"Look at it in a browser on this machine: {demo.link}", style="bold"), soft_wrap=True)


def _why(incident: Incident) -> str:
    """The first thing that was seen, in the detector's words."""
    evidence = incident.get("evidence")
    first = evidence[0] if isinstance(evidence, list) and evidence else {}
    return str(first.get("message") or incident["title"])


def _next(demo: Demo, first: Incident | None) -> RenderableType:
    command, config = _command(), _short(demo.config_file)
    lines = [Text("Try next, in another terminal:", style="bold")]
    if first is not None:
        lines.append(Text(f"  {command} explain {first['incident_id'][:8]} --config {config}"))
    sql = "SELECT node, cause, title FROM incident_now WHERE state <> 'resolved'"
    lines += [
        Text(f'  {command} sql --config {config} -c "{sql}"'),
        Text(f"  {command} sql --config {config}"),
    ]
    if not demo.has_gpu:
        lines.append(
            Text(f"What is really wrong in the simulated fleet: {_short(demo.data / 'truth.jsonl')}", style="dim")
        )
    return Group(*lines)


def _command() -> str:
    """How this person would call graynode again."""
    own = Path(sys.executable).with_name("graynode")
    found = shutil.which("graynode")
    return "graynode" if found and Path(found).resolve() == own.resolve() else str(_short(own))


def _short(path: Path) -> Path:
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
