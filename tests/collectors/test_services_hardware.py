"""Memory errors, NVMe disks and the BMC's log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from service_programs import HANG, Node, states

from graynode.collectors.base import NoSource, Row
from graynode.collectors.services.edac import Edac
from graynode.collectors.services.ipmi import Ipmi, parse_info, records
from graynode.collectors.services.nvme import Nvme, parse_smart, warnings

MINUTE = frozenset({60})


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def _facts(event: Row) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(event["attributes"])
    return found


# --- EDAC ---


def _memory(node: Node, corrected: int, uncorrected: int, mc: str = "mc0", **dimms: tuple[int, int]) -> None:
    at = f"sys/devices/system/edac/mc/{mc}"
    node.write(f"{at}/ce_count", f"{corrected}\n")
    node.write(f"{at}/ue_count", f"{uncorrected}\n")
    node.write(f"{at}/mc_name", "i10nm_edac\n")
    for n, (label, counts) in enumerate(dimms.items()):
        node.write(f"{at}/dimm{n}/dimm_label", f"{label}\n")
        node.write(f"{at}/dimm{n}/dimm_ce_count", f"{counts[0]}\n")
        node.write(f"{at}/dimm{n}/dimm_ue_count", f"{counts[1]}\n")


def test_memory_without_errors(node: Node) -> None:
    """Zero errors is a measurement, in ``service`` and in ``host``."""
    _memory(node, 0, 0)
    services = node.collector(Edac(node.machine))
    rows, events = node.minute(services)
    assert [(r["kind"], r["name"], r["state"], r["value"]) for r in rows] == [("memory", "mc0", "ok", 0)]
    assert events == []
    assert services.host_fields(MINUTE) == {"edac_corrected_errors": 0, "edac_uncorrected_errors": 0}


def test_uncorrected_error_is_told_at_once_with_its_dimm(node: Node) -> None:
    """Also one that the kernel counted before the agent came; each growth is an event of its own."""
    _memory(node, 3, 1, CPU0_DIMM_B2=(3, 1), CPU0_DIMM_A1=(0, 0))
    services = node.collector(Edac(node.machine))
    rows, (event,) = node.minute(services)
    assert (event["kind"], event["code"]) == ("edac_ue", 1)
    assert event["message"] == "mc0: 1 uncorrected memory errors (CPU0_DIMM_B2)"
    assert (rows[0]["state"], rows[0]["bad"]) == ("uncorrected", True)
    assert _facts(event)["dimms"] == {"CPU0_DIMM_B2": [3, 1]}
    assert node.minute(services)[1] == []
    _memory(node, 3, 3, CPU0_DIMM_B2=(3, 3))
    (event,) = node.minute(services)[1]
    assert (_facts(event)["errors"], _facts(event)["since_boot"]) == (2, 3)
    services.close()
    assert node.minute(node.collector(Edac(node.machine)))[1] == []  # told in an earlier life


def test_corrected_errors_are_told_once_an_hour_by_their_growth(node: Node) -> None:
    """What was there at the start is no news; a thousand a minute are one event an hour with their sum."""
    _memory(node, 500, 0)
    services = node.collector(Edac(node.machine))
    assert node.minute(services)[1] == []
    _memory(node, 510, 0)
    assert [e["kind"] for e in node.minute(services)[1]] == ["edac_ce"]
    _memory(node, 1500, 0)
    assert node.minute(services)[1] == []
    node.turn(3600)
    (event,) = node.minute(services)[1]
    assert _facts(event)["errors"] == 990
    assert services.host_fields(MINUTE)["edac_corrected_errors"] == 1500


def test_counts_that_fall_begin_anew(node: Node) -> None:
    """A reloaded driver counts from zero: no negative growth, and the next error is one."""
    _memory(node, 100, 2)
    services = node.collector(Edac(node.machine))
    node.minute(services)
    _memory(node, 0, 1)
    (event,) = node.minute(services)[1]
    assert (event["kind"], _facts(event)["errors"]) == ("edac_ue", 1)


@pytest.mark.parametrize("text", ["", "-1", "many", "9" * 40, "\x00"])
def test_counts_that_are_none(node: Node, text: str) -> None:
    """A count that cannot be read is null, not zero, and said."""
    _memory(node, 0, 0)
    for file in ("ce_count", "ue_count"):
        node.write(f"sys/devices/system/edac/mc/mc0/{file}", text)
    services = node.collector(Edac(node.machine))
    rows, events = node.minute(services)
    assert (rows, events) == ([], [])
    assert "no counts can be read" in node.quality[0]["reason"]
    assert services.host_fields(MINUTE) == {"edac_corrected_errors": None, "edac_uncorrected_errors": None}


def test_machine_without_edac(node: Node) -> None:
    """A virtual machine has no memory controllers to ask."""
    with pytest.raises(NoSource, match="no memory controller"):
        node.minute(node.collector(Edac(node.machine)))


# --- NVMe ---

SMART = {
    "critical_warning": 0, "temperature": 311, "avail_spare": 100, "spare_thresh": 10, "percent_used": 4,
    "data_units_read": 2752848, "media_errors": 0, "num_err_log_entries": 17, "unsafe_shutdowns": 9,
}  # fmt: skip


def _disk(
    node: Node, name: str = "nvme0", *, state: str = "live", transport: str = "pcie", milli_c: str = "38850"
) -> None:
    at = f"sys/class/nvme/{name}"
    for file, text in {"state": state, "transport": transport, "model": "Disk", "serial": f"S{name[-1]}"}.items():
        node.write(f"{at}/{file}", f"{text}\n")
    node.write(f"{at}/hwmon3/temp1_input", f"{milli_c}\n")


def _log(node: Node, **more: Any) -> None:
    node.bin.answers("nvme", json.dumps({**SMART, **more}))


def test_disk_and_its_log(node: Node) -> None:
    """Wear, errors and temperature come into ``host``, the log's figures beside the state."""
    _disk(node)
    _log(node, percent_used=104, media_errors=2)
    services = node.collector(Nvme(node.machine, node.runner))
    node.minute(services)
    rows, _ = node.minute(services)
    assert node.bin.calls("nvme") == [f"smart-log {node.folder}/dev/nvme0 -o json"]
    node.turn(3600)
    (row,) = [r for r in node.minute(services)[0] if r["name"] == "nvme0"]
    assert (row["state"], row["value"], row["unit"]) == ("ok", 104, "%")
    assert json.loads(row["attributes"])["media_errors"] == 2
    assert services.host_fields(MINUTE) == {
        "nvme_media_errors": 2, "nvme_used_max_percent": 104, "nvme_temp_max_c": 39,
    }  # fmt: skip
    assert rows == []


