"""From messages to committed tables: once, whatever is repeated, restarted, refused or full."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import landing_kit
import polars as pl
import pytest
from landing_kit import Log, Rejected, at, gpu_row, host_row, landing, message, rows
from polars.testing import assert_frame_equal

from graynode.pipeline import land_metrics as metrics
from graynode.pipeline.bus import Partition, Received
from graynode.pipeline.flood import FloodStop
from graynode.pipeline.lake import Lake, LakeError, SecondWriter
from graynode.pipeline.schema import EVENTS, SAMPLES

ID = f"{SAMPLES}/0"


def fleet(minutes: float = 3, nodes: int = 2) -> Log:
    """Nodes of two GPUs, 5 s a message, with host rows; each node's messages come 40 s after those of the one before
    it, so that windows of one are open while the next's are closed; a reboot in the middle of one."""
    sent: list[tuple[float, Any]] = []
    for number in range(int(minutes * 12)):
        for node in range(nodes):
            second, name = number * 5, f"n{node}"
            boot = "boot-2" if node == 1 and number > 14 else "boot-1"
            some = [
                gpu_row(second + i, name, f"{name}-G{gpu}", boot_id=boot, energy_mj=(second + i) * 10 % 800, temp_c=50)
                for i in range(5)
                for gpu in range(2)
            ]
            arrived = second + 5 + 40 * (nodes - 1 - node)
            sent.append((arrived, message(some, sequence=2 * number)))
            host = [host_row(second + i, name, boot_id=boot) for i in range(5)]
            sent.append((arrived, message(host, table="host", sequence=2 * number + 1)))
    log = Log()
    for arrived, one in sorted(sent, key=lambda pair: pair[0]):
        log.add(one, arrived)
    return log


class Place:
    """A consumer's group offsets, remembered."""

    def __init__(self) -> None:
        self.offsets: dict[Partition, int] = {}

    def commit(self, offsets: Mapping[Partition, int]) -> None:
        """Keep."""
        self.offsets.update(offsets)


def test_a_fleet_lands_whole(tmp_path: Path) -> None:
    """Raw rows, windows, hours and offsets of one log."""
    log = fleet()
    lake = landing_kit.land(tmp_path, log)
    assert (lake.read("gpu").height, lake.read("host").height) == (720, 360)
    windows = rows(lake, "gpu_30s")
    assert windows["samples"].to_list() == [30] * 24
    assert (lake.read("host_30s").height, lake.read("gpu_1h").height, lake.read("host_1h").height) == (12, 4, 2)
    assert lake.read("gpu_1h")["samples"].to_list() == [180] * 4
    assert {lake.offset(t, ID) for t in ("gpu", "host", "link", "gpu_30s", "quality", "event")} == {len(log.received)}


def test_a_message_that_comes_again_is_dropped_and_a_new_epoch_is_not(tmp_path: Path) -> None:
    """By machine, epoch and sequence; whatever lies between."""
    log = Log()
    first = message([gpu_row(0)], sequence=1)
    for one in (first, message([gpu_row(1)], sequence=2), first, message([gpu_row(2)], sequence=1, epoch=2), first):
        log.add(one, 5)
    assert sorted(landing_kit.land(tmp_path, log).read("gpu")["ts"]) == [at(0), at(1), at(2)]


def test_an_event_that_comes_again_is_one_row(tmp_path: Path) -> None:
    """Where no entity and time tells repeats apart, the numbers do; in one poll, in two, and after a restart."""
    log, lake = Log(EVENTS), Lake(str(tmp_path))
    event = {"ts": at(0), "cluster": landing_kit.CLUSTER, "node_id": "n1", "kind": "xid"}
    for _ in range(4):
        log.add(message([event], table="event", sequence=7), 1)
    for end in (2, 3, 4):
        carrier = landing(lake, 100)
        start = carrier.assigned(frozenset([log.partition]))[log.partition] or 0
        for some in landing_kit.polls(log.received[start:end], [1]):
            carrier.take(some)
            carrier.commit(everything=True)
    assert lake.read("event").height == 1


def test_an_hour_left_open_by_a_machine_that_fell_silent_is_made_after_a_restart(tmp_path: Path) -> None:
    """An hour after its end, from the windows that are in the lake."""
    log, lake = fleet(2), Lake(str(tmp_path))
    for now, hours in ((600, 0), (10_000, 4)):
        carrier = landing(lake, now)
        start = carrier.assigned(frozenset([log.partition]))[log.partition] or 0
        carrier.take(log.received[start:])
        for _ in range(2):
            carrier.commit({log.partition: len(log.received)}, everything=True)
        assert lake.read("gpu_30s").height == 16
        assert lake.read("gpu_1h").height == hours


