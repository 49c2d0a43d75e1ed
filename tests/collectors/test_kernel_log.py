"""The kernel log collector on captured logs, on a growing file and on a ring like the kernel's."""

from __future__ import annotations

import errno
import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from agent_fakes import BOOT_ID
from node_files import FIXTURES, START, checked, node, round_at, write

from graynode.collectors.base import NoSource, Row
from graynode.collectors.kernel_log.collector import KernelLog
from graynode.collectors.kernel_log.kmsg_device import KmsgDevice
from graynode.collectors.log_file import MAX_LINE, LogFile

GPUD = FIXTURES / "gpud"
XID = "[Sun Mar  1 10:00:0{} 2026] NVRM: Xid (PCI:0000:9b:00): {}, pid=1, name=a, x\n"


def _log(folder: Path, path: Path, format_: Any = "dmesg", **other: Any) -> KernelLog:
    return KernelLog(node(folder), path, format_, lambda: START, **{"zone": UTC, **other})


def _events(log: KernelLog, second: float = 0) -> list[Row]:
    return list(checked(log.collect(round_at(second)), KernelLog.tables).get("event", []))


def _codes(rows: list[Row]) -> list[int | None]:
    return [row["code"] for row in rows]


# --- captured logs ------------------------------------------------------------------------------------


def test_a_captured_xid_119_names_the_gpu(tmp_path: Path) -> None:
    """dmesg -T of a node whose GPU's system processor hung: five Xids, with address, UUID and process."""
    rows = _events(_log(tmp_path, GPUD / "dmesg-with-xid-119.log"))
    xids = [row for row in rows if row["kind"] == "xid"]
    assert _codes(xids) == [119] * 5
    assert {row["pci_bus_id"] for row in xids} == {"0000:9b:00.0"}
    assert {row["gpu_uuid"] for row in xids} == {"GPU-509665ad-b600-ac93-3616-d754b23d636d"}
    assert [row["process"] for row in xids] == ["nvidia-smi"] * 3 + ["cache_mgr_main", "gpud"]
    assert xids[0]["pid"] == 2024380
    assert xids[0]["ts"] == datetime(2025, 2, 23, 16, 24, 18, tzinfo=UTC)
    assert xids[0]["ts_quality"] == "approximate"
    assert xids[0]["raw"].startswith("[Sun Feb 23 16:24:18 2025] NVRM: Xid (PCI:0000:9b:00): 119")
    assert json.loads(xids[0]["attributes"])["gsp_function"] == 103
    assert [row["pci_bus_id"] for row in rows if row["kind"] == "gsp"] == [None, "0000:9b:00.0"]
    assert len({row["event_id"] for row in rows}) == len(rows)


def test_captured_application_faults_and_oom_kills(tmp_path: Path) -> None:
    """dmesg --decode with ISO times: Xids 13 and 43 with their place, three kills, times to the microsecond."""
    log = _log(tmp_path, GPUD / "dmesg-memory.decode.iso.log")
    rows = _events(log) + _events(log, 1)
    assert _codes(rows) == [13] * 16 + [43] + [None] * 3
    assert rows[0]["ts"] == datetime(2025, 1, 21, 4, 41, 44, 283302, tzinfo=UTC)
    assert rows[0]["ts_quality"] == "exact"
    assert json.loads(rows[0]["attributes"]) == {"gpc": 8, "tpc": 5, "sm": 1}
    assert [row["process"] for row in rows if row["kind"] == "oom_kill"] == ["httpd", "python", "httpd"]
    assert _events(_log(tmp_path / "other", GPUD / "dmesg-nccl.decode.iso.log")) == []


def test_a_captured_panic_log_has_its_ports_and_driver_loads(tmp_path: Path) -> None:
    """pstore: levels in brackets, seconds since boot, headings between the parts."""
    rows = _events(_log(tmp_path, GPUD / "pstore-dmesg.txt"))
    assert [row["kind"] for row in rows] == ["mlx5", "mlx5", "nvrm_load", "nvrm_load"]
    assert json.loads(rows[0]["attributes"]) == {"event": "port_module", "module": 1, "status": "Cable unplugged"}
    assert rows[0]["pci_bus_id"] == "0000:41:00.1"
    assert json.loads(rows[1]["attributes"])["netdev"] == "enp65s0f0np0"
    assert _events(_log(tmp_path / "other", GPUD / "pstore-dmesg-erst.txt")) == []


