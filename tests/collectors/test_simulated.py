"""The collector ``simulated``: what a round gives, and that it is steady in time."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from small_fleet import NOW

from graynode.collectors import load
from graynode.collectors.base import Machine, Round, Rows
from graynode.collectors.simulated.collector import Simulated
from graynode.collectors.simulated.faults import FaultsError
from graynode.pipeline.codec import to_batch
from graynode.pipeline.schema import TABLES

ALL = frozenset({1, 10, 60})
_LOST = """
[[fault]]
kind = "gpu_lost"
start = "+3s"
node = 1
gpu = 2
[[fault]]
kind = "link_down"
start = "+5s"
duration = "4s"
node = 0
link = 1
[[fault]]
kind = "stuck_sensor"
signal = "temp_c"
start = "+1s"
node = 0
gpu = 0
"""


def _collector(
    tmp_path: Path, plan: str = "", *, nodes: int = 2, seed: int = 1, start: str = NOW.isoformat()
) -> Simulated:
    file = tmp_path / "faults.toml"
    file.write_text(plan, encoding="utf-8")
    machine = Machine("demo", "laptop", "m-1", "configured", "b-1", tmp_path)
    return Simulated(machine, nodes=nodes, seed=seed, faults_path=file, start=start)


def _round(seconds: float, due: frozenset[int] = ALL) -> Round:
    return Round(NOW + timedelta(seconds=seconds), due)


def _kinds(rows: Rows) -> list[str]:
    return [row["kind"] for row in rows.get("event", ())]


def test_the_list_knows_it() -> None:
    """The collector is in the list by its name."""
    assert load("simulated") is Simulated


def test_a_round_is_every_machine(tmp_path: Path) -> None:
    """Each machine gives its GPUs, ports and host under its own keys, in the configured cluster, and all of it fits
    the contract, values in their legal range."""
    rows = _collector(tmp_path).collect(_round(1))
    assert {table: len(some) for table, some in rows.items()} == {"gpu": 16, "link": 18, "host": 2, "inventory": 36}
    assert {row["cluster"] for some in rows.values() for row in some} == {"demo"}
    assert len({(row["node_id"], row["node"], row["boot_id"]) for row in rows["gpu"]}) == 2
    assert len({row["gpu_uuid"] for row in rows["gpu"]}) == 16
    for table, some in rows.items():
        to_batch(TABLES[table], some)
        for field in TABLES[table].fields:
            values = [row[field.name] for row in some if row.get(field.name) is not None]
            assert field.lo is None or all(v >= field.lo for v in values), field.name
            assert field.hi is None or all(v <= field.hi for v in values), field.name


def test_only_what_is_due(tmp_path: Path) -> None:
    """A round of one class holds the fields of that class and of no slower one."""
    collector = _collector(tmp_path)
    collector.collect(_round(1))
    for second, due, most in ((2, frozenset({1}), 1), (11, frozenset({1, 10}), 10), (61, ALL, 60)):
        rows = collector.collect(_round(second, due))
        for table in ("gpu", "link", "host"):
            classes = {TABLES[table].field(name).every_s for row in rows[table] for name in row}
            assert max(classes) == most, (table, most)


def test_a_gpu_is_lost_while_we_look(tmp_path: Path) -> None:
    """The kernel tells Xid 79 in its own words, NVML that the GPU is lost, and its rows end; its node's others stay."""
    collector = _collector(tmp_path, _LOST)
    before = collector.collect(_round(2))
    rows = collector.collect(_round(5))
    xid, off_bus, lost = (row for row in rows["event"])
    assert (xid["kind"], xid["code"], xid["source"]) == ("xid", 79, "kernel_log")
    assert xid["raw"].startswith("NVRM: Xid (PCI:0000:4c:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off")
    assert (off_bus["kind"], lost["kind"], lost["source"]) == ("gpu_off_bus", "gpu_lost", "nvml")
    assert {e["pci_bus_id"] for e in (xid, off_bus, lost)} == {"0000:4c:00.0"}
    gone = {row["gpu_uuid"] for row in before["gpu"]} - {row["gpu_uuid"] for row in rows["gpu"]}
    assert gone == {xid["gpu_uuid"]}
    assert [row["gpus_read"] for row in rows["host"]] == [8, 7]


def test_events_come_once_and_with_their_own_time(tmp_path: Path) -> None:
    """Rounds of any spacing tell each event once; its time is the event's, not the round's."""
    fine, coarse = _collector(tmp_path, _LOST), _collector(tmp_path, _LOST)
    by_second = [e for s in range(1, 21) for e in fine.collect(_round(s)).get("event", ())]
    at_once = [e for s in (1, 20) for e in coarse.collect(_round(s)).get("event", ())]
    assert by_second == at_once
    assert len({e["event_id"] for e in by_second}) == len(by_second) == 5
    assert [e["ts"] - NOW for e in by_second if e["kind"] == "link_down"] == [timedelta(seconds=5)]


