"""Nothing is dropped silently: of every captured kernel log, what was read is what became of it, line by line."""

from pathlib import Path

import pytest
from agent_fakes import machine
from finding_rows import T0

from graynode.collectors.base import Round
from graynode.collectors.kernel_log.collector import Format, KernelLog

GPUD = Path(__file__).parent.parent / "fixtures" / "gpud"
CAPTURES: dict[str, tuple[Format, int]] = {
    "dmesg-with-xid-119.log": ("dmesg", 7),
    "dmesg-memory.decode.iso.log": ("dmesg", 20),
    "dmesg-nccl.decode.iso.log": ("dmesg", 0),
    "kmsg.1.log": ("kmsg", 0),
    "kmsg.2.peermem.log": ("kmsg", 1),
    "pstore-dmesg.txt": ("dmesg", 4),
    "pstore-dmesg-erst.txt": ("dmesg", 0),
    "fabricmanager.log": ("dmesg", 0),
}
"""The form of each capture, and how many of its lines are news of the hardware."""


@pytest.mark.parametrize("name", CAPTURES)
def test_every_line_of_a_capture_is_accounted_for(tmp_path: Path, name: str) -> None:
    """An event, a record without news of hardware, or no record of this form: the three sum to the whole lines."""
    form, events = CAPTURES[name]
    log = KernelLog(machine(tmp_path), GPUD / name, form)
    rows = [row for _ in range(5) for row in log.collect(Round(T0, frozenset({1}))).get("event", [])]
    assert log.tally.total() == (GPUD / name).read_bytes().count(b"\n")
    assert log.tally["event"] == len(rows) == events
