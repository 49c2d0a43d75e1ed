"""kill -9 of a real pipeline process at random moments: nothing is lost, nothing is doubled."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import landing_kit
import polars as pl
import pyarrow as pa
import pytest
from polars.testing import assert_frame_equal

from graynode.pipeline.bus import Bus
from graynode.pipeline.codec import Message, decode
from graynode.pipeline.kafka import KafkaBus, KafkaSettings
from graynode.pipeline.lake import Lake
from graynode.pipeline.lake_format import conform
from graynode.pipeline.schema import SAMPLES
from graynode.pipeline.spool import SpoolBus
from graynode.pipeline.window_counters import no_carry
from graynode.pipeline.window_math import aggregate
from graynode.service.config import parse
from graynode.service.pipeline import Session

KILLS = int(os.environ.get("GRAYNODE_KILLS", "5"))
NODES = 6
BATCHES = 120
SEED = 20261130


def fleet(begin: datetime) -> list[list[Message]]:
    """Rounds of messages: six nodes of two GPUs, 5 s a message, one reboot, and every tenth message sent again."""
    rounds: list[list[Message]] = []
    shift = (begin - landing_kit.T0).total_seconds()
    for batch in range(BATCHES):
        some: list[Message] = []
        for node in range(NODES):
            boot = "boot-2" if node == 3 and batch >= 50 else "boot-1"
            since = batch - 50 if boot == "boot-2" else batch
            rows = [
                landing_kit.gpu_row(
                    shift + batch * 5 + i, f"n{node}", f"GPU-{node}-{gpu}", boot_id=boot, sm_clock_mhz=1500 + i + gpu,
                    energy_mj=(since * 5 + i) * 640 + gpu, ecc_sbe_volatile=since // 3 if i == 0 else None,
                )
                for i in range(5)
                for gpu in range(2)
            ]  # fmt: skip
            host = [landing_kit.host_row(shift + batch * 5 + i, f"n{node}", boot_id=boot) for i in range(5)]
            some.append(landing_kit.message(rows, sequence=2 * batch))
            some.append(landing_kit.message(host, table="host", sequence=2 * batch + 1))
        rounds.append(some + (rounds[-1] if batch % 10 == 9 else []))
    return rounds


def sent_rows(rounds: list[list[Message]], table: str) -> pl.DataFrame:
    """What the fleet measured, each sample once."""
    unique = {(m.key, m.headers["seq"]): m for some in rounds for m in some if m.headers["table"] == table}
    return conform(table, pl.DataFrame(pa.concat_tables([decode(m) for m in unique.values()])))


class Pipeline:
    """The process under test."""

    def __init__(self, kind: str, where: str, lake: Path, log: Path) -> None:
        self._command = [sys.executable, "-I", str(Path(landing_kit.__file__).with_name("pipeline_child.py"))]
        self._command += [kind, where, str(lake)]
        self._log = log

    def start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(self._command, stdout=log, stderr=log)


class Feed:
    """Sends the rounds in the background, a part per kill, so that no kill meets a pipeline with nothing to do."""

    def __init__(self, bus: Bus, rounds: list[list[Message]]) -> None:
        self._bus, self._rounds, self._allowed = bus, rounds, threading.Semaphore(0)
        self._hasty = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def some(self) -> None:
        """Let this kill's part go."""
        self._allowed.release(max(1, BATCHES // KILLS))

    def rest(self) -> None:
        """Let all go that has not gone, and wait until it has."""
        self._hasty.set()
        self._allowed.release(BATCHES)
        self._thread.join()

    def _send(self) -> None:
        with closing(self._bus.producer()) as producer:
            for some in self._rounds:
                self._allowed.acquire()
                producer.send(SAMPLES, some)
                self._hasty.wait(0.1)


def kill_at_random(pipeline: Pipeline, lake: Lake, feed: Feed, random_: random.Random) -> int:
    """Kill the process KILLS times, every fourth before it may have begun; gives how many met one that had committed.

    Those that wait see a commit of the process first, and strike while the next ones are made.
    """
    worked = 0
    for number in range(KILLS):
        before = lake.version("gpu")
        process = pipeline.start()
        try:
            feed.some()
            patience = time.monotonic() + (random_.uniform(0, 2) if number % 4 == 3 else 30)
            while lake.version("gpu") <= before and time.monotonic() < patience and process.poll() is None:
                time.sleep(0.05)
            time.sleep(random_.uniform(0, 0.7))
            worked += lake.version("gpu") > before
            assert process.poll() is None, "the pipeline ended by itself"
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait(10)
    return worked


def finish(make: Callable[[], Bus], lake: Path, rounds: list[list[Message]]) -> None:
    """Let a last pipeline read to the end, its clock a few minutes ahead, so that the last windows close."""
    stop = threading.Event()
    config = parse({"pipeline": {"commit_s": 0.2, "idle_commit_s": 1.0}, "lake": {"path": str(lake)}}, "test")
    session = Session(config, make(), Lake(str(lake)), wall=lambda: time.time() + 600)
    thread = threading.Thread(target=session.run, args=(stop,))
    thread.start()
    patience = time.monotonic() + 60
    windows = NODES * 2 * BATCHES * 5 // 30
    watched = Lake(str(lake))
    while time.monotonic() < patience and watched.read("gpu_30s", columns=["ts"]).height < windows:
        time.sleep(0.3)
    stop.set()
    thread.join(30)
    assert not thread.is_alive()


def check(lake: Lake, rounds: list[list[Message]]) -> None:
    """The lake holds what was sent, once, and the windows that follow from it."""
    for table in ("gpu", "host"):
        sent = sent_rows(rounds, table).sort("node_id", "ts", *(["gpu_uuid"] if table == "gpu" else []))
        found = lake.read(table).sort("node_id", "ts", *(["gpu_uuid"] if table == "gpu" else []))
        assert_frame_equal(found, sent)
        windows, _ = aggregate(table, sent, no_carry(table))
        assert_frame_equal(
            landing_kit.rows(lake, f"{table}_30s"),
            windows.sort("cluster", "node_id", *(["gpu_uuid"] if table == "gpu" else []), "ts"),
        )


@pytest.fixture
def spool(tmp_path: Path) -> tuple[str, str, Callable[[], Bus]]:
    folder = tmp_path / "bus"
    return "spool", str(folder), lambda: SpoolBus(folder, 1 << 30)


@pytest.fixture
def kafka(new_broker: Callable[..., Any]) -> tuple[str, str, Callable[[], Bus]]:
    address = new_broker().address()
    bus = KafkaBus(KafkaSettings(address, session_timeout_s=3))
    bus.create_topics(3, 1)
    return "kafka", address, lambda: bus


@pytest.mark.early
@pytest.mark.timeout(120 + 30 * KILLS)
@pytest.mark.parametrize("medium", ["spool", pytest.param("kafka", marks=pytest.mark.kafka)])
def test_killed_at_random_moments(medium: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Whatever dies when, ``GRAYNODE_KILLS`` times on each bus: every sample is in the lake once, and every window
    says what its samples say."""
    kind, where, make = request.getfixturevalue(medium)
    begin = datetime.fromtimestamp(time.time() // 30 * 30, UTC) - timedelta(seconds=BATCHES * 5)
    rounds, lake_path = fleet(begin), tmp_path / "lake"
    pipeline, feed = Pipeline(kind, where, lake_path, tmp_path / "pipeline.log"), Feed(make(), rounds)
    try:
        worked = kill_at_random(pipeline, Lake(str(lake_path)), feed, random.Random(SEED))
    finally:
        feed.rest()
    assert worked >= KILLS // 2, (tmp_path / "pipeline.log").read_text()[-3000:]
    finish(make, lake_path, rounds)
    check(Lake(str(lake_path)), rounds)
