"""The spool between processes: one writer a topic, many readers, members that follow each other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import bus_traffic
import pytest

from graynode.pipeline.bus import BusRefused, BusUnavailable, Partition
from graynode.pipeline.spool import SpoolBus

HOLD_TOPIC = """
import sys, time
from pathlib import Path
from graynode.pipeline.codec import Message
from graynode.pipeline.spool import SpoolBus
producer = SpoolBus(Path(sys.argv[1]), 1 << 20).producer()
producer.send("events", [Message("site/a", b"", {})])
print("ready", flush=True)
time.sleep(60)
"""
HOLD_GROUP = """
import sys, time
from pathlib import Path
from graynode.pipeline.spool import SpoolBus
consumer = SpoolBus(Path(sys.argv[1]), 1 << 20).consumer(["events"], "g")
consumer.poll(0)
print("ready", flush=True)
time.sleep(60)
"""
READ = """
import sys
from pathlib import Path
from graynode.pipeline.spool import SpoolBus
consumer = SpoolBus(Path(sys.argv[1]), 1 << 20).consumer(["events"], sys.argv[2])
print("ready", flush=True)
got = []
while len(got) < 200:
    got += [int(r.message.headers["seq"]) for r in consumer.poll(20.0)]
print(got == list(range(200)), flush=True)
"""


def _start(program: str, *arguments: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-I", "-c", program, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def _end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_second_writer(tmp_path: Path) -> None:
    """It is refused with the first one's process number and the way out; when that is dead, it writes."""
    first = _start(HOLD_TOPIC, str(tmp_path))
    with closing(SpoolBus(tmp_path, 1 << 20).producer()) as second:
        with pytest.raises(BusUnavailable, match=f"process {first.pid} writes this topic already.*stop that one"):
            second.send("events", bus_traffic.numbered(1))
        second.send("samples", bus_traffic.numbered(1))  # another topic is free
        _end(first)
        second.send("events", bus_traffic.numbered(1))


def test_second_writer_in_one_process(tmp_path: Path) -> None:
    """The lock holds within a process too, and is free after ``close``."""
    bus = SpoolBus(tmp_path, 1 << 20)
    first, second = bus.producer(), bus.producer()
    first.send("events", bus_traffic.numbered(1))
    with pytest.raises(BusUnavailable, match=f"process {os.getpid()} "):
        second.send("events", bus_traffic.numbered(1))
    first.close()
    second.send("events", bus_traffic.numbered(1))
    second.close()


def test_readers_in_other_processes(tmp_path: Path) -> None:
    """Three processes of three groups follow a writer live, across segments, and each gets all in order."""
    readers = [_start(READ, str(tmp_path), f"group{i}") for i in range(3)]
    with closing(SpoolBus(tmp_path, 1 << 20).producer()) as producer:
        for i in range(50):
            producer.send("events", bus_traffic.numbered(4, first=4 * i, size=3000))
    assert [reader.communicate(timeout=60)[0] for reader in readers] == ["True\n"] * 3


def test_member_that_is_killed(tmp_path: Path) -> None:
    """The next member of the group waits for the first, and goes on the moment that it is dead."""
    bus = SpoolBus(tmp_path, 1 << 20)
    with closing(bus.producer()) as producer:
        producer.send("events", bus_traffic.numbered(1))
    first = _start(HOLD_GROUP, str(tmp_path))
    with closing(bus.consumer(["events"], "g")) as second:
        assert second.poll(0.1) == []
        assert second.assigned() == frozenset()
        _end(first)
        assert len(second.poll(5.0)) == 1
        assert second.assigned() == {Partition("events", 0)}


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "x.lock", "x" * 201])
def test_names_that_could_leave_the_folder(tmp_path: Path, name: str) -> None:
    """Topics and groups become file names, so what could point elsewhere is refused."""
    bus = SpoolBus(tmp_path / "spool", 1 << 20)
    with closing(bus.producer()) as producer, pytest.raises(BusRefused, match="letters, digits"):
        producer.send(name, bus_traffic.numbered(1))
    with pytest.raises(BusRefused, match="letters, digits"):
        bus.consumer(["events"], name)
    with pytest.raises(BusRefused, match="letters, digits"):
        bus.consumer([name], "g")


def test_imports_stay_small() -> None:
    """The spool, the contract and the forwarder load none of the heavy libraries, and not the Kafka client."""
    program = (
        "import sys, graynode.pipeline.spool, graynode.pipeline.forward, graynode.pipeline.deadletter,"
        " graynode.pipeline.kafka; print([m for m in ('kafka', 'polars', 'duckdb', 'deltalake', 'sklearn')"
        " if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
