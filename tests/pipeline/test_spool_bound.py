"""What leaves the spool: what all groups have read, and at the bound the oldest samples first."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import bus_traffic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graynode.pipeline import bus_metrics, spool_bound
from graynode.pipeline.bus import OffsetGone, Partition
from graynode.pipeline.schema import DEADLETTER, EVENTS, SAMPLES
from graynode.pipeline.spool import SpoolBus
from graynode.pipeline.spool_files import Segment

BOUND = 160_000


def _dropped(topic: str) -> float:
    return float(bus_metrics.DROPPED.labels(topic)._value.get())


def _fill(bus: SpoolBus, topic: str, count: int, size: int = 1000) -> None:
    with closing(bus.producer()) as producer:
        for i in range(count):
            producer.send(topic, bus_traffic.numbered(1, first=i, size=size))


def _segments(root: Path, topic: str) -> list[int]:
    return sorted(int(p.stem) for p in (root / topic).glob("*.seg"))


def test_bound_is_held(tmp_path: Path) -> None:
    """Six times the bound is sent: never more lies on disk, the newest is kept, what went unread is counted."""
    bus = SpoolBus(tmp_path, BOUND)
    before = _dropped(SAMPLES)
    most = 0
    with closing(bus.producer()) as producer, closing(bus.consumer([SAMPLES], "g")) as consumer:
        for i in range(1000):
            producer.send(SAMPLES, bus_traffic.numbered(1, first=i, size=1000))
            most = max(most, bus.size_bytes())
        assert most <= BOUND
        with pytest.raises(OffsetGone) as gone:
            consumer.poll(0)
        assert _dropped(SAMPLES) - before == gone.value.first > 500
        consumer.seek(gone.value.partition, gone.value.first)
        got = bus_traffic.read(consumer, 1000 - gone.value.first)
    assert bus_traffic.sequences(got) == {"node0": list(range(gone.value.first, 1000))}


def test_events_go_last(tmp_path: Path) -> None:
    """Samples make room for events and for more samples; no event is lost while there are samples to give."""
    bus = SpoolBus(tmp_path, BOUND)
    _fill(bus, EVENTS, 60)
    _fill(bus, SAMPLES, 500)
    _fill(bus, EVENTS, 60)
    with closing(bus.consumer([EVENTS], "g")) as consumer:
        assert len(bus_traffic.read(consumer, 120)) == 120


def test_events_alone_over_the_bound(tmp_path: Path) -> None:
    """With nothing else to give, the oldest events go too, counted."""
    bus = SpoolBus(tmp_path, BOUND)
    before = _dropped(EVENTS)
    _fill(bus, EVENTS, 400)
    assert bus.size_bytes() <= BOUND
    assert _dropped(EVENTS) - before == _segments(tmp_path, EVENTS)[0]


def test_read_by_all_leaves(tmp_path: Path) -> None:
    """A segment goes when every group has passed it, uncounted; the slowest group decides."""
    bus = SpoolBus(tmp_path, BOUND)
    before = _dropped(SAMPLES)
    with closing(bus.consumer([SAMPLES], "slow")) as slow, closing(bus.consumer([SAMPLES], "fast")) as fast:
        _fill(bus, SAMPLES, 60)
        for consumer, position in ((slow, 25), (fast, 60)):
            consumer.poll(0)
            consumer.commit({Partition(SAMPLES, 0): position})
        _fill(bus, SAMPLES, 1)
        left = _segments(tmp_path, SAMPLES)
        assert left[0] <= 25 < left[1]
        consumer.poll(0)
        slow.commit({Partition(SAMPLES, 0): 60})
        _fill(bus, SAMPLES, 1)
        assert len(_segments(tmp_path, SAMPLES)) == 1
    assert _dropped(SAMPLES) == before


def test_group_is_registered_by_joining(tmp_path: Path) -> None:
    """A group that has joined and committed nothing keeps all; forgotten, it keeps nothing."""
    bus = SpoolBus(tmp_path, BOUND)
    bus.consumer([SAMPLES], "idle").close()
    _fill(bus, SAMPLES, 60)
    with closing(bus.consumer([SAMPLES], "g")) as consumer:
        assert len(bus_traffic.read(consumer, 60)) == 60
        consumer.commit({Partition(SAMPLES, 0): 60})
    _fill(bus, SAMPLES, 1)
    assert _segments(tmp_path, SAMPLES)[0] == 0
    bus.forget("idle")
    _fill(bus, SAMPLES, 1)
    assert _segments(tmp_path, SAMPLES)[0] > 0


def test_reader_of_a_segment_that_is_removed(tmp_path: Path) -> None:
    """Who has a segment open reads it to its end, then is told where the next is."""
    bus = SpoolBus(tmp_path, BOUND)
    with closing(bus.consumer([SAMPLES], "g")) as consumer:
        _fill(bus, SAMPLES, 20)
        assert len(consumer.poll(0, max_messages=2)) == 2
        _fill(bus, SAMPLES, 400)
        got = bus_traffic.read(consumer, 1)
        with pytest.raises(OffsetGone) as gone:
            consumer.poll(0)
        assert bus_traffic.sequences(got) == {"node0": list(range(2, gone.value.wanted))}
        assert gone.value.first == _segments(tmp_path, SAMPLES)[0]


_SIZES = st.lists(st.integers(0, 50), min_size=1, max_size=12)


@given(
    sizes=st.fixed_dictionaries(dict.fromkeys((SAMPLES, EVENTS, DEADLETTER), _SIZES)),
    marks=st.dictionaries(st.sampled_from([SAMPLES, EVENTS]), st.lists(st.integers(0, 120), max_size=3)),
    bound=st.integers(0, 900),
)
def test_plan(sizes: dict[str, list[int]], marks: dict[str, list[int]], bound: int) -> None:
    """Whatever lies there: the bound is met or only growing segments are left; events go only after all samples;
    within a topic the oldest go first; nothing unread goes below the bound."""
    segments = [
        Segment(topic, 10 * i, 10 * (i + 1) if i + 1 < len(of) else None, size, float(i))
        for topic, of in sizes.items()
        for i, size in enumerate(of)
    ]
    groups = {topic: {str(i): m for i, m in enumerate(of)} for topic, of in marks.items()}
    removals = spool_bound.plan(segments, groups, bound)
    gone = [r.segment for r in removals]
    left = [s for s in segments if s not in gone]
    assert all(s.after is not None for s in gone)
    assert sum(s.size for s in left) <= bound or all(s.after is None for s in left)
    unread = [r for r in removals if r.unread]
    if any(r.segment.topic == EVENTS for r in unread):
        assert all(s.after is None for s in left if s.topic in (SAMPLES, DEADLETTER))
    for topic in sizes:
        of_topic = [s.first for s in gone if s.topic == topic]
        assert of_topic == sorted(of_topic) == [10 * i for i in range(len(of_topic))]
        least = min(groups.get(topic, {}).values(), default=0)
        assert sum(r.unread for r in removals if r.segment.topic == topic) == max(10 * len(of_topic) - least, 0)
    if unread:
        assert sum(s.size for s in left) + unread[-1].segment.size > bound
