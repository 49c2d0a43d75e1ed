"""The table from NVML to the contract: complete, and by driver version."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graynode.collectors.nvml import wire
from graynode.collectors.nvml.fields import (
    CALLS,
    GPM,
    Call,
    FieldValue,
    field_values,
    quality_of,
    throttle_ids,
    version_of,
    words,
)
from graynode.collectors.nvml.nvlink_fields import COUNTERS, SUMS
from graynode.collectors.nvml.nvlink_fields import EVERY as LINKS
from graynode.collectors.nvml.plausible import EVERY, Plausible
from graynode.pipeline.schema import QUALITY_STATES, TABLES

IDENTITY = {"gpu_model", "pci_bus_id"}
at_leisure = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A busy machine is no bug."""


@pytest.mark.parametrize("driver", ["470.256.02", "550.163.01", "580.65.06", "580.105.08", "580.126.09", "615.13"])
def test_every_nvml_field_is_read_once(driver: str) -> None:
    """Each field that the contract gives to NVML is filled by exactly one call, field value, GPM metric or sum."""
    filled = Counter(name for call in CALLS for name in call.fields)
    filled += Counter(f.field for f in field_values(driver)) + Counter(field for _, field, _ in GPM) + Counter(SUMS)
    assert filled == Counter(EVERY.keys() - IDENTITY)


def test_what_links_are_asked_is_in_the_contract() -> None:
    """Each counter of a link is a field of table link, under one name, with ids of no other."""
    known = set(TABLES["link"].names)
    assert set(LINKS) <= known
    assert len(LINKS) == len(COUNTERS) + 1
    ids = Counter(i for c in COUNTERS for i in c.ids)
    assert max(ids.values()) == 1


def test_instead_fills_no_other_field() -> None:
    """What is tried in place of a call fills its fields, in the same order, or fewer of them."""

    def check(one: Call | FieldValue) -> None:
        if one.instead is None:
            return
        before = one.fields if isinstance(one, Call) else (one.field,)
        after = one.instead.fields if isinstance(one.instead, Call) else (one.instead.field,)
        assert before[: len(after)] == after
        check(one.instead)

    for call in (*CALLS, *field_values("580.105.08")):
        check(call)


def test_throttle_ids() -> None:
    """251–253 from 575.51 to 580.65, 269–271 from 580.126 on, both in turn between, none before."""
    old, new = (251, 252, 253), (269, 270, 271)
    assert throttle_ids("550.163.01") == ()
    assert throttle_ids("575.51.02") == (old,)
    assert throttle_ids("580.65.06") == (old,)
    assert throttle_ids("580.105.08") == (new, old)
    assert throttle_ids("580.126.09") == (new,)
    assert throttle_ids("615.13") == (new,)
    assert throttle_ids("what") == ()


def test_versions() -> None:
    """A driver version compares by number."""
    assert version_of("580.126.09") > version_of("580.65.06") > version_of("575.51")
    assert version_of("nonsense") == ()


def test_every_code_has_a_state_of_the_contract() -> None:
    """Whatever NVML answers is one of the contract's quality states, in words with its number."""
    for code in range(-3, 1001):
        assert quality_of(code) in QUALITY_STATES
        assert words(code)
    assert words(15) == "GPU is lost (NVML 15)"
    assert "777" in words(777)


GPU = {f.name: f for f in TABLES["gpu"].fields}
NUMBERS = [n for n in EVERY if n not in IDENTITY]


@at_leisure
@given(
    st.dictionaries(
        st.sampled_from(NUMBERS),
        st.one_of(st.integers(-(2**70), 2**70), st.floats(allow_nan=True, allow_infinity=True)),
    )
)
def test_nothing_out_of_bounds_passes(values: dict[str, int | float]) -> None:
    """Whatever a driver answers, what passes is finite, fits its column and lies within the contract's bounds."""
    given_ = dict(values)
    reasons = Plausible().sift(values, 1.0)
    assert values.keys() | reasons.keys() == given_.keys()
    assert not values.keys() & reasons.keys()
    for name, value in values.items():
        f = GPU[name]
        assert math.isfinite(value)
        assert f.lo is None or value >= f.lo
        assert f.hi is None or value <= f.hi
        assert f.type != "int64" or abs(value) < 2**63
        assert f.type != "int32" or abs(value) < 2**31


@at_leisure
@given(st.lists(st.tuples(st.integers(1, 100), st.floats(0, 1)), min_size=1, max_size=20))
def test_honest_throttle_time_passes(steps: list[tuple[int, float]]) -> None:
    """A time that grows by at most a second a second is never taken for another field."""
    plausible, at, total = Plausible(), 0.0, 0
    for seconds, share in steps:
        at, total = at + seconds, total + int(seconds * share * 1e9)
        assert plausible.sift({"throttle_hw_thermal_ns": total}, at) == {}


def test_throttle_faster_than_time_stays_out() -> None:
    """Once it grew faster than time it is another field, also when it stands still again."""
    plausible = Plausible()
    assert plausible.sift({"throttle_hw_thermal_ns": 0}, 0.0) == {}
    for at in (10.0, 20.0):
        assert plausible.sift({"throttle_hw_thermal_ns": 10**12, "throttle_sw_thermal_ns": 1}, at).keys() == {
            "throttle_hw_thermal_ns"
        }


CODES = st.integers(0, 1000)
VALUES = st.dictionaries(
    st.sampled_from(NUMBERS), st.one_of(st.integers(0, 2**63 - 1), st.floats(allow_nan=False)), max_size=5
)
READS = st.builds(wire.Read, st.integers(0, 15), CODES, st.text(max_size=9), st.floats(0, 1e6), VALUES, st.just({}))


@at_leisure
@given(st.lists(READS, max_size=4))
def test_an_answer_survives_the_pipe(reads: list[wire.Read]) -> None:
    """What the child sends is what the parent reads."""
    answer = wire.Answer(7, reads, {3: 2})
    data = wire.frame(answer)
    assert wire.FRAME.unpack(data[: wire.FRAME.size])[0] == len(data) - wire.FRAME.size
    assert wire.decode_message(data[wire.FRAME.size :]) == answer


def test_progress_page() -> None:
    """The page says where the child is, and a long name does not break it."""
    page = wire.mark(3, "nvmlDeviceGetTemperatureV")
    assert len(page) == wire.PROGRESS_SIZE
    assert wire.unmark(page) == (3, "nvmlDeviceGetTemperatureV")
    assert wire.unmark(wire.mark(wire.NOWHERE, "x" * 100)) == (wire.NOWHERE, "x" * 60)
