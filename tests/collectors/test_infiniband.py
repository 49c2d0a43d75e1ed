"""Ports as real and made-up sysfs trees show them."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from agent_fakes import BOOT_ID
from node_files import FIXTURES, Ports, by, checked, node, round_at, unpack_ttar, write

from graynode.collectors import ports
from graynode.collectors.base import Machine, NoSource
from graynode.collectors.infiniband import Infiniband
from graynode.collectors.ports import ib_state, net_state, rate_gbps

_SINKS = ("link", "event", "inventory", "quality")


_SAVED = f'{{"boot_id": "{BOOT_ID}", "ts": "2026-03-01T11:59:00+00:00", "ports": {{}}}}'


def _captured_h100(tmp_path: Path) -> Machine:
    machine = node(tmp_path)
    shutil.copytree(FIXTURES / "gpud/infiniband-h100", machine.sys / "class/infiniband")
    return machine


def test_an_h100_node_gives_all_its_ports(tmp_path: Path) -> None:
    """Eight 400 Gb/s InfiniBand ports and the bond for storage, with layer, rate and firmware."""
    collector = Infiniband(_captured_h100(tmp_path))
    rows = checked(collector.collect(round_at(0)), _SINKS)
    links = by(rows["link"], "link")
    rails = [f"mlx5_{n}/1" for n in (0, 1, 4, 5, 6, 7, 8, 9)]
    assert sorted(links) == [*rails, "mlx5_bond_0/1"]
    assert {links[rail]["rate_gbps"] for rail in rails} == {400.0}
    assert {links[rail]["link_kind"] for rail in rails} == {"infiniband"}
    assert links["mlx5_bond_0/1"]["link_kind"] == "ethernet"
    assert {row["state"] for row in links.values()} == {"active"}
    assert {row["phys_state"] for row in links.values()} == {"LinkUp"}
    assert links["mlx5_0/1"]["device"] == "mlx5_0 MT4129 firmware 28.41.1000"
    assert by(rows["inventory"], "entity")["mlx5_0/1"]["vbios_version"] == "28.41.1000"
    assert "event" not in rows
    collector.close()


def test_counters_have_the_contracts_names_and_units(tmp_path: Path) -> None:
    """Data is counted in words of four bytes and given in bytes; RoCE counters come from hw_counters."""
    collector = Infiniband(_captured_h100(tmp_path))
    row = by(collector.collect(round_at(0))["link"], "link")["mlx5_0/1"]
    assert row["tx_bytes"] == 4 * 230442669431839
    assert row["rx_bytes"] == 4 * 230539874932483
    assert row["rx_errors"] == 14
    assert row["buffer_overruns"] == 15
    assert row["tx_wait_ticks"] == 2489603687
    assert row["packet_sequence_errors"] == 0
    assert row["link_downed"] == 0
    collector.close()


def test_only_what_is_due_is_read(tmp_path: Path) -> None:
    """State and the counters that prove it every second, the others every ten, facts every sixty, never stale ones."""
    collector = Infiniband(_captured_h100(tmp_path))
    assert "inventory" in collector.collect(round_at(0))
    second = collector.collect(round_at(1, 1.0))
    assert {"state", "link_downed", "down_s"} <= second["link"][0].keys()
    assert not {"rx_bytes", "rate_gbps", "device"} & second["link"][0].keys()
    assert "rx_bytes" in collector.collect(round_at(10, 1.0))["link"][0]
    assert "inventory" not in collector.collect(round_at(60, 1.0))
    collector.close()


def test_trees_of_other_drivers_are_read_as_far_as_they_go(tmp_path: Path) -> None:
    """Omni-Path, iWARP and mlx4 as node_exporter captured them: "N/A (no PMA)" and missing files are absent."""
    machine = node(tmp_path)
    unpack_ttar(FIXTURES / "node_exporter/infiniband.ttar", tmp_path)
    collector = Infiniband(machine)
    links = by(checked(collector.collect(round_at(0)), _SINKS)["link"], "link")
    assert {"i40iw0/1", "mlx4_0/1", "mlx4_0/2"} <= links.keys()
    assert links["i40iw0/1"]["link_downed"] is None
    assert links["i40iw0/1"]["rx_bytes"] is None
    assert links["mlx4_0/1"]["rx_bytes"] is not None
    collector.close()


@pytest.mark.parametrize("content", ["", "N/A (no PMA)\n", "-\n", "\x00", "99999999999999999999999999"])
def test_contents_that_are_no_count_are_absent(tmp_path: Path, content: str) -> None:
    """Whatever a driver writes into a counter, the port's other values are there."""
    machine = node(tmp_path)
    at = Ports(machine.sys).rdma()
    write(at / "counters/port_rcv_errors", content)
    collector = Infiniband(machine)
    (row,) = checked(collector.collect(round_at(0)), _SINKS)["link"]
    assert row["rx_errors"] is None
    assert row["state"] == "active"
    collector.close()


