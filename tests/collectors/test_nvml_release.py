"""Letting go of NVML: nothing is held, nothing is concluded, and it comes back by itself."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import nvml_standin as standin
import polars as pl
import pytest
from nvml_rig import Rig, events, quality, rig, samples

from graynode.collectors.base import Rows
from graynode.collectors.context import GpuKey, JobContext
from graynode.collectors.health import children
from graynode.collectors.release import ANSWER, REQUEST, Request, read_answer, write
from graynode.detectors.base import Round as DetectionRound
from graynode.detectors.event_rules import from_events
from graynode.detectors.rules import Rules
from graynode.pipeline.schema import PLANNED

pytestmark = pytest.mark.nvml

T0 = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


def ask(node: Rig, until: datetime | None, id_: str = "one") -> None:
    """A request as the command writes it."""
    node.machine.state_dir.mkdir(parents=True, exist_ok=True)
    write(node.machine.state_dir / REQUEST, Request(id_, until, "root", "driver upgrade"))


def at(node: Rig, seconds: float) -> Rows:
    """A round so many seconds after the start, by both clocks."""
    node.ahead_s = seconds
    return node.round(ts=T0 + timedelta(seconds=seconds))


def told(rows: Rows) -> list[dict[str, Any]]:
    """What rules say of the round's events."""
    who = {"cluster": "test", "node_id": "machine-1", "node": "host-1", "ts": T0, "boot_id": "b", "raw": None}
    return [f for f in from_events([{**who, **e} for e in rows.get("event", ())]) if f["severity"] != "digest"]


def test_released_and_back_by_itself(tmp_path: Path) -> None:
    """From the request to its end the child is gone and nothing is known; then NVML is read again. Both are told."""
    context, others = JobContext(), children_of_this()
    with rig(tmp_path, gpus=2, context=context) as node:
        at(node, 0)
        assert context.pids
        before = children_of_this() - others
        assert before
        ask(node, T0 + timedelta(seconds=60))
        rows = at(node, 1)
        assert not before & children_of_this()
        (released,) = events(rows, "nvml_released")
        assert released["attributes"] == {
            "until": "2026-11-30T12:01:00+00:00", "reason": "driver upgrade", "by": "root",
        }  # fmt: skip
        for gpu in range(2):
            state, reason = quality(rows, node.scenario.uuid(gpu))["*"]
            assert state == "paused"
            assert reason.startswith(PLANNED)
        answer = read_answer(node.machine.state_dir / ANSWER)
        assert answer is not None
        assert (answer.id, answer.released, answer.holding) == ("one", True, [])
        assert node.collector.host_fields() == {
            "nvml_up": None, "gpus_read": None, "nvml_call_max_ms": None, "driver_version": "580.126.09",
        }  # fmt: skip
        assert context.pids == {}
        assert at(node, 40) == {}
        rows = at(node, 60)
        assert events(rows, "nvml_resumed")
        while not samples(rows):
            rows = at(node, 61)
        assert quality(rows, node.scenario.uuid(1))["*"] == ("measured", "")
        assert GpuKey(node.scenario.uuid(0)) in context.pids


def test_resumed_when_asked(tmp_path: Path) -> None:
    """A second request without a time ends it at once; one with another time moves the end, and tells that."""
    with rig(tmp_path, gpus=1) as node:
        at(node, 0)
        ask(node, T0 + timedelta(seconds=60))
        at(node, 1)
        ask(node, T0 + timedelta(seconds=600), "two")
        rows = at(node, 2)
        assert events(rows, "nvml_released")[0]["attributes"]["again"] is True
        assert "quality" not in rows
        assert at(node, 100) == {}
        ask(node, None, "three")
        rows = at(node, 101)
        assert events(rows, "nvml_resumed")[0]["attributes"]["how"] == "somebody asked for it"
        answer = read_answer(node.machine.state_dir / ANSWER)
        assert answer is not None
        assert (answer.id, answer.released) == ("three", False)


