"""The host collector on made-up files and on this machine."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from node_files import checked, node, round_at, write

from graynode.collectors.base import Machine, Rows
from graynode.collectors.driver_module import driver_module
from graynode.collectors.host import Host
from graynode.collectors.host_files import (
    ClockState,
    CpuTimes,
    clock_state,
    cpu_times,
    cpu_use,
    cpus_online,
    disk_io_ms,
    first_number,
    table,
    used_ratio,
)
from graynode.pipeline.schema import TABLES

STAT = "cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 50 0 25 400 25 0 0 0 0 0\ncpu1 50 0 25 400 25 0 0 0 0 0\nintr 1 2 3\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs-builder@U22)  Thu Jan"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\nGCC version: 12"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A GPU node with eight GPUs, an audio function of one, and a management controller's VGA."""
    made = node(tmp_path)
    write(made.proc / "stat", STAT)
    write(made.proc / "loadavg", "3.50 2.00 1.00 4/1234 5678\n")
    write(made.proc / "uptime", "12345.67 1.0\n")
    write(
        made.proc / "meminfo",
        "MemTotal:       2000 kB\nMemAvailable:   1500 kB\nSwapTotal:  100 kB\nSwapFree:  40 kB\n",
    )
    write(made.proc / "vmstat", "pgfault 5\noom_kill 3\n")
    disk = " 259 0 nvme0n1 1 2 3 4 5 6 7 8 9 {} 11\n"
    write(made.proc / "diskstats", disk.format(500) + disk.format(900).replace("nvme0n1", "nvme0n1p1"))
    (made.sys / "block/nvme0n1/device").mkdir(parents=True)
    write(made.proc / "sys/kernel/osrelease", "5.15.0-112-generic\n")
    write(made.proc / "driver/nvidia/version", OPEN)
    write(made.sys / "class/dmi/id/bios_version", "2.3.5\n")
    write(made.sys / "class/dmi/id/product_name", "PowerEdge XE9680\n")
    for number in range(8):
        pci(made, f"0000:{number:02x}:00.0", "0x10de", "0x030200")
    pci(made, "0000:00:00.1", "0x10de", "0x040300")
    pci(made, "0000:cc:00.0", "0x1a03", "0x030000")
    return made


def pci(machine: Machine, address: str, vendor: str, class_: str) -> None:
    write(machine.sys / "bus/pci/devices" / address / "vendor", f"{vendor}\n")
    write(machine.sys / "bus/pci/devices" / address / "class", f"{class_}\n")


def _host(machine: Machine, health: Mapping[str, float | int | None] | None = None) -> Host:
    clock = ClockState(synced=True, offset_s=-0.25)
    return Host(machine, lambda: health or {}, clock=lambda: clock, root=machine.proc)


def _collect(host: Host, second: float) -> Rows:
    return checked(host.collect(round_at(second)), Host.tables)


def test_a_gpu_nodes_files_become_a_row(machine: Machine) -> None:
    """Every field has its unit and its place; the NVIDIA audio function and another vendor's VGA are no GPUs."""
    (row,) = _collect(_host(machine), 0)["host"]
    assert row == row | {
        "load1": 3.5,
        "uptime_s": 12345.67,
        "mem_total_bytes": 2000 * 1024,
        "mem_available_bytes": 1500 * 1024,
        "swap_used_bytes": 60 * 1024,
        "oom_kills": 3,
        "disk_io_ms": 500,
        "cpus": 2,
        "kernel": "5.15.0-112-generic",
        "driver_version": "570.86.15",
        "driver_kind": "open",
        "bios_version": "2.3.5",
        "product_name": "PowerEdge XE9680",
        "node_id_source": "configured",
        "clock_synced": 1,
        "clock_offset_s": -0.25,
        "gpus_expected": 8,
    }
    assert row["root_used_ratio"] is None or 0 <= row["root_used_ratio"] <= 1
    assert "cpu_util_percent" not in row


def test_cpu_use_is_of_the_time_between_two_rounds(machine: Machine) -> None:
    """There is none in the first round."""
    host = _host(machine)
    _collect(host, 0)
    write(machine.proc / "stat", STAT.replace("cpu  100 0 50 800 50", "cpu  125 0 50 850 75"))
    (row,) = _collect(host, 1)["host"]
    assert (row["cpu_util_percent"], row["cpu_iowait_percent"]) == (25.0, 25.0)
    write(machine.proc / "stat", STAT)  # fallen: the machine was suspended or the kernel corrected itself
    assert "cpu_util_percent" not in _collect(host, 2)["host"][0]


def test_only_what_is_due_is_there(machine: Machine) -> None:
    """Fields stand in the rounds of their class, and nowhere else."""
    host = _host(machine, {"spool_bytes": 7, "samples_taken": 3.0})
    _collect(host, 0)
    every_s = {f.name: f.every_s for f in TABLES["host"].fields}
    for second, due in ((1, {1}), (10, {1, 10}), (60, {1, 10, 60})):
        (row,) = _collect(host, second)["host"]
        assert {every_s[name] for name in row} == due


