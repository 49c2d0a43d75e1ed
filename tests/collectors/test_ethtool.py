"""Ethernet ports: what their drivers and modules tell, into the rows of table ``link``."""

from __future__ import annotations

import contextlib
import errno
import math
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import node_files
import pytest
from ethtool_standin import BNXT, ICE, MLX5, Fake, Standin, osfp, qsfp28
from hypothesis import given
from hypothesis import strategies as st
from node_files import by, checked, round_at

from graynode.collectors.base import NoSource, Rows
from graynode.collectors.ethtool import messages
from graynode.collectors.ethtool import module as ethtool_module
from graynode.collectors.ethtool.collector import Ethtool, interfaces
from graynode.collectors.infiniband import Infiniband
from graynode.collectors.switches import switches

PORT = "eth0"


def _collector(folder: Path, standin: Standin) -> Ethtool:
    ports = node_files.Ports(folder / "sys")
    for name in standin.ports:
        ports.net(name)
    return Ethtool(node_files.node(folder), kernel=standin.kernel())


def _read(folder: Path, port: Fake, second: float = 0) -> tuple[Mapping[str, Any], Rows]:
    made = _collector(folder, Standin(eth0=port))
    rows = checked(made.collect(round_at(second)), Ethtool.tables)
    made.close()
    return by(rows.get("link", []), "link").get(PORT, {}), rows


def _said(rows: Rows) -> dict[str, str]:
    return {row["field"]: f"{row['state']}: {row['reason']}" for row in rows.get("quality", [])}


def test_mlx5_counters_per_priority_and_in_sum(tmp_path: Path) -> None:
    """PFC pause frames come per priority, and frames and microseconds over all of them."""
    row, _ = _read(tmp_path, Fake())
    assert row["rx_pause_frames_prio3"] == 17
    assert row["tx_pause_frames_prio3"] == 2
    assert row["rx_pause_frames_prio0"] == 0
    assert (row["rx_pause_frames"], row["rx_pause_us"], row["tx_pause_us"]) == (17, 3400, 40)
    assert (row["rx_port_discards"], row["rx_buffer_discards"], row["tx_port_discards"]) == (5, 7, 1)
    assert (row["phy_downs"], row["fec_corrected_bits"]) == (3, 900)


@pytest.mark.parametrize(
    ("counters", "expected"),
    [
        (BNXT, {"rx_pause_frames_prio5": 4, "rx_pause_frames": 5, "tx_pause_frames": 6, "rx_pause_us": 80,
                "fec_corrected_blocks": 9, "fec_uncorrected_blocks": 1, "rx_port_discards": 2}),
        (ICE, {"rx_pause_frames_prio0": 4, "tx_pause_frames_prio7": 1, "rx_pause_frames": 6, "rx_port_discards": 12}),
    ],
    ids=["bnxt_en", "ice"],
)  # fmt: skip
def test_other_drivers_names(tmp_path: Path, counters: Mapping[str, int], expected: Mapping[str, int]) -> None:
    """Broadcom and Intel count the same things under other names; frames that release a priority are not pauses."""
    row, _ = _read(tmp_path, Fake(counters=counters))
    assert {name: row.get(name) for name in expected} == expected


def test_unknown_driver_is_null_with_its_reason_and_said_once(tmp_path: Path) -> None:
    """A driver with other counters gives no zero: the columns are absent, and one row each says why."""
    made = _collector(tmp_path, Standin(eth0=Fake(counters={"tx_xdp_errors": 0})))
    first = made.collect(round_at(0))
    assert "rx_pause_frames" not in by(first.get("link", []), "link").get(PORT, {})
    assert _said(first)["rx_pause_frames_prio3"] == "unsupported: the driver does not tell it"
    assert _said(first)["fec_corrected_blocks"].startswith("unsupported")
    assert not made.collect(round_at(60)).get("quality")


def test_fec_by_netlink_is_the_total_of_its_lanes(tmp_path: Path) -> None:
    """The kernel gives a total and then one number per lane; the total is what counts, and netlink's word wins."""
    port = Fake(fec=([1000, 400, 600], [3, 1, 2], [], 50))
    row, _ = _read(tmp_path, port)
    assert (row["fec_corrected_blocks"], row["fec_uncorrected_blocks"], row["fec_mode"]) == (1000, 3, "rs")
    assert row["fec_corrected_bits"] == MLX5["rx_corrected_bits_phy"]  # no array by netlink: the driver's own


@pytest.mark.parametrize(
    ("ext", "reason"),
    [
        ((4, None), "no cable"),
        ((0, 1), "autonegotiation: no partner detected"),
        ((2, 5), "logical mismatch: RS FEC is not locked"),
        ((77, 3), "state 77: substate 3"),
    ],
)
def test_why_a_link_is_down(tmp_path: Path, ext: tuple[int, int | None], reason: str) -> None:
    """The driver's reason is told in words; a number newer than the list stays one."""
    row, _ = _read(tmp_path, Fake(up=False, ext=ext, downs=4))
    assert (row["down_reason"], row["phy_downs"]) == (reason, 4)


