"""A mount that hangs in the kernel, watched by the collector: ``hung_mount.py FOLDER``, in its own mount namespace.

Prints, as JSON, the events that it gave and why. Code 77: this kernel or sandbox permits no such mount.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import node_files
from service_programs import Node

from graynode.collectors.services.mounts import Mounts
from graynode.collectors.services.program import PATH, Runner


def main(folder: Path) -> int:
    """Mount, look, let the daemon end, look again."""
    libc = ctypes.CDLL(None, use_errno=True)
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    if libc.mount(b"graynode-test", str(folder / "mnt").encode(), b"fuse.sshfs", 0, options):
        sys.stderr.write(f"mount: {os.strerror(ctypes.get_errno())}\n")
        return 77
    node = Node(folder)
    node.runner = Runner(PATH, node.hands.monotonic)
    # only the mount in question: what this machine's others do is not the matter here
    line = next(x for x in Path("/proc/self/mountinfo").read_text().splitlines() if " - fuse.sshfs " in x)
    node_files.write(node.machine.proc / "self/mountinfo", f"{line}\n")
    services = node.collector(Mounts(node.machine, node.runner))
    events = _look(node, services)
    os.close(device)  # the daemon is gone: the kernel lets the waiting stat go, with an error
    events += _look(node, services)
    services.close()
    libc.umount2(str(folder / "mnt").encode(), 2)
    sys.stdout.write(json.dumps([[e["kind"], json.loads(e["attributes"])["why"]] for e in events]))
    return 0


def _look(node: Node, services: Any) -> list[Any]:
    """A minute's round and the seconds after it, until something is told."""
    events = list(node.minute(services, wait=False)[1])
    end = time.monotonic() + 10
    while not events and time.monotonic() < end:
        time.sleep(0.02)
        events += node.second_later(services, 2.0)[1]
        if node.runner.running_s(f"mount {node.folder / 'mnt'}") is None:
            events += node.minute(services)[1]
    return events


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
