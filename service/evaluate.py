"""``graynode evaluate``: run a track over data of its format, print its figures, and write them as JSON."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from graynode.benchmarks.detection import TRACKS, track
from graynode.benchmarks.detection.result import DataError, Figure, Figures, Result, as_json, machine
from graynode.service.config import ConfigError


def run(name: str, data: Path | None, seed: int, json_path: Path | None, *, full: bool = False) -> int:
    """Evaluate and print. ``ConfigError`` for an unknown track, a folder that is not there or data that will not do."""
    if name not in TRACKS:
        raise ConfigError(f"no track {name!r}; there are {', '.join(TRACKS)}")
    if data is not None and not data.is_dir():
        raise ConfigError(f"--data {data}: is no folder; name the one that holds the files of track {name}")
    if json_path is not None:
        _can_be_written(json_path)
    began = time.monotonic()
    try:
        result = track(name)(data, seed, full=full)
    except DataError as error:
        raise ConfigError(str(error)) from error
    seconds = round(time.monotonic() - began, 1)
    if json_path is not None:
        words = ["graynode", *sys.argv[1:]]
        json_path.write_text(as_json(result, {**machine(), "seconds": seconds, "command": shlex.join(words)}), "utf-8")
    _print(result, seconds)
    return 0


def _can_be_written(json_path: Path) -> None:
    """Asked before minutes are spent; an existing file is left as it is until there is a result."""
    if not json_path.parent.is_dir():
        raise ConfigError(f"--json {json_path}: its folder does not exist")
    try:
        if json_path.is_dir():
            raise ConfigError(f"--json {json_path}: is a folder; name a file in it")
        there = json_path.exists()
        with json_path.open("ab"):
            pass
        if not there:
            json_path.unlink()
    except OSError as error:
        raise ConfigError(f"--json {json_path}: cannot be written ({error.strerror}); name another file") from error


def _print(result: Result, seconds: float) -> None:
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(f"track {result.track}, seed {result.seed}, n = {result.n}, {seconds} s", highlight=False)
    if result.simulated:
        console.print("simulated: the figures hold for the simulation's model, not for a site", highlight=False)
    console.print(_table("ours", result.figures))
    for kind, methods in (("baseline", result.baselines), ("without", result.ablations)):
        for method, figures in methods.items():
            console.print(_table(f"{kind} {method}", figures))
    for title, lines in (("Failures", result.failures), ("Notes", result.notes)):
        if lines:
            console.print(f"{title}:", highlight=False)
            for line in lines:
                console.print(f"  {line}", highlight=False, markup=False)


def _table(title: str, figures: Figures) -> Table:
    table = Table("figure", "value", "95 % interval", "n", "note", title=title, title_justify="left")
    for name, figure in figures.items():
        table.add_row(name, _number(figure.value), _interval(figure), str(figure.n or ""), figure.note)
    return table


def _interval(figure: Figure) -> str:
    if figure.ci_low is None and figure.ci_high is None:
        return ""
    return f"{_number(figure.ci_low)} to {_number(figure.ci_high)}"


def _number(value: float | None) -> str:
    return "—" if value is None else f"{value:.4g}"
