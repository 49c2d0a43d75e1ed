"""The detect role over a real lake and a real spool: rounds, restart, shadow, one at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
import structlog
from agent_fakes import until
from finding_rows import event
from window_rounds import START, Cluster, Columns

from graynode.detectors.base import Round
from graynode.pipeline.bus import BusUnavailable
from graynode.pipeline.codec import Message, Origin, decode, encode
from graynode.pipeline.lake import CLOSED_THROUGH, Lake
from graynode.pipeline.schema import EVENTS, FINDINGS, INCIDENTS
from graynode.pipeline.spool import SpoolBus
from graynode.service.config import Config, ConfigError, parse
from graynode.service.detect import Detect, only_one
from graynode.service.incident_bus import from_message
from graynode.service.rounds import Rounds

SICK = 11
PARTITION = "graynode.samples/0"


def lanes(w: int, c: Columns) -> None:
    if w >= 20:
        c["pcie_width_last"][SICK] = 8.0


def settings(folder: Path, **detect: object) -> Config:
    detect = {"metrics_listen": "", "shadow": False, "detectors": ["rules", "pcie", "slow", "blind", "ecc"], **detect}
    table = {"cluster": "test", "bus": {"spool_dir": str(folder / "bus")}, "lake": {"path": str(folder / "lake")}}
    return parse({**table, "detect": detect}, "test")


def land(lake: Lake, rounds: Sequence[Round], *, suffix: str = "30s", closed: bool = True) -> None:
    """Window rows as the pipeline commits them, with the mark that says how far they are whole."""
    end = rounds[-1].start + timedelta(seconds=rounds[-1].window_s)
    marks = {CLOSED_THROUGH + PARTITION: int(end.timestamp())} if closed else {}
    for table in ("gpu", "link", "host"):
        lake.write(f"{table}_{suffix}", pl.concat([getattr(r, table) for r in rounds]), marks=marks)


def heard(folder: Path, topic: str) -> list[Message]:
    """Everything on a topic, by a reader of its own."""
    consumer = SpoolBus(folder / "bus", 1 << 30).consumer([topic], f"test-{time.monotonic_ns()}")
    found: list[Message] = []
    while batch := consumer.poll(0.05):
        found += [r.message for r in batch]
    consumer.close()
    return found


def rows(folder: Path, table: str) -> pl.DataFrame:
    """Rows of one table on the findings topic."""
    frames = [pl.from_arrow(decode(m)) for m in heard(folder, FINDINGS) if m.headers["table"] == table]
    return pl.concat([f for f in frames if isinstance(f, pl.DataFrame)]) if frames else pl.DataFrame()


def land_findings(folder: Path) -> None:
    """What the pipeline does with the findings topic."""
    lake = Lake(str(folder / "lake"))
    for table in ("finding", "round", "state"):
        found = rows(folder, table)
        if found.height:
            lake.write(table, found)


class Role:
    """A ``Detect`` with a clock that the test moves."""

    def __init__(self, folder: Path, config: Config, now: datetime) -> None:
        self.now, self.bus, self.lake = now, SpoolBus(folder / "bus", 1 << 30), Lake(str(folder / "lake"))
        self.detect = Detect(config, self.bus, self.lake, clock=lambda: self.now)

    def steps(self) -> int:
        done = 0
        while n := self.detect.step():
            done += n
        return done


def test_windows_become_findings_incidents_and_round_rows_on_the_bus(tmp_path: Path) -> None:
    """A GPU on half of its lanes: told from the fourth window, one incident, every round has its row."""
    c = Cluster(nodes=4, gpu_fault=lanes)
    land(Lake(str(tmp_path / "lake")), list(c.rounds(40)))
    role = Role(tmp_path, settings(tmp_path), c.start_of(40) + timedelta(seconds=20))
    assert role.steps() == 40
    role.detect.close()
    found, rounds = rows(tmp_path, "finding"), rows(tmp_path, "round")
    assert set(found.filter(pl.col("score") >= pl.col("threshold"))["gpu_uuid"]) == {"GPU-001-3"}
    assert found["live"].all()
    assert rounds["ts"].to_list() == [c.start_of(w) for w in range(40)]
    assert set(rounds["machines"]) == {4}
    assert rounds["findings"].sum() == found.height
    incidents = [from_message(m) for m in heard(tmp_path, INCIDENTS)]
    assert {i["cause"] for i in incidents} == {"pcie_degraded"}
    assert {i["node"] for i in incidents} == {"node001"}
    assert incidents[0]["opened_ts"].startswith("2026-03-02T06:12:00")


def test_a_rank_that_computes_longer_in_table_step_becomes_an_incident_about_its_gpu(tmp_path: Path) -> None:
    """Steps of a training loop in the lake, a rank 8 % slower in all of them: one ticket, slow_gpu."""

    def slow(_: int, c: Columns) -> None:
        c["busy_s"][SICK] *= 1.08

    c, lake = Cluster(nodes=4, steps=8, step_fault=slow), Lake(str(tmp_path / "lake"))
    windows = list(c.rounds(24))
    lake.write("step", pl.concat([r.steps for r in windows]))
    land(lake, windows)
    config = settings(tmp_path, detectors=["rules", "stragglers"])
    role = Role(tmp_path, config, c.start_of(24) + timedelta(seconds=20))
    assert role.steps() == 24
    role.detect.close()
    incidents = [from_message(m) for m in heard(tmp_path, INCIDENTS)]
    assert {(i["cause"], i["gpu_uuid"], i["severity"]) for i in incidents} == {("slow_gpu", "GPU-001-3", "ticket")}


def test_a_round_waits_for_its_windows_to_close_and_ninety_seconds_at_most(tmp_path: Path) -> None:
    """Closed by the pipeline: at once. Not closed: 90 s after the window's end, and not before."""
    c, lake = Cluster(nodes=2), Lake(str(tmp_path / "lake"))
    rounds = list(c.rounds(6))
    land(lake, rounds[:3])
    role = Role(tmp_path, settings(tmp_path), c.start_of(3) + timedelta(seconds=16))
    assert role.steps() == 3
    land(lake, rounds[3:5], closed=False)
    role.now = c.start_of(5) + timedelta(seconds=59)
    assert role.steps() == 0
    role.now = c.start_of(4) + timedelta(seconds=90)
    assert role.steps() == 1
    land(lake, rounds[5:])
    role.now = c.start_of(6) + timedelta(seconds=16)
    assert role.steps() == 2
    assert role.steps() == 0
    role.detect.close()


