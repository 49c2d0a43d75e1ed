"""The NVML collector over the stand-in: real child process, real pynvml, a scenario and a PCI bus of its own."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import nvml_standin
from agent_fakes import machine

from graynode.collectors.base import Machine, Round, Rows
from graynode.collectors.nvml.collector import Nvml
from graynode.collectors.nvml.patience import Patience

CACHE: Final = Path(tempfile.gettempdir()) / f"graynode-nvml-standin-{os.getuid()}"
"""Where the library is kept between runs; its name carries the hash of its source."""
SOON: Final = Patience(start_s=20, again_s=(0.01, 0.05), probe_s=(0.05, 0.2), probe_for_s=1.5, relist_s=(0.01, 0.05))
PATIENT_S: Final = 30.0
"""Deadline of rounds in which nothing hangs, so that a busy machine is not taken for a sick GPU."""
HANG_S: Final = 0.5
"""Deadline of the round in which something hangs."""
EVERYTHING: Final = (1, 10, 60)


class Rig:
    """A node with the scenario's GPUs. ``round`` collects once; ``until`` collects till something is told."""

    def __init__(self, root: Path, standin: nvml_standin.Standin, scenario: nvml_standin.Scenario, **nvml: Any) -> None:
        self.scenario, self.calls = scenario, root / "calls"
        self.sys = nvml_standin.pci_tree(root / "sys", scenario)
        self.machine: Machine = machine(root / "state", sys=self.sys)
        self.env = standin.env(scenario.path, calls=self.calls if nvml.pop("record", False) else None)
        self.ahead_s = 0.0
        """How much further than real time the collector's steady clock is."""
        clock = {"monotonic": lambda: time.monotonic() + self.ahead_s}
        self._options = {"env": self.env, "patience": SOON, "deadline_s": PATIENT_S, **clock, **nvml}
        self.collector = Nvml(self.machine, **self._options)

    def round(self, *due: int, ts: datetime | None = None) -> Rows:
        """One round; all classes unless said otherwise."""
        return self.collector.collect(Round(ts or datetime.now(UTC), frozenset(due or EVERYTHING), 1.0))

    def hang(self, *due: int) -> Rows:
        """A round in which something hangs; the 1 s class unless said otherwise."""
        self.collector.deadline_s = HANG_S
        try:
            return self.round(*(due or (1,)))
        finally:
            self.collector.deadline_s = PATIENT_S

    def until(self, done: Callable[[Rows], bool], *due: int, timeout_s: float = 40.0) -> Rows:
        """Rounds until one satisfies ``done``; that one's rows."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            rows = self.round(*due)
            if done(rows):
                return rows
            time.sleep(0.01)
        raise AssertionError(f"not within {timeout_s} s; last told: {summary(rows)}")

    def restart(self) -> None:
        """Another agent on the same machine."""
        self.collector.close()
        self.collector = Nvml(self.machine, **self._options)


@contextmanager
def rig(
    root: Path,
    model: Callable[..., nvml_standin.Scenario] = nvml_standin.h100,
    *,
    gpus: int = 2,
    without: Sequence[str] = (),
    **nvml: Any,
) -> Iterator[Rig]:
    """A rig, closed at the end. ``without`` hides library functions; other names go to the collector."""
    made = Rig(root, nvml_standin.build(CACHE, without=without), model(root / "scenario", gpus=gpus), **nvml)
    try:
        yield made
    finally:
        made.collector.close()


def samples(rows: Rows) -> dict[str, Mapping[str, Any]]:
    """Rows of whole GPUs by UUID."""
    return {r["gpu_uuid"]: r for r in rows.get("gpu", ()) if r["mig_instance"] is None}


def links(rows: Rows, gpu_uuid: str) -> dict[int, Mapping[str, Any]]:
    """Rows of a GPU's NVLinks by their number."""
    return {int(r["link"].rpartition("/")[2]): r for r in rows.get("link", ()) if r["gpu_uuid"] == gpu_uuid}


def events(rows: Rows, kind: str = "") -> list[Mapping[str, Any]]:
    """Events of a kind, attributes parsed."""
    found = [e for e in rows.get("event", ()) if not kind or e["kind"] == kind]
    return [{**e, "attributes": json.loads(e["attributes"] or "{}")} for e in found]


def quality(rows: Rows, entity: str) -> dict[str, tuple[str, str]]:
    """Field to (state, reason) as told in these rows."""
    return {q["field"]: (q["state"], q["reason"]) for q in rows.get("quality", ()) if q["entity"] == entity}


def summary(rows: Rows) -> dict[str, Any]:
    """What a failure message needs."""
    return {t: len(r) for t, r in rows.items()} | {"events": [(e["kind"], e["message"]) for e in rows.get("event", ())]}