def test_an_hour_that_is_in_the_lake_already_is_not_made_again(tmp_path: Path) -> None:
    """A history written beside the pipeline keeps its rows."""
    log, lake = fleet(2), Lake(str(tmp_path))
    who = {"ts": at(0), "cluster": landing_kit.CLUSTER, "node_id": "n0", "gpu_uuid": "n0-G0", "samples": 1}
    lake.write("gpu_1h", pl.DataFrame([who]))
    landing_kit.land(tmp_path, log)
    assert sorted(lake.read("gpu_1h")["node_id"]) == ["n0", "n1", "n1"]


def test_the_same_sample_in_another_message_is_one_row(tmp_path: Path) -> None:
    """In one poll or in two, as long as its window is open."""
    for name, chunks in (("one", ()), ("two", (1,))):
        log = Log()
        log.add(message([gpu_row(0, temp_c=1), gpu_row(1)], sequence=1), 5)
        log.add(message([gpu_row(1), gpu_row(2)], sequence=2), 5)
        lake = landing_kit.land(tmp_path / name, log, chunks=chunks)
        assert sorted(lake.read("gpu")["ts"]) == [at(0), at(1), at(2)]
        assert lake.read("gpu_30s")["samples"].to_list() == [3]


class Dying(Lake):
    """A lake whose process dies at a random commit: before it, or right after it."""

    def __init__(self, path: str, random_: random.Random) -> None:
        super().__init__(path)
        self._random = random_

    def write(self, table: str, frame: pl.DataFrame, *args: Any, **kw: Any) -> int:
        """Commit, or die on the way."""
        fate = self._random.random()
        if fate < 0.04:
            raise KeyboardInterrupt
        version = super().write(table, frame, *args, **kw)
        if fate > 0.96:
            raise KeyboardInterrupt
        return version


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """What a landing that nothing disturbs makes of ``fleet(2)``."""
    return landing_kit.land(tmp_path_factory.mktemp("whole"), fleet(2))


@pytest.mark.parametrize("seed", range(3))
def test_deaths_between_any_two_commits_lose_and_double_nothing(tmp_path: Path, undisturbed: Lake, seed: int) -> None:
    """Every table is committed on its own, so a death between two must leave each as if nothing had happened."""
    log, random_ = fleet(2), random.Random(seed)
    deaths, done = 0, False
    while not done:
        lake, place = Dying(str(tmp_path / "lake"), random_), Place()
        carrier = landing(lake, 10_000)
        try:
            start = carrier.assigned(frozenset([log.partition]))[log.partition] or 0
            for some in landing_kit.polls(log.received[start:], [random_.randint(1, 20) for _ in range(200)]):
                carrier.take(some)
                carrier.commit()
                carrier.keep_place(place)
            for _ in range(2):
                carrier.commit({log.partition: len(log.received)}, everything=True)
            done = True
        except KeyboardInterrupt:
            deaths += 1
    assert deaths > 0
    for table in ("gpu", "host", "gpu_30s", "host_30s", "gpu_1h", "host_1h"):
        assert_frame_equal(rows(Lake(str(tmp_path / "lake")), table), rows(undisturbed, table))


def test_a_restart_reads_from_its_snapshot_and_still_knows_what_it_met(tmp_path: Path) -> None:
    """A message sent again after the restart is dropped, and the bus is told what it may forget."""
    log, lake, place = fleet(2), Lake(str(tmp_path)), Place()
    now = [0.0]
    carrier = landing_kit.Landing(lake, Rejected(), clock=lambda: at(now[0]).timestamp(), idle_commit_s=1)
    carrier.assigned(frozenset([log.partition]))
    for some in landing_kit.polls(log.received, [12] * 8):
        now[0] += 31
        carrier.take(some)
        carrier.commit()
        carrier.keep_place(place)
    kept = place.offsets[log.partition]
    assert 0 < kept <= min(lake.offset(t, ID) or 0 for t in ("gpu", "gpu_30s", "host_30s"))
    log.add(log.received[2].message, 130)
    second = landing(Lake(str(tmp_path)), 10_000)
    assert second.assigned(frozenset([log.partition]))[log.partition] == kept
    second.take(log.received[kept:])
    second.commit({log.partition: len(log.received)}, everything=True)
    assert lake.read("gpu").height == 480
    assert rows(lake, "gpu_30s")["samples"].to_list() == [30] * 16


def test_two_pipelines_of_one_partition_do_not_both_write(tmp_path: Path) -> None:
    """The slower is refused, whatever it holds."""
    log = fleet(1)
    one, other = (landing(Lake(str(tmp_path)), 100) for _ in range(2))
    for carrier in (one, other):
        carrier.assigned(frozenset([log.partition]))
        carrier.take(log.received)
    assert one.commit()
    with pytest.raises(SecondWriter):
        other.commit()
    assert Lake(str(tmp_path)).read("gpu").height == 240