def test_a_restart_goes_on_from_the_stored_state_with_the_same_ids(tmp_path: Path) -> None:
    """Killed between two writings of the state, the rounds after the last one are computed again, alike."""
    c, lake = Cluster(nodes=4, gpu_fault=lanes), Lake(str(tmp_path / "lake"))
    windows = list(c.rounds(50))
    land(lake, windows[:24])
    config = settings(tmp_path)
    role = Role(tmp_path, config, c.start_of(24) + timedelta(seconds=20))
    role.steps()
    land(lake, windows[24:26])
    role.now = c.start_of(26) + timedelta(seconds=20)
    role.steps()
    role.detect.close()  # as a kill: two rounds are on the bus that no stored state has seen
    land_findings(tmp_path)
    before = rows(tmp_path, "finding")
    land(lake, windows[26:])
    second = Role(tmp_path, config, c.start_of(50) + timedelta(seconds=20))
    assert second.steps() == 26
    second.detect.close()
    after = rows(tmp_path, "finding")
    unbroken = Rounds(
        lake, "test", Role(tmp_path / "other", settings(tmp_path / "other"), START).detect._rounds.detectors
    )
    wanted = pl.concat([unbroken.score(r).findings for r in unbroken.rounds(START, c.start_of(50))])
    assert set(after["finding_id"]) == set(wanted["finding_id"])
    assert before.height
    again = after.filter(pl.col("finding_id").is_duplicated()).drop("live")
    assert again.unique().height == again["finding_id"].n_unique()


def test_in_shadow_statistics_are_stored_and_nobody_is_told_but_rules_always_speak(tmp_path: Path) -> None:
    """Statistical findings carry live = false and open nothing; the power brake of ``rules`` opens its incident."""

    def both(w: int, c: Columns) -> None:
        lanes(w, c)
        if w >= 20:
            c["hw_power_brake_s"][5] = 30.0

    c = Cluster(nodes=4, gpu_fault=both)
    land(Lake(str(tmp_path / "lake")), list(c.rounds(45)))
    role = Role(tmp_path, settings(tmp_path, shadow=True), c.start_of(45) + timedelta(seconds=20))
    role.steps()
    role.detect.close()
    found = rows(tmp_path, "finding")
    assert found.filter(pl.col("detector") == "pcie")["live"].any() is False
    assert found.filter(pl.col("detector") == "rules")["live"].all()
    assert {from_message(m)["cause"] for m in heard(tmp_path, INCIDENTS)} == {"power_brake"}


