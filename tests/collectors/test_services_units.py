"""Units of systemd: what their state means on this node, and what of it becomes an event."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import node_files
import pytest
from service_programs import HANG, Node, states

from graynode.collectors.services.collector import Services
from graynode.collectors.services.program import Answer
from graynode.collectors.services.units import FABRIC_MANAGER, IMEX, Units, parse_show, unit_state


def block(unit: str, active: str = "active", sub: str = "running", **more: Any) -> str:
    """One unit as ``systemctl show`` prints it (systemd 249 to 255)."""
    facts = {
        "Id": unit, "LoadState": "loaded", "ActiveState": active, "SubState": sub, "UnitFileState": "enabled",
        "NRestarts": 0, "Result": "success", "ExecMainStatus": 0, "StateChangeTimestampMonotonic": 900_000_000, **more,
    }  # fmt: skip
    return "".join(f"{name}={value}\n" for name, value in facts.items())


def absent(unit: str) -> str:
    """A unit that is not installed."""
    return block(unit, "inactive", "dead", LoadState="not-found", UnitFileState="", StateChangeTimestampMonotonic=0)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path)
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    made.bin.answers("systemctl")
    return made


def _units(node: Node, *units: str) -> Services:
    at = node.folder
    part = Units(
        node.machine, node.runner, units or ("slurmd.service",), run=at / "run", etc=at / "etc",
        monotonic=node.hands.monotonic,
    )  # fmt: skip
    return node.collector(part)


def _show(node: Node, *blocks: str) -> None:
    node.bin.answers("systemctl", "\n".join(blocks))


def test_running_services_are_told_once_and_again_in_an_hour(node: Node) -> None:
    """A change log: what stays as it is costs no row, but an hour later all is said again."""
    _show(node, block("slurmd.service"), absent("kubelet.service"))
    services = _units(node)
    rows, events = node.minute(services)
    assert [(r["kind"], r["name"], r["state"], r["bad"]) for r in rows] == [("unit", "slurmd.service", "active", False)]
    assert rows[0]["since"] == node_files.START - timedelta(seconds=160)  # 1060 s by the clock, changed at 900
    assert events == []
    assert [node.minute(services)[0] for _ in range(3)] == [[]] * 3
    node.turn(3600)
    assert states(node.minute(services)[0]) == {"slurmd.service": "active"}


def test_arguments_are_a_list_and_no_shell_sees_them(node: Node) -> None:
    """Unit names come from the configuration: whatever is in them reaches systemctl as one argument after ``--``."""
    _show(node, block("a"))
    node.minute(_units(node, "a.service", "--now; touch pwned"))
    (call,) = node.bin.calls("systemctl")
    assert call.startswith("show --no-pager --property=Id,LoadState,ActiveState")
    assert call.endswith("-- a.service --now; touch pwned")


def test_failed_service_is_told_at_once_and_its_return(node: Node) -> None:
    """Fabric manager was down for twenty days unnoticed elsewhere: a failed unit is an event in the same minute."""
    services = _units(node)
    _show(node, block(FABRIC_MANAGER))
    node.minute(services)
    _show(node, block(FABRIC_MANAGER, "failed", "failed", Result="exit-code", ExecMainStatus=1))
    rows, events = node.minute(services)
    assert states(rows) == {FABRIC_MANAGER: "failed"}
    (event,) = events
    assert (event["kind"], event["source"]) == ("service_failed", "services")
    assert "exit-code, exit status 1" in event["message"]
    assert json.loads(event["attributes"])["about"] == FABRIC_MANAGER
    assert node.minute(services)[1] == []
    _show(node, block(FABRIC_MANAGER))
    (back,) = node.minute(services)[1]
    assert (back["kind"], json.loads(back["attributes"])) == (
        "service_back", {"about": FABRIC_MANAGER, "over": "service_failed"},
    )  # fmt: skip


def test_enabled_and_not_running_is_told_after_five_minutes(node: Node) -> None:
    """An upgrade or a restart by hand is no fault; five minutes of it are. The time is systemd's own."""
    services = _units(node)
    _show(node, block("slurmd.service", "inactive", "dead", StateChangeTimestampMonotonic=1_050_000_000))
    rows, events = node.minute(services)
    assert (states(rows), rows[0]["bad"], events) == ({"slurmd.service": "down"}, True, [])
    told = [event for _ in range(6) for event in node.minute(services)[1]]
    assert [event["kind"] for event in told] == ["service_failed"]
    assert json.loads(told[0]["attributes"])["since"] == (node_files.START - timedelta(seconds=10)).isoformat()


