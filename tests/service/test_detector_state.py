"""Detector memory in rows and back: whole or not at all, and only what changed is written."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import polars as pl

from graynode.detectors import make
from graynode.service.detector_state import MANIFEST, StateWriter, restore

T0 = datetime(2026, 3, 2, 6, 0, tzinfo=UTC)
DETECTORS = {"slow": make("slow"), "ecc": make("ecc")}


def frame(seed: int, rows: int = 5) -> pl.DataFrame:
    values = np.random.default_rng(seed).normal(size=(rows, 3))
    values[0, 0] = np.nan
    return pl.DataFrame(
        {"key": [f"k{i}" for i in range(rows)], "seen": np.arange(rows, dtype=np.float64), "values": values},
        schema_overrides={"values": pl.Array(pl.Float64, 3)},
    )


class Stored:
    """Rows of table ``state``, as the lake gives them."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        schema = {"ts": pl.Datetime("us", "UTC"), "detector": pl.String, "version": pl.Int32, "state": pl.String}
        self.frame = pl.DataFrame([{k: r[k] for k in schema} for r in rows], schema=schema)

    def __call__(self, since: datetime, until: datetime | None, columns: list[str]) -> pl.DataFrame:
        end = until or T0 + timedelta(days=99)
        return self.frame.filter((pl.col("ts") >= since) & (pl.col("ts") < end)).select(columns)


def test_what_is_written_comes_back_equal() -> None:
    """NaN, arrays and a frame without rows included."""
    states = {"slow": {"gpu": frame(1), "history": frame(2).clear()}, "ecc": {"gpu": frame(3, 40_000)}}
    rows = list(StateWriter("c").rows(T0, 30, DETECTORS, states))
    assert rows[-1]["detector"] == MANIFEST
    assert max(len(r["state"]) for r in rows) < 8 << 20
    back = restore(Stored(rows), T0 - timedelta(hours=6), 30, DETECTORS)
    assert back is not None
    assert back.start == T0
    for name, held in states.items():
        for part, wanted in held.items():
            assert back.states[name][part].equals(wanted)
            assert back.states[name][part].schema == wanted.schema


def test_a_large_frame_is_written_in_parts_that_fit_a_message() -> None:
    """A fleet's memory is larger than a message."""
    states = {"ecc": {"gpu": frame(3, 200_000)}}
    rows = list(StateWriter("c").rows(T0, 30, DETECTORS, states))
    assert len(rows) > 2
    back = restore(Stored(rows), T0, 30, DETECTORS)
    assert back is not None
    assert back.states["ecc"]["gpu"].equals(states["ecc"]["gpu"])


def test_a_frame_that_did_not_change_is_named_and_not_written_again() -> None:
    """The history of 35 days changes once a day, and is found where it was written."""
    writer, history = StateWriter("c"), frame(2)
    first = list(writer.rows(T0, 30, DETECTORS, {"slow": {"gpu": frame(1), "history": history}}))
    later = T0 + timedelta(minutes=5)
    second = list(writer.rows(later, 30, DETECTORS, {"slow": {"gpu": frame(4), "history": history}}))
    assert [r["detector"] for r in second] == ["slow.gpu#0", MANIFEST]
    back = restore(Stored(first + second), T0, 30, DETECTORS)
    assert back is not None
    assert back.start == later
    assert back.states["slow"]["gpu"].equals(frame(4))
    assert back.states["slow"]["history"].equals(history)


def test_a_state_of_which_a_part_is_missing_is_passed_over_for_the_one_before() -> None:
    """A half that landed is no state."""
    writer = StateWriter("c")
    first = list(writer.rows(T0, 30, DETECTORS, {"slow": {"gpu": frame(1)}, "ecc": {"gpu": frame(2)}}))
    later = T0 + timedelta(minutes=5)
    second = list(writer.rows(later, 30, DETECTORS, {"slow": {"gpu": frame(3)}, "ecc": {"gpu": frame(4)}}))
    back = restore(Stored([*first, *second[1:]]), T0, 30, DETECTORS)
    assert back is not None
    assert back.start == T0
    assert back.states["slow"]["gpu"].equals(frame(1))
    assert restore(Stored(second[:-1]), T0, 30, DETECTORS) is None


def test_another_version_of_a_detector_starts_anew_and_the_others_go_on() -> None:
    """What an older version remembered may mean something else now."""
    states = {"slow": {"gpu": frame(1)}, "ecc": {"gpu": frame(2)}}
    rows = list(StateWriter("c").rows(T0, 30, DETECTORS, states))

    class Newer(type(make("slow"))):
        version = 99

    back = restore(Stored(rows), T0, 30, {**DETECTORS, "slow": Newer()})
    assert back is not None
    assert set(back.states) == {"ecc"}


def test_a_state_of_other_windows_or_too_old_is_none() -> None:
    """State after hour windows does not continue 30 s windows; six hours ago is history."""
    rows = list(StateWriter("c").rows(T0, 3600, DETECTORS, {"slow": {"gpu": frame(1)}}))
    assert restore(Stored(rows), T0, 30, DETECTORS) is None
    assert restore(Stored(rows), T0 + timedelta(seconds=1), 3600, DETECTORS) is None
