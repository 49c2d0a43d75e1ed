"""What was met is known exactly, across restarts."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from landing_kit import Log, gpu_row, message

from graynode.pipeline import snapshot
from graynode.pipeline.bus import Partition, Received
from graynode.pipeline.codec import Message
from graynode.pipeline.lake import Lake
from graynode.pipeline.schema import SAMPLES
from graynode.pipeline.seen import SCHEMA, Seen


def numbered(epoch: int, sequence: int, key: str = "c/n") -> Received:
    return Received(Message(key, b"", {"epoch": str(epoch), "seq": str(sequence)}), Partition(SAMPLES, 0), 0, 0)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 40)), max_size=80), st.integers(0, 80))
def test_each_number_is_new_once_whatever_the_order_and_a_snapshot_forgets_nothing(
    numbers: list[tuple[int, int]], cut: int
) -> None:
    """Against a plain set; the state goes through its frame in the middle."""
    known: set[tuple[int, int]] = set()
    seen = Seen()
    for i, number in enumerate(numbers):
        if i == cut:
            seen = Seen(seen.frame())
        assert seen.first_time(numbered(*number)) == (number not in known)
        known.add(number)


def test_a_shared_sequence_leaves_gaps_and_costs_no_memory() -> None:
    """An agent numbers messages over all topics and machines; a topic sees every third."""
    seen = Seen()
    assert all(seen.first_time(numbered(1, 3 * i)) for i in range(10_000))
    assert not any(seen.first_time(numbered(1, 3 * i)) for i in range(10_000))
    assert seen.frame().height <= 64


def test_a_message_without_numbers_is_always_new() -> None:
    """Others than agents write to the bus too."""
    seen = Seen()
    for headers in ({}, {"epoch": "1"}, {"epoch": "²", "seq": "1"}, {"epoch": "1", "seq": "9" * 30}):
        received = Received(Message("c/n", b"", headers), Partition(SAMPLES, 0), 0, 0)
        assert seen.first_time(received)
        assert seen.first_time(received)


def test_a_snapshot_is_read_back_with_its_offset(tmp_path: Path) -> None:
    """Empty or not; a damaged file is as good as none."""
    lake, partition = Lake(str(tmp_path)), Partition(SAMPLES, 3)
    assert snapshot.load(lake, partition) is None
    snapshot.save(lake, partition, 17, Seen().frame())
    loaded = snapshot.load(lake, partition)
    assert loaded is not None
    assert loaded[0] == 17
    seen = Seen()
    seen.first_time(Log().add(message([gpu_row(0)], sequence=5), 0))
    snapshot.save(lake, partition, 18, seen.frame())
    loaded = snapshot.load(lake, partition)
    assert loaded is not None
    assert loaded[0] == 18
    assert loaded[1].frame().to_dict(as_series=False) == seen.frame().to_dict(as_series=False)
    assert list(loaded[1].frame().columns) == list(SCHEMA)
    next(tmp_path.rglob("seen-*")).write_bytes(b"PAR1")
    assert snapshot.load(lake, partition) is None
