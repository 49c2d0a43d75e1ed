"""File systems that hang, that became read-only, that are full."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from service_programs import Node, states

from graynode.collectors.base import NoSource, Row
from graynode.collectors.services.collector import Services
from graynode.collectors.services.mounts import Mounts, parse_mountinfo, parse_statfs, watched

ROOT = "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard"
NFS = "90 27 0:50 / /home rw,relatime shared:2 - nfs4 filer:/home rw,vers=4.2,hard,proto=tcp"
SCRATCH = "91 27 259:1 / /scratch rw - xfs /dev/nvme0n1 rw,attr2"
EMPTY = "900 1000 900 1000"
"""Free blocks of all, free inodes of all."""
HOME = frozenset({"mount /home"})


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path)
    _mounted(made, ROOT, NFS, SCRATCH)
    _stat(made)
    return made


def _mounted(node: Node, *lines: str) -> None:
    node.write("proc/self/mountinfo", "".join(f"{line}\n" for line in lines))


def _stat(node: Node, hanging: str = "", **answers: str) -> None:
    """``stat``: one mount hangs, others answer by the name of their last folder, the rest is empty."""
    cases = "".join(f'*/{name}) echo "{text}";;\n' for name, text in answers.items())
    hang = f'"{hanging}") exec /bin/sleep 600;;\n' if hanging else ""
    node.bin.does("stat", f'for at; do :; done\ncase "$at" in\n{hang}{cases}*) echo "{EMPTY}";;\nesac')


def _services(node: Node) -> Services:
    return node.collector(Mounts(node.machine, node.runner))


def _of(rows: list[Row], kind: str) -> dict[str, Any]:
    return states([row for row in rows if row["kind"] == kind])


def _facts(event: Row) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(event["attributes"])
    return found


def test_well_mounts_are_told_once(node: Node) -> None:
    """Each file system is a mount and a disk; host fields come of them."""
    services = _services(node)
    rows, events = node.minute(services)
    assert _of(rows, "mount") == {"/": "ok", "/home": "ok", "/scratch": "ok"}
    assert _of(rows, "disk") == {"/": "ok", "/home": "ok", "/scratch": "ok"}
    assert events == []
    assert node.minute(services) == ([], [])
    assert services.host_fields(frozenset({1, 10})) == {}
    assert services.host_fields(frozenset({60})) == {"mounts_hung": 0, "fs_used_max_ratio": pytest.approx(0.1)}
    services.close()


def test_hung_mount_is_named_with_its_time_and_hangs_nobody(node: Node) -> None:
    """A dead file server: the round returns at once, the others are told, half a minute later people are, and the
    asker that hangs is not started again."""
    services = _services(node)
    node.minute(services)
    _stat(node, hanging="/home")
    node.turn(60)
    began = node.second
    rows, events = node.minute(services, hanging=HOME)
    for _ in range(20):
        more = node.second_later(services, 2.0)
        rows, events = rows + more[0], events + more[1]
    assert _of(rows, "mount") == {"/home": "hung"}
    (event,) = events
    assert event["kind"] == "mount_hung"
    assert "nfs4 filer:/home has not answered" in event["message"]
    assert _facts(event)["since"] == rows[0]["since"].isoformat()
    assert node.second - began < 120
    for _ in range(3):
        node.minute(services, hanging=HOME)
    assert services.host_fields(frozenset({60}))["mounts_hung"] == 1
    assert sum(call.endswith("/home") for call in node.bin.calls("stat")) == 2
    services.close()


def test_mount_that_answers_again(node: Node) -> None:
    """A server that came back is told once, if its hang was."""
    services = _services(node)
    gate = node.folder / "gate"
    node.bin.does(
        "stat",
        f'for at; do :; done\n[ "$at" = /home ] && while [ ! -e {gate} ]; do /bin/sleep 0.02; done\necho "{EMPTY}"',
    )
    node.minute(services, hanging=HOME)
    told = [event for _ in range(40) for event in node.second_later(services)[1]]
    assert [event["kind"] for event in told] == ["mount_hung"]
    gate.touch()
    rows, events = node.minute(services)
    assert (_of(rows, "mount")["/home"], [e["kind"] for e in events]) == ("ok", ["mount_back"])
    services.close()


def test_agent_restarted_while_a_mount_hangs(node: Node) -> None:
    """The new agent does not take a silent mount for a well one, and tells the hang no second time."""
    _stat(node, hanging="/home")
    services = _services(node)
    node.minute(services, hanging=HOME)
    told = [event for _ in range(40) for event in node.second_later(services)[1]]
    assert [event["kind"] for event in told] == ["mount_hung"]
    services.close()
    services = _services(node)
    node.minute(services, hanging=HOME)
    assert [event for _ in range(50) for event in node.second_later(services)[1]] == []
    services.close()


def test_disk_that_gave_up_writing(node: Node) -> None:
    """What could be written and cannot any more is a fault, also over a restart; one mounted so is none."""
    boot_image = "92 27 7:0 / /boot ro - ext4 /dev/vdb ro"
    _mounted(node, ROOT, SCRATCH, boot_image)
    services = _services(node)
    assert _of(node.minute(services)[0], "mount")["/boot"] == "ok"
    services.close()
    services = _services(node)
    _mounted(node, ROOT, SCRATCH.replace("rw,attr2", "ro,attr2"), boot_image)
    rows, events = node.minute(services)
    assert _of(rows, "mount")["/scratch"] == "read_only"
    assert [(e["kind"], _facts(e)["about"]) for e in events] == [("mount_read_only", "/scratch")]
    _mounted(node, ROOT, SCRATCH, boot_image)
    assert [e["kind"] for e in node.minute(services)[1]] == ["mount_back"]


def test_file_system_that_says_itself_that_it_gave_up(node: Node) -> None:
    """ext4's own emergency mode is a fault even if nobody saw it writable."""
    _mounted(node, ROOT.replace("rw,discard", "ro,emergency_ro"))
    assert [e["kind"] for e in node.minute(_services(node))[1]] == ["mount_read_only"]