def test_only_physical_interfaces_count(tmp_path: Path) -> None:
    """No loopback, bridge, bond or virtual function; a bond's members are physical; IPoIB is its InfiniBand port."""
    machine = node(tmp_path)
    ports = Ports(machine.sys)
    ports.rdma("mlx5_0")
    member = ports.net("ens1")
    (member / "master").mkdir()
    (ports.net("ens1v0") / "device/physfn").mkdir()
    write(ports.net("ib0") / "type", "32\n")
    for virtual in ("lo", "docker0", "veth12", "bond0"):
        write(machine.sys / "class/net" / virtual / "carrier", "1\n")
    write(machine.sys / "class/net/bonding_masters", "bond0\n")
    collector = Infiniband(machine)
    rows = collector.collect(round_at(0))
    assert sorted(by(rows["link"], "link")) == ["ens1", "mlx5_0/1"]
    collector.close()


def test_a_roce_port_and_its_interface_are_one_link(tmp_path: Path) -> None:
    """The RDMA port has the interface's carrier changes; the interface has no row of its own."""
    machine = node(tmp_path)
    ports = Ports(machine.sys)
    at = ports.rdma("mlx5_2")
    write(at / "link_layer", "Ethernet\n")
    ports.net("ens2", changes=7)
    (at.parents[1] / "device/net/ens2").mkdir(parents=True)
    collector = Infiniband(machine)
    rows = collector.collect(round_at(0))
    (row,) = rows["link"]
    assert (row["link"], row["link_kind"], row["carrier_changes"]) == ("mlx5_2/1", "ethernet", 7)
    assert json.loads(rows["inventory"][0]["attributes"])["netdev"] == "ens2"
    collector.close()


def test_an_interface_without_carrier_is_down_and_one_switched_off_is_disabled(tmp_path: Path) -> None:
    """The kernel answers EINVAL for the carrier of an interface that is off; here the file is empty."""
    machine = node(tmp_path)
    ports = Ports(machine.sys)
    ports.net("eth0", carrier="0")
    ports.net("eth1", carrier="", flags="0x1002")
    ports.net("eth2", carrier="", flags="rubbish")
    collector = Infiniband(machine)
    links = by(checked(collector.collect(round_at(0)), _SINKS)["link"], "link")
    assert {name: row["state"] for name, row in links.items()} == {
        "eth0": "down",
        "eth1": "disabled",
        "eth2": "unknown",
    }
    assert links["eth0"]["rx_drops"] == 7
    assert links["eth0"]["rate_gbps"] == 25.0
    collector.close()


def test_inventory_is_told_at_first_sight_and_when_it_changes(tmp_path: Path) -> None:
    """A restart repeats nothing; new firmware is a new row."""
    machine = node(tmp_path)
    at = Ports(machine.sys).rdma()
    first = Infiniband(machine)
    assert len(first.collect(round_at(0))["inventory"]) == 1
    first.close()
    second = Infiniband(machine)
    assert "inventory" not in second.collect(round_at(60))
    write(at.parents[1] / "fw_ver", "28.43.2026\n")
    assert second.collect(round_at(120, 60.0))["inventory"][0]["vbios_version"] == "28.43.2026"
    second.close()


