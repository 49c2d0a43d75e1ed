"""NVLinks one by one: states, seconds down, every generation's counters and far ends, through the real pynvml."""

from __future__ import annotations

import json
import time as wall
from datetime import UTC, datetime, timedelta
from pathlib import Path

import nvml_standin as standin
import pytest
from nvml_rig import Rig, events, links, quality, rig, samples

from graynode.collectors.base import Rows
from graynode.collectors.nvml.nvlink import GRACE_S
from graynode.pipeline.schema import LINK_STATES, TABLES

pytestmark = pytest.mark.nvml

LINK = {f.name: f for f in TABLES["link"].fields}
T0 = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


class Time:
    """A monotonic clock that stands until it is told to go on; rounds' timestamps go with it."""

    def __init__(self) -> None:
        self.s = 1000.0

    def __call__(self) -> float:
        return self.s

    def round(self, node: Rig, after_s: float, *due: int) -> Rows:
        """A round so many seconds after the last."""
        self.s += after_s
        return node.round(*due, ts=T0 + timedelta(seconds=self.s))


def test_h100_links(tmp_path: Path) -> None:
    """A row for each of the 18 links of each GPU, in the contract's units, with where it leads in the inventory."""
    with rig(tmp_path, gpus=2) as node:
        rows = node.round()
        uuid = node.scenario.uuid(1)
        told = links(rows, uuid)
        assert sorted(told) == list(range(18))
        row = told[3]
        assert (row["link"], row["link_kind"], row["state"]) == (f"{uuid}/3", "nvlink", "active")
        assert row["rate_gbps"] == pytest.approx(212.496)
        assert row["tx_bytes"] >= 3000 * 1024
        assert (row["crc_errors"], row["replays"], row["link_error_recovery"]) == (0, 0, 0)
        assert row["device"] == "NVLink 4.0 to switch 0000:08:00.0"
        assert (row["down_s"], row["outage_s"], row["downs"], row["unseen_s"]) == (0.0, 0.0, 0, 0.0)
        ports = {r["entity"]: r for r in rows["inventory"] if r["kind"] == "port"}
        assert len(ports) == 36
        far = json.loads(ports[f"{uuid}/3"]["attributes"])
        assert far == {
            "gpu_uuid": uuid, "link": 3, "version": "4.0", "remote": "switch", "remote_pci": "0000:08:00.0",
            "remote_link": "19",
        }  # fmt: skip
        assert not [r for r in node.round().get("inventory", ()) if r["kind"] == "port"]


def test_every_value_has_the_contract_type(tmp_path: Path) -> None:
    """What is told of the links of any model is a contract field, of its type, within its bounds."""
    for model in (standin.h100, standin.a100, standin.b200, standin.gb200, standin.a100_pcie):
        root = tmp_path / model.__name__
        root.mkdir()
        with rig(root, model, gpus=1) as node:
            told = node.round()["link"]
            assert told
            for name, value in ((n, v) for row in told for n, v in row.items() if v is not None):
                kind = LINK[name].type
                assert isinstance(value, {"int": int, "flo": (int, float), "str": str}[kind[:3]]), (name, value)
                assert LINK[name].lo is None or value >= LINK[name].lo, (name, value)
            assert {row["state"] for row in told} <= set(LINK_STATES)


def test_b200_counters(tmp_path: Path) -> None:
    """NVLink 5 counts link by link, and its packed bit error ratio is unpacked: mantissa × 10^−exponent."""
    with rig(tmp_path, standin.b200, gpus=1) as node:
        fields = {208: "rx_errors", 209: "rx_remote_physical_errors", 206: "malformed_packets", 207: "buffer_overruns",
                  210: "rx_general_errors", 211: "integrity_errors", 212: "tx_discards", 213: "link_error_recovery",
                  214: "recoveries_failed", 215: "recovery_events", 219: "effective_errors",
                  221: "symbol_errors"}  # fmt: skip
        for id_ in fields:
            node.scenario.set(f"fi.{id_}.7", id_)
        node.scenario.set("fi.222.7", 3 << 8 | 12).write()
        told = links(node.round(), node.scenario.uuid(0))
        assert {name: told[7][name] for name in fields.values()} == {name: id_ for id_, name in fields.items()}
        assert all(told[6][name] == 0 for name in fields.values())
        assert told[7]["symbol_ber_ratio"] == pytest.approx(3e-12)
        assert told[7]["effective_ber_ratio"] == pytest.approx(15e-255)
        assert told[7]["tx_bytes"] >= 70_000
        assert told[7]["rate_gbps"] == pytest.approx(425.0)


