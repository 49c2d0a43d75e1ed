"""A small site on one machine for tests of what people say: a configuration, a spool, a lake, the pipeline's work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from roles import to_toml
from typer.testing import CliRunner

from graynode.pipeline.codec import decode
from graynode.pipeline.deadletter import DeadLetters
from graynode.pipeline.lake import Lake
from graynode.pipeline.lake_format import conform
from graynode.pipeline.land import Landing
from graynode.pipeline.spool import SpoolBus
from graynode.pipeline.spool_writer import SpoolProducer
from graynode.service.cli import app
from graynode.service.config import Config, load
from graynode.service.pipeline import TOPICS

CLUSTER = "prod"
NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it said."""

    returncode: int
    stdout: str
    stderr: str


class Site:
    """Folder, configuration file, bus and lake. ``land`` does what the pipeline does, once."""

    def __init__(self, folder: Path, **detect: Any) -> None:
        self.folder = folder
        self.file = folder / "graynode.toml"
        (folder / "bus").mkdir(parents=True, exist_ok=True)
        settings = {
            "cluster": CLUSTER,
            "agent": {"state_dir": str(folder / "state")},
            "bus": {"spool_dir": str(folder / "bus")},
            "lake": {"path": str(folder / "lake")},
            "detect": {"metrics_listen": "", **detect},
        }
        self.file.write_text(to_toml(settings))
        self.config: Config = load(self.file, env={})
        self.lake = Lake(str(folder / "lake"))

    @property
    def bus(self) -> SpoolBus:
        return SpoolBus(self.folder / "bus", 1 << 30)

    def run(self, *words: str) -> Ended:
        """The command line over this site, in this process; what is no sentence for a person is raised."""
        result = CliRunner().invoke(app, [*words, "--config", str(self.file)])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ended(result.exit_code, result.stdout, result.stderr)

    def land(self) -> None:
        """Bus to lake."""
        dead = SpoolProducer(self.folder / "dead", 1 << 20)
        landing = Landing(self.lake, DeadLetters(dead))
        with closing(self.bus.consumer(TOPICS, "graynode-pipeline", landing.assigned)) as consumer:
            while received := consumer.poll(0.0):
                landing.take(received)
            landing.commit(consumer.end_offsets(), everything=True)
        dead.close()

    def said(self, table: str) -> list[dict[str, Any]]:
        """Rows of a table on the people's topic, as they were sent."""
        rows: list[dict[str, Any]] = []
        with closing(self.bus.consumer(["graynode.people"], "test-said", dict.fromkeys)) as consumer:
            while received := consumer.poll(0.0):
                for r in received:
                    if r.message.headers["table"] == table:
                        rows += decode(r.message).to_pylist()
        return rows

    def write(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Rows straight into the lake."""
        self.lake.write(table, conform(table, pl.DataFrame([{"cluster": CLUSTER, **row} for row in rows])))

    def incident(self, incident_id: str, node: str, at: datetime, **columns: Any) -> None:
        """One incident of a node, opened then, in one revision."""
        row = {
            "ts": at, "node_id": f"id-{node}", "node": node, "incident_id": incident_id, "revision": 0, "state": "open",
            "subject": "node", "cause": "slow_gpu", "severity": "ticket", "title": f"Slow GPU on {node}", "since": at,
            "opened_ts": at, "updated_ts": at, **columns,
        }  # fmt: skip
        self.write("incident", [row])

    def nodes(self, names: Sequence[str], at: datetime) -> None:
        """Nodes are seen: an hour window each."""
        self.write("host_1h", [{"ts": at, "node_id": f"id-{n}", "node": n, "samples": 3600} for n in names])


def node_days(
    nodes: int, days: int, *, last: date, seed: int = 1, odd: Mapping[tuple[int, int], float] | None = None
) -> pl.DataFrame:
    """Rows of ``node_day``: exponential maxima of two signals; ``odd`` sets slow.clock of (node, day)."""
    rng = np.random.default_rng(seed)
    clock = rng.exponential(0.02, (nodes, days))
    temp = rng.exponential(4.0, (nodes, days))
    for (node, day), value in (odd or {}).items():
        clock[node, day] = value
    first = datetime.combine(last, datetime.min.time(), UTC) - timedelta(days=days - 1)
    ids = np.repeat([f"id-n{i:03}" for i in range(nodes)], days)
    ts = np.tile([first + timedelta(days=d) for d in range(days)], nodes)
    parts = []
    for detector, signal, values, limit in (
        ("slow", "clock", clock, 0.6),
        ("thermal", "temp", temp, 144.0),
        ("*", "*", np.maximum(clock / 0.6, temp / 144.0), 1.0),
    ):
        parts.append(
            pl.DataFrame(
                {
                    "ts": pl.Series(list(ts), dtype=pl.Datetime("us", "UTC")),
                    "cluster": CLUSTER,
                    "node_id": ids,
                    "node": [i.removeprefix("id-") for i in ids],
                    "detector": detector,
                    "signal": signal,
                    "maximum": values.ravel(),
                    "windows": 2880,
                    "window_s": 30,
                    "threshold": limit,
                }
            )
        )
    return conform("node_day", pl.concat(parts))