@pytest.mark.parametrize("jump", [timedelta(days=400), timedelta(days=-400), timedelta(minutes=-2)])
def test_the_wall_clock_is_set_meanwhile(tmp_path: Path, jump: timedelta) -> None:
    """It lasts as long as was asked for, whatever the wall clock says by then."""
    with rig(tmp_path, gpus=1) as node:
        at(node, 0)
        ask(node, T0 + timedelta(seconds=60))
        assert events(at(node, 1), "nvml_released")
        node.ahead_s = 30
        assert node.round(ts=T0 + timedelta(seconds=30) + jump) == {}
        node.ahead_s = 61
        assert events(node.round(ts=T0 + timedelta(seconds=61) + jump), "nvml_resumed")


def test_it_survives_a_restart(tmp_path: Path) -> None:
    """An agent that starts while NVML is let go of does not touch it, and comes back when the time is over."""
    with rig(tmp_path, gpus=1, record=True) as node:
        at(node, 0)
        ask(node, T0 + timedelta(seconds=60))
        at(node, 1)
        node.restart()
        calls = len(standin.called(node.calls))
        rows = at(node, 10)
        assert events(rows, "nvml_released")
        assert {q["entity"]: q["state"] for q in rows["quality"]} == {"*": "paused"}
        assert at(node, 30) == {}
        assert len(standin.called(node.calls)) == calls
        rows = at(node, 61)
        while not samples(rows):
            rows = at(node, 62)
        assert quality(rows, "*")["*"] == ("measured", "")


def test_what_somebody_wrote_is_one_line(tmp_path: Path) -> None:
    """A reason with control characters and of any length becomes part of one line."""
    with rig(tmp_path, gpus=1) as node:
        at(node, 0)
        write(
            node.machine.state_dir / REQUEST,
            Request("a", T0 + timedelta(seconds=60), "r\noot", "x\x1b[31m\n" + "y" * 5000),
        )
        (told,) = events(at(node, 1), "nvml_released")
        assert told["message"].isprintable()
        assert len(told["message"]) < 300
        assert told["attributes"]["by"] == "r oot"


def test_a_release_is_unseen_time_of_links(tmp_path: Path) -> None:
    """Links were not watched while NVML was let go of, and what they do while they train afterwards is no outage."""
    with rig(tmp_path, gpus=1) as node:
        at(node, 0)
        ask(node, T0 + timedelta(hours=1))
        at(node, 1)
        node.scenario.set("link.3", 0).write()
        ask(node, None, "two")
        rows = node.until(lambda r: bool(r.get("link")))
        assert not events(rows, "link_down")
        assert {r["down_s"] for r in rows["link"]} == {0.0, None}


HOSTILE = (
    b"", b"{", b"\x00" * 100, b'{"id": 7}', b'{"id":"a","until":"2026-11-30T12:01:00"}', b"[" * 50_000,
    b'{"id":"a","until":"2036-11-30T12:01:00Z"}', b'{"id":"a","until":"' + b"9" * 100_000, b'{"id":"' + b"[" * 60_000,
)  # fmt: skip


def test_a_request_that_cannot_be(tmp_path: Path) -> None:
    """Nonsense, a time without a zone and a time beyond a day blind nobody."""
    with rig(tmp_path, gpus=1) as node:
        at(node, 0)
        for second, content in enumerate(HOSTILE, 1):
            (node.machine.state_dir / REQUEST).unlink(missing_ok=True)
            (node.machine.state_dir / REQUEST).write_bytes(content)
            rows = at(node, second)
            assert samples(rows), content[:40]
            assert not events(rows, "nvml_released"), content[:40]


def test_nobody_is_called_lost(tmp_path: Path) -> None:
    """A GPU that is taken off the bus while NVML is let go of, and a driver that is gone, open nothing: no finding of
    events, none of windows. What is missing when the time is over is told then."""
    with rig(tmp_path, gpus=2) as node:
        at(node, 0)
        ask(node, T0 + timedelta(seconds=60))
        made = told(at(node, 1))
        standin.fall_off(node.sys, node.scenario.bus(1))
        node.scenario.set("gone", 1, 1).error("init", standin.DRIVER_NOT_LOADED, "sys").write()
        for second in range(2, 10):
            made += told(at(node, second))
        assert made == []
        assert findings_of(node.collector.host_fields(), pci=1) == []
        assert findings_of({"gpus_read": 1, "nvml_up": 1}, pci=1)  # as it would be without the release
        node.scenario.unset("init", "sys").write()
        node.ahead_s = 61
        rows = node.until(lambda r: bool(events(r, "gpu_lost")))
        assert [f["cause"] for f in told(rows)] == ["gpu_lost"]