def test_a_captured_flood_is_one_event(tmp_path: Path) -> None:
    """Seven equal complaints of nvidia-peermem within a minute say one thing."""
    (row,) = _events(_log(tmp_path, GPUD / "kmsg.2.peermem.log", "kmsg"))
    assert row["kind"] == "peermem"
    assert _events(_log(tmp_path / "other", GPUD / "kmsg.1.log", "kmsg")) == []
    assert _events(_log(tmp_path / "third", GPUD / "fabricmanager.log")) == []


def test_a_flood_goes_on_being_counted(tmp_path: Path) -> None:
    """The 1st, 10th, 100th, … within a minute are told with their number; an Xid is never held back."""
    at = tmp_path / "log"
    line = "[{:12.6f}] pcieport 0000:00:1c.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)\n"
    xid = "[{:12.6f}] NVRM: Xid (PCI:0000:9b:00): 13, pid=1, name=a, x\n"
    write(at, "".join(line.format(1 + n / 100) + xid.format(1 + n / 100) for n in range(1500)) + line.format(99))
    rows = _events(_log(tmp_path, at, monotonic=lambda: 1000.0))
    told = [json.loads(row["attributes"]).get("occurrences", 1) for row in rows if row["kind"] == "aer"]
    assert told == [1, 10, 100, 1000, 1]
    assert len([row for row in rows if row["kind"] == "xid"]) == 1500


def test_a_gpu_off_the_bus_is_told_with_and_without_an_xid(tmp_path: Path) -> None:
    """Old drivers spread the message over lines and name the GPU in the first; an Xid 79 before it is said."""
    at = tmp_path / "log"
    write(
        at,
        "[   10.0] NVRM: The NVIDIA GPU 0000:b3:00.0\n"
        "               NVRM: (PCI ID: 10de:26b5) installed in this system has\n"
        "               NVRM: fallen off the bus and is not responding to commands.\n"
        "[   20.0] NVRM: GPU at PCI:0000:91:00: GPU-b6c3b2be-c55b-d076-fa0e-d464e4c7e08b\n"
        "[   20.1] NVRM: Xid (PCI:0000:91:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
        "[   20.2] NVRM: GPU 0000:91:00.0: GPU has fallen off the bus.\n",
    )
    rows = _events(_log(tmp_path, at, monotonic=lambda: 1000.0))
    assert [(row["kind"], row["pci_bus_id"]) for row in rows] == [
        ("gpu_off_bus", "0000:b3:00.0"), ("xid", "0000:91:00.0"), ("gpu_off_bus", "0000:91:00.0"),
    ]  # fmt: skip
    assert [json.loads(row["attributes"] or "{}").get("after_xid") for row in rows] == [False, None, True]
    assert rows[2]["gpu_uuid"] == "GPU-b6c3b2be-c55b-d076-fa0e-d464e4c7e08b"


def test_an_nvlink_of_a_known_gpu_is_named(tmp_path: Path) -> None:
    """The link is the GPU's UUID and the NVLink number, as in table link."""
    at = tmp_path / "log"
    write(
        at,
        "[   20.0] NVRM: GPU at PCI:0000:91:00: GPU-b6c3b2be-c55b-d076-fa0e-d464e4c7e08b\n"
        "[   20.1] NVRM: Xid (PCI:0000:91:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 17 (0x000625c6 0x0)\n",
    )
    (row,) = _events(_log(tmp_path, at, monotonic=lambda: 1000.0))
    assert row["link"] == "GPU-b6c3b2be-c55b-d076-fa0e-d464e4c7e08b/17"


# --- a growing file -----------------------------------------------------------------------------------


def test_a_growing_file_gives_each_line_once(tmp_path: Path) -> None:
    """Only new lines, only whole ones; a last line without its end is taken when it grows no more."""
    at = tmp_path / "log"
    write(at, XID.format(0, 1))
    log = _log(tmp_path, at)
    assert _codes(_events(log)) == [1]
    with at.open("a") as file:
        file.write(XID.format(1, 2) + XID.format(2, 3)[:30])
        file.flush()
        assert _codes(_events(log, 1)) == [2]
        file.write(XID.format(2, 3)[30:-1])
        file.flush()
        assert _events(log, 2) == []
        assert _events(log, 3) == []
    assert _codes(_events(log, 9)) == [3]
    assert _events(log, 10) == []