def test_a_state_file_of_anyone_is_no_obstacle(tmp_path: Path) -> None:
    """Rubbish in the state file costs the memory, not the collection."""
    machine = node(tmp_path)
    Ports(machine.sys).rdma()
    for text in ("{", "[]", '{"boot_id": 1, "ports": {"mlx5_0/1": {"seen": 3}}}', '{"ports": null, "ts": "x"}', _SAVED):
        write(machine.state_dir / "infiniband.json", text)
        for last in ("", "x", "x y\n", f"{BOOT_ID} 2026-13-01\n", f"{BOOT_ID} 2026-03-01T12:00:00\n"):
            write(machine.state_dir / "infiniband.last", last)
            collector = Infiniband(machine)
            assert collector.collect(round_at(0))["link"][0]["state"] == "active"
            collector.close()
            write(machine.state_dir / "infiniband.json", text)


def test_state_that_cannot_be_kept_is_said_and_costs_no_row(tmp_path: Path) -> None:
    """A state folder that is a file: the rows come, and a quality row says what a restart will not know."""
    machine = node(tmp_path)
    Ports(machine.sys).rdma()
    write(machine.state_dir, "not a folder")
    collector = Infiniband(machine)
    rows = checked(collector.collect(round_at(0)), _SINKS)
    assert rows["link"][0]["state"] == "active"
    assert "cannot be written" in rows["quality"][0]["reason"]
    assert "quality" not in collector.collect(round_at(10, 10.0))
    collector.close()


def test_a_machine_without_ports_has_no_such_source(tmp_path: Path) -> None:
    """The agent is told so, with the places that were looked at."""
    with pytest.raises(NoSource, match="class/infiniband"):
        Infiniband(node(tmp_path)).collect(round_at(0))


def test_this_machines_interfaces_are_read(tmp_path: Path) -> None:
    """Live: whatever physical interface is here, its state is known; without one it is said."""
    machine = node(tmp_path, sys=Path("/sys"))
    collector = Infiniband(machine)
    try:
        rows = checked(collector.collect(round_at(0)), _SINKS)
    except NoSource:
        pytest.skip("this machine has no physical network interface")
    assert all(row["state"] != "unknown" for row in rows["link"])
    collector.close()


def test_states_are_classed_by_number() -> None:
    """The kernel's words may change, its numbers do not; what is not known is unknown."""
    assert [ib_state(f"{n}: X", "5: LinkUp") for n in range(7)] == [
        "unknown", "down", "init", "armed", "active", "active", "unknown",
    ]  # fmt: skip
    assert ib_state("1: DOWN", "3: Disabled") == "disabled"
    assert ib_state("1: DOWN", "1: Sleep") == "sleep"
    assert ib_state(None, None) == "unknown"
    assert net_state("1", None) == "active"
    assert net_state(None, "0x1002") == "disabled"
    assert net_state(None, "0x1003") == "unknown"
    assert rate_gbps("2.5 Gb/sec (1X SDR)") == 2.5
    assert rate_gbps("") is None