def test_the_agents_health_is_taken_as_given(machine: Machine) -> None:
    """It fills its fields and wins over what is read here; what the table does not have is left out."""
    health = {"samples_taken": 4.0, "kmsg_lost": 0, "nvml_up": None, "gpus_expected": 9, "no_such_field": 1}
    (row,) = _collect(_host(machine, health), 0)["host"]
    assert (row["samples_taken"], row["kmsg_lost"], row["nvml_up"], row["gpus_expected"]) == (4.0, 0, None, 9)
    assert "no_such_field" not in row


def test_a_machine_with_nothing_gives_a_row_of_nothing(tmp_path: Path) -> None:
    """Absent files are absent values, not zeros and not errors."""
    host = Host(node(tmp_path), clock=lambda: None, root=tmp_path / "none")
    (row,) = _collect(host, 0)["host"]
    assert {name for name, value in row.items() if value is not None} == {"node_id_source"}
    host.close()
    host.close()


def test_the_nodes_facts_are_told_at_first_sight_and_when_they_change(machine: Machine) -> None:
    """A restart repeats nothing; a new driver or a missing GPU is a new row."""
    (row,) = _collect(_host(machine), 0)["inventory"]
    assert (row["kind"], row["entity"], row["model"]) == ("node", "machine-1", "PowerEdge XE9680")
    assert (row["driver_version"], row["vbios_version"], row["expected"]) == ("570.86.15", "2.3.5", 8)
    assert json.loads(row["attributes"])["kernel"] == "5.15.0-112-generic"
    again = _host(machine)
    assert "inventory" not in _collect(again, 60)
    write(machine.proc / "driver/nvidia/version", CLOSED)
    (row,) = _collect(again, 120)["inventory"]
    assert row["driver_version"] == "535.129.03"


def test_a_gpu_that_comes_or_goes_on_the_bus_is_counted(machine: Machine) -> None:
    """Devices are looked up anew every ten seconds, their class only once."""
    host = _host(machine)
    _collect(host, 0)
    pci(machine, "0000:0f:00.0", "0x10de", "0x030200")
    assert _collect(host, 10)["host"][0]["gpus_expected"] == 9


def test_both_flavours_of_the_driver_say_their_version() -> None:
    """And a text that is neither says nothing."""
    assert driver_module(OPEN) == ("570.86.15", "open")
    assert driver_module(CLOSED) == ("535.129.03", "proprietary")
    assert driver_module("NVRM version: ?") is None


def test_this_machine_is_read(tmp_path: Path) -> None:
    """Live: what every Linux has is there and plausible."""
    host = Host(node(tmp_path, proc=Path("/proc"), sys=Path("/sys")))
    (row,) = _collect(host, 0)["host"]
    assert row["uptime_s"] > 0
    assert 0 < row["mem_available_bytes"] <= row["mem_total_bytes"]
    assert row["cpus"] >= 1
    assert 0 <= row["root_used_ratio"] <= 1
    assert row["kernel"]
    time.sleep(0.05)
    (row,) = _collect(host, 1)["host"]
    assert row.get("cpu_util_percent") is None or 0 <= row["cpu_util_percent"] <= 100
    host.close()


def test_the_kernels_clock_state_is_asked_for_without_changing_it() -> None:
    """Live: an answer with a small offset, or none where a sandbox refuses."""
    state = clock_state()
    assert state is None or abs(state.offset_s) < 10


def test_a_disk_is_whole_and_real() -> None:
    """Partitions, loops and mappers would count the same work again."""
    line = "8 0 {} 1 2 3 4 5 6 7 8 9 {} 0\n"
    text = line.format("sda", 40) + line.format("sda1", 90) + "7 0 loop0 1\n\n" + line.format("sdb", 70)
    text += line.format("sdb", "\u00b2")
    assert disk_io_ms(text, lambda name: name in ("sda", "sdb")) == 70
    assert disk_io_ms("", lambda _: True) is None


@given(st.text())
def test_no_text_makes_a_reader_raise(text: str) -> None:
    """Whatever stands in the files of ``/proc``."""
    for prefix in ("", "cpu ", "cpu  1 2 3 4 5 ", "MemTotal: ", "8 0 sda 1 2 3 4 5 6 7 8 9 "):
        cpu_times(prefix + text)
        cpus_online(prefix + text)
        table(prefix + text, 1024)
        first_number(prefix + text)
        disk_io_ms(prefix + text, lambda _: True)
        driver_module(prefix + text)


@given(st.lists(st.integers(0, 10**9), min_size=6, max_size=6))
def test_cpu_use_is_a_part_of_the_whole(ticks: list[int]) -> None:
    """Between 0 and 100 whatever the counters do; none where no time passed."""
    before, now = (CpuTimes(total + idle + wait, idle, wait) for total, idle, wait in (ticks[:3], ticks[3:]))
    used = cpu_use(before, now)
    if now.total <= before.total:
        assert used is None
    else:
        assert used is not None
        assert all(0 <= part <= 100 for part in used)


def test_a_file_system_that_is_not_there_has_no_use() -> None:
    """Null, not zero."""
    assert used_ratio("/no/such/place") is None