def test_baselines_come_from_the_hour_windows_of_the_past(tmp_path: Path) -> None:
    """With 35 days of history a slow clock is told in the first half hour; without, it is not claimed."""

    def slow(_: int, c: Columns) -> None:
        c["sm_clock_mhz_mean"][SICK] *= 0.9

    for name, with_past in (("with", True), ("without", False)):
        folder, c = tmp_path / name, Cluster(gpu_fault=slow)
        lake = Lake(str(folder / "lake"))
        if with_past:
            land(lake, [Cluster().history(step_h=12)], suffix="1h", closed=False)
        land(lake, list(c.rounds(45)))
        role = Role(folder, settings(folder), c.start_of(45) + timedelta(seconds=20))
        role.steps()
        role.detect.close()
        found = rows(folder, "finding")
        told = found.filter(pl.col("signal") == "clock") if found.height else found
        assert bool(told.height) == with_past


class Away:
    """A producer whose bus goes away and comes back."""

    def __init__(self, producer: object) -> None:
        self.producer, self.away = producer, False

    def send(self, topic: str, messages: Sequence[Message]) -> None:
        if self.away:
            raise BusUnavailable("the bus is away")
        self.producer.send(topic, messages)

    def close(self) -> None:
        self.producer.close()


def test_a_bus_that_goes_away_delays_rounds_and_loses_none(tmp_path: Path) -> None:
    """What was found is kept and goes first when the bus is back; no window is scored twice."""
    c, lake = Cluster(nodes=4, gpu_fault=lanes), Lake(str(tmp_path / "lake"))
    land(lake, list(c.rounds(40)))
    role = Role(tmp_path, settings(tmp_path), c.start_of(40) + timedelta(seconds=20))
    away = Away(role.detect._producer._producer)
    role.detect._producer._producer = away
    away.away = True
    for _ in range(3):
        with pytest.raises(BusUnavailable):
            role.detect.step()
    away.away = False
    role.steps()
    role.detect.close()
    assert rows(tmp_path, "round")["ts"].to_list() == [c.start_of(w) for w in range(40)]
    found = rows(tmp_path, "finding")
    assert found["finding_id"].is_unique().all()
    revisions = [from_message(m)["revision"] for m in heard(tmp_path, INCIDENTS)]
    assert revisions == sorted(set(revisions))


class Gone:
    """A spool that is not there for the first ``calls`` calls of each kind."""

    def __init__(self, bus: SpoolBus, calls: int) -> None:
        self._bus, self._left = bus, {"partitions": calls, "consumer": calls}

    def _reach(self, kind: str) -> None:
        self._left[kind] -= 1
        if self._left[kind] >= 0:
            raise BusUnavailable("Kafka at nowhere:9092: topic graynode.incidents does not exist; create it")

    def partitions(self, topic: str) -> object:
        self._reach("partitions")
        return self._bus.partitions(topic)

    def consumer(self, *asked: object, **more: object) -> object:
        self._reach("consumer")
        return self._bus.consumer(*asked, **more)  # type: ignore[arg-type]

    def producer(self) -> object:
        return self._bus.producer()


def test_a_bus_that_is_away_at_the_start_is_waited_for(tmp_path: Path) -> None:
    """Broker or topic missing: one line that says why, no traceback, and the rounds begin when it is there."""
    c, folder = Cluster(nodes=4, gpu_fault=lanes), tmp_path
    land(Lake(str(folder / "lake")), list(c.rounds(40)))
    bus, now = SpoolBus(folder / "bus", 1 << 30), c.start_of(40) + timedelta(seconds=20)
    detect = Detect(settings(folder), Gone(bus, 3), Lake(str(folder / "lake")), lambda: now, retry_s=0.01)  # type: ignore[arg-type]
    stop = threading.Event()
    with structlog.testing.capture_logs() as logs:
        role = threading.Thread(target=detect.run, args=(stop,))
        role.start()
        deadline = time.monotonic() + 30
        while rows(folder, "round").height < 40 and time.monotonic() < deadline:
            time.sleep(0.1)
        stop.set()
        role.join()
    detect.close()
    assert rows(folder, "round").height == 40
    said = [entry["reason"] for entry in logs if entry["log_level"] == "warning"]
    assert said == ["Kafka at nowhere:9092: topic graynode.incidents does not exist; create it"] * len(said)
    assert 1 <= len(said) <= 2  # once for the rounds' thread, and once for the hard events' where they start meanwhile
    assert not [entry for entry in logs if entry["log_level"] == "error"]