def test_rotation_and_truncation_lose_nothing(tmp_path: Path) -> None:
    """Renamed away with lines still unread, then copied and cut: every line comes once."""
    at = tmp_path / "log"
    write(at, XID.format(0, 1))
    log = _log(tmp_path, at)
    found = _events(log)
    with at.open("a") as file:
        file.write(XID.format(1, 2))
    at.rename(tmp_path / "log.1")
    write(at, XID.format(2, 3))
    found += _events(log, 1)
    write(at, "")
    found += _events(log, 2)
    write(at, XID.format(3, 4))
    found += _events(log, 3)
    assert _codes([row for row in found if row["kind"] == "xid"]) == [1, 2, 3, 4]


def test_a_file_cut_and_grown_again_between_looks_is_noticed(tmp_path: Path) -> None:
    """Longer than before but with another content: read from its start, and said to be a gap."""
    at = tmp_path / "log"
    write(at, XID.format(0, 1))
    log = _log(tmp_path, at)
    _events(log)
    write(at, XID.format(1, 2) * 2)
    rows = _events(log, 1)
    assert [row["kind"] for row in rows] == ["kmsg_gap", "xid", "xid"]
    assert len({row["event_id"] for row in rows}) == 3


@pytest.mark.parametrize("rotated", [False, True])
def test_a_restart_reads_nothing_twice_and_loses_nothing(tmp_path: Path, rotated: bool) -> None:
    """Also when the log was rotated while the agent was away, and the GPU was introduced before it went."""
    at = tmp_path / "log"
    write(at, "[Sun Mar  1 10:00:00 2026] NVRM: GPU at PCI:0000:9b:00: GPU-509665ad-b600-ac93-3616-d754b23d636d\n")
    first = _log(tmp_path, at)
    assert _events(first) == []
    with at.open("a") as file:
        file.write(XID.format(1, 2))
    assert _codes(_events(first, 1)) == [2]
    first.close()
    with at.open("a") as file:
        file.write(XID.format(2, 3))
    if rotated:
        at.rename(tmp_path / "log.1")
        write(at, XID.format(3, 4))
    second = _log(tmp_path, at)
    rows = _events(second, 2) + _events(second, 3)
    assert _codes(rows) == [3, 4][: 1 + rotated]
    assert {row["gpu_uuid"] for row in rows} == {"GPU-509665ad-b600-ac93-3616-d754b23d636d"}


def test_a_rotation_that_left_nothing_to_read_is_a_gap(tmp_path: Path) -> None:
    """The old file is gone (compressed, deleted): what may be lost is said."""
    at = tmp_path / "log"
    write(at, XID.format(0, 1))
    first = _log(tmp_path, at)
    _events(first)
    first.close()
    at.rename(tmp_path / "elsewhere")
    write(at, XID.format(1, 2))
    rows = _events(_log(tmp_path, at), 1)
    assert [row["kind"] for row in rows] == ["kmsg_gap", "xid"]


def test_a_killed_agent_reads_again_what_may_not_have_been_sent_under_the_same_ids(tmp_path: Path) -> None:
    """The position is kept only when it is ``settle_s`` old: unsent rows come again, older ones do not."""
    at, now = tmp_path / "log", [0.0]
    write(at, XID.format(0, 1))
    first = _log(tmp_path, at, monotonic=lambda: now[0])
    _events(first)
    now[0] = 29.0
    with at.open("a") as file:
        file.write(XID.format(1, 2) + XID.format(1, 2))
    unsent = _events(first, 29)
    now[0] = 31.0
    assert _events(first, 31) == []
    again = _events(_log(tmp_path, at, monotonic=lambda: now[0]), 50)
    assert _codes(again) == [2, 2]
    assert [row["event_id"] for row in again] == [row["event_id"] for row in unsent]
    assert again[0]["event_id"] != again[1]["event_id"]


def test_seconds_since_boot_in_a_file_are_of_this_boot_or_unknown(tmp_path: Path) -> None:
    """A record from later than now is of another boot: its time is when it was seen, and is called so."""
    at = tmp_path / "log"
    write(at, "[   60.0] NVRM: Xid (PCI:0000:9b:00): 1, x\n[  9999.0] NVRM: Xid (PCI:0000:9b:00): 2, x\n")
    rows = _events(_log(tmp_path, at, monotonic=lambda: 100.0))
    assert [(row["ts"], row["ts_quality"]) for row in rows] == [
        (START - timedelta(seconds=40), "approximate"),
        (START, "observed"),
    ]