def test_a100_by_the_older_calls(tmp_path: Path) -> None:
    """An A100 on an older driver answers states and counters by the older calls; what it lacks is said once a GPU."""
    with rig(tmp_path, standin.a100, gpus=1, record=True) as node:
        node.scenario.set("link_errors.2.5", 40).set("link_errors.0.5", 3).set("link_errors.1.5", 2).write()
        rows = node.round()
        told = links(rows, node.scenario.uuid(0))
        assert sorted(told) == list(range(12))
        assert (told[5]["crc_flit_errors"], told[5]["replays"], told[5]["link_error_recovery"]) == (40, 3, 2)
        assert (told[4]["crc_flit_errors"], told[4]["crc_data_errors"], told[4]["ecc_errors"]) == (0, 0, 0)
        assert "rx_errors" not in told[5]
        lacking = {q["field"]: q for q in rows["quality"] if q["table_name"] == "link"}
        assert lacking["rx_errors"]["entity"] == node.scenario.uuid(0)
        assert lacking["rx_errors"]["state"] == "unsupported"
        before = len(standin.called(node.calls))
        node.round()
        assert not [c for c in standin.called(node.calls)[before:] if c[2] and "fi.2" in c[0]]


def test_states(tmp_path: Path) -> None:
    """The four states of a link, sleep apart from down; the sums of table gpu are made of the same answers."""
    with rig(tmp_path, gpus=1) as node:
        node.scenario.set("link.0", 0).set("link.1", 2).set("link.2", 2).set("link.3", 3).set("link.4", 9).write()
        rows = node.round()
        told = links(rows, node.scenario.uuid(0))
        assert [told[n]["state"] for n in range(6)] == ["inactive", "sleep", "sleep", "disabled", "unknown", "active"]
        gpu = samples(rows)[node.scenario.uuid(0)]
        assert [gpu[f"nvlink_links_{s}"] for s in ("active", "inactive", "sleep")] == [13, 1, 2]


def test_an_outage_second_by_second(tmp_path: Path) -> None:
    """A link that goes down is told, watched every second until it is back, and the outage is one piece."""
    time = Time()
    with rig(tmp_path, gpus=1, monotonic=time) as node:
        node.round(ts=T0 + timedelta(seconds=time.s))
        node.scenario.set("link.4", 0).write()
        assert "link" not in time.round(node, 1, 1)  # nobody looks: the 10 s class is not due
        rows = time.round(node, 9, 1, 10)
        assert links(rows, node.scenario.uuid(0))[4]["downs"] == 1
        (down,) = events(rows, "link_down")
        assert down["link"] == f"{node.scenario.uuid(0)}/4"
        assert down["message"] == "NVLink 4 of GPU 0000:18:00.0 went down"
        seconds = [time.round(node, 1, 1) for _ in range(8)]
        assert [[*links(r, node.scenario.uuid(0))] for r in seconds] == [[4]] * 8
        node.scenario.set("link.4", 1).write()
        rows = time.round(node, 1, 1)
        row = links(rows, node.scenario.uuid(0))[4]
        assert (row["state"], row["outage_s"], row["down_s"]) == ("active", pytest.approx(9.0), pytest.approx(1.0))
        (up,) = events(rows, "link_up")
        assert up["attributes"]["outage_s"] == pytest.approx(9.0)
        summed = sum(links(r, node.scenario.uuid(0))[4]["down_s"] for r in [*seconds, rows])
        assert summed == pytest.approx(9.0)
        assert "link" not in time.round(node, 1, 1)


def test_watched_every_second(tmp_path: Path) -> None:
    """With ``nvlink_watch_s`` 1 an outage of two seconds between two rounds of the 10 s class is seen, and is 2 s."""
    time = Time()
    with rig(tmp_path, gpus=1, monotonic=time, nvlink_watch_s=1) as node:
        node.round(ts=T0 + timedelta(seconds=time.s))
        assert "link" not in time.round(node, 1, 1)
        node.scenario.set("link.4", 0).write()
        assert events(time.round(node, 1, 1), "link_down")
        time.round(node, 1, 1)
        node.scenario.set("link.4", 1).write()
        rows = time.round(node, 1, 1)
        assert links(rows, node.scenario.uuid(0))[4]["outage_s"] == pytest.approx(2.0)
        assert set(links(rows, node.scenario.uuid(0))) == {4}