def test_a_partition_taken_away_and_given_back_goes_on_at_the_lake(tmp_path: Path) -> None:
    """What was not committed is dropped with it, and read again."""
    log, lake = fleet(2), Lake(str(tmp_path))
    carrier = landing(lake, 10_000)
    carrier.assigned(frozenset([log.partition]))
    carrier.take(log.received[:20])
    carrier.commit()
    carrier.take(log.received[20:30])
    other = Partition(SAMPLES, 1)
    assert set(carrier.assigned(frozenset([other]))) == {other}
    carrier.take(log.received[20:30])  # no longer ours: passed over
    carrier.commit()
    start = carrier.assigned(frozenset([log.partition, other]))[log.partition] or 0
    carrier.take(log.received[start:])
    carrier.commit({log.partition: len(log.received)}, everything=True)
    assert lake.read("gpu").height == 480
    assert rows(lake, "gpu_30s")["samples"].to_list() == [30] * 16


class Full(Lake):
    """A lake without room for some tables."""

    full: frozenset[str] = frozenset()

    def write(self, table: str, *args: Any, **kw: Any) -> int:
        """Refuse, or write."""
        if table in self.full:
            raise LakeError(f"{table}: no space left on device")
        return super().write(table, *args, **kw)


@pytest.mark.parametrize("full", [{"gpu"}, {"gpu_30s"}, {"gpu_1h"}, {"gpu", "host", "gpu_30s", "gpu_1h"}])
def test_a_table_that_cannot_be_written_keeps_its_rows_and_stops_no_other(tmp_path: Path, full: set[str]) -> None:
    """When there is room again everything is there once."""
    log, lake = fleet(), Full(str(tmp_path))
    carrier = landing(lake, 10_000)
    carrier.assigned(frozenset([log.partition]))
    lake.full = frozenset(full)
    for some in landing_kit.polls(log.received, [40]):
        carrier.take(some)
        assert not carrier.commit()
    assert lake.read("host").height == (0 if "host" in full else 360)
    lake.full = frozenset()
    for _ in range(2):
        assert carrier.commit({log.partition: len(log.received)}, everything=True)
    assert (lake.read("gpu").height, lake.read("host").height) == (720, 360)
    assert rows(lake, "gpu_30s")["samples"].to_list() == [30] * 24
    assert lake.read("gpu_1h")["samples"].to_list() == [180] * 4


def test_when_too_much_waits_nothing_more_is_read(tmp_path: Path) -> None:
    """``full`` tells the loop to stop polling."""
    lake = Full(str(tmp_path))
    lake.full = frozenset({"gpu"})
    carrier, log = landing(lake, 100, hold_bytes=10_000), fleet(1)
    carrier.assigned(frozenset([log.partition]))
    assert not carrier.full
    carrier.take(log.received)
    carrier.commit()
    assert carrier.full
    lake.full = frozenset()
    carrier.commit()
    assert not carrier.full


def test_what_cannot_be_read_goes_to_the_dead_letters_and_stops_nothing(tmp_path: Path) -> None:
    """Truncated, of a newer major version, of a table that does not belong there."""
    good = message([gpu_row(0)], sequence=0)
    log, rejected = Log(), Rejected()
    log.add(replace(good, value=good.value[:50], headers={**good.headers, "seq": "1"}), 1)
    log.add(replace(good, headers={**good.headers, "seq": "2", "v": "2.0"}), 1)
    log.add(replace(good, headers={**good.headers, "seq": "3", "table": "nonsense"}), 1)
    event = {"ts": at(0), "cluster": landing_kit.CLUSTER, "node_id": "n1", "event_id": "e"}
    log.add(message([event], table="event", sequence=4), 1)
    log.add(good, 1)
    lake = Lake(str(tmp_path))
    carrier = landing(lake, 100, rejected)
    landing_kit.carry(carrier, log)
    assert [received.offset for received, _ in rejected.letters] == [0, 1, 2, 3]
    assert all(reason for _, reason in rejected.letters)
    assert rejected.read == 1
    assert lake.read("gpu").height == 1
    assert lake.read("event").height == 0


def test_events_land_from_their_own_topic(tmp_path: Path) -> None:
    """Each topic's partition holds offsets of its own in the same table."""
    log = Log(EVENTS)
    event = {"ts": at(0), "cluster": landing_kit.CLUSTER, "node_id": "n1", "event_id": "e", "kind": "xid", "code": 79}
    log.add(message([event], table="event"), 1)
    lake = landing_kit.land(tmp_path, log)
    assert lake.read("event").row(0, named=True)["code"] == 79
    assert lake.offset("event", f"{EVENTS}/0") == 1