def test_a_line_without_an_end_is_not_held_in_memory(tmp_path: Path) -> None:
    """Beyond its limit a line is given as far as it goes, and the rest is passed over as it comes."""
    at = tmp_path / "log"
    write(at, XID.format(0, 1)[:-1] + "A" * 3 * MAX_LINE)
    log = LogFile(at)
    (line,) = log.lines(0)
    assert len(line) == MAX_LINE
    assert log.position()["offset"] == at.stat().st_size
    with at.open("a") as file:
        file.write("A" * MAX_LINE + "\n" + XID.format(1, 2))
    assert log.lines(1) == [XID.format(1, 2).rstrip("\n").encode()]
    log.close()


# --- the kernel's ring --------------------------------------------------------------------------------


class Ring:
    """Answers reads as ``/dev/kmsg`` does: a record a read, EPIPE after an overrun, EAGAIN at the end."""

    def __init__(self) -> None:
        self.waiting: list[bytes | int] = []

    def put(self, sequence: int, text: str, seconds: float = 10.0) -> None:
        self.waiting.append(f"4,{sequence},{int(seconds * 1e6)},-;{text}\n".encode())

    def read(self, _fd: int, _size: int) -> bytes:
        if not self.waiting:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        first = self.waiting.pop(0)
        if isinstance(first, int):
            raise OSError(first, "Broken pipe")
        return first


@pytest.fixture
def ring() -> Ring:
    return Ring()


def _device(folder: Path, ring: Ring, boot_id: str = BOOT_ID, **other: Any) -> KernelLog:
    machine = node(folder, boot_id=boot_id)
    known: dict[str, Any] = {"clock": lambda: START, "monotonic": lambda: 100.0, "read": ring.read, **other}
    return KernelLog(machine, Path("/dev/null"), "kmsg", **known)


def test_lost_records_are_an_event_with_their_number(tmp_path: Path, ring: Ring) -> None:
    """An overrun is told by the sequence numbers; so is what was overwritten while the agent was away."""
    ring.put(5, "NVRM: Xid (PCI:0000:9b:00): 1, x")
    ring.waiting.append(errno.EPIPE)
    ring.put(9, "NVRM: Xid (PCI:0000:9b:00): 2, x")
    first = _device(tmp_path, ring)
    rows = _events(first)
    assert [row["kind"] for row in rows] == ["xid", "kmsg_gap", "xid"]
    assert json.loads(rows[1]["attributes"]) == {"first": 6, "last": 8, "lost": 3}
    assert first.lost == 3
    first.close()
    ring.put(9, "NVRM: Xid (PCI:0000:9b:00): 2, x")
    ring.put(20, "hello")
    second = _device(tmp_path, ring)
    (gap,) = _events(second, 1)
    assert json.loads(gap["attributes"])["lost"] == 10
    assert second.lost == 10


def test_an_error_of_the_device_costs_no_record_read_before_it(tmp_path: Path, ring: Ring) -> None:
    """The round gives what it has; the next one raises, and the one after goes on."""
    ring.put(5, "NVRM: Xid (PCI:0000:9b:00): 1, x")
    ring.waiting += [errno.EIO, errno.EIO]
    ring.put(6, "NVRM: Xid (PCI:0000:9b:00): 2, x")
    log = _device(tmp_path, ring)
    assert _codes(_events(log)) == [1]
    with pytest.raises(OSError, match="Broken pipe"):
        log.collect(round_at(1))
    assert _codes(_events(log, 2)) == [2]


def test_an_id_is_boot_and_sequence(tmp_path: Path, ring: Ring) -> None:
    """Read again by another agent it is the same event; the same sequence of another boot is another event."""
    line = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=a, GPU has fallen off the bus."
    ids = []
    for folder, boot in (("a", "boot-1"), ("b", "boot-1"), ("b", "boot-2")):
        ring.put(7, line)
        (row,) = _events(_device(tmp_path / folder, ring, boot))
        ids.append(row["event_id"])
    assert ids[0] == ids[1] != ids[2]


def test_a_restart_goes_on_after_the_last_record(tmp_path: Path, ring: Ring) -> None:
    """The ring is read from its oldest record every time; known ones are passed over."""
    for number in (1, 2):
        ring.put(number, f"NVRM: Xid (PCI:0000:9b:00): {number}, x")
    first = _device(tmp_path, ring)
    assert _codes(_events(first)) == [1, 2]
    first.close()
    for number in (1, 2, 3):
        ring.put(number, f"NVRM: Xid (PCI:0000:9b:00): {number}, x")
    assert _codes(_events(_device(tmp_path, ring), 1)) == [3]