def test_an_outage_by_the_clock(tmp_path: Path) -> None:
    """A link that is down for a second of real time gives about a second, whatever else the machine does."""
    with rig(tmp_path, gpus=1) as node:
        node.round()
        now = wall.time() - float(node.scenario.values["sys", "since"])
        node.scenario.set("link.4", f"@0:1,{now + 0.3:.3f}:0,{now + 1.3:.3f}:1").write()
        down = node.until(lambda r: bool(events(r, "link_down")), 1, 10)
        up = node.until(lambda r: bool(events(r, "link_up")), 1)
        seen = events(up, "link_up")[0]["attributes"]["outage_s"]
        apart = up["event"][0]["observed_ts"] - down["event"][0]["observed_ts"]
        assert 0.2 < seen < 5
        assert seen == pytest.approx(apart.total_seconds(), abs=0.5)


def test_a_link_that_stays_down(tmp_path: Path) -> None:
    """After ten minutes a dead link is looked at every 10 s again; its outage grows on, in one piece."""
    time = Time()
    with rig(tmp_path, gpus=1, monotonic=time) as node:
        node.round(ts=T0 + timedelta(seconds=time.s))
        node.scenario.set("link.4", 0).write()
        time.round(node, 10, 1, 10)
        for _ in range(60):
            time.round(node, 10, 1, 10)
        assert "link" not in time.round(node, 1, 1)
        row = links(time.round(node, 9, 1, 10), node.scenario.uuid(0))[4]
        assert row["outage_s"] == pytest.approx(610.0)
        assert row["down_s"] == pytest.approx(10.0)


def test_an_xid_of_a_link_is_a_reason_to_look(tmp_path: Path) -> None:
    """After an NVLink Xid the links are looked at with the next second, not with the next 10 s."""
    with rig(tmp_path, gpus=1) as node:
        node.round()
        node.scenario.set("link.4", 0).event(0, 74).write()
        assert events(node.round(1), "xid")
        assert events(node.round(1), "link_down")


def test_all_links_at_once_are_one_event(tmp_path: Path) -> None:
    """When a switch goes, 18 links of a GPU go with it: one event a GPU, rows for each."""
    with rig(tmp_path, gpus=2) as node:
        node.round()
        for link in range(18):
            node.scenario.set(f"link.{link}", 0)
        node.scenario.write()
        rows = node.round(1, 10)
        told = events(rows, "link_down")
        assert [e["attributes"]["links"] for e in told] == [list(range(18))] * 2
        assert {e["link"] for e in told} == {None}
        assert len(rows["link"]) == 36


def test_sleep_and_disabled_are_not_down(tmp_path: Path) -> None:
    """A link that sleeps or has its traffic disabled has no seconds down and no events; coming back is none either."""
    with rig(tmp_path, gpus=1) as node:
        node.round()
        for state in (2, 1, 3, 1):
            node.scenario.set("link.4", state).write()
            rows = node.round(1, 10)
            assert not rows.get("event")
            assert not links(rows, node.scenario.uuid(0))[4]["down_s"]


def test_training_after_boot_is_no_outage(tmp_path: Path) -> None:
    """Links known to have been active are inactive for minutes after a reboot: nothing is down until grace is over."""
    time = Time()
    with rig(tmp_path, gpus=1, monotonic=time) as node:
        node.round(ts=T0 + timedelta(seconds=time.s))
        time.round(node, 10, 1, 10)
        for link in range(18):
            node.scenario.set(f"link.{link}", 0)
        node.scenario.write()
        node.collector.close()
        node.machine = type(node.machine)(**{**_fields(node.machine), "boot_id": "another-boot"})
        node.restart()
        for _ in range(20):
            rows = time.round(node, 10, 1, 10)
            assert not rows.get("event")
            assert not any(r["down_s"] or r["outage_s"] for r in rows["link"])
        for link in range(17):
            node.scenario.set(f"link.{link}", 1)
        node.scenario.write()
        rows = time.round(node, 10, 1, 10)
        assert not rows.get("event")
        assert links(rows, node.scenario.uuid(0))[0]["state"] == "active"
        rows = time.round(node, GRACE_S, 1, 10)  # the 18th has not come up: that is a fault
        assert [e["attributes"]["links"] for e in events(rows, "link_down")] == [[17]]


