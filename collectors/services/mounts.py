"""File systems: which hang, which became read-only, which are full.

``statfs`` of a mount whose server is gone does not return, and a thread in it would keep the agent from ending and its
lock from being freed. So a small program (``stat --file-system``) asks for each mount; one that does not come back is
left where it is, counts as a hung mount since it was started, and is not started twice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, ClassVar, Final

from graynode.collectors.base import Machine, Round
from graynode.collectors.services.look import Look, Seen
from graynode.collectors.services.program import Runner
from graynode.collectors.sysfs import whole_text

NETWORK: Final = frozenset({
    "nfs", "nfs4", "lustre", "gpfs", "beegfs", "wekafs", "ceph", "cifs", "smb3", "glusterfs", "vast", "daos", "pvfs2",
    "fuse.ceph", "fuse.glusterfs", "fuse.juicefs", "fuse.gcsfuse", "fuse.sshfs", "fuse.s3fs", "fuse.mount-s3",
    "fuse.dfuse", "fuse.blobfuse2",
})  # fmt: skip
LOCAL: Final = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs"})
_MOST_MOUNTS: Final = 32
_AT_ONCE: Final = 4
_MOST_LINES: Final = 20_000
_NOT_OURS: Final = ("/var/lib/kubelet/", "/run/", "/snap/", "/proc/", "/sys/", "/dev/")
"""Volumes of pods come and go with their jobs."""
_SHUT_DOWN: Final = frozenset({"emergency_ro", "shutdown"})
"""ext4 and xfs say in their options that they gave up writing by themselves."""
HUNG_S: Final = 5.0
_HUNG_PATIENCE_S: Final = 30.0
"""A server that fails over is back by then (an NFS mount asks again after 60 s at most; half of it is news)."""
_BROKEN: Final = re.compile(
    "stale file handle|transport endpoint is not connected|input/output error|host is down|no such device|"
    "communication error on send|connection timed out",
    re.IGNORECASE,
)
"""What ``stat`` says of a mount that nobody can use, in the C locale: its server, daemon or disk is gone."""
_ROOM_AGAIN: Final = 0.02
_OCTAL: Final = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """One mounted file system. ``read_only`` is the file system's own state, which errors change; a view of it that is
    read-only for this process alone (a service manager's sandbox, a container) is none. ``hidden``: another mount lies
    over it."""

    point: str
    kind: str
    source: str
    read_only: bool
    gave_up: bool
    device: str
    hidden: bool = False

    @property
    def network(self) -> bool:
        """Whether a server is behind it."""
        return self.kind in NETWORK


class Mounts:
    """The part. ``full_ratio`` of bytes or inodes in use is full; of local file systems only that is a fault."""

    name: ClassVar[str] = "mounts"

    def __init__(self, machine: Machine, runner: Runner, *, full_ratio: float = 0.97) -> None:
        self._table = machine.proc / "self/mountinfo"
        self._runner, self._full_ratio = runner, full_ratio
        self._mounts: dict[str, Mount] = {}
        self._asked: dict[str, datetime] = {}
        self._to_ask: list[str] = []
        self._writable: set[str] = set()
        self._full: set[str] = set()
        self._hung: set[str] = set()
        self._used: dict[str, float] = {}
        self.absent = "" if self._table.is_file() else f"no {self._table}"
        if not self.absent and not runner.finds("stat"):
            self.absent = f"no stat in {runner.path}"

    def look(self, round_: Round) -> Seen | None:
        """Ask all mounts once a minute; say what has answered, and what should have."""
        seen = Seen()
        if 60 in round_.due:
            self._begin(seen)
        self._ask_some(round_.ts)
        for point in list(self._asked):
            answer = self._runner.take(f"mount {point}")
            if answer is not None:
                del self._asked[point]
                self._hung.discard(point)
                self._answered(point, answer.code, answer.text, answer.trouble or answer.complaint, seen)
            elif (self._runner.running_s(f"mount {point}") or 0.0) >= HUNG_S and point in self._mounts:
                self._hung.add(point)
                seen.looks.append(self._hanging(point))
        return seen if seen.looks or seen.whole or seen.trouble else None

    def host_fields(self) -> dict[str, Any]:
        """Mounts that hang, and the fullest local file system."""
        if self.absent:
            return {}
        return {"mounts_hung": len(self._hung), "fs_used_max_ratio": max(self._used.values(), default=None)}

    def memory(self) -> Any:  # noqa: ANN401 (JSON)
        """Mounts that could be written in this boot."""
        return sorted(self._writable)

    def remember(self, kept: Any) -> None:  # noqa: ANN401 (JSON)
        """As ``memory`` gave them."""
        self._writable |= {point for point in kept if isinstance(point, str)} if isinstance(kept, list) else set()

    def close(self) -> None:
        """The runner lets go of the programs."""

    def _begin(self, seen: Seen) -> None:
        self._mounts = {mount.point: mount for mount in watched(parse_mountinfo(whole_text(self._table)))}
        for gone in (self._writable | self._hung | self._used.keys()) - self._mounts.keys():
            self._writable.discard(gone)
            self._hung.discard(gone)
            self._used.pop(gone, None)
        for point, mount in self._mounts.items():
            if mount.hidden:
                seen.looks.append(Look("mount", point, "hidden", reason="another mount lies over it for this process"))
        self._to_ask = [mount.point for mount in self._mounts.values() if not mount.hidden]
        seen.looks += [self._hanging(point) for point in self._mounts.keys() & self._hung]
        seen.whole, seen.silent = frozenset({"mount", "disk"}), frozenset(self._mounts)

    def _ask_some(self, ts: datetime) -> None:
        """A few each second: thirty programs started at once would hold up the sources behind this one."""
        some, self._to_ask = self._to_ask[:_AT_ONCE], self._to_ask[_AT_ONCE:]
        for point in some:
            ask = ["--file-system", "--format=%a %b %d %c", "--", point]
            if self._runner.start(f"mount {point}", "stat", ask, deadline_s=None, most=4096):
                self._asked[point] = ts

    def _state(self, mount: Mount) -> Look:
        facts = {"type": mount.kind, "source": mount.source, "read_only": mount.read_only}
        if not mount.read_only:
            self._writable.add(mount.point)
            return Look("mount", mount.point, "ok", attributes=facts)
        lost = mount.point in self._writable or mount.gave_up
        reason = "it could be written, and cannot any more" if lost else "mounted read-only"
        return Look("mount", mount.point, "read_only" if lost else "ok", lost, reason=reason, attributes=facts)

    def _hanging(self, point: str) -> Look:
        mount, since = self._mounts[point], self._asked.get(point)
        facts = {"type": mount.kind, "source": mount.source}
        reason = f"{mount.kind} {mount.source} has not answered"
        return Look("mount", point, "hung", True, _HUNG_PATIENCE_S, since=since, reason=reason, attributes=facts)

    def _answered(self, point: str, code: int, text: str, complaint: str, seen: Seen) -> None:
        mount = self._mounts.get(point)
        if mount is None:
            return
        broken = _BROKEN.search(complaint) if code else None
        if broken:
            facts = {"type": mount.kind, "source": mount.source}
            why = f"{mount.kind} {mount.source}: {broken[0]}"
            seen.looks.append(Look("mount", point, "failing", True, _HUNG_PATIENCE_S, reason=why, attributes=facts))
            return
        seen.looks.append(self._state(mount))
        try:
            used = parse_statfs(text if code == 0 else "")
        except ValueError:
            seen.trouble = f"{point}: {complaint or f'stat told {text[:80]!r}'}"[:300]
            return
        if used is not None:
            seen.looks.append(self._room(mount, used))

    def _room(self, mount: Mount, used: tuple[float, float | None]) -> Look:
        ratio = max(used[0], used[1] or 0.0)
        if not mount.network:
            self._used[mount.point] = ratio
        bound = self._full_ratio - (_ROOM_AGAIN if mount.point in self._full else 0.0)
        full = ratio >= bound
        (self._full.add if full else self._full.discard)(mount.point)
        what = "bytes" if used[0] >= (used[1] or 0.0) else "inodes"
        reason = f"{100 * ratio:.1f} % of its {what} in use" if full else ""
        facts = {"type": mount.kind, "bytes_used_ratio": round(used[0], 4), "shared": mount.network}
        facts |= {"inodes_used_ratio": round(used[1], 4)} if used[1] is not None else {}
        # a full shared file system is its owner's matter, and would be told by every node
        return Look(
            "disk", mount.point, "full" if full else "ok", full and not mount.network, value=round(ratio, 4),
            unit="ratio", reason=reason, attributes=facts,
        )  # fmt: skip


def parse_mountinfo(text: str) -> list[Mount]:
    """``/proc/<pid>/mountinfo`` (proc(5)); lines that are none are passed over."""
    found: list[Mount] = []
    for line in text.splitlines()[:_MOST_LINES]:
        head, separator, tail = line.partition(" - ")
        left, right = head.split(" "), tail.split(" ")
        if not separator or len(left) < 6 or len(right) < 3:
            continue
        root, kind, source, options = left[3], right[0], right[1], set(right[2].split(","))
        if kind in LOCAL and root != "/" and kind != "btrfs":
            continue  # a folder of another mount, shown here too
        found.append(
            Mount(
                _plain(left[4]),
                kind,
                _plain(source),
                "ro" in options,
                bool(options & _SHUT_DOWN),
                left[2],
            )
        )
    return found


def watched(mounts: Sequence[Mount]) -> list[Mount]:
    """File systems of servers and disks, each once, at its shortest place; at most 32."""
    best: dict[tuple[str, str], tuple[int, Mount]] = {}
    for i, mount in enumerate(mounts):
        if mount.kind not in NETWORK | LOCAL or mount.point.startswith(_NOT_OURS):
            continue
        key = (mount.kind, mount.source if mount.network else mount.device)
        if key not in best or len(mount.point) < len(best[key][1].point):
            best[key] = i, mount
    few = sorted(best.values(), key=lambda found: (len(found[1].point), found[1].point))[:_MOST_MOUNTS]
    return [replace(mount, hidden=_covered(mount.point, mounts[i + 1 :])) for i, mount in few]


def _covered(point: str, later: Sequence[Mount]) -> bool:
    return any(mount.point == point or point.startswith(f"{mount.point.rstrip('/')}/") for mount in later)


def parse_statfs(text: str) -> tuple[float, float | None] | None:
    """Ratios of bytes and of inodes in use from "free total free-inodes inodes"; ``ValueError`` if it is not that.

    Free is what is left for users. ``None`` where a file system gives no such numbers (all zero, more free than there
    is); one without inodes has no second ratio.
    """
    words = text.split()
    if len(words) != 4 or not all(word.isascii() and word.isdecimal() and len(word) < 20 for word in words):
        raise ValueError(f"not four numbers: {text[:80]!r}")
    free, total, inodes_free, inodes = map(int, words)
    if total == 0 or free > total or inodes_free > inodes:
        return None
    return 1 - free / total, (1 - inodes_free / inodes if inodes else None)


def _plain(text: str) -> str:
    return _OCTAL.sub(lambda found: chr(int(found[1], 8)), text)
