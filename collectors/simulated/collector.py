"""``simulated``: live rows of a whole simulated fleet, one machine as like the others as real ones are.

Rows carry the keys of their own machine; the agent groups them by ``node_id``. What was history for
``graynode simulate`` goes on here without a seam, because both compute the same fleet from seed and *now*.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar, Final

import numpy as np

from graynode.collectors.base import Machine, Round, Row, Rows
from graynode.collectors.simulated import faults
from graynode.collectors.simulated.fleet import Fleet, Spec
from graynode.collectors.simulated.noise import uniform
from graynode.collectors.simulated.rows import LiveRows

LATE: Final = 0.0005
TWICE: Final = 0.0005
"""Shares of a machine's rounds that come late, or twice."""
_LATE_S: Final = 20.0


class Simulated:
    """A fleet of ``nodes`` machines. ``start`` is the end of its history (ISO 8601); empty: the first round.

    ``faults_path`` names a faults file; without one the shipped plan of the demonstration is used.
    ``FaultsError`` where the file is wrong; ``ValueError`` where ``start`` is no moment.
    """

    name: ClassVar[str] = "simulated"
    tables: ClassVar[tuple[str, ...]] = ("gpu", "link", "host", "event", "job", "job_log", "inventory")

    def __init__(
        self, machine: Machine, *, nodes: int = 64, gpus_per_node: int = 8, seed: int = 1,
        faults_path: Path | None = None, start: str = "",
    ) -> None:  # fmt: skip
        self._cluster, self._nodes, self._per_node, self._seed = machine.cluster, nodes, gpus_per_node, seed
        self._faults_path = faults_path
        self._view: LiveRows | None = None
        self._late: list[tuple[datetime, str, list[Row]]] = []
        if start:
            self._view = self._made(_moment(start))

    def _made(self, now: datetime) -> LiveRows:
        plan = faults.read(self._faults_path, now) if self._faults_path else faults.demo()
        spec = Spec(now, self._nodes, self._per_node, self._seed, cluster=self._cluster)
        return LiveRows(Fleet(spec, plan))

    def collect(self, round_: Round) -> Rows:
        """All machines' rows of what is due, and what has happened since the round before."""
        if self._view is None:
            self._view = self._made(round_.ts)
        elif self._view.fleet.seconds(round_.ts) > self._view.fleet.horizon_s - 3600.0:
            self._view = self._view.further(self._view.fleet.seconds(round_.ts))
        view = self._view
        t = view.fleet.seconds(round_.ts)
        samples = {
            "gpu": view.gpus(int(t), round_.due),
            "link": view.ports(int(t), round_.due),
            "host": view.hosts(int(t), round_.due),
        }
        rows: dict[str, list[Row]] = {}
        for table, made in samples.items():
            rows[table] = self._disturbed(view.fleet, table, made, int(t), round_.ts)
        for table, row in view.happened(t):
            rows.setdefault(table, []).append(row)
        return rows

    def _disturbed(self, fleet: Fleet, table: str, made: Sequence[Row], second: int, ts: datetime) -> list[Row]:
        """Telemetry as it arrives: some machines' rows late by twenty seconds, some twice."""
        nodes = np.arange(fleet.spec.nodes)
        draw = uniform(fleet.spec.seed, 95, nodes, np.full(1, second))
        late = {fleet.node_ids[n] for n in nodes[draw < LATE]}
        twice = {fleet.node_ids[n] for n in nodes[draw > 1.0 - TWICE]}
        for row in made:
            row["ts"] = ts
        given = [row for row in made if row["node_id"] not in late] if late else list(made)
        if twice:
            given += [dict(row) for row in made if row["node_id"] in twice]
        for when, of, rows in self._late:
            if of == table and (ts - when).total_seconds() >= _LATE_S:
                given += rows
        self._late = [held for held in self._late if held[1] != table or (ts - held[0]).total_seconds() < _LATE_S]
        if late:
            self._late.append((ts, table, [row for row in made if row["node_id"] in late]))
        return given

    def close(self) -> None:
        """Nothing is held open."""
        self._view = None


def _moment(start: str) -> datetime:
    moment = datetime.fromisoformat(start)
    if moment.tzinfo is None:
        raise ValueError(f"simulated.start = {start!r} has no zone; add Z for UTC")
    return moment.astimezone(UTC)