def test_a_new_records_time_lies_between_two_looks(tmp_path: Path, ring: Ring) -> None:
    """The log's own clock drifts by seconds in weeks: what was not there a second ago was not written an hour ago."""
    wall = [START]
    log = _device(tmp_path, ring, clock=lambda: wall[0])
    ring.put(1, "NVRM: Xid (PCI:0000:9b:00): 1, x", seconds=40)
    assert _events(log)[0]["ts"] == START - timedelta(seconds=60)
    wall[0] += timedelta(seconds=1)
    ring.put(2, "NVRM: Xid (PCI:0000:9b:00): 2, x", seconds=50)
    assert _events(log, 1)[0]["ts"] == START
    ring.put(3, "NVRM: Xid (PCI:0000:9b:00): 3, x", seconds=5000)
    assert _events(log, 2)[0]["ts"] == START + timedelta(seconds=1)


def test_records_written_by_user_space_are_marked(tmp_path: Path, ring: Ring) -> None:
    """Root can write to the kernel's log (a drill does); the facility says that it was not the kernel."""
    ring.waiting.append(b"12,1,5,-;NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=a, x\n")
    (row,) = _events(_device(tmp_path, ring))
    assert json.loads(row["attributes"])["facility"] == 1


def test_a_position_that_cannot_be_kept_is_said(tmp_path: Path, ring: Ring) -> None:
    """The events come all the same; a quality row says that a restart will read again."""
    now = [0.0]
    log = _device(tmp_path, ring, monotonic=lambda: now[0])
    write(tmp_path / "state", "not a folder")
    ring.put(1, "NVRM: Xid (PCI:0000:9b:00): 1, x", seconds=0)
    assert len(_events(log)) == 1
    now[0] = 60.0
    rows = checked(log.collect(round_at(60)), KernelLog.tables)
    assert "a restart will read again" in rows["quality"][0]["reason"]
    assert log.collect(round_at(61)) == {}


# --- no source ----------------------------------------------------------------------------------------


def test_a_log_that_is_not_there_says_the_way_out(tmp_path: Path) -> None:
    """The text names the file and the key to set."""
    with pytest.raises(NoSource, match=r"nothing: .*; set agent\.kmsg"):
        _log(tmp_path, tmp_path / "nothing").collect(round_at(0))


def test_a_log_that_may_not_be_read_says_the_way_out(tmp_path: Path) -> None:
    """The text names the capability, the group and the key. As root the test gives up its rights for the moment."""
    at = tmp_path / "log"
    write(at, "")
    at.chmod(0)
    log, me = _log(tmp_path, at), os.geteuid()
    if me == 0:
        os.seteuid(65534)
    try:
        with pytest.raises(NoSource, match=r"CAP_SYSLOG.*group adm.*agent\.kmsg"):
            log.collect(round_at(0))
    finally:
        os.seteuid(me)


# --- live ---------------------------------------------------------------------------------------------


def test_this_machines_ring_is_read_to_its_end(tmp_path: Path) -> None:
    """Live: every record has a sequence and a time that is not in the future; the second look is empty or newer."""
    try:
        device = KmsgDevice(Path("/dev/kmsg"))
    except OSError as error:
        pytest.skip(f"/dev/kmsg cannot be read here: {error.strerror}")
    assert all(raw.split(b",")[1].isdigit() for raw in device.records())
    assert device.drained
    device.close()
    log = KernelLog(node(tmp_path))
    for row in _events(log):
        assert row["ts"] <= row["observed_ts"] or row["ts"] <= datetime.now(UTC)
    log.close()
    log.close()
    assert json.loads((tmp_path / "state/kernel_log.json").read_text())["position"]["boot_id"] == BOOT_ID


def test_a_record_written_now_is_read_now(tmp_path: Path) -> None:
    """Live: a harmless record written to the ring comes out of it, once, with this machine's time."""
    try:
        device = KmsgDevice(Path("/dev/kmsg"))
        ring = os.open("/dev/kmsg", os.O_WRONLY)
    except OSError as error:
        pytest.skip(f"/dev/kmsg cannot be read and written here: {error.strerror}")
    list(device.records())
    text = f"graynode test {os.getpid()}".encode()
    os.write(ring, b"<6>" + text + b"\n")  # without its end the kernel waits for a continuation
    os.close(ring)
    assert [text in raw for raw in device.records()].count(True) == 1
    assert not any(text in raw for raw in device.records())
    device.close()