def test_full_by_bytes_or_inodes_with_room_to_swing(node: Node) -> None:
    """97 % is full, 96 % is still full, 94 % is room again; so it is for inodes."""
    services = _services(node)
    kinds = []
    for free in ("900 1000 900 1000", "30 1000 900 1000", "40 1000 900 1000", "60 1000 900 1000", "900 1000 5 1000"):
        _stat(node, scratch=free)
        rows, events = node.minute(services)
        kinds.append([e["kind"] for e in events])
    assert kinds == [[], ["disk_full"], [], ["disk_room"], ["disk_full"]]
    assert "99.5 % of its inodes in use" in events[0]["message"]
    assert next(row["value"] for row in rows if row["kind"] == "disk") == pytest.approx(0.995)
    assert services.host_fields(frozenset({60}))["fs_used_max_ratio"] == pytest.approx(0.995)


def test_full_shared_file_system_is_its_owners_matter(node: Node) -> None:
    """All nodes would tell it: it is a state to look up, and no event of each of them."""
    services = _services(node)
    _stat(node, home="1 1000 900 1000")
    rows, events = node.minute(services)
    assert (_of(rows, "disk")["/home"], events) == ("full", [])
    assert services.host_fields(frozenset({60}))["fs_used_max_ratio"] == pytest.approx(0.1)


def test_many_mounts_are_asked_a_few_each_second(node: Node) -> None:
    """Starting a program takes a millisecond or more: the sources that share the thread do not wait for all of them."""
    _mounted(node, *(f"{n} 1 9:{n} / /data{n} rw - xfs /dev/x{n} rw" for n in range(40)))
    services = _services(node)
    node.minute(services, wait=False)
    seconds = 0
    while len(node.bin.calls("stat")) < 32 and seconds < 500:
        running = len(node.runner._running)
        node.second_later(services, 0.01)
        assert len(node.runner._running) <= running + 4
        seconds += 1
    assert len(node.bin.calls("stat")) == 32
    services.close()


def test_unmounted_is_gone_and_over(node: Node) -> None:
    """A mount that somebody took away is gone, which ends its fault too."""
    services = _services(node)
    _stat(node, scratch="1 1000 900 1000")
    assert [e["kind"] for e in node.minute(services)[1]] == ["disk_full"]
    _mounted(node, ROOT)
    rows, events = node.minute(services)
    assert {(r["kind"], r["name"], r["state"]) for r in rows} >= {
        ("mount", "/scratch", "gone"),
        ("disk", "/scratch", "gone"),
    }
    assert [e["kind"] for e in events] == ["disk_room"]
    assert "/scratch" not in _of(node.minute(services)[0], "mount")


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'cannot read file system information for /: Permission denied' >&2; exit 1", "Permission denied"),
        ("echo what", "stat told 'what"),
        ("echo 1 2 3 99999999999999999999999", "stat told"),
        ("exit 0", "stat told ''"),
    ],
)
def test_stat_that_fails_or_lies(node: Node, script: str, reason: str) -> None:
    """An error is an answer: no hang, no number, and said once for all mounts that say the same."""
    _mounted(node, ROOT)
    node.bin.does("stat", script)
    services = _services(node)
    for _ in range(3):
        rows, events = node.minute(services)
        assert events == []
        assert _of(rows, "disk") == {}
    assert [reason in row["reason"] for row in node.quality] == [True]


def test_mount_whose_server_forgot_it(node: Node) -> None:
    """A stale handle or a dead daemon answers at once, with nothing but errors: a fault like a hang, and told apart."""
    node.bin.does(
        "stat",
        f'for at; do :; done\n[ "$at" = /home ] && {{ echo "$at: Stale file handle" >&2; exit 1; }}\necho "{EMPTY}"',
    )
    services = _services(node)
    rows, events = node.minute(services)
    assert (_of(rows, "mount")["/home"], events) == ("failing", [])
    (event,) = node.minute(services)[1]
    assert (event["kind"], _facts(event)["why"]) == ("mount_failing", "nfs4 filer:/home: Stale file handle")
    _stat(node)
    assert [e["kind"] for e in node.minute(services)[1]] == ["mount_back"]