def test_critical_warning_in_words_and_its_end(node: Node) -> None:
    """A disk that says of itself that it fails is an event; the kernel's "dead" is another."""
    _disk(node)
    _log(node, critical_warning=0b1101)
    services = node.collector(Nvme(node.machine, node.runner))
    told = [e for _ in range(2) for e in node.minute(services)[1]]
    assert [e["kind"] for e in told] == ["nvme_critical_warning"]
    assert (
        "spare blocks below threshold, reliability degraded by media or internal errors, read-only"
        in told[0]["message"]
    )
    _log(node)
    told = [e for _ in range(11) for e in node.minute(services)[1]]
    assert [e["kind"] for e in told] == ["nvme_well"]
    _disk(node, state="dead")
    assert [e["kind"] for e in node.minute(services)[1]] == ["nvme_dead"]


def test_log_is_asked_for_every_ten_minutes(node: Node) -> None:
    """The log costs the disk an admin command."""
    _disk(node)
    _log(node)
    services = node.collector(Nvme(node.machine, node.runner))
    for _ in range(21):
        node.minute(services)
    assert len(node.bin.calls("nvme")) == 3


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'open: Permission denied' >&2; exit 1", "Permission denied"),
        ("echo '{\"critical_warning\": '", "exit 0"),
        ("echo '[[[[[[[['", "exit 0"),
        (HANG, "no answer within 20 s"),
    ],
    ids=["not permitted", "cut", "another shape", "hangs"],
)
def test_log_that_cannot_be_read(node: Node, script: str, reason: str) -> None:
    """The kernel's own word on the disk goes on; what the log would say is null."""
    _disk(node)
    node.bin.does("nvme", script)
    services = node.collector(Nvme(node.machine, node.runner))
    hangs = script == HANG
    rows, _ = node.minute(services, hanging=frozenset({"nvme nvme0"}) if hangs else frozenset())
    node.second_later(services, 21.0 if hangs else 1.0)
    assert states(rows) == {"nvme0": "ok"}
    assert [reason in row["reason"] for row in node.quality] == [True]
    assert services.host_fields(MINUTE) == {
        "nvme_media_errors": None, "nvme_used_max_percent": None, "nvme_temp_max_c": 39,
    }  # fmt: skip
    services.close()