def test_a_driver_load_and_a_reset_begin_anew(tmp_path: Path) -> None:
    """After the driver was loaded anew, or a GPU was reset alone, its links train: no outage."""
    with rig(tmp_path, gpus=2) as node:
        node.round()
        node.scenario.set("energy", "10+1", 1).set("link.4", 0).write()
        rows = node.round()
        assert events(rows, "counter_reset")
        assert [e["gpu_uuid"] for e in events(rows, "link_down")] == [node.scenario.uuid(0)]


def test_no_bridge_no_links(tmp_path: Path) -> None:
    """A PCIe card without a bridge has links that were never active: a row a minute, nothing down, nothing told."""
    with rig(tmp_path, standin.a100_pcie, gpus=1) as node:
        rows = node.round()
        assert {r["state"] for r in rows["link"]} == {"inactive"}
        assert not any(r["down_s"] for r in rows["link"])
        for _ in range(3):
            rows = node.round(1, 10)
            assert "link" not in rows
            assert "event" not in rows


def test_a_gpu_without_nvlink(tmp_path: Path) -> None:
    """A card without NVLink is asked once, gives no rows of links, and says so."""
    with rig(tmp_path, standin.consumer) as node:
        rows = node.round()
        assert "link" not in rows
        assert quality(rows, node.scenario.uuid(0))["nvlink_links_active"][0] == "unsupported"
        assert "link" not in node.round()


def test_an_outage_survives_a_restart(tmp_path: Path) -> None:
    """An agent that was away for 8 s finds the link still down: one outage. Away for a minute: that is unseen."""
    time = Time()
    with rig(tmp_path, gpus=1, monotonic=time) as node:
        node.round(ts=T0 + timedelta(seconds=time.s))
        node.scenario.set("link.4", 0).write()
        time.round(node, 10, 1, 10)
        time.round(node, 10, 1, 10)
        node.restart()
        rows = time.round(node, 8, 1, 10)
        assert not events(rows, "link_down")
        row = links(rows, node.scenario.uuid(0))[4]
        assert (row["outage_s"], row["unseen_s"]) == (pytest.approx(18.0), 0.0)
        time.round(node, 2, 1, 10)
        node.restart()
        row = links(time.round(node, 60, 1, 10), node.scenario.uuid(0))[4]
        assert row["unseen_s"] == pytest.approx(60.0)
        assert row["down_s"] == 0.0


def test_counters_once_a_minute_and_when_sums_grow(tmp_path: Path) -> None:
    """One by one, counters are read every minute, and at once for the GPU one of whose sums has grown."""
    with rig(tmp_path, gpus=2) as node:
        node.round()
        assert not any("replays" in r for r in node.round(1, 10)["link"])
        node.scenario.set("fi.52", 5, 1).set("fi.161.9", 5, 1).write()
        rows = node.round(1, 10)
        assert links(rows, node.scenario.uuid(1))[9]["replays"] == 5
        assert not any("replays" in r for r in links(rows, node.scenario.uuid(0)).values())


def test_one_link_without_an_answer(tmp_path: Path) -> None:
    """A counter that one link does not give is null there and stays with the others."""
    with rig(tmp_path, standin.b200, gpus=1) as node:
        node.scenario.error("fi.208.2", standin.UNKNOWN).write()
        rows = node.round()
        told = links(rows, node.scenario.uuid(0))
        assert "rx_errors" not in told[2]
        assert told[1]["rx_errors"] == 0