def test_really_hung_mount(tmp_path: Path) -> None:
    """A FUSE file system whose daemon never answers, in a mount namespace of its own: the kernel holds ``stat`` as it
    does over a dead server; once the daemon is gone it answers with errors."""
    if os.geteuid() or not Path("/dev/fuse").exists() or shutil.which("unshare") is None:
        pytest.skip("needs root, /dev/fuse and unshare")
    script = Path(__file__).parents[1] / "kit/hung_mount.py"
    (tmp_path / "mnt").mkdir()
    command = ["unshare", "--mount", sys.executable, "-I", str(script), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode == 77:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told == [["mount_hung", "fuse.sshfs graynode-test has not answered"],
                    ["mount_failing", "fuse.sshfs graynode-test: Transport endpoint is not connected"]]  # fmt: skip


def test_no_mount_table(tmp_path: Path) -> None:
    """Without ``/proc`` there is nothing to watch."""
    node = Node(tmp_path)
    with pytest.raises(NoSource, match="mountinfo"):
        node.minute(_services(node))


def test_what_is_watched() -> None:
    """Servers and disks, each once at its shortest place; not pods' volumes, binds, images and the kernel's own."""
    lines = [
        "22 27 0:21 / /proc rw - proc proc rw",
        ROOT,
        "28 27 254:0 /var/log /logs rw - ext4 /dev/vda rw",
        "29 27 254:0 / /mnt/root-again rw - ext4 /dev/vda rw",
        NFS,
        "93 27 0:50 / /mnt/home-again rw - nfs4 filer:/home rw",
        "94 27 259:9 / /var/lib/kubelet/pods/x/volumes/v rw - ext4 /dev/nvme9n1 rw",
        "95 27 0:61 /@ /btr rw - btrfs /dev/sdb rw",
        "96 27 0:62 / /mnt/with\\040blank ro shared:1 master:2 - lustre 10.0.0.1@o2ib:/fs ro",
        "97 27 7:1 / /snap/core/1 ro - squashfs /dev/loop1 ro",
    ]
    found = watched(parse_mountinfo("\n".join(lines)))
    assert [(m.point, m.kind, m.read_only) for m in found] == [
        ("/", "ext4", False), ("/btr", "btrfs", False), ("/home", "nfs4", False), ("/mnt/with blank", "lustre", True),
    ]  # fmt: skip


def test_a_view_that_is_read_only_is_no_fault(node: Node) -> None:
    """A service manager's sandbox shows every mount read-only to the agent; the file system itself is well. What it
    hides behind another mount is said to be hidden, and is not asked."""
    over = "99 27 0:90 / /home ro - tmpfs tmpfs ro"
    sandboxed = [line.replace(" rw", " ro", 1) for line in (ROOT, NFS, SCRATCH)]
    assert all(" rw" in line for line in sandboxed)  # the file systems themselves
    _mounted(node, *sandboxed, over)
    services = _services(node)
    rows, events = node.minute(services)
    assert (_of(rows, "mount"), events) == ({"/": "ok", "/home": "hidden", "/scratch": "ok"}, [])
    assert not any(call.endswith("/home") for call in node.bin.calls("stat"))
    _mounted(node, *sandboxed[:2], sandboxed[2].replace("rw,attr2", "ro,attr2"), over)
    assert [e["kind"] for e in node.minute(services)[1]] == ["mount_read_only"]


@pytest.mark.parametrize(
    "text", ["", "\n\n", "x", "1 2 3", " - ", "a b c d e f - g", "\x00" * 50, ROOT[:20], "é" * 999]
)
def test_broken_mount_table(text: str) -> None:
    """Lines that are none are passed over, and the table is bounded."""
    assert parse_mountinfo(text) == []
    assert len(parse_mountinfo(f"{ROOT}\n" * 30_000)) == 20_000
    assert len(watched(parse_mountinfo("\n".join(ROOT.replace("254:0", f"9:{n}") for n in range(99))))) == 32


def test_file_systems_without_numbers() -> None:
    """Some give zeros or more free than there is: no number is better than a wrong one."""
    assert parse_statfs("0 0 0 0\n") is None
    assert parse_statfs("11 10 0 0") is None
    assert parse_statfs("5 10 0 0") == (0.5, None)


def test_this_machine_with_its_own_stat() -> None:
    """The real program and the real table: the root file system has a use between nothing and all."""
    import shutil
    import tempfile

    import agent_fakes

    from graynode.collectors.services.program import PATH, Runner

    if shutil.which("stat", path=PATH) is None or not watched(
        parse_mountinfo(Path("/proc/self/mountinfo").read_text())
    ):
        pytest.skip("no stat, or no file system of a disk here")
    with tempfile.TemporaryDirectory() as folder:
        node = Node(Path(folder))
        machine = agent_fakes.machine(Path(folder))
        node.runner = Runner()
        services = Services(machine, runner=node.runner, parts=[Mounts(machine, node.runner)])
        rows, _ = node.minute(services)
        assert 0 <= services.host_fields(frozenset({60}))["fs_used_max_ratio"] <= 1
        assert {row["state"] for row in rows if row["kind"] == "mount"} <= {"ok", "read_only"}
        services.close()
