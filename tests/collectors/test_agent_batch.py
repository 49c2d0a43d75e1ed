from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import agent_fakes
import pytest
from structlog.testing import capture_logs

from graynode.collectors.batch import Batcher, Misfits
from graynode.pipeline.codec import Message, decode
from graynode.pipeline.schema import EVENTS, SAMPLES

TS = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
GPU = {"gpu_uuid": "GPU-1", "power_w": 300.5}


def _batcher(tmp_path: Path, load: int | None = 4) -> Batcher:
    return Batcher(agent_fakes.machine(tmp_path), 7, driver_load=lambda: load, now=lambda: TS, misfits=Misfits())


def _rows(messages: list[tuple[str, Message]], table: str) -> list[dict[str, Any]]:
    found = [r for _, m in messages if m.headers["table"] == table for r in decode(m).to_pylist()]
    return [{k: v for k, v in row.items() if v is not None} for row in found]


def test_keys_are_filled_only_where_absent(tmp_path: Path) -> None:
    """The agent knows time, cluster, machine, boot and driver load; what a row says itself stays."""
    batcher = _batcher(tmp_path)
    earlier = TS - timedelta(seconds=90)
    batcher.add({"gpu": [dict(GPU), {**GPU, "ts": earlier, "driver_load": 2, "vendor": "AMD", "node": None}]}, TS)
    first, second = _rows(batcher.take(), "gpu")
    assert first == {
        **GPU, "ts": TS, "cluster": "test", "node": "host-1", "node_id": "machine-1",
        "boot_id": agent_fakes.BOOT_ID, "driver_load": 4, "vendor": "NVIDIA",
    }  # fmt: skip
    assert second == {**first, "ts": earlier, "driver_load": 2, "vendor": "AMD"}


def test_rows_of_another_machine_get_no_boot_of_this_one(tmp_path: Path) -> None:
    """The simulated fleet names its machines; this machine's boot id, driver load and name are not theirs."""
    batcher = _batcher(tmp_path)
    batcher.add({"gpu": [{**GPU, "node_id": "sim-3"}]}, TS)
    assert _rows(batcher.take(), "gpu") == [
        {**GPU, "ts": TS, "cluster": "test", "node_id": "sim-3", "vendor": "NVIDIA"}
    ]


def test_unknown_driver_load_stays_unknown(tmp_path: Path) -> None:
    """No driver, no load id: null, not zero."""
    batcher = _batcher(tmp_path, load=None)
    batcher.add({"host": [{"load1": 0.0}]}, TS)
    assert "driver_load" not in _rows(batcher.take(), "host")[0]


def test_one_message_per_table_and_machine_with_growing_numbers(tmp_path: Path) -> None:
    """A message is one table of one machine; (node_id, epoch, sequence) is met once; headers and key say so."""
    batcher = _batcher(tmp_path)
    for second in range(3):
        ts = TS + timedelta(seconds=second)
        batcher.add({"gpu": [{**GPU, "node_id": node} for node in ("a", "b")], "host": [{"load1": 1.0}]}, ts)
    batcher.add({"event": [{"event_id": "x", "kind": "xid"}]}, TS)
    messages = [*batcher.take()]
    batcher.add({"host": [{"load1": 1.0}]}, TS)
    messages += batcher.take()
    told = [(t, m.headers["table"], m.key, m.headers["rows"]) for t, m in messages]
    assert told == [
        (SAMPLES, "gpu", "test/a", "3"), (SAMPLES, "gpu", "test/b", "3"), (SAMPLES, "host", "test/machine-1", "3"),
        (EVENTS, "event", "test/machine-1", "1"), (SAMPLES, "host", "test/machine-1", "1"),
    ]  # fmt: skip
    assert [m.headers["seq"] for _, m in messages] == ["1", "2", "3", "4", "5"]
    assert {m.headers["epoch"] for _, m in messages} == {"7"}


def test_events_are_taken_alone_and_ask_for_haste(tmp_path: Path) -> None:
    """Events do not wait for the batch and do not drag half a batch of samples along."""
    batcher = _batcher(tmp_path)
    assert not batcher.add({"gpu": [dict(GPU)], "event": []}, TS)
    assert batcher.add({"event": [{"event_id": "x"}]}, TS)
    assert [t for t, _ in batcher.take(events_only=True)] == [EVENTS]
    assert [t for t, _ in batcher.take()] == [SAMPLES]
    assert batcher.take() == []


def test_very_many_rows_do_not_wait(tmp_path: Path) -> None:
    """A replayed day is not held in memory until the batch's time; it goes in messages of bounded size."""
    batcher = _batcher(tmp_path)
    assert batcher.add({"host": [{"load1": 1.0} for _ in range(20_001)]}, TS)
    messages = batcher.take(events_only=True)
    assert [m.headers["rows"] for _, m in messages] == ["5000", "5000", "5000", "5000", "1"]