def test_an_older_library_lacks_calls(tmp_path: Path) -> None:
    """Without the calls for far ends and older counters, states are read all the same; what is absent is not told."""
    lacking = (
        "nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetNvLinkVersion",
        "nvmlDeviceGetNvLinkErrorCounter", "nvmlDeviceGetPlatformInfo",
    )  # fmt: skip
    with rig(tmp_path, standin.a100, gpus=1, without=lacking) as node:
        rows = node.round()
        assert {r["state"] for r in rows["link"]} == {"active"}
        assert quality_of_links(rows)["crc_flit_errors"] == "unsupported"
        far = [json.loads(r["attributes"]) for r in rows["inventory"] if r["kind"] == "port"]
        assert far[3] == {"gpu_uuid": node.scenario.uuid(0), "link": 3, "remote_link": "19"}
    root = tmp_path / "none"
    root.mkdir()
    with rig(root, standin.a100, gpus=1, without=("nvmlDeviceGetNvLinkState",)) as node:
        rows = node.round()
        assert "link" not in rows
        assert "function not found" in quality(rows, node.scenario.uuid(0))["nvlink_links_active"][1]


def test_a_passing_error_of_states(tmp_path: Path) -> None:
    """States that cannot be read for a while are an error of their sums; links are not down for it, and it is told when
    they are back."""
    with rig(tmp_path, gpus=1) as node:
        node.round()
        uuid = node.scenario.uuid(0)
        node.scenario.error("fi.165.2", standin.UNKNOWN).write()
        rows = node.round(1, 10)
        assert "link" not in rows
        assert quality(rows, uuid)["nvlink_links_active"][0] == "error"
        assert samples(rows)[uuid]["power_w"] > 0
        node.scenario.unset("fi.165.2").write()
        rows = node.round(1, 10)
        assert quality(rows, uuid)["nvlink_links_active"][0] == "measured"
        assert not events(rows, "link_down")


@pytest.mark.parametrize("content", ["", "{", '{"boot_id": 7}', '{"gpus": {"GPU-x": {"expected": ["a"]}}}', "[" * 5000])
def test_a_damaged_state_file(tmp_path: Path, content: str) -> None:
    """A state file that is cut, of another shape or nonsense costs what was remembered, nothing else."""
    with rig(tmp_path, gpus=1) as node:
        node.machine.state_dir.mkdir(parents=True, exist_ok=True)
        (node.machine.state_dir / "nvlink.json").write_text(
            content.replace('"boot_id": 7', f'"boot_id": "{node.machine.boot_id}", "load": 1, "gpus": {{"GPU-x": 3}}')
        )
        node.restart()
        assert len(node.round()["link"]) == 18


def quality_of_links(rows: Rows) -> dict[str, str]:
    """State of fields of table link, as told of all links of a GPU."""
    return {q["field"]: q["state"] for q in rows["quality"] if q["table_name"] == "link"}


def test_links_of_a_lost_gpu(tmp_path: Path) -> None:
    """A lost GPU's links are not told as down: nothing is known of them, and the time is unseen when it is back."""
    time = Time()
    with rig(tmp_path, gpus=2, monotonic=time) as node:
        node.round(ts=T0 + timedelta(seconds=time.s))
        node.scenario.set("lost", 1, 1).write()
        for _ in range(2):
            rows = time.round(node, 10, 1, 10)
        assert {r["gpu_uuid"] for r in rows["link"]} == {node.scenario.uuid(0)}
        assert not events(rows, "link_down")
        node.scenario.set("lost", 0, 1).write()
        told = [time.round(node, 10, 1, 10) for _ in range(2)]
        assert not any(events(r, "link_down") for r in told)
        unseen = [r["unseen_s"] for rows in told for r in links(rows, node.scenario.uuid(1)).values() if r["unseen_s"]]
        assert unseen == [pytest.approx(30.0)] * 18


def test_a_hang_in_a_links_call(tmp_path: Path) -> None:
    """A link's call that does not return is the GPU's hang, handled as any other: the other GPU is read on."""
    with rig(tmp_path, gpus=2) as node:
        node.round()
        node.scenario.set("fi.165.3", "hang", 1).write()
        rows = node.hang(1, 10)
        (hung,) = events(rows, "gpu_hung")
        assert hung["pci_bus_id"] == node.scenario.bus(1)
        rows = node.until(lambda r: bool(r.get("gpu")), 1, 10)
        assert set(samples(rows)) == {node.scenario.uuid(0)}
        node.scenario.unset("fi.165.3", 1).write()


def _fields(machine: object) -> dict[str, object]:
    return {name: getattr(machine, name) for name in machine.__dataclass_fields__}  # type: ignore[attr-defined]