def test_crash_loop_is_one_fault_however_its_state_reads(node: Node) -> None:
    """Restarting, starting, failed and restarting again: the fault began with the first of them."""
    services = _units(node)
    kinds: list[str] = []
    for n, state in enumerate(("activating", "failed", "activating", "activating", "active")):
        sub = {"activating": "auto-restart", "failed": "failed", "active": "running"}[state]
        _show(node, block("slurmd.service", state, sub, NRestarts=3 * n, StateChangeTimestampMonotonic=10**9 + n))
        kinds += [event["kind"] for event in node.minute(services)[1]]
    assert kinds == ["service_restarted", "service_failed"] + ["service_restarted"] * 3 + ["service_back"]


def test_restarts_by_systemd_are_counted_by_the_hour(node: Node) -> None:
    """A service that is up at every look may have died between: NRestarts says how often."""
    services = _units(node)
    for restarts in (2, 2, 4, 9):
        _show(node, block("munge.service", NRestarts=restarts))
        _, events = node.minute(services)
    (event,) = events
    assert json.loads(event["attributes"])["in_last_hour"] == 7
    assert event["kind"] == "service_restarted"
    node.turn(3600)
    _show(node, block("munge.service", NRestarts=10))
    _, events = node.minute(services)
    assert json.loads(events[0]["attributes"])["in_last_hour"] == 1
    _show(node, block("munge.service", NRestarts=0))  # started by hand: systemd counts anew
    assert node.minute(services)[1] == []


@pytest.mark.parametrize(
    ("nvidia", "product", "state", "bad"),
    [
        (("0x2330", "0x22a3"), "DGXH100", "absent", True),
        (("0x2941",), "GB200 NVL", None, False),
        (("0x26b9",), "R760xa", None, False),
        ((), "", None, False),
    ],
    ids=["NVSwitches on the bus", "rack-scale tray", "PCIe GPUs", "nothing"],
)
def test_fabric_manager_that_is_not_installed(
    node: Node, nvidia: tuple[str, ...], product: str, state: str | None, bad: bool
) -> None:
    """Missing, it is a fault where there are NVSwitches, and nothing to speak of elsewhere."""
    _devices(node, nvidia, product)
    _show(node, absent(FABRIC_MANAGER))
    rows, _ = node.minute(_units(node))
    assert states(rows) == ({FABRIC_MANAGER: state} if state else {})
    assert any(row["bad"] for row in rows) == bad


@pytest.mark.parametrize(
    ("nvidia", "file_state", "active", "expected"),
    [
        (("0x22a3",), "disabled", "inactive", ("off", True)),
        (("0x2941",), "enabled", "failed", ("not_needed", False)),
        (("0x31c2",), "enabled", "inactive", ("not_needed", False)),
        (("0x2901",), "enabled", "failed", ("failed", True)),
        (("0x2901",), "disabled", "inactive", ("off", False)),
        (("0x2941",), "enabled", "active", ("active", False)),
    ],
)
def test_fabric_manager_where_it_belongs(
    node: Node, nvidia: tuple[str, ...], file_state: str, active: str, expected: tuple[str, bool]
) -> None:
    """Switched off beside NVSwitches is a fault; failed in a rack-scale compute tray is normal, for its switches run
    their own; where nobody can tell, an enabled unit that fails is a fault."""
    _devices(node, nvidia)
    sub = {"active": "running", "failed": "failed", "inactive": "dead"}[active]
    _show(node, block(FABRIC_MANAGER, active, sub, UnitFileState=file_state))
    (row,) = node.minute(_units(node))[0]
    assert (row["state"], row["bad"]) == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [(None, ("not_needed", False)), ("\n# none\n", ("not_needed", False)), ("10.0.0.1\n10.0.0.2\n", ("failed", True))],
    ids=["no file", "comments", "two nodes"],
)
def test_imex_is_nothing_without_a_compute_domain(node: Node, config: str | None, expected: tuple[str, bool]) -> None:
    """IMEX that is not ready without a domain alarmed people for thirteen days elsewhere; with one it must run."""
    if config is not None:
        node.write("etc/nvidia-imex/nodes_config.cfg", config)
    _show(node, block(IMEX, "failed", "failed"))
    (row,) = node.minute(_units(node))[0]
    assert (row["state"], row["bad"]) == expected


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"LoadState": "masked", "ActiveState": "inactive"}, ("masked", False)),
        ({"LoadState": "loaded", "ActiveState": "inactive", "UnitFileState": "disabled"}, ("off", False)),
        ({"LoadState": "loaded", "ActiveState": "inactive", "UnitFileState": "static"}, ("down", True)),
        ({"LoadState": "loaded", "ActiveState": "reloading"}, ("active", False)),
        ({"LoadState": "loaded", "ActiveState": "maintenance"}, ("maintenance", False)),
        ({}, ("unknown", False)),
    ],
)
def test_states_in_one_word(facts: dict[str, str], expected: tuple[str, bool]) -> None:
    """systemd's pairs of states; one that is newer than this list is kept and is no fault."""
    assert unit_state(facts)[:2] == expected


