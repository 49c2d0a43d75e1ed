"""Kernel logs from anyone: no bytes raise, and how a log is cut into reads and lives of the agent never matters."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from node_files import FIXTURES, START, checked, node, round_at

from graynode.collectors.base import Row
from graynode.collectors.kernel_log.collector import KernelLog
from graynode.collectors.kernel_log.patterns import understand
from graynode.collectors.kernel_log.records import parse_dmesg, parse_journal, parse_kmsg, shown
from graynode.collectors.log_file import MAX_LINE

_SEEDS = (
    b"NVRM: Xid (PCI:0000:9b:00): 119, pid=2024380, name=nvidia-smi, Timeout",
    b"NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 0x0)",
    b"nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress",
    b"NVRM: The NVIDIA GPU 0000:b3:00.0\\x0aNVRM: fallen off the bus and",
    b"pcieport 0000:00:1c.0: AER: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
    b"mlx5_core 0000:41:00.1: Port module event: module 1, Cable unplugged",
    b"EDAC MC0: 2 CE memory read error", b"Out of memory: Killed process 1 (x)", b'{"MESSAGE":"', b"\\ud800",
    b"[Sun Feb 23 16:24:18 2025] ", b"[   12.5] ", b"6,1,2,-;", b"kern  :warn  : 2025-01-21T04:41:44,283302+00:00 ",
    b"2025-01-21T04:41:44+0000 host kernel: ", b"Feb 30 99:99:99 h kernel: ", b'"__REALTIME_TIMESTAMP":"9"', b"\n",
)  # fmt: skip
_ANYTHING = st.lists(st.one_of(st.sampled_from(_SEEDS), st.binary(max_size=40)), max_size=8).map(b"".join)


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def _log(folder: Path, format_: Any) -> KernelLog:
    return KernelLog(node(folder), folder / "log", format_, lambda: START, monotonic=lambda: 1e6, zone=UTC)


def _plain(rows: list[Row]) -> list[Row]:
    return [{name: value for name, value in row.items() if name != "observed_ts"} for row in rows]


@given(_ANYTHING)
def test_no_bytes_make_a_parser_raise(raw: bytes) -> None:
    """Every form takes every line; what it makes of it can be understood and shown."""
    for parse in (parse_kmsg, parse_dmesg, parse_journal):
        for start in (b"", *_SEEDS[10:16]):
            record = parse(start + raw)
            if record is not None:
                understand(record.text)
                assert len(shown(record.text).encode("utf-8", "surrogatepass")) <= 1024


@given(_ANYTHING, st.sampled_from(["kmsg", "dmesg", "journal"]))
@settings(max_examples=60)
def test_no_file_makes_the_collector_raise_or_break_the_contract(raw: bytes, format_: str) -> None:
    """Rows of any file go into the contract's tables."""
    with _folder() as folder:
        (folder / "log").write_bytes(raw + b"\n")
        log = _log(folder, format_)
        checked(log.collect(round_at(0)), KernelLog.tables)
        log.close()


def _dmesg_log() -> bytes:
    xid = (FIXTURES / "gpud/dmesg-with-xid-119.log").read_bytes()
    equal = b"[Sun Feb 23 16:31:00 2025] NVRM: Xid (PCI:0000:9b:00): 45, pid=1, name=a, x\n"
    flood = b"[Sun Feb 23 16:31:00 2025] mce: [Hardware Error]: Machine check events logged\n"
    huge = b"[Sun Feb 23 16:32:00 2025] NVRM: Xid (PCI:0000:9b:00): 31, " + b"A" * 3 * MAX_LINE + b"\n"
    return xid[-1200:] + equal * 3 + flood * 12 + huge + b"\xff\x00\x1b[2J\n\n" + equal + xid[:1500]


@pytest.fixture(scope="module")
def whole() -> list[Row]:
    """The rows of the log read at once."""
    with _folder() as folder:
        (folder / "log").write_bytes(_dmesg_log())
        log = _log(folder, "dmesg")
        rows = list(log.collect(round_at(0))["event"]) + list(log.collect(round_at(9)).get("event", []))
        rows += log.collect(round_at(20)).get("event", [])
        log.close()
        return _plain(rows)


@given(cuts=st.lists(st.integers(0, 60_000), max_size=12), restarts=st.sets(st.integers(0, 12), max_size=4))
@settings(max_examples=80, deadline=None)
def test_how_a_log_is_cut_never_matters(whole: list[Row], cuts: list[int], restarts: set[int]) -> None:
    """Read as it grows, cut anywhere, with the agent restarted in between: the rows and ids are those of the whole."""
    content = _dmesg_log()
    edges = sorted({0, len(content), *(cut % len(content) for cut in cuts)})
    rows: list[Row] = []
    with _folder() as folder, (folder / "log").open("ab") as file:
        log = _log(folder, "dmesg")
        for number, (start, end) in enumerate(itertools.pairwise(edges)):
            file.write(content[start:end])
            file.flush()
            rows += log.collect(round_at(number * 1e-3)).get("event", [])
            if number in restarts:
                log.close()
                log = _log(folder, "dmesg")
        for second in (10, 20, 30):
            rows += log.collect(round_at(second)).get("event", [])
        log.close()
    ids = [row["event_id"] for row in rows]
    assert len(set(ids)) == len(ids)
    assert set(ids) >= {row["event_id"] for row in whole}
    if not restarts:
        assert _plain(rows) == whole


def test_the_whole_is_what_the_log_says(whole: list[Row]) -> None:
    """The oracle itself: kinds in order, floods thinned, the huge line cut but understood, equal lines distinct."""
    kinds = [(row["kind"], row["code"]) for row in whole]
    assert kinds.count(("xid", 45)) == 4
    assert kinds.count(("mce", None)) == 2
    assert kinds.count(("xid", 31)) == 1
    assert len({row["event_id"] for row in whole}) == len(whole)
    assert all(len(row["raw"].encode()) <= 1024 for row in whole)


@pytest.mark.parametrize(
    "line",
    [
        b"[   12.5] NVRM: " + b"GSP " * 5000,
        b"[   12.5] NVRM: Xid (PCI:0000:9b:00): 74, " + b"0x1, " * 4000,
        b"[   12.5] nvidia-peermem " + b"a:1 " * 5000,
        b"[   12.5] mlx5_core 0000:41:00.1: " + b"timeout " * 3000,
        b"[   12.5] NVRM: Xid (PCI:0000:9b:00): 31, ENGINE " + b"ENGINE a faulted " * 1000,
        b"[" * 20000,
        b"{" * 20000,
    ],
)
def test_no_line_takes_long(line: bytes) -> None:
    """Patterns that try again and again on crafted lines would stop the agent's round."""
    began = time.process_time()
    for parse in (parse_kmsg, parse_dmesg, parse_journal):
        record = parse(line)
        if record is not None:
            understand(record.text)
    assert time.process_time() - began < 0.5