def test_reason_of_a_link_that_is_up_is_null(tmp_path: Path) -> None:
    """mlx5 keeps the last reason after the link is up; it is not the reason of now, and no riddle."""
    row, rows = _read(tmp_path, Fake(up=True, ext=(4, None)))
    assert "down_reason" not in row
    assert "down_reason" not in _said(rows)


def test_qsfp_module(tmp_path: Path) -> None:
    """Temperature, voltage, the darkest lane and the highest laser current, and no byte of the alarm flags is read."""
    standin = Standin(eth0=Fake(memory=qsfp28()))
    row = by(_collector(tmp_path, standin).collect(round_at(0))["link"], "link")[PORT]
    assert row["module_temp_c"] == pytest.approx(31.0)
    assert row["module_voltage_v"] == pytest.approx(3.28)
    assert row["module_rx_power_min_mw"] == pytest.approx(0.65)
    assert row["module_tx_power_min_mw"] == pytest.approx(0.7521)
    assert row["module_bias_max_ma"] == pytest.approx(7.5)
    flags = set(range(3, 22))
    assert not any(flags & set(range(o, o + n)) for page, o, n, _ in standin.asked if page == 0)


def test_osfp_module_with_a_dark_lane(tmp_path: Path) -> None:
    """A dark lane is zero light, which is a measurement; a four-lane module's unused lanes are none."""
    row, _ = _read(tmp_path / "a", Fake(memory=osfp(dark=6)))
    assert (row["module_rx_power_min_mw"], row["module_temp_c"]) == (0.0, 48.5)
    assert row["module_bias_max_ma"] == pytest.approx(8.0)
    row, _ = _read(tmp_path / "b", Fake(memory=osfp(lanes=4)))
    assert row["module_rx_power_min_mw"] == pytest.approx(1.2)


def test_copper_cable_has_no_light(tmp_path: Path) -> None:
    """A passive cable has no sensors: null and said so, not zero degrees and darkness."""
    for name, memory in (("qsfp", {0: bytes([0x11]) + bytes(127)}), ("osfp", osfp(flat=True))):
        row, rows = _read(tmp_path / name, Fake(memory=memory))
        assert not [field for field in row if field.startswith("module_")]
        assert "passive cable" in _said(rows)["module_rx_power_min_mw"]


def test_module_without_permission_is_said_and_its_heat_read_elsewhere(tmp_path: Path) -> None:
    """Module memory asks for CAP_NET_ADMIN; without it light is ``not_permitted``, and a temperature that the adapter's
    driver shows to anybody is still read."""
    port = Fake(memory=qsfp28(), errors={"memory": errno.EPERM})
    row, rows = _read(tmp_path / "a", port)
    assert "module_temp_c" not in row
    assert _said(rows)["module_rx_power_min_mw"] == "not_permitted: the kernel wants CAP_NET_ADMIN for this"
    chip = tmp_path / "b/sys/class/net/eth0/device/hwmon/hwmon3"
    for file, text in {
        "temp1_label": "asic",
        "temp1_input": "70000",
        "temp2_label": "Module0",
        "temp2_input": "41250",
    }.items():
        node_files.write(chip / file, text + "\n")
    row, _ = _read(tmp_path / "b", port)
    assert row["module_temp_c"] == pytest.approx(41.25)


def test_classes_keep_to_their_rounds(tmp_path: Path) -> None:
    """Nothing is asked in seconds between, counters every 10 s, modules every 60 s."""
    standin = Standin(eth0=Fake(memory=qsfp28()))
    made = _collector(tmp_path, standin)
    made.collect(round_at(0))
    standin.asked.clear()
    assert made.collect(round_at(1)) == {}
    row = by(made.collect(round_at(10))["link"], "link")[PORT]
    assert "rx_pause_frames" in row
    assert "module_temp_c" not in row
    assert standin.asked == []


