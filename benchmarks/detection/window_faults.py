"""The same faults as changes of an instrumented fleet's windows. As in ``faults``, nothing here knows a detector."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from graynode.benchmarks.detection.faults import Floats

Rows = NDArray[np.int64]
Target = Literal["gpu", "link", "node"]
_IDENTITY: Final = {"gpu": "gpu_uuid", "link": "link", "host": "node_id"}


class Measured:
    """One window's tables: numbers as arrays that may be written to, rows that may be taken away.

    Rows are found by node and entity. A column that a table lacks is left alone: what is not measured cannot change.
    """

    def __init__(self, frames: Mapping[str, pl.DataFrame]) -> None:
        self._frames = dict(frames)
        self._columns: dict[tuple[str, str], Floats] = {}
        self._gone: dict[str, set[int]] = {}
        self._texts: dict[tuple[str, str], list[str | None]] = {}
        self._where: dict[str, dict[tuple[str, str], int]] = {}

    def rows(self, table: str, node_id: str, entity: str | None = None) -> Rows:
        """Rows of a node in a table, or of one of its GPUs or links."""
        frame = self._frames[table]
        if table not in self._where:
            pairs = zip(frame["node_id"].to_list(), frame[_IDENTITY[table]].to_list(), strict=True)
            self._where[table] = {pair: i for i, pair in enumerate(pairs)}
        found = self._where[table]
        if entity is not None:
            return np.array([found[node_id, entity]] if (node_id, entity) in found else [], dtype=np.int64)
        return np.flatnonzero((frame["node_id"] == node_id).to_numpy())

    def every(self, table: str) -> Rows:
        """All rows of a table."""
        return np.arange(self._frames[table].height, dtype=np.int64)

    def numbers(self, table: str, column: str) -> Floats | None:
        """A column to be written to; null is NaN."""
        if column not in self._frames[table].columns:
            return None
        key = (table, column)
        if key not in self._columns:
            self._columns[key] = self._frames[table][column].cast(pl.Float64).to_numpy().copy()
        return self._columns[key]

    def scale(self, table: str, name: str, rows: Rows, factor: Floats | float, plus: Floats | float = 0.0) -> None:
        """x · factor + plus for a number, or for mean, lowest and highest sample of a gauge."""
        for column in (name, f"{name}_mean", f"{name}_min", f"{name}_max"):
            x = self.numbers(table, column)
            if x is not None:
                x[rows] = x[rows] * factor + plus

    def put(self, table: str, column: str, rows: Rows, value: float) -> None:
        """The same value in some rows."""
        x = self.numbers(table, column)
        if x is not None:
            x[rows] = value

    def write(self, table: str, column: str, rows: Rows, value: str | None) -> None:
        """The same text in some rows."""
        key = (table, column)
        texts = self._texts.setdefault(key, self._frames[table][column].to_list())
        for row in rows.tolist():
            texts[row] = value

    def text(self, table: str, column: str) -> list[str | None]:
        """A text column as it stands."""
        return self._texts.get((table, column)) or self._frames[table][column].to_list()

    def silence(self, table: str, rows: Rows) -> None:
        """Nobody saw these rows."""
        self._gone.setdefault(table, set()).update(rows.tolist())

    def frames(self) -> dict[str, pl.DataFrame]:
        """The tables as they are measured now."""
        return {table: self._frame(table, frame) for table, frame in self._frames.items()}

    def _frame(self, table: str, frame: pl.DataFrame) -> pl.DataFrame:
        changed = [self._series(frame, c, x) for (t, c), x in self._columns.items() if t == table]
        changed += [pl.Series(c, words, dtype=pl.String) for (t, c), words in self._texts.items() if t == table]
        after = frame.with_columns(changed) if changed else frame
        gone = self._gone.get(table)
        if gone:
            after = after.filter(~pl.Series(np.isin(np.arange(frame.height), sorted(gone))))
        return after

    @staticmethod
    def _series(frame: pl.DataFrame, column: str, x: Floats) -> pl.Series:
        kind = frame.schema[column]
        values = np.rint(x) if kind.is_integer() else x
        return pl.Series(column, values).fill_nan(None).cast(kind)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a fault is. ``entity`` is a GPU's uuid or a link's name; ``job`` the job it works in."""

    node_id: str
    entity: str = ""
    job: str | None = None


Change = Callable[[Measured, Place, float, float, np.random.Generator], None]
"""What happens to one window: tables, place, seconds since onset (of the window's start, never below 0), size."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One class of fault of a whole node. ``size`` is what the change is given."""

    name: str
    target: Target
    change: Change
    size: float
    test_only: bool = False


def slower(m: Measured, at: Place, _since_s: float, size: float, _rng: np.random.Generator) -> None:
    """A GPU's clock is lower; the other ranks of its job wait for it and take less power."""
    _slow(m, at, 1.0 - size)


def held(m: Measured, at: Place, _since_s: float, size: float, _rng: np.random.Generator) -> None:
    """Heat holds the clock down, and the GPU says so: ten degrees more, half of the time below its clocks."""
    rows = m.rows("gpu", at.node_id, at.entity)
    _slow(m, at, 1.0 - size)
    _warmer(m, rows, 10.0)
    m.put("gpu", "hw_thermal_s", rows, 15.0)
    m.put("gpu", "hw_slowdown_s", rows, 15.0)
    m.put("gpu", "throttle_hw_thermal_ns_delta", rows, 15e9)


def hotter(m: Measured, at: Place, since_s: float, size: float, _rng: np.random.Generator) -> None:
    """Cooling is worse by ``size`` degrees at this load, reached in ten minutes."""
    _warmer(m, m.rows("gpu", at.node_id, at.entity), size * min(since_s / 600.0, 1.0))