def test_without_nvme_cli_and_disks_behind_a_network(node: Node) -> None:
    """No nvme-cli costs the logs; a controller behind a network is no disk of this node."""
    _disk(node)
    _disk(node, "nvme7", transport="rdma", state="connecting")
    rows, _ = node.minute(node.collector(Nvme(node.machine, node.runner)))
    assert states(rows) == {"nvme0": "ok"}
    assert "nvme-cli" in node.quality[0]["reason"]


def test_disk_that_is_pulled_is_gone(node: Node) -> None:
    """A disk that vanishes while the agent runs."""
    _disk(node)
    _disk(node, "nvme1")
    _log(node)
    services = node.collector(Nvme(node.machine, node.runner))
    node.minute(services)
    (node.folder / "sys/class/nvme/nvme1").rename(node.folder / "pulled")
    assert ("nvme1", "gone") in {(r["name"], r["state"]) for r in node.minute(services)[0]}


def test_forms_of_the_log_seen_in_the_field() -> None:
    """Commas between thousands, the warning as an object, 128-bit counters that are no 64-bit ones, other key names."""
    assert parse_smart('{"critical_warning": 0, "media_errors": "2,752,848"}') == {
        "critical_warning": 0, "media_errors": 2752848,
    }  # fmt: skip
    assert parse_smart('{"critical_warning": {"value": 4, "available_spare": 0}, "percentage_used": 9}') == {
        "critical_warning": 4, "percent_used": 9,
    }  # fmt: skip
    assert parse_smart('{"critical_warning": true, "media_errors": 18446744073709551615, "temperature": 0}') == {}
    assert parse_smart('{"temperature": 300}') is None
    assert parse_smart("[" * 100_000) is None
    assert warnings(0b1000010) == ["temperature out of range", "unknown bits 0x40"]


# --- BMC ---

HEAD = """SEL Information
Version          : 1.5 (v1.5, v2 compliant)
Entries          : {entries}
Free Space       : 15392 bytes
Percent Used     : {used}
Last Add Time    : {last}
Last Del Time    : Not Available
Overflow         : {overflow}
Supported Cmds   : 'Reserve' 'Get Alloc Info'
"""
RECORDS = (
    "  3c | 10/02/2025 | 17:30:01 | Memory DIMM A3 | Correctable ECC | Asserted",
    "  3d | 10/02/2025 | 17:33:30 | Memory DIMM A3 | Uncorrectable ECC | Asserted",
    "  3e | 10/02/2025 | 22:07:09 | Temperature Inlet Temp | Upper Non-critical going high | Deasserted | Reading 28 > "
    "Threshold 28 degrees C",
)


def _sel(
    node: Node, entries: int, *lines: str, last: str = "10/02/2025 22:07:09", used: str = "6%", full: bool = False
) -> None:
    head = HEAD.format(entries=entries, used=used, last=last, overflow=str(full).lower())
    (node.bin.folder / "head").write_text(head)
    (node.bin.folder / "list").write_text("".join(f"{line}\n" for line in lines))
    at = node.bin.folder
    node.bin.does("ipmitool", f'case "$2" in info) /bin/cat {at}/head;; *) /bin/cat {at}/list;; esac')


def _bmc(node: Node) -> Any:
    node.write("dev/ipmi0", "")
    return node.collector(Ipmi(node.machine, node.runner))


def _five_minutes(node: Node, services: Any) -> tuple[list[Row], list[Row]]:
    found = [node.minute(services) for _ in range(5)]
    return [r for rows, _ in found for r in rows], [e for _, events in found for e in events]