@pytest.mark.parametrize("question", ["names", "counters", "state", "fec", "memory"])
@pytest.mark.parametrize("code", [errno.EIO, errno.EPERM, errno.EOPNOTSUPP, errno.ENODEV, errno.EBUSY])
def test_one_question_fails_and_costs_its_own_fields(tmp_path: Path, question: str, code: int) -> None:
    """Whatever one call answers, the port's other fields and the other port are read."""
    bad = Fake(memory=qsfp28(), fec=([1], [2], [3], 51), downs=1, errors={question: code})
    made = _collector(tmp_path, Standin(eth0=bad, eth1=Fake(memory=qsfp28())))
    rows = by(checked(made.collect(round_at(0)), Ethtool.tables)["link"], "link")
    assert rows["eth1"]["module_temp_c"] == pytest.approx(31)
    whole = {"counters": "rx_pause_frames", "state": "phy_downs", "fec": "fec_mode", "memory": "module_temp_c"}
    for part, column in whole.items():
        if part != question and not (part == "counters" and question == "names"):
            assert column in rows["eth0"], (part, question)
    bad.errors.clear()
    again = made.collect(round_at(60))
    # what netlink does not say of a link's state the driver's own counters do: nothing was missed there
    assert {row["state"] for row in again.get("quality", [])} == ({"measured"} if question != "state" else set())
    assert by(again["link"], "link")[PORT]["rx_pause_frames"] == 17


@pytest.mark.parametrize(
    "lie",
    [lambda b: b[:10], lambda b: b[:-3], lambda b: b[:20] + b"\xff\xff\2\0" + b[24:], lambda b: b[:16] + b"\0" * 400],
    ids=["cut in the head", "cut in the middle", "length beyond the end", "zeros"],
)
def test_broken_netlink_answers(tmp_path: Path, lie: Any) -> None:
    """A broken answer is an error of its own fields; the driver's counters come by another way."""
    row, rows = _read(tmp_path, Fake(counters={"rx_global_pause": 1}, fec=([1], [2], [3], 51), lies=lie))
    assert row["rx_pause_frames"] == 1
    assert "fec_mode" not in row
    assert _said(rows)["fec_corrected_blocks"].split(":")[0] in ("error", "unsupported")


def test_silent_kernel_ends_at_the_deadline_and_is_asked_anew(tmp_path: Path) -> None:
    """Without an answer the socket is given up, so that a late answer is not taken for another question's."""
    standin = Standin(eth0=Fake(fec=([1], [2], [3], 51)))
    made = _collector(tmp_path, standin)
    standin.silent = True
    assert _said(made.collect(round_at(0)))["fec_mode"] == "error: the kernel did not answer in time"
    standin.silent = False
    assert by(made.collect(round_at(60))["link"], "link")[PORT]["fec_mode"] == "baser"
    assert standin.connections > 1


def test_counters_added_while_reading(tmp_path: Path) -> None:
    """A queue added between asking and reading changes the list: nothing is read under wrong names, and the next round
    reads the new list."""
    port = Fake(counters={"rx_prio3_pause": 5})
    made = _collector(tmp_path, Standin(eth0=port))
    made.collect(round_at(0))
    port.counters = {"rx0_packets": 123456, "rx_prio3_pause": 6}
    rows = made.collect(round_at(10))
    assert not rows.get("link")
    assert "changed while" in _said(rows)["rx_pause_frames_prio3"]
    assert by(made.collect(round_at(20))["link"], "link")[PORT]["rx_pause_frames_prio3"] == 6


def test_counters_that_lie(tmp_path: Path) -> None:
    """A counter beyond 63 bits is no measurement; a driver with a million counters is not believed."""
    row, _ = _read(tmp_path / "a", Fake(counters={"rx_prio3_pause": 2**64 - 1, "rx_discards_phy": 4}))
    assert "rx_pause_frames_prio3" not in row
    assert row["rx_port_discards"] == 4
    many = {f"c{i}": 0 for i in range(70_000)}
    _, rows = _read(tmp_path / "b", Fake(counters=many))
    assert "70000 counters" in _said(rows)["rx_pause_frames"]


def test_hostile_counter_names(tmp_path: Path) -> None:
    """Names with control characters, bytes that are no ASCII and no end mark are only names that nobody knows."""
    row, _ = _read(tmp_path, Fake(counters={"rx_prio3_pause\n": 9, "\x1b[31m": 1, "x" * 32: 2, "rx_prio4_pause": 3}))
    assert row == {"link": PORT, "link_kind": "ethernet", "rx_pause_frames_prio4": 3, "rx_pause_frames": 3}


def test_switched_off_is_not_asked_and_said_once(tmp_path: Path) -> None:
    """Module memory is the dear part: switched off, it is not read; slowed down, counters come in their rounds."""
    standin = Standin(eth0=Fake(memory=qsfp28()))
    made = _collector(tmp_path, standin)
    made.switches = switches(["link.module_*"], {"link.rx_pause_frames*": 60})
    rows = made.collect(round_at(0))
    row = by(rows["link"], "link")[PORT]
    assert standin.asked == []
    assert row["rx_pause_frames_prio3"] == 17
    assert "module_temp_c" not in row
    assert _said(rows)["module_temp_c"] == "unsupported: switched off in configuration (fields.off)"
    later = made.collect(round_at(10))
    assert "rx_pause_frames_prio3" not in by(later["link"], "link")[PORT]
    assert by(later["link"], "link")[PORT]["tx_pause_frames_prio3"] == 2
    assert not later.get("quality")