_NOT_TAKEN = {
    "work of applications, not health of the link": (
        "rx_write_requests", "rx_read_requests", "rx_atomic_requests", "rx_dct_connect", "unicast_xmit_packets",
        "unicast_rcv_packets", "multicast_xmit_packets", "multicast_rcv_packets", "lifespan", "duplicate_request",
        "port_unicast_xmit_packets", "port_unicast_rcv_packets", "port_multicast_xmit_packets",
        "port_multicast_rcv_packets",
    ),
    "fault of an application's request": (
        "resp_remote_access_errors", "resp_local_length_error", "resp_cqe_flush_error", "resp_cqe_error",
        "req_remote_invalid_request", "req_remote_access_errors", "req_cqe_flush_error", "req_cqe_error",
    ),
    "part of a counter that is taken, or another form of it": (
        "roce_slow_restart_trans", "roce_slow_restart_cnps", "roce_adp_retrans", "roce_adp_retrans_to",
        "implied_nak_seq_err", "port_xmit_packets_64", "port_rcv_packets_64", "port_rcv_discards",
    ),
    "partition keys and management datagrams": (
        "port_xmit_constraint_errors", "port_rcv_constraint_errors", "VL15_dropped", "port_rcv_switch_relay_errors",
    ),
    "the host's receive queue, not the link": ("out_of_buffer", "rx_icrc_encapsulated"),
}  # fmt: skip
"""Files of a port that fill no column, by the reason."""
_FACTS = {"link_layer", "hca_type", "fw_ver", "board_id", "node_guid"}
_COLUMNS = {file: (column, 1) for column, file in {**ports._IB_COUNTERS, **ports._HW_COUNTERS}.items()} | {
    "link_downed": ("link_downed", 1),
    **{file: (column, 4) for column, file in ports._IB_WORDS.items()},
    **{f"{file}_64": (column, 4) for column, file in ports._IB_WORDS.items()},
}


def _became(path: Path, row: Mapping[str, Any], told: str) -> str:
    """What became of one file of a device: it is in the row, or the reason why it is not."""
    name, content = path.name, path.read_text("utf-8").strip()
    if name in _FACTS:
        return "stored" if json.dumps(content) in told or content == "InfiniBand" else f"lost: {path}"
    if name in ("state", "phys_state", "rate"):
        said = {"state": row["state"].upper(), "phys_state": row["phys_state"], "rate": f"{row['rate_gbps']:g} Gb"}
        return "stored" if said[name] in content or content.startswith("1: DOWN") else f"lost: {path}"
    if (path.parents[1] / "counters_ext" / f"{name}_64").exists():
        return "the 64-bit form is taken"
    if name in _COLUMNS:
        column, scale = _COLUMNS[name]
        if not content.isdecimal():
            return "no number" if row[column] is None else f"made up: {path}"
        return "stored" if row[column] == int(content) * scale else f"lost: {path}"
    return next((reason for reason, names in _NOT_TAKEN.items() if name in names), f"not accounted for: {path}")


def _accounted(sys: Path, collector: Infiniband) -> Counter[str]:
    """Every file below the devices of a tree, links not followed, by what became of it."""
    rows = collector.collect(round_at(0))
    collector.close()
    links, facts, found = by(rows["link"], "link"), json.dumps(rows["inventory"], default=str), Counter[str]()
    for device in sorted((sys / "class/infiniband").iterdir()):
        for path in (f for f in device.rglob("*") if f.is_file() and not f.is_symlink()):
            port = path.relative_to(device / "ports").parts[0] if "ports" in path.parts else "1"
            told = facts.replace('\\"', '"')
            found[_became(path, links[f"{device.name}/{port}"], told)] += 1
    return found


def test_every_file_of_an_h100_node_is_stored_or_left_out_for_a_reason(tmp_path: Path) -> None:
    """Files read, stored and left out add up; what is stored is the file's own value."""
    machine = _captured_h100(tmp_path)
    found = _accounted(machine.sys, Infiniband(machine))
    assert found.pop("stored") == 225
    assert found.total() == 261
    assert found.keys() == _NOT_TAKEN.keys()


def test_every_file_of_other_drivers_is_stored_or_left_out_for_a_reason(tmp_path: Path) -> None:
    """The same for mlx4 and iWARP, whose counters that are no number fill nothing."""
    machine = node(tmp_path)
    unpack_ttar(FIXTURES / "node_exporter/infiniband.ttar", tmp_path)
    found = _accounted(machine.sys, Infiniband(machine))
    stored, no_number = found.pop("stored"), found.pop("no number")
    assert found.keys() <= {*_NOT_TAKEN, "the 64-bit form is taken"}
    assert (stored, no_number, found.total()) == (29, 13, 33)
