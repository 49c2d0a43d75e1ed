"""Programs that stand in for ``systemctl``, ``stat``, ``nvme`` and ``ipmitool``: shell scripts in a folder that is
given as the search path, which answer, fail, hang, flood or lie."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import agent_fakes
import node_files

from graynode.collectors.base import Machine, Round, Row
from graynode.collectors.services.collector import Services
from graynode.collectors.services.look import Part
from graynode.collectors.services.program import Runner

HANG = "exec /bin/sleep 600"


class Bin:
    """The folder. ``answers`` makes a program; each call is remembered with its arguments."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def answers(self, program: str, text: str = "", *, code: int = 0, complaint: str = "", then: str = "") -> None:
        """Print the text, complain, do ``then`` (shell), end with the code."""
        said = self.folder / f"{program}.text"
        said.write_text(text, encoding="utf-8")
        (self.folder / f"{program}.complaint").write_text(complaint, encoding="utf-8")
        self.does(program, f'/bin/cat "{said}"\n/bin/cat "{self.folder / program}.complaint" >&2\n{then}\nexit {code}')

    def does(self, program: str, script: str) -> None:
        """Any shell script."""
        at = self.folder / program
        beside = at.with_suffix(".new")
        beside.write_text(f'#!/bin/sh\necho "$*" >> "{at}.calls"\n{script}\n', encoding="utf-8")
        beside.chmod(0o755)
        beside.replace(at)

    def remove(self, program: str) -> None:
        """As if it were not installed."""
        (self.folder / program).unlink()

    def calls(self, program: str) -> list[str]:
        """The arguments of every call."""
        at = self.folder / f"{program}.calls"
        return at.read_text(encoding="utf-8").splitlines() if at.exists() else []


class Node:
    """A node with its ``/proc``, ``/sys`` and programs, and the collector over some of its parts."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin, self.hands = folder, Bin(folder / "bin"), agent_fakes.Hands()
        self.machine: Machine = node_files.node(folder)
        self.runner = Runner(str(folder / "bin"), self.hands.monotonic)
        self.second = -60.0
        self.quality: list[Row] = []

    def write(self, path: str, text: str) -> None:
        """A file below the node's folder."""
        node_files.write(self.folder / path, text)

    def collector(self, *parts: Part) -> Services:
        """The collector over these parts."""
        return Services(self.machine, runner=self.runner, parts=parts)

    def minute(
        self, services: Services, *, wait: bool = True, hanging: frozenset[str] = frozenset()
    ) -> tuple[list[Row], list[Row]]:
        """The next round of the 60 s class and the rounds after it, until every program but those that hang has ended
        (or 5 s have gone): rows of ``service`` and of ``event``."""
        self.turn(60)
        rows, events = self._collect(services, frozenset({1, 10, 60}))
        end = time.monotonic() + 5
        while wait and self.runner._running.keys() - hanging and time.monotonic() < end:
            time.sleep(0.005)
            more = self.second_later(services, 0.0)
            rows, events = rows + more[0], events + more[1]
        more = self.second_later(services, 0.0)
        return rows + more[0], events + more[1]

    def second_later(self, services: Services, seconds: float = 1.0) -> tuple[list[Row], list[Row]]:
        """A round of the 1 s class."""
        self.turn(seconds)
        return self._collect(services, frozenset({1}))

    def turn(self, seconds: float) -> None:
        """Let time pass, by both clocks."""
        self.second += seconds
        self.hands.at += seconds

    def _collect(self, services: Services, due: frozenset[int]) -> tuple[list[Row], list[Row]]:
        ts = node_files.round_at(self.second).ts
        rows = node_files.checked(services.collect(Round(ts, due, 1.0)), Services.tables)
        self.quality = [*self.quality, *rows.get("quality", [])]
        return list(rows.get("service", [])), list(rows.get("event", []))


def states(rows: Sequence[Row]) -> dict[str, Any]:
    """The last state told of each name."""
    return {row["name"]: row["state"] for row in rows}
