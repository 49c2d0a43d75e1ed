"""What single kernel lines mean, and how each form of log writes a record."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from graynode.collectors.kernel_log.patterns import understand
from graynode.collectors.kernel_log.records import parse_dmesg, parse_journal, parse_kmsg, shown
from graynode.collectors.pci import pci_address

_WHO = ("kind", "code", "pci_bus_id", "pid", "process")


def _facts(text: str) -> dict[str, Any]:
    found = understand(text)
    assert found is not None, text
    return found.attributes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "NVRM: Xid (PCI:0000:9b:00): 119, pid=2024380, name=nvidia-smi, Timeout after 6s of waiting for RPC",
            ("xid", 119, "0000:9b:00.0", 2024380, "nvidia-smi"),
        ),
        (
            "NVRM: Xid (PCI:0000:38:00): 13, pid='<unknown>', name=<unknown>, Graphics Exception: ESR 0x546fb0=0x1",
            ("xid", 13, "0000:38:00.0", None, None),
        ),
        ("NVRM: Xid (0000:03:00): 14, Channel 00000001", ("xid", 14, "0000:03:00.0", None, None)),
        ("NVRM: Xid (PCI:0000:0A:00.1): 99999, what is this", ("xid", 99999, "0000:0a:00.1", None, None)),
        ("NVRM: Xid (PCI:0000:01:00): 79", ("xid", 79, "0000:01:00.0", None, None)),
        ("NVRM: Xid (PCI:0000:15:00 GPU-I:06): 94, pid=7, name=a, Contained: SM", ("xid", 94, "0000:15:00.0", 7, "a")),
        (
            "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)",
            ("sxid", 12028, "0000:c1:00.0", None, None),
        ),
        (
            "nvidia-nvswitch2: SXid (PCI:0000:07:00.0): 20034, Severity 1 Engine instance 60 Sub-engine instance 00",
            ("sxid_detail", 20034, "0000:07:00.0", None, None),
        ),
        ("NVRM: GPU 0000:91:00.0: GPU has fallen off the bus.", ("gpu_off_bus", None, "0000:91:00.0", None, None)),
        (
            "NVRM: The NVIDIA GPU 0000:b3:00.0\nNVRM: (PCI ID: 10de:26b5) installed in this system has\n"
            "NVRM: fallen off the bus and is not responding to commands.",
            ("gpu_off_bus", None, "0000:b3:00.0", None, None),
        ),
        (
            "pcieport 0000:00:1c.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, id=00e0(Transmitter ID)",
            ("aer", None, "0000:00:1c.0", None, None),
        ),
        (
            "nvidia 0000:c1:01.0: AER: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer",
            ("aer", None, "0000:c1:01.0", None, None),
        ),
        ("EDAC MC0: 2 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (x)", ("mce", None, None, None, None)),
        ("mce: [Hardware Error]: CPU 2: Machine Check: 0 Bank 4: e600000000020408", ("mce", None, None, None, None)),
        ("Memory failure: 0x124802: recovery action for dirty LRU page: Recovered", ("mce", None, None, None, None)),
        (
            "mlx5_core 0000:5c:00.0: mlx5_pcie_event:299:(pid 26): Detected insufficient power on the PCIe slot (27W).",
            ("mlx5", None, "0000:5c:00.0", None, None),
        ),
        ("mlx5_core 0000:41:00.0 enp65s0f0np0: Link down", ("mlx5", None, "0000:41:00.0", None, None)),
        (
            "mlx5_core 0000:03:00.0: poll_health:1151:(pid 0): device's health compromised - reached miss count",
            ("mlx5", None, "0000:03:00.0", None, None),
        ),
        ("NVRM: GPU 0000:9b:00.0: RmInitAdapter failed! (0x62:0x65:2026)", ("nvrm", None, "0000:9b:00.0", None, None)),
        (
            "Memory cgroup out of memory: Killed process 31337 (python3) total-vm:12kB, anon-rss:3kB",
            ("oom_kill", None, None, 31337, "python3"),
        ),
    ],
)
def test_a_line_gives_kind_code_device_and_process(text: str, expected: tuple[Any, ...]) -> None:
    """The words of drivers and kernel, as they really print them."""
    found = understand(text)
    assert found is not None
    assert tuple(getattr(found, name) for name in _WHO) == expected
    assert found.message


@pytest.mark.parametrize(
    "text",
    [
        "",
        "NVRM: Xid",
        "NVRM: Xid (PCI:0000:9b:00): x, pid=1",
        "user said: NVRM: Xid (PCI:0000:9b:00): 79, pid=1, GPU has fallen off the bus.",
        "NVRM: GPU 0000:91:00.0: GPU serial number is 1653723052734.",
        "NVRM: GPU4 RPC event history (CPU <- GSP):",
        "NVRM:      0    103  GSP_RM_ALLOC          0x0000000000002081 0x0000000000000004",
        "EDAC MC0: Giving out device to module amd64_edac controller F19h_M10h: DEV 0000:00:18.3 (INTERRUPT)",
        "MCE: In-kernel MCE decoding enabled.",
        "mlx5_core 0000:41:00.1: E-Switch: Total vports 10, per vport: max uc(128) max mc(2048)",
        "mlx5_core 0000:08:00.0: mlx5_pcie_event:301:(pid 10308): PCIe slot advertised sufficient power (75W).",
        "oom_reaper: reaped process 345646 (vector), now anon-rss:0kB, file-rss:0kB, shmem-rss:0",
    ],
)
def test_a_line_that_says_nothing_of_health_is_no_event(text: str) -> None:
    """Introductions, dumps, boot chatter and quotes are left out."""
    assert understand(text) is None


def test_nvlink_xids_name_unit_link_and_status_words() -> None:
    """Xids 144–150: the sub-code is bits 20–25 of the interrupt info, the first word."""
    facts = _facts(
        "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 "
        "(0x025525c6 0x00000001 0x00000000 0x00000000 0x00000000 0x00000000)"
    )
    assert facts["unit"] == "NETIR_LINK_EVT"
    assert (facts["severity"], facts["link"], facts["sub_code"]) == ("fatal", 9, 0x25)
    assert (facts["intr_info"], facts["error_status"]) == ("0x025525c6", "0x00000001")
    assert (facts["cross_containment"], facts["injected"], len(facts["words"])) == (False, False, 6)
    process = _facts(
        "NVRM: Xid (PCI:0000:00:1e): 145, pid=4, name=<unknown>, RLW_SRC_TRACK Nonfatal XC1 i1 Link 00 (0x1 0x2)"
    )
    assert (process["unit"], process["severity"], process["injected"]) == ("RLW_SRC_TRACK", "nonfatal", True)
    older = _facts("NVRM: Xid (PCI:0000:00:1e): 149, NETIR_LINK_EVT Fatal XC 1 i 2 Link 01 [0x0000000a]")
    assert (older["link"], older["intr_info"]) == (1, "0x0000000a")
    assert _facts("NVRM: Xid (PCI:0000:00:1e): 148, NVLPW_CTRL Fatal XC0 i0 Link 05")["link"] == 5


def test_details_of_an_xid_are_kept_where_the_line_has_them() -> None:
    """GPC and TPC, channel, fault, recovery action, what caused it, memory."""
    graphics = _facts(
        "NVRM: Xid (PCI:0000:38:00): 13, pid=1, name=a, Graphics SM Warp Exception on (GPC 9, TPC 1, SM 0): x"
    )
    assert (graphics["gpc"], graphics["tpc"], graphics["sm"]) == (9, 1, 0)
    assert _facts("NVRM: Xid (PCI:0000:38:00): 43, pid=2, name=b, Ch 00000008")["channel"] == "00000008"
    fault = _facts(
        "NVRM: Xid (PCI:0000:35:00): 31, pid=3, name=v, channel 0x01000020, intr 00000000. MMU Fault: ENGINE CE2 "
        "HUBCLIENT_CE0 faulted @ 0x792c_58000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE"
    )
    assert (fault["engine"], fault["fault"], fault["access"]) == ("CE2", "FAULT_PDE", "ACCESS_TYPE_VIRT_WRITE")
    action = _facts(
        "NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)"
    )
    assert (action["action_to"], action["action"]) == ("0x4", "Drain and Reset")
    seven = _facts("NVRM: Xid (PCI:0000:41:00): 74, pid=5, name=c, NVLink: fatal error detected on link 8"
                   "(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)")  # fmt: skip
    assert (seven["link"], len(seven["words"]), seven["words"][2]) == (8, 7, "0x10000")


def test_the_driver_says_version_and_flavour_when_it_loads() -> None:
    """Open and proprietary modules word it differently."""
    closed = _facts("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.144.03  Mon Dec 30 17:44:08 UTC 2024")
    opened = _facts("NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (a@b)  Fri")
    assert (closed["version"], closed["module"]) == ("550.144.03", "proprietary")
    assert (opened["version"], opened["module"]) == ("570.86.15", "open")


def test_an_sxid_says_severity_and_link() -> None:
    """Fatal or not decides what must be reset; a link of the switch leads to a GPU."""
    facts = _facts("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 63 LTSSM Fault Up")
    assert (facts["switch"], facts["severity"], facts["link"], facts["first"]) == (0, "fatal", 63, False)


def test_aer_severities_are_one_vocabulary() -> None:
    """Kernels before and after 6.13 word it differently."""
    lines = {
        "severity=Corrected, type=Physical Layer, (Receiver ID)": ("corrected", "Physical Layer", "Receiver ID"),
        "severity=Correctable, type=Data Link Layer, (Receiver ID)": ("corrected", "Data Link Layer", "Receiver ID"),
        "severity=Uncorrectable (Non-Fatal), type=Inaccessible, (Unregistered Agent ID)": (
            "nonfatal", "Inaccessible", "Unregistered Agent ID"),
        "severity=Uncorrected (Fatal), type=Transaction Layer, (Requester ID)": (
            "fatal", "Transaction Layer", "Requester ID"),
    }  # fmt: skip
    for line, expected in lines.items():
        facts = _facts(f"pcieport 0000:00:1c.0: AER: PCIe Bus Error: {line}")
        assert (facts["severity"], facts["type"], facts["agent"]) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0000:9b:00", "0000:9b:00.0"),
        ("PCI:0000:9B:00.0", "0000:9b:00.0"),
        ("00000000:86:00.0", "0000:86:00.0"),
        ("00010009:01:00.0", "10009:01:00.0"),
        ("9b:00.0", "0000:9b:00.0"),
    ],
)
def test_pci_addresses_have_one_form(text: str, expected: str) -> None:
    """Lower case, four domain digits, a function."""
    assert pci_address(text) == expected


_WHEN = datetime(2025, 1, 21, 4, 41, 44, tzinfo=UTC)


@pytest.mark.parametrize(
    ("line", "at", "exact"),
    [
        ("[Tue Jan 21 05:41:44 2025] hello", _WHEN, False),
        ("kern  :warn  : 2025-01-21T04:41:44,283302+00:00 hello", _WHEN + timedelta(microseconds=283302), True),
        ("2025-01-21T06:41:44,283302+02:00 hello", _WHEN + timedelta(microseconds=283302), True),
        ("Jan 21 05:41:44 host kernel: [12345.678901] hello", _WHEN, False),
    ],
)
def test_forms_of_dmesg_give_time_and_message(line: str, at: datetime, exact: bool) -> None:
    """A zone in the line is exact; without one it is taken in the zone given, approximately."""
    now = datetime(2025, 2, 1, tzinfo=UTC)
    record = parse_dmesg(line.encode(), zone=timezone(timedelta(hours=1)), now=now)
    assert record is not None
    assert (record.at, record.text, record.exact) == (at, "hello", exact)


def test_raw_dmesg_counts_from_boot() -> None:
    """With and without level and caller."""
    for before in ("", "<6>", "kern  :info  : "):
        for caller in ("", "[ T10] ", "[    C9] "):
            _is_hello_at_12_5(f"{before}[   12.500000]{caller or ' '}hello")


def _is_hello_at_12_5(line: str) -> None:
    record = parse_dmesg(line.encode())
    assert record is not None
    assert (record.since_boot_s, record.text, record.facility) == (12.5, "hello", 0)


@pytest.mark.parametrize(
    "line",
    [
        "2025-01-21T04:41:44+0000 host kernel: hello",
        "2025-01-21T04:41:44.000000+00:00 host kernel: hello",
        '{"__REALTIME_TIMESTAMP":"1737434504000000","_TRANSPORT":"kernel","MESSAGE":"hello"}',
        '{"__REALTIME_TIMESTAMP":"1737434504000000","_TRANSPORT":"kernel","MESSAGE":[104,101,108,108,111]}',
    ],
)
def test_forms_of_the_journal_give_time_and_message(line: str) -> None:
    """Text and JSON; a message that is no text comes as numbers."""
    record = parse_journal(line.encode())
    assert record is not None
    assert (record.at, record.text, record.exact) == (_WHEN, "hello", True)


@pytest.mark.parametrize(
    "line",
    [
        "2025-01-21T04:41:44+0000 host sshd[1]: NVRM: Xid (PCI:0000:9b:00): 79, pid=1, x",
        "Jan 21 05:41:44 host app: NVRM: Xid (PCI:0000:9b:00): 79, pid=1, x",
        '{"__REALTIME_TIMESTAMP":"1737434504000000","_TRANSPORT":"syslog","MESSAGE":"NVRM: Xid (PCI:0000:9b:00): 79"}',
    ],
)
def test_user_space_cannot_speak_for_the_kernel(line: str) -> None:
    """A program that logs a line like the driver's is not the driver."""
    assert parse_journal(line.encode()) is None
    record = parse_dmesg(line.encode())
    assert record is None or understand(record.text) is None