def test_a_role_that_waits_for_its_bus_ends_when_told_to(tmp_path: Path) -> None:
    """It has done nothing wrong: 0."""
    bus = Gone(SpoolBus(tmp_path / "bus", 1 << 30), 1_000_000)
    detect = Detect(settings(tmp_path), bus, Lake(str(tmp_path / "lake")), lambda: START, retry_s=0.01)  # type: ignore[arg-type]
    stop = threading.Event()
    threading.Timer(0.2, stop.set).start()
    assert detect.run(stop) == 0
    detect.close()


def test_what_ended_during_the_hours_that_are_caught_up_is_resolved_in_their_time(tmp_path: Path) -> None:
    """Lanes lost for a while in the morning: resolved an hour of windows after the last of it, not of the clock."""

    def for_a_while(w: int, c: Columns) -> None:
        if 20 <= w < 40:
            c["pcie_width_last"][SICK] = 8.0

    c = Cluster(nodes=4, gpu_fault=for_a_while)
    land(Lake(str(tmp_path / "lake")), list(c.rounds(200)))
    role = Role(tmp_path, settings(tmp_path, resolve_after_s=3600), c.start_of(200) + timedelta(seconds=20))
    role.steps()
    role.detect.close()
    last = [from_message(m) for m in heard(tmp_path, INCIDENTS)][-1]
    assert (last["cause"], last["state"]) == ("pcie_degraded", "resolved")
    assert last["resolved_ts"] == f"{c.start_of(40) + timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}"
    assert role.detect._incidents.current() == []


def test_a_second_detect_of_the_cluster_is_refused_with_who_holds_it(tmp_path: Path) -> None:
    """Two would tell everything twice; another cluster may run beside it."""
    config = settings(tmp_path)
    with only_one(config):
        with pytest.raises(ConfigError, match="another graynode detect of cluster 'test' is running"):
            only_one(config)
        only_one(parse({"cluster": "other", "lake": {"path": str(tmp_path / "lake")}}, "test")).close()
    only_one(config).close()


def test_an_unknown_detector_is_a_wrong_configuration(tmp_path: Path) -> None:
    """It says the key, and which there are."""
    with pytest.raises(ConfigError, match=r"detect\.detectors.*slwo.*slow"):
        Role(tmp_path, settings(tmp_path, detectors=["slwo"]), START)


def test_the_role_starts_on_nothing_waits_and_stops(tmp_path: Path) -> None:
    """No lake, no topic, no event: it runs, and ends with 0 when it is told to."""
    role, stop = Role(tmp_path, settings(tmp_path), START), threading.Event()
    threading.Timer(1.0, stop.set).start()
    assert role.detect.run(stop) == 0
    role.detect.close()


def test_a_site_decides_how_loud_an_xid_is(tmp_path: Path) -> None:
    """``detect.xid_severity`` reaches the hard-event path: what the site calls a ticket is told, its digest is not."""
    config = settings(tmp_path, xid_severity={"31": "ticket", "95": "digest"})
    bus = SpoolBus(tmp_path / "bus", 1 << 30)
    now = datetime.now(UTC)
    events = [event(0, code=code, ts=now) for code in (31, 95)]
    with closing(bus.producer()) as producer:
        producer.send(EVENTS, [encode("event", events, Origin("test", "n1", 1), 1, now)])
    stop = threading.Event()
    role = threading.Thread(target=Detect(config, bus, Lake(str(tmp_path / "lake"))).run, args=(stop,))
    role.start()
    try:
        assert until(lambda: bool(heard(tmp_path, INCIDENTS)))
        time.sleep(0.5)
    finally:
        stop.set()
        role.join(30)
    told = [from_message(message) for message in heard(tmp_path, INCIDENTS)]
    assert {i["evidence"][0]["signal"] for i in told} == {"xid_31"}