def test_machine_without_ports(tmp_path: Path) -> None:
    """No interface with a device is no source, said once."""
    with pytest.raises(NoSource, match="no Ethernet interface"):
        Ethtool(node_files.node(tmp_path), kernel=Standin().kernel()).collect(round_at(0))


def test_port_that_vanishes_and_comes_back(tmp_path: Path) -> None:
    """A port that is gone gives no rows and no error; back again it is read again."""
    standin = Standin(eth0=Fake(), eth1=Fake())
    made = _collector(tmp_path, standin)
    made.collect(round_at(0))
    (tmp_path / "sys/class/net/eth1").rename(tmp_path / "gone")
    assert by(made.collect(round_at(10))["link"], "link").keys() == {"eth0"}
    (tmp_path / "gone").rename(tmp_path / "sys/class/net/eth1")
    assert by(made.collect(round_at(20))["link"], "link").keys() == {"eth0", "eth1"}


# --- with infiniband ---


def test_rows_are_infinibands_where_it_runs(tmp_path: Path) -> None:
    """Two rows of one port and time would be dropped as a repeat: what is read goes into infiniband's row, once."""
    made = _collector(tmp_path, Standin(eth0=Fake()))
    rows_of = Infiniband(node_files.node(tmp_path))
    rows_of.more, made.feeds = made.take, True
    assert "link" not in made.collect(round_at(0))
    row = by(checked(rows_of.collect(round_at(0)), Infiniband.tables)["link"], "link")[PORT]
    assert (row["state"], row["rx_pause_frames_prio3"], row["rx_drops"]) == ("active", 17, 7)
    again = by(rows_of.collect(round_at(1, 1.0))["link"], "link")[PORT]
    assert "rx_pause_frames_prio3" not in again
    rows_of.close()


def test_driver_that_hangs_holds_up_no_port_state(tmp_path: Path) -> None:
    """The hanging call keeps its own thread; what ``infiniband`` takes is there or not, at once."""
    standin, gate = Standin(eth0=Fake()), threading.Event()
    made = _collector(tmp_path, standin)
    rows_of = Infiniband(node_files.node(tmp_path))
    rows_of.more, made.feeds = made.take, True
    made.collect(round_at(0))
    standin.ports["eth0"].lies = lambda answer: answer if gate.wait(20) else b""
    hanging = threading.Thread(target=made.collect, args=(round_at(10),))
    hanging.start()
    for second in (11, 12):
        row = by(rows_of.collect(round_at(second, 1.0))["link"], "link")[PORT]
        assert row["state"] == "active"
    assert "rx_pause_frames_prio3" not in row
    gate.set()
    hanging.join(20)
    assert "rx_pause_frames_prio3" in by(rows_of.collect(round_at(13, 1.0))["link"], "link")[PORT]
    rows_of.close()


def test_roce_port_is_named_as_infiniband_names_it(tmp_path: Path) -> None:
    """The interface of a RoCE port is read under the RDMA port's name, a plain one under its own, an InfiniBand port
    has none."""
    ports = node_files.Ports(tmp_path / "sys")
    ports.rdma("mlx5_0")
    ports.rdma("mlx5_1")
    ports.net("eth0")
    ports.net("eth1")
    at = ports.sys / "class/infiniband/mlx5_1/device/net/eth1"
    at.mkdir(parents=True)
    assert interfaces(ports.sys) == {"mlx5_1/1": "eth1", "eth0": "eth0"}


# --- whatever arrives ---


@given(st.binary(max_size=200))
def test_no_bytes_break_the_parsers(data: bytes) -> None:
    """Netlink answers of any content are values, another's answer, the kernel's error, or broken."""
    head = messages.HEAD.pack(16 + 4 + len(data), 21, 0, 7, 0) + b"\0" * 4
    for answer in (data, head + data):
        with contextlib.suppress(messages.Garbled, OSError):
            found = messages.answer(answer, 7) or {}
            messages.link_state(found)
            messages.fec(found)


@given(st.binary(min_size=256, max_size=256), st.sampled_from([0x03, 0x0D, 0x11, 0x18, 0x19, 0x1E, 0xFF]))
def test_no_module_memory_breaks_the_reading(page: bytes, kind: int) -> None:
    """A module's memory may hold anything: what is read is finite, or it is said that there is nothing to read."""
    memory = bytes([kind]) + page[1:]
    with contextlib.suppress(ethtool_module.NoMonitors):
        found = ethtool_module.read(lambda _page, offset, length, _address: memory[offset : offset + length])
        assert all(math.isfinite(value) for value in found.values())