def test_a_clock_that_is_wrong_is_an_event_once_and_once_when_it_is_right_again(tmp_path: Path) -> None:
    """Twenty seconds ahead; ``ts`` is kept as it came; a restart does not tell it again."""
    log = Log()
    for s in range(0, 60, 5):
        log.add(message([gpu_row(s + (20 if s < 40 else 0))], sequence=s), s + 1)
    lake = landing_kit.land(tmp_path, log, chunks=[3, 3])
    events = lake.read("event").sort("ts")
    assert events["kind"].to_list() == ["clock_skew", "clock_skew_end"]
    assert events["node_id"].to_list() == ["n1", "n1"]
    assert at(20) in lake.read("gpu")["ts"].to_list()
    log.add(message([gpu_row(81)], sequence=99), 61)
    landing_kit.land(tmp_path, log)
    assert lake.read("event").height == 3


def test_a_backlog_is_no_skew_and_a_clock_ten_minutes_behind_is(tmp_path: Path) -> None:
    """What is late by a shrinking amount is a backlog; by a steady one, a clock."""
    late, slow = Log(), Log()
    for s in range(0, 1200, 30):
        late.add(message([gpu_row(s)], sequence=s), 1200 + s / 20)
        slow.add(message([gpu_row(s - 300)], sequence=s), s + 1)
    assert landing_kit.land(tmp_path / "late", late).read("event").height == 0
    assert landing_kit.land(tmp_path / "slow", slow).read("event")["kind"].to_list() == ["clock_skew"]


def test_quality_lands_with_the_samples_it_is_about(tmp_path: Path) -> None:
    """Once per change, across a restart too."""
    log = Log()
    for s in range(0, 40, 5):
        log.add(message([gpu_row(s + i, temp_c=999) for i in range(5)], sequence=s), s + 5)
    lake = Lake(str(tmp_path))
    for end in (4, 8):
        carrier = landing(lake, 40)
        start = carrier.assigned(frozenset([log.partition]))[log.partition] or 0
        carrier.take(log.received[start:end])
        carrier.commit(everything=True)
    assert lake.read("quality")["state"].to_list() == ["implausible"]
    assert lake.read("gpu")["temp_c"].null_count() == 40


def test_rare_tables_commit_their_offset_now_and_then(tmp_path: Path) -> None:
    """Though they have no rows, so that a restart need not read from the beginning."""
    lake, log, now = Lake(str(tmp_path)), fleet(1), [0.0]
    carrier = landing_kit.Landing(lake, Rejected(), clock=lambda: at(now[0]).timestamp(), idle_commit_s=300)
    carrier.assigned(frozenset([log.partition]))
    carrier.take(log.received)
    carrier.commit()
    assert (lake.offset("gpu", ID), lake.offset("probe", ID)) == (len(log.received), None)
    now[0] = 301
    carrier.commit()
    assert lake.offset("probe", ID) == len(log.received)


def test_what_left_the_bus_unread_is_counted_and_passed(tmp_path: Path) -> None:
    """Offsets go on at the oldest there is; what follows lands."""
    log, lake = fleet(1), Lake(str(tmp_path))
    carrier = landing(lake, 10_000)
    carrier.assigned(frozenset([log.partition]))
    lost = metrics.LOST.labels(SAMPLES)
    before = lost._value.get()
    carrier.skip_to(log.partition, 8)
    assert lost._value.get() - before == 8
    carrier.take(log.received[8:])
    carrier.commit({log.partition: len(log.received)}, everything=True)
    assert lake.offset("gpu", ID) == len(log.received)
    assert lake.read("gpu").height == sum(int(r.message.headers["rows"]) for r in log.received[8:] if _is_gpu(r))


def _is_gpu(received: Received) -> bool:
    return received.message.headers["table"] == "gpu"


class Flood(Rejected):
    """Dead letters that have had enough."""

    def put(self, received: Received, reason: str) -> None:
        """Stop."""
        raise FloodStop(reason)


def test_a_flood_of_unreadable_messages_stops_before_anything_is_passed(tmp_path: Path) -> None:
    """The poll that it happened in is not taken: after the repair it is read again."""
    log, lake = fleet(1), Lake(str(tmp_path))
    log.received[5] = replace(log.received[5], message=replace(log.received[5].message, value=b"?"))
    carrier = landing(lake, 100, Flood())
    carrier.assigned(frozenset([log.partition]))
    carrier.take(log.received[:4])
    with pytest.raises(FloodStop):
        carrier.take(log.received[4:8])
    carrier.commit(everything=True)
    assert lake.offset("gpu", ID) == 4