@pytest.mark.parametrize(
    ("field", "value"),
    [("no_such_field", 1), ("sm_clock_mhz", "fast"), ("sm_clock_mhz", 2**40), ("energy_mj", 2**63), ("gpu_model", 5)],
)
def test_unfit_value_costs_only_itself(tmp_path: Path, field: str, value: object) -> None:
    """A field that the contract does not know, or not so, is left out; its row and the others arrive; the field
    is counted and logged once."""
    misfits = Misfits()
    batcher = Batcher(agent_fakes.machine(tmp_path), 1, driver_load=lambda: None, now=lambda: TS, misfits=misfits)
    with capture_logs() as logged:
        for _ in range(3):
            batcher.add({"gpu": [{**GPU, field: value}, {**GPU, "gpu_uuid": "GPU-2"}], "host": [{"load1": 1.0}]}, TS)
            messages = batcher.take()
            assert [(r["gpu_uuid"], r["power_w"]) for r in _rows(messages, "gpu")] == [
                ("GPU-1", 300.5),
                ("GPU-2", 300.5),
            ]
            assert all(field not in r for r in _rows(messages, "gpu"))
            assert len(_rows(messages, "host")) == 1
    assert misfits.counts == {("gpu", field): 3}
    assert [(line["table"], line["field"]) for line in logged] == [("gpu", field)]


def test_dead_field_is_said_in_quality_once(tmp_path: Path) -> None:
    """So that the null is no riddle: a quality row of the machine whose row it was, with the next messages."""
    batcher = _batcher(tmp_path)
    batcher.add({"gpu": [{**GPU, "node_id": "sim-3", "sm_clock_mhz": "fast"}] * 1}, TS)
    batcher.take()
    (told,) = _rows(batcher.take(), "quality")
    assert told["reason"].startswith("does not fit the contract: ")
    told.pop("reason")
    assert told == {
        "ts": TS, "cluster": "test", "node_id": "sim-3", "table_name": "gpu", "entity": "GPU-1",
        "field": "sm_clock_mhz", "state": "error",
    }  # fmt: skip
    assert batcher.take() == []


@pytest.mark.parametrize("keys", [{"ts": "yesterday"}, {"node_id": 5}, {"cluster": 1.5}])
def test_row_with_unfit_keys_is_dropped_and_counted(tmp_path: Path, keys: dict[str, object]) -> None:
    """Without time or machine a row says nothing; the others are none the worse."""
    misfits = Misfits()
    batcher = Batcher(agent_fakes.machine(tmp_path), 1, driver_load=lambda: None, now=lambda: TS, misfits=misfits)
    batcher.add({"host": [{"load1": 1.0, **keys}, {"load1": 2.0}]}, TS)
    assert [r["load1"] for r in _rows(batcher.take(), "host")] == [2.0]
    assert list(misfits.counts) == [("host", next(iter(keys)))]


@pytest.mark.parametrize("table", ["no_such_table", "gpu_30s"])
def test_table_that_no_collector_fills_is_counted(tmp_path: Path, table: str) -> None:
    """Unknown tables and those that the pipeline derives are refused by name."""
    misfits = Misfits()
    batcher = Batcher(agent_fakes.machine(tmp_path), 1, driver_load=lambda: None, now=lambda: TS, misfits=misfits)
    batcher.add({table: [{}], "host": [{"load1": 1.0}]}, TS)
    assert [m.headers["table"] for _, m in batcher.take()] == ["host"]
    assert misfits.counts == {(table, "*"): 1}


def test_large_rows_are_split_until_they_fit(tmp_path: Path) -> None:
    """A message has a bound; many large lines become several messages in order, and one that alone is larger than
    the bound is dropped and counted."""
    misfits, noise = Misfits(), random.Random(1)
    batcher = Batcher(agent_fakes.machine(tmp_path), 1, driver_load=lambda: None, now=lambda: TS, misfits=misfits)
    lines = [noise.randbytes(1 << 20).hex() for _ in range(12)]
    lines[5] = noise.randbytes(9 << 20).hex()
    batcher.add({"event": [{"event_id": str(n), "raw": line} for n, line in enumerate(lines)]}, TS)
    messages = batcher.take()
    assert len(messages) > 1
    assert all(len(m.value) <= 8 << 20 for _, m in messages)
    assert [int(m.headers["seq"]) for _, m in messages] == list(range(1, len(messages) + 1))
    assert [r["event_id"] for r in _rows(messages, "event")] == [str(n) for n in range(12) if n != 5]
    assert misfits.counts == {("event", "*"): 1}


def test_samples_nobody_takes_are_shed_oldest_first_and_events_stay(tmp_path: Path) -> None:
    """While sending hangs memory stays bounded: the older samples of every table go and are counted."""
    batcher = _batcher(tmp_path)
    for second in range(100):
        batcher.add({"gpu": [{**GPU, "ts": TS + timedelta(seconds=second)}], "event": [{"event_id": str(second)}]}, TS)
    batcher.shed(300)
    assert batcher.shed_rows == 75
    messages = batcher.take()
    assert [r["ts"] for r in _rows(messages, "gpu")] == [TS + timedelta(seconds=n) for n in range(75, 100)]
    assert len(_rows(messages, "event")) == 100
    batcher.shed(0)