def test_a_journal_names_its_boot() -> None:
    """The record's own boot id, as the kernel writes it."""
    line = b'{"__REALTIME_TIMESTAMP":"1","MESSAGE":"x","_BOOT_ID":"0123456789abcdef0123456789abcdef"}'
    record = parse_journal(line)
    assert record is not None
    assert record.boot_id == "01234567-89ab-cdef-0123-456789abcdef"


def test_a_kmsg_record_has_sequence_time_and_facility() -> None:
    """Its dictionary lines are left out, an escaped line break is one."""
    record = parse_kmsg(b"12,3964,206764307,-;first\\x0asecond\n SUBSYSTEM=pci\n DEVICE=+pci:0000:00:00.0\n")
    assert record is not None
    assert (record.sequence, record.since_boot_s, record.facility) == (3964, 206.764307, 1)
    assert record.text == "first\nsecond"


def test_a_raw_line_is_at_most_a_kilobyte_and_obeys_no_terminal() -> None:
    """Cut between characters; escape sequences and direction marks are shown, not obeyed."""
    record = parse_dmesg(b"[    1.0] \x1b[31mred \xe2\x80\xae \xff")
    assert record is not None
    assert record.text == "\\x1b[31mred \\u202e \\xff"
    long = shown("é" * 2000)
    assert len(long.encode()) <= 1024
    assert long.endswith("é…")
