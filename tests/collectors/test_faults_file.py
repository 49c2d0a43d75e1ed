from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graynode.collectors.simulated import faults
from graynode.collectors.simulated.faults import KINDS, FaultsError

NOW = datetime(2026, 11, 30, 10, 0, tzinfo=UTC)


def test_every_kind_with_its_defaults() -> None:
    """A kind and a start are enough; the size is the kind's own default, the place is left to the seed."""
    for kind in KINDS.values():
        (wanted,) = faults.parse(f'[[fault]]\nkind = "{kind.name}"\nstart = "-3h"', "f.toml").wanted
        assert (wanted.start_s, wanted.duration_s, wanted.size) == (-10800.0, float("inf"), kind.default)
        assert (wanted.node, wanted.gpu, wanted.link) == (None, None, None)


def test_times() -> None:
    """A start is before now, after now, or a moment; a duration is a span or for ever."""
    text = """
    [[fault]]
    kind = "slow_gpu"
    start = "+60s"
    duration = "1.5h"
    [[fault]]
    kind = "slow_gpu"
    start = "2026-11-30T09:00:00Z"
    duration = "forever"
    [[fault]]
    kind = "slow_gpu"
    start = 2026-11-29T10:00:00Z
    """
    first, second, third = faults.parse(text, "f.toml", NOW).wanted
    assert (first.start_s, first.duration_s) == (60.0, 5400.0)
    assert (second.start_s, second.duration_s) == (-3600.0, float("inf"))
    assert third.start_s == -86400.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[fault]]\nkind = "slow_gpus"\nstart = "-1h"', ("kind = 'slow_gpus'", "did you mean slow_gpu")),
        ('[[fault]]\nstart = "-1h"', ("kind = None", "known: ")),
        ('[[fault]]\nkind = ["slow_gpu"]\nstart = "-1h"', ("kind = ['slow_gpu']",)),
        ('[[fault]]\nkind = "slow_gpu"', ("start is missing", "-3h")),
        ('[[fault]]\nkind = "slow_gpu"\nstart = "3h"', ("start = '3h'", "-3h (before now)")),
        ('[[fault]]\nkind = "slow_gpu"\nstart = 5', ("start = 5",)),
        ('[[fault]]\nkind = "slow_gpu"\nstart = "2026-11-30T09:00:00"', ("has no zone", "add Z")),
        ('[[fault]]\nkind = "slow_gpu"\nstart = "2026-99-30T09:00:00Z"', ("not a time",)),
        ('[[fault]]\nkind = "slow_gpu"\nstart = "-1h"\nduration = "-1h"', ("duration = '-1h'", "forever")),
        ('[[fault]]\nkind = "slow_gpu"\nstart = "-1h"\nduration = "0s"', ("duration = '0s'",)),
        ('[[fault]]\nkind = "slow_gpu"\nstart = "-1h"\nsize = 5', ("size = 5", "0.001 to 0.9", "share of speed")),
        ('[[fault]]\nkind = "slow_gpu"\nstart = "-1h"\nsize = true', ("size = True",)),
        ('[[fault]]\nkind = "slow_gpu"\nstart = "-1h"\nlink = 1', ("unknown key link = 1",)),
        ('[[fault]]\nkind = "slow_gpu"\nstart = "-1h"\ngpu = -1', ("gpu = -1", "the seed chooses")),
        ('[[fault]]\nkind = "stuck_sensor"\nstart = "-1h"\nsignal = "fan"', ("signal = 'fan'", "temp_c, power_w")),
        ('[[fault]]\nkind = "link_flap"\nstart = "-1h"\noutage_s = 900', ("outage_s = 900", "1 to 60")),
        ("fault = 3", ("fault = 3", "[[fault]]")),
        ("fault = [3]", ("fault 1: 3 is not a table",)),
        ("faults = []", ("unknown key faults", "did you mean fault")),
        ("natural = 3", ("natural = 3",)),
        ("[natural]\nrate = 3", ("unknown key rate",)),
        ("[natural]\nrate_per_1000_node_days = -1", ("rate_per_1000_node_days = -1", "0 to 1000")),
        ("[[fault", ("not TOML",)),
    ],
)
def test_a_wrong_file(text: str, said: tuple[str, ...]) -> None:
    """What is wrong is told with the file, the key, its value and what is allowed."""
    with pytest.raises(FaultsError) as error:
        faults.parse(text, "f.toml", NOW)
    for part in ("f.toml", *said):
        assert part in str(error.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """A missing file and one that is no text are errors with the path, not tracebacks."""
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe")
    for name, said in (("a.toml", "cannot be read"), ("b.toml", "not UTF-8")):
        with pytest.raises(FaultsError, match=said) as error:
            faults.read(tmp_path / name)
        assert name in str(error.value)


def test_the_shipped_plan() -> None:
    """The demonstration holds a 5 % slow GPU of the last hours, a GPU lost after the start, and most other kinds."""
    plan = faults.demo()
    assert {w.kind.name for w in plan.wanted} == set(KINDS)
    assert any(w.kind.name == "slow_gpu" and w.size == 0.05 and -6 * 3600 < w.start_s < 0 for w in plan.wanted)
    assert any(w.kind.name == "gpu_lost" and 0 < w.start_s <= 120 for w in plan.wanted)


@given(st.text(max_size=200))
def test_any_text(text: str) -> None:
    """No text makes anything but a plan or the named error."""
    with contextlib.suppress(FaultsError):
        assert isinstance(faults.parse(text, "f.toml", NOW), faults.Plan)