def findings_of(host: dict[str, Any], pci: int) -> list[dict[str, Any]]:
    """What the count of GPUs gives in three windows in which the node showed two, then this."""
    found: list[dict[str, Any]] = []
    state: dict[str, pl.DataFrame] = {}
    rules = Rules()
    for n in range(6):
        read = {"gpus_read_max": 2, "nvml_up_last": 1} if n < 2 else {
            "gpus_read_max": host["gpus_read"], "nvml_up_last": host["nvml_up"]}  # fmt: skip
        start = T0 + timedelta(seconds=30 * n)
        row = {"cluster": "test", "node_id": "m", "node": "n", "boot_id": "b", "ts": start, "samples": 30,
               "gpus_expected_max": 2 if n < 2 else pci, "uptime_s_last": 1e6, **read}  # fmt: skip
        frame = pl.DataFrame([row], schema_overrides={"ts": pl.Datetime("us", "UTC"), "gpus_read_max": pl.Int32})
        scored = rules.score(_round(start, frame), state)
        state = dict(scored.state)
        found += scored.findings.to_dicts()
    return found


def _round(start: datetime, host: pl.DataFrame) -> DetectionRound:
    empty = dict.fromkeys(("gpu", "link", "events", "probes", "inventory", "quality"), pl.DataFrame())
    return DetectionRound(start=start, window_s=30, host=host, **empty)


def test_blind_before_released(tmp_path: Path) -> None:
    """What was blind before it was let go of, and is read afterwards, is told to be back: its incident must end."""
    with rig(tmp_path, gpus=1) as node:
        at(node, 0)
        node.scenario.error("init", 999, "sys").set("temp", "!9").write()
        node.until(lambda r: bool(events(r, "nvml_blind")))
        ask(node, datetime.now(UTC) + timedelta(seconds=30))
        node.round()
        node.scenario.unset("init", "sys").set("temp", 50).write()
        ask(node, None, "two")
        rows = node.until(lambda r: bool(events(r, "nvml_back")))
        assert quality(rows, node.scenario.uuid(0))["*"] == ("measured", "")


def test_a_driver_that_takes_long_to_start_again(tmp_path: Path) -> None:
    """While NVML attaches GPUs after a release, which may take a minute, their number is unknown, not zero."""
    with rig(tmp_path, gpus=1) as node:
        at(node, 0)
        ask(node, T0 + timedelta(seconds=60))
        at(node, 1)
        node.scenario.set("handle", "1 slow=1500", 0).write()
        node.collector.deadline_s = 0.3
        rows = at(node, 61)
        assert events(rows, "nvml_resumed")
        assert node.collector.host_fields()["gpus_read"] is None
        assert not events(rows, "nvml_blind")
        node.collector.deadline_s = 30.0
        assert samples(node.until(lambda r: bool(samples(r))))


def test_a_reader_that_hangs_is_named(tmp_path: Path) -> None:
    """A child that hangs in the driver cannot be ended there: whoever asked is told who holds the files still."""
    with rig(tmp_path, gpus=1) as node:
        at(node, 0)
        node.scenario.set("power", "hang").write()
        node.hang()
        ask(node, datetime.now(UTC) + timedelta(seconds=60))
        node.round()
        answer = read_answer(node.machine.state_dir / ANSWER)
        assert answer is not None
        assert answer.released
        assert answer.holding == []  # the stand-in's hang, unlike a driver's, can be killed


def children_of_this() -> set[int]:
    """Child processes of the test run, of whatever test."""
    return set(children(Path("/proc"), os.getpid()))