def test_an_outage_is_summed_between_rounds(tmp_path: Path) -> None:
    """Seconds down add up to the outage however the rounds fall; the running outage is told as it grows."""
    for seconds in (range(1, 16), (1, 7, 8, 15), (1, 15)):
        collector = _collector(tmp_path, _LOST)
        ports = [
            next(r for r in collector.collect(_round(s))["link"] if r["node"] == "sim-000" and r["link"] == "mlx5_1/1")
            for s in seconds
        ]
        assert sum(p["down_s"] for p in ports) == 4
        assert sum(p["downs"] for p in ports) == 1
        assert max(p["outage_s"] for p in ports) == 4
        assert ports[-1]["state"] == "active"
    assert any(p["state"] == "down" for p in
               (r for s in (1, 7) for r in _collector(tmp_path, _LOST).collect(_round(s))["link"]))  # fmt: skip


def test_a_stuck_sensor(tmp_path: Path) -> None:
    """A stuck sensor shows one value for ever while its neighbours move."""
    collector = _collector(tmp_path, _LOST)
    seen: dict[int, set[float]] = {0: set(), 1: set()}
    for s in range(2, 60, 2):
        for row in collector.collect(_round(s, frozenset({1})))["gpu"]:
            if row["node"] == "sim-000" and row["gpu_index"] in seen:
                seen[row["gpu_index"]].add(row["temp_c"])
    assert len(seen[0]) == 1
    assert len(seen[1]) > 1


def test_a_restart_gives_the_same(tmp_path: Path) -> None:
    """Another process with the same seed and start gives the same rows at the same moment, another seed others."""
    a = _collector(tmp_path, _LOST)
    a.collect(_round(1))
    first = a.collect(_round(30))
    again = _collector(tmp_path, _LOST).collect(_round(30))
    for table in ("gpu", "host"):
        assert first[table] == again[table]
    assert _collector(tmp_path, _LOST, seed=2).collect(_round(30))["gpu"] != again["gpu"]


def test_counters_only_grow(tmp_path: Path) -> None:
    """From round to round no counter of a running machine falls."""
    collector = _collector(tmp_path, nodes=4)
    last: dict[tuple[str, str], int] = {}
    for s in range(1, 90, 3):
        for row in collector.collect(_round(s))["gpu"]:
            for field in TABLES["gpu"].fields:
                if field.kind == "counter" and field.name in row:
                    key = (row["gpu_uuid"], field.name)
                    assert row[field.name] >= last.get(key, 0), key
                    last[key] = row[field.name]
    assert len(last) > 400


def test_rows_are_missed_late_and_doubled(tmp_path: Path) -> None:
    """Over many rounds some machines' rounds are missing, some come twenty seconds late with their own time, and some
    come twice; all the others come once, at once."""
    collector, nodes = _collector(tmp_path, nodes=32), 32
    counts: Counter[tuple[str, datetime]] = Counter()
    late = 0
    rounds = 250
    for s in range(1, rounds + 1):
        for row in collector.collect(_round(s, frozenset({1})))["host"]:
            counts[row["node"], row["ts"]] += 1
            waited = (NOW + timedelta(seconds=s) - row["ts"]).total_seconds()
            assert waited in (0, 20)
            late += waited == 20
    assert 0 < late < 0.005 * nodes * rounds
    assert 0 < sum(n == 2 for n in counts.values()) < 0.005 * nodes * rounds
    assert 0 < nodes * rounds - len(counts) < 0.01 * nodes * rounds
    assert max(counts.values()) == 2


def test_without_a_start_the_first_round_is_now(tmp_path: Path) -> None:
    """Where no end of history is configured, faults' times count from the first round."""
    collector = _collector(tmp_path, _LOST, start="")
    assert _kinds(collector.collect(_round(1000))) == []
    assert _kinds(collector.collect(_round(1004.5))) == ["xid", "gpu_off_bus", "gpu_lost"]


def test_long_after_the_start(tmp_path: Path) -> None:
    """The fleet goes on past what was drawn at the start; jobs are still queued and run."""
    collector = _collector(tmp_path, nodes=8)
    collector.collect(_round(1))
    states: Counter[str] = Counter()
    for hour in range(160, 240):
        rows = collector.collect(_round(hour * 3600.0))
        states.update(row["state"] for row in rows.get("job", ()))
    assert states["queued"] > 5
    assert states["running"] > 5
    again = _collector(tmp_path, nodes=8).collect(_round(240 * 3600.0))  # a restart after ten days: the same fleet
    busy = {row["job_id"] for row in again["gpu"]} - {None}
    assert busy
    assert busy == {row["job_id"] for row in collector.collect(_round(240 * 3600.0))["gpu"]} - {None}


def test_wrong_settings(tmp_path: Path) -> None:
    """A start without a zone and a wrong faults file are said at once."""
    with pytest.raises(ValueError, match="no zone"):
        _collector(tmp_path, start="2026-11-30T10:00:00")
    with pytest.raises(FaultsError, match="did you mean thermal"):
        _collector(tmp_path, '[[fault]]\nkind = "therml"\nstart = "-1h"')


def test_closing_twice(tmp_path: Path) -> None:
    """Twice is as good as once."""
    collector = _collector(tmp_path)
    collector.collect(_round(1))
    collector.close()
    collector.close()
