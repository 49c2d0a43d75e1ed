"""The spool on a disk that is full, read-only, or not there."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import bus_traffic
import pytest

from graynode.pipeline.bus import BusUnavailable, Partition
from graynode.pipeline.codec import Message
from graynode.pipeline.schema import EVENTS, SAMPLES
from graynode.pipeline.spool import SpoolBus


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root and the right to mount")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def _sent_until_full(bus: SpoolBus, topic: str, first: int = 0) -> int:
    """How many are acknowledged before the disk is full, with ``first`` as the first number."""
    sent, text = first, ""
    with closing(bus.producer()) as producer:
        while not text:
            try:
                producer.send(topic, bus_traffic.numbered(1, first=sent, size=5000))
                sent += 1
            except BusUnavailable as error:
                text = str(error)
    assert re.search(rf"{topic}.*No space.*free space", text)
    return sent


def test_disk_full(small_disk: Path) -> None:
    """The sender hears of it with path and way out; all that was acknowledged is read, and writing goes on when
    there is space again."""
    bus = SpoolBus(small_disk / "spool", 1 << 30)
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 300_000)
    with closing(bus.consumer([SAMPLES], "g")) as consumer:
        acknowledged = _sent_until_full(bus, SAMPLES)
        assert acknowledged > 50
        assert bus_traffic.sequences(bus_traffic.read(consumer, acknowledged)) == {"node0": list(range(acknowledged))}
        ballast.unlink()
        more = _sent_until_full(bus, SAMPLES, acknowledged)
        assert more > acknowledged
        got = bus_traffic.read(consumer, more - acknowledged)
    assert bus_traffic.first_seen(got) == {"node0": list(range(acknowledged, more))}


def test_full_disk_is_freed_by_reading(small_disk: Path) -> None:
    """A group's commit needs no space of its own, so what it has passed makes room without a person."""
    bus = SpoolBus(small_disk / "spool", 1_600_000)  # segments of 100,000 bytes
    with closing(bus.consumer([SAMPLES], "g")) as consumer:
        acknowledged = _sent_until_full(bus, SAMPLES)
        got = bus_traffic.read(consumer, acknowledged)
        consumer.commit({Partition(SAMPLES, 0): got[-1].offset + 1})
        with closing(bus.producer()) as producer:
            producer.send(SAMPLES, bus_traffic.numbered(20, first=acknowledged, size=5000))
        assert bus_traffic.sequences(bus_traffic.read(consumer, 20)) == {
            "node0": list(range(acknowledged, acknowledged + 20))
        }


def _limit_file_size() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))


def test_limit_of_file_size(tmp_path: Path) -> None:
    """A limit on file size stops a write in its middle: what was acknowledged is whole, half a message is nowhere."""
    program = (
        "import sys; from pathlib import Path; from graynode.pipeline.spool import SpoolBus;"
        "from graynode.pipeline.codec import Message; from graynode.pipeline.bus import BusUnavailable\n"
        "producer = SpoolBus(Path(sys.argv[1]), 1 << 30).producer()\n"
        "for i in range(100):\n"
        "    try:\n"
        "        producer.send('graynode.events', [Message('site/node0', b'x' * 3000,"
        " {'node_id': 'node0', 'epoch': '1', 'seq': str(i)})])\n"
        "    except BusUnavailable as error:\n"
        "        print(i, error); break\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", program, str(tmp_path)],
        capture_output=True, text=True, check=True, preexec_fn=_limit_file_size,
    )  # fmt: skip
    sent, _, text = done.stdout.partition(" ")
    assert "File too large" in text
    with closing(SpoolBus(tmp_path, 1 << 30).consumer([EVENTS], "g")) as consumer:
        assert bus_traffic.sequences(bus_traffic.read(consumer, int(sent))) == {"node0": list(range(int(sent)))}
        with closing(SpoolBus(tmp_path, 1 << 30).producer()) as producer:
            producer.send(EVENTS, bus_traffic.numbered(1, first=int(sent)))
        assert bus_traffic.sequences(bus_traffic.read(consumer, 1)) == {"node0": [int(sent)]}


def test_folder_that_cannot_be(tmp_path: Path) -> None:
    """A path through a file names itself and what to do."""
    (tmp_path / "file").write_text("")
    with pytest.raises(BusUnavailable, match=r"file/spool: cannot be made: Not a directory; name a folder"):
        SpoolBus(tmp_path / "file" / "spool", 1 << 20)


def test_topic_that_cannot_be_written(tmp_path: Path) -> None:
    """Where the topic's folder cannot be, the sender hears which path and what to do; so does a reader."""
    (tmp_path / EVENTS).write_text("in the way")
    bus = SpoolBus(tmp_path, 1 << 20)
    with closing(bus.producer()) as producer, pytest.raises(BusUnavailable, match=rf"{EVENTS}.*cannot be written"):
        producer.send(EVENTS, [Message("site/a", b"", {})])
    with pytest.raises(BusUnavailable, match=rf"{EVENTS}.*cannot be used"):
        bus.consumer([EVENTS], "g")