def test_machine_without_systemd_is_said_once(node: Node) -> None:
    """In a container there is no systemd: one row says so, and no program is started for it."""
    (node.folder / "run/systemd/system").rmdir()
    services = node.collector(Units(node.machine, node.runner, run=node.folder / "run"), _Always())
    for _ in range(3):
        node.minute(services)
    assert [(r["field"], r["state"]) for r in node.quality] == [("units", "unsupported")]
    assert "systemd does not run here" in node.quality[0]["reason"]


class _Always:
    name = "always"
    absent = ""

    def look(self, round_: Any) -> None:
        return None

    def host_fields(self) -> dict[str, Any]:
        return {}

    def memory(self) -> None:
        return None

    def remember(self, kept: Any) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'Failed to connect to bus: Permission denied' >&2; exit 1", "Permission denied"),
        ("exit 0", "systemctl told nothing"),
        ("while :; do echo 0123456789012345678901234567890123456789; done", "wrote more than"),
        ("printf 'Id=\\000\\377\\033[31m'; exit 0", "systemctl told nothing"),
        ("kill -SEGV $$", "systemctl told nothing (exit -11)"),
    ],
    ids=["no bus", "silence", "flood", "binary", "crash"],
)
def test_systemctl_that_fails(node: Node, script: str, reason: str) -> None:
    """Whatever it does is one row in ``quality``, said once; nothing is made up, and it is asked again."""
    node.bin.does("systemctl", script)
    services = _units(node)
    for _ in range(3):
        assert node.minute(services) == ([], [])
    assert [reason in row["reason"] for row in node.quality] == [True]
    _show(node, block("slurmd.service"))
    assert states(node.minute(services)[0])["slurmd.service"] == "active"
    assert node.quality[-1]["state"] == "measured"


def test_systemctl_that_hangs_is_ended_and_no_round_waits(node: Node) -> None:
    """systemd hangs on a sick node: the program is killed after ten seconds, meanwhile no second one is started."""
    node.bin.does("systemctl", HANG)
    services = _units(node)
    node.minute(services, wait=False)
    for _ in range(9):
        node.second_later(services)
    assert node.quality == []
    node.second_later(services, 2.0)
    assert "no answer within 10 s" in node.quality[0]["reason"]
    assert len(node.bin.calls("systemctl")) <= 1
    services.close()
    services.close()


def test_restart_of_the_agent_tells_nothing_twice(node: Node) -> None:
    """What was told stays told in the same boot, and the event's id is the same whoever tells it."""
    _show(node, block("slurmd.service", "failed", "failed", NRestarts=5))
    services = _units(node)
    (first,) = node.minute(services)[1]
    services.close()
    again = _units(node)
    assert node.minute(again)[1] == []
    _show(node, block("slurmd.service", NRestarts=5))
    assert [event["kind"] for event in node.minute(again)[1]] == ["service_back"]
    again.close()
    (node.machine.state_dir / "services.json").unlink()
    _show(node, block("slurmd.service", "failed", "failed", NRestarts=5))
    (forgotten,) = node.minute(_units(node))[1]
    assert forgotten["event_id"] == first["event_id"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"boot_id": 7}', '{"states": [[1]], "parts": 3}', "null"])
def test_damaged_memory_is_no_memory(node: Node, content: str) -> None:
    """A state file that was cut or is another's costs what was remembered, not the source."""
    boot = node.machine.boot_id
    node.write(
        "state/services.json", content.replace("{", f'{{"boot_id": "{boot}", ', 1) if ":" in content else content
    )
    _show(node, block("slurmd.service"))
    assert states(node.minute(_units(node))[0]) == {"slurmd.service": "active"}


def test_show_with_hostile_text() -> None:
    """Values may hold anything but an end of line; blocks without an id are none."""
    text = "Id=a.service\nResult=x=y=z\n\nActiveState=active\n\nId=b.service\n\x00\x1b[0m\n" + "A" * 100_000
    assert parse_show(text).keys() == {"a.service", "b.service"}
    assert parse_show(text)["a.service"]["Result"] == "x=y=z"


def test_missing_program_between_two_looks(node: Node) -> None:
    """systemctl that is removed while the agent runs is said, not a crash."""
    _show(node, block("slurmd.service"))
    services = _units(node)
    node.minute(services)
    node.bin.remove("systemctl")
    node.minute(services)
    assert node.quality[-1]["reason"].startswith("no systemctl in")
    assert Answer().trouble == ""


def _devices(node: Node, ids: tuple[str, ...], product: str = "") -> None:
    for n, device in enumerate(ids):
        node.write(f"sys/bus/pci/devices/0000:{n:02x}:00.0/vendor", "0x10de\n")
        node.write(f"sys/bus/pci/devices/0000:{n:02x}:00.0/device", f"{device}\n")
    node.write("sys/class/dmi/id/product_name", f"{product}\n")