def corrected(m: Measured, at: Place, _since_s: float, size: float, rng: np.random.Generator) -> None:
    """``size`` corrected memory errors an hour, in clusters of three."""
    rows = m.rows("gpu", at.node_id, at.entity)
    errors = 3.0 * rng.poisson(size / 3.0 / 120.0)
    for name in ("ecc_sbe_volatile", "ecc_sbe_volatile_device", "ecc_sbe_aggregate"):
        m.scale("gpu", f"{name}_delta", rows, 1.0, errors)


def lanes(m: Measured, at: Place, _since_s: float, size: float, _rng: np.random.Generator) -> None:
    """The PCIe link has come up with ``size`` lanes."""
    m.put("gpu", "pcie_width_last", m.rows("gpu", at.node_id, at.entity), size)


def generation(m: Measured, at: Place, _since_s: float, size: float, _rng: np.random.Generator) -> None:
    """The PCIe link has trained to a lower generation under load."""
    m.put("gpu", "pcie_gen_last", m.rows("gpu", at.node_id, at.entity), size)


def flapping(m: Measured, at: Place, _since_s: float, size: float, rng: np.random.Generator) -> None:
    """``size`` outages an hour of four seconds each."""
    downs = float(rng.poisson(size / 120.0))
    if downs:
        _down(m, m.rows("link", at.node_id, at.entity), downs, min(4.0 * downs, 30.0), min(4.0, 30.0))


def cut(m: Measured, at: Place, since_s: float, _size: float, _rng: np.random.Generator) -> None:
    """A link is down and stays down."""
    rows = m.rows("link", at.node_id, at.entity)
    _down(m, rows, 1.0 if since_s < 30.0 else 0.0, 30.0, since_s + 30.0)
    m.write("link", "state_last", rows, "down")
    m.write("link", "phys_state_last", rows, "Polling")


def silent(m: Measured, at: Place, _since_s: float, _size: float, _rng: np.random.Generator) -> None:
    """The node gives nothing any more."""
    for table in ("gpu", "link", "host"):
        m.silence(table, m.rows(table, at.node_id))


def slow_answers(m: Measured, at: Place, _since_s: float, size: float, _rng: np.random.Generator) -> None:
    """The driver answers ``size`` times as slowly: one published precursor of GPUs that fall off the bus."""
    m.scale("host", "nvml_call_max_ms", m.rows("host", at.node_id), size)
    m.scale("gpu", "nvml_call_max_ms", m.rows("gpu", at.node_id), size)


def losing_samples(m: Measured, at: Place, _since_s: float, size: float, _rng: np.random.Generator) -> None:
    """The node's collector gives a share ``size`` fewer samples than it should."""
    for table in ("gpu", "host"):
        rows = m.rows(table, at.node_id)
        m.scale(table, "samples", rows, 1.0 - size)
        m.scale(table, "samples_taken_sum", rows, 1.0 - size)


KINDS: Final = (
    Kind("slow.5pct", "gpu", slower, 0.05),
    Kind("slow.10pct", "gpu", slower, 0.10),
    Kind("slow.20pct", "gpu", slower, 0.20),
    Kind("held_by_heat.10pct", "gpu", held, 0.10),
    Kind("hotter.15degrees", "gpu", hotter, 15.0),
    Kind("hotter.25degrees", "gpu", hotter, 25.0),
    Kind("corrected.6_an_hour", "gpu", corrected, 6.0),
    Kind("corrected.60_an_hour", "gpu", corrected, 60.0),
    Kind("pcie_width.8", "gpu", lanes, 8.0),
    Kind("link_flap.12_an_hour", "link", flapping, 12.0),
    Kind("link_down", "link", cut, 1.0),
    Kind("silent_node", "node", silent, 1.0),
    Kind("slow_answers.x8", "node", slow_answers, 8.0),
    Kind("losing_samples.40pct", "node", losing_samples, 0.4),
    Kind("pcie_generation.2", "gpu", generation, 2.0, test_only=True),
)
"""``pcie_generation`` is the class that nothing was chosen on: it was first run when all else was settled."""


def _slow(m: Measured, at: Place, kept: float) -> None:
    rows = m.rows("gpu", at.node_id, at.entity)
    m.scale("gpu", "sm_clock_mhz", rows, kept)
    if at.job is not None:
        job = np.flatnonzero(np.array([j == at.job for j in m.text("gpu", "job_id_last")]))
        waiting = np.setdiff1d(job, rows)
        m.scale("gpu", "power_w", waiting, 1.0 - 0.4 * (1.0 - kept))
        for name in ("sm_active_ratio", "tensor_active_ratio", "dram_active_ratio"):
            m.scale("gpu", name, job, kept)


def _warmer(m: Measured, rows: Rows, degrees: float) -> None:
    m.scale("gpu", "temp_c", rows, 1.0, degrees)
    m.scale("gpu", "mem_temp_c", rows, 1.0, degrees)
    m.scale("gpu", "temp_margin_c", rows, 1.0, -degrees)


def _down(m: Measured, rows: Rows, downs: float, seconds: float, longest: float) -> None:
    m.put("link", "downs_sum", rows, downs)
    m.put("link", "down_s_sum", rows, seconds)
    m.put("link", "outage_s_max", rows, longest)
    m.put("link", "outage_s_mean", rows, seconds / 2.0)
    for name in ("link_downed", "carrier_changes"):
        m.scale("link", f"{name}_delta", rows, 1.0, downs)