def test_bmc_log_is_history_first_and_then_only_what_is_new(node: Node) -> None:
    """Sixty records of last year are no news; two more are, by their number, with the BMC's own time beside them."""
    _sel(node, 60)
    services = _bmc(node)
    rows, events = _five_minutes(node, services)
    assert states(rows) == {"sel": "ok"}
    assert events == []
    assert node.bin.calls("ipmitool") == ["sel info"]
    _sel(node, 62, *RECORDS[1:], last="10/02/2025 22:08:00")
    _, events = _five_minutes(node, services)
    assert node.bin.calls("ipmitool")[-1] == "sel elist last 2"
    assert [(e["kind"], _facts(e)["critical"]) for e in events] == [("ipmi_sel", True), ("ipmi_sel", False)]
    assert _facts(events[0])["bmc_time"] == "10/02/2025 17:33:30"
    assert events[0]["raw"] == RECORDS[1]
    assert _five_minutes(node, services)[1] == []


def test_bmc_log_over_a_restart_and_a_clearing(node: Node) -> None:
    """The position is kept; a log that was cleared is read from its beginning."""
    _sel(node, 60)
    services = _bmc(node)
    _five_minutes(node, services)
    services.close()
    services = _bmc(node)
    _sel(node, 61, RECORDS[0], last="later")
    (event,) = _five_minutes(node, services)[1]
    assert _facts(event)["critical"] is False
    _sel(
        node,
        1,
        "   1 | 10/03/2025 | 08:00:00 | Event Logging Disabled SEL | Log area reset/cleared | Asserted",
        last="x",
    )
    assert [e["kind"] for e in _five_minutes(node, services)[1]] == ["ipmi_sel"]
    _sel(node, 0, last="Not Available")
    assert _five_minutes(node, services)[1] == []


def test_full_log_says_that_it_is(node: Node) -> None:
    """A full log takes nothing new: silence of the BMC is no health."""
    _sel(node, 512, used="100%", full=True)
    (row,) = _five_minutes(node, _bmc(node))[0]
    assert (row["state"], row["value"]) == ("full", 512)


def test_bmc_that_does_not_answer(node: Node) -> None:
    """A hanging BMC costs itself: ended after a minute, said, and asked again."""
    node.bin.does("ipmitool", HANG)
    services = _bmc(node)
    node.minute(services, hanging=frozenset({"sel info"}))
    node.second_later(services, 61.0)
    assert "no answer within 60 s" in node.quality[0]["reason"]
    services.close()


@pytest.mark.parametrize("missing", ["device", "program"])
def test_no_bmc(node: Node, missing: str) -> None:
    """Neither device nor program is no source, with its reason."""
    if missing == "program":
        node.write("dev/ipmi0", "")
    with pytest.raises(NoSource, match="BMC interface" if missing == "device" else "no ipmitool"):
        node.minute(node.collector(Ipmi(node.machine, node.runner)))


@pytest.mark.parametrize(
    ("line", "critical"),
    [
        ("1 | 01/15/2024 | 09:12:34 | Power Unit #0xc8 | Power off/down | Asserted", False),
        ("2 | 01/15/2024 | 09:13:01 | Temperature CPU1 | Upper Critical going high | Asserted", True),
        ("3 | Pre-Init Time-stamp | Memory #0x12 | Uncorrectable ECC | Asserted", True),
        ("4 | 04/05/2026 | 14:31:00 | Power Supply PS1 | Power Supply AC lost | Asserted", True),
        ("5 | 04/05/2026 | 14:41:00 | Power Supply PS1 | Power Supply AC lost | Deasserted", False),
        ("6 | 04/05/2026 | 14:41:00 | Fan FAN3 | Lower Non-recoverable going low | Asserted", True),
        ("7 | 10/06/2026 | 11:00:00 | Processor CPU1 | Thermal Trip | Asserted", True),
        ("8 | 03/29/2026 | 06:15:01 | Temperature #0x30 | Upper Non-critical going high | Asserted", False),
    ],
)
def test_which_records_ask_for_a_person(line: str, critical: bool) -> None:
    """By the words of the IPMI specification's sensor events, asserted ones only."""
    (record,) = records(line)
    assert record.attributes["critical"] == critical


@pytest.mark.parametrize(
    "text", ["", "SEL has no entries\n", "a | b", "zz | 1 | 2 | 3 | 4", "|" * 5000, "\x00\x1b[2J" * 99]
)
def test_texts_that_hold_no_record(text: str) -> None:
    """What is no record is passed over."""
    assert list(records(text)) == []
    assert parse_info(text).get("entries") is None


def test_flood_of_records_is_bounded() -> None:
    """A log that lists without end gives a hundred at most."""
    assert len(list(records(f"{RECORDS[0]}\n" * 10_000))) == 100
