from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from agent_fakes import Hands, Source

from graynode.collectors.base import Round, Rows
from graynode.collectors.health import Health, children, parse_stat, parse_statm, process_tree
from graynode.collectors.worker import Worker
from graynode.pipeline.schema import TABLES

FAST = frozenset({1})


def _round(worker: Worker, hands: Hands) -> None:
    worker.offer(hands.now(), FAST)
    worker.run()


def test_amounts_are_since_the_previous_call() -> None:
    """Expected, taken and failed collections are differences, so that windows can sum them."""
    hands, fails = Hands(), iter([False, True, False, False])

    def read(round_: Round) -> Rows:
        hands.at += 0.02
        if next(fails):
            raise OSError("no")
        return {}

    worker = Worker(Source(read), lambda rows, ts: None, hands.monotonic)
    health = Health(hands.monotonic)
    health.workers = [worker]
    told = []
    for rounds in (1, 2, 0, 1):
        for _ in range(rounds):
            _round(worker, hands)
        told.append(health())
    names = ("samples_expected", "samples_taken", "samples_missed", "collect_errors")
    assert [tuple(t[n] for n in names) for t in told] == [(1, 1, 0, 0), (2, 1, 0, 1), (0, 0, 0, 0), (1, 1, 0, 0)]
    assert [round(t["collect_max_ms"]) for t in told] == [20, 20, 0, 20]


def test_a_hung_collection_counts_as_far_as_it_has_come() -> None:
    """The slowest collection grows while one hangs: that is the very thing to be seen."""
    hands, told = Hands(), []
    health = Health(hands.monotonic)

    def read(round_: Round) -> Rows:
        hands.at += 42.0
        worker.offer(hands.now(), FAST)
        told.append(health())
        return {}

    worker = Worker(Source(read), lambda rows, ts: None, hands.monotonic)
    health.workers = [worker]
    _round(worker, hands)
    assert (told[0]["collect_max_ms"], told[0]["samples_missed"], told[0]["samples_taken"]) == (42_000.0, 1, 0)


def test_process_figures_have_the_slow_class() -> None:
    """CPU and memory of the agent are read every 10 s, not every second; the share needs two readings."""
    hands = Hands()
    health = Health(hands.monotonic)
    told = []
    for second in range(21):
        health.due = FAST | {10} if second % 10 == 0 else FAST
        told.append(health())
        hands.at += 1.0
    assert [n for n, t in enumerate(told) if "agent_rss_bytes" in t] == [0, 10, 20]
    assert [n for n, t in enumerate(told) if "agent_cpu_percent" in t] == [10, 20]


def test_probes_add_what_the_parts_know() -> None:
    """Parts give their own fields; all of them are fields of table ``host``."""
    health = Health(time.monotonic)
    health.probes += [lambda due: {"kmsg_lost": 3}, lambda due: {"nvml_up": 1, "gpus_read": 8}]
    told = health()
    assert (told["kmsg_lost"], told["nvml_up"], told["gpus_read"]) == (3, 1, 8)
    assert set(told) <= set(TABLES["host"].names)


def test_cpu_and_memory_include_the_child() -> None:
    """The child that reads NVML is part of the agent's cost, while it lives and after it has ended."""
    spin = (
        "import time,sys\nend=time.process_time()+0.3\nwhile time.process_time()<end: pass\n"
        "print(1,flush=True);sys.stdin.read()"
    )
    cpu_before, rss_before = process_tree()
    child = subprocess.Popen([sys.executable, "-I", "-c", spin], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with child:
        assert child.stdout is not None
        child.stdout.readline()
        assert child.pid in children(Path("/proc"), os.getpid())
        cpu_with, rss_with = process_tree()
        child.communicate()
    cpu_after, _ = process_tree()
    assert cpu_with - cpu_before > 0.25
    assert rss_with - rss_before > 4 << 20
    assert cpu_after >= cpu_with - 0.02


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", 0.0), ("42 (a) S", 0.0), ("42 (we (i) rd) S 1 1 1 0 -1 4194560 100 0 0 0 250 50 20 5 20 0 4 0 1000", 3.25)],
)
def test_cpu_seconds_of_a_stat_line(text: str, expected: float) -> None:
    """utime, stime and the reaped children's; a process that has gone is 0; the name may hold anything."""
    assert parse_stat(text) * os.sysconf("SC_CLK_TCK") / 100 == expected


def test_resident_bytes_of_a_statm_line() -> None:
    """The second figure, in pages; a process that has gone is 0."""
    assert (parse_statm("5000 250 100 1 0 300 0"), parse_statm("")) == (250 * os.sysconf("SC_PAGE_SIZE"), 0)
