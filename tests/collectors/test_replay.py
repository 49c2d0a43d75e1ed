"""The collector ``replay``: recordings of three kinds, at their pace."""

from __future__ import annotations

import gzip
import io
import json
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graynode.collectors import load
from graynode.collectors.base import Machine, NoSource, Round, Rows
from graynode.collectors.replay import Replay, of_messages
from graynode.pipeline.codec import Message, Origin, arrow_schema, encode, to_batch
from graynode.pipeline.schema import TABLES
from graynode.service.agent_print import Printer

T0 = datetime(2026, 1, 5, 8, 0, tzinfo=UTC)
ONE_S = frozenset({1})


def _row(second: float, node: str = "n1", **more: Any) -> dict[str, Any]:
    return {"ts": T0 + timedelta(seconds=second), "cluster": "old", "node_id": node, "node": node, **more}


def _gpu(second: float, **more: Any) -> dict[str, Any]:
    return _row(second, gpu_uuid="GPU-1", power_w=300.0, **more)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine("new", "laptop", "m-1", "configured", "b-1", tmp_path)


def _lines(path: Path, rows: Iterable[tuple[str, dict[str, Any]]]) -> Path:
    text = "".join(json.dumps({"table": t, **r}, default=lambda v: v.isoformat()) + "\n" for t, r in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def _at(replay: Replay, seconds: float) -> Rows:
    """A round so many seconds after the first; rounds are years after the recording."""
    return replay.collect(Round(datetime(2027, 6, 1, tzinfo=UTC) + timedelta(seconds=seconds), ONE_S))


def _seconds(rows: Rows, table: str = "gpu") -> list[float]:
    return [(row["ts"] - T0).total_seconds() for row in rows.get(table, ())]


def test_the_list_knows_it() -> None:
    """The collector is in the list by its name."""
    assert load("replay") is Replay


def test_as_it_was(machine: Machine, tmp_path: Path) -> None:
    """At pace 1 a row comes as long after the first as it did then, with its own time and its own keys."""
    path = _lines(tmp_path / "a.jsonl", [("gpu", _gpu(s)) for s in (0, 1, 2.5, 10)])
    replay = Replay(machine, path)
    first = _at(replay, 0)
    assert first["gpu"] == [_gpu(0)]
    assert [_seconds(_at(replay, s)) for s in (1, 2, 3, 9.9, 10)] == [[1], [], [2.5], [], [10]]
    assert replay.finished
    assert _at(replay, 11) == {}


def test_an_hour_in_a_minute(machine: Machine, tmp_path: Path) -> None:
    """At pace 60 a minute of recording passes in a second."""
    path = _lines(tmp_path / "a.jsonl.gz", [("gpu", _gpu(s)) for s in range(0, 300, 30)])
    replay = Replay(machine, path, pace=60)
    assert [len(_at(replay, s).get("gpu", ())) for s in (0, 1, 2, 100)] == [1, 2, 2, 5]


def test_as_fast_as_possible(machine: Machine, tmp_path: Path) -> None:
    """At pace 0 a round takes all there is, in bounded pieces, whatever the recorded times are."""
    path = _lines(tmp_path / "a.jsonl", [("gpu", _gpu(s)) for s in range(25_000)])
    replay = Replay(machine, path, pace=0)
    taken = [len(_at(replay, s).get("gpu", ())) for s in range(3)]
    assert sum(taken) == 25_000
    assert max(taken) < 25_000


def test_what_a_dry_run_printed(machine: Machine, tmp_path: Path) -> None:
    """Rows that the agent's dry run prints into a pipe come back as they were."""
    rows = [_gpu(1, sm_clock_mhz=1980, job_id=None), _gpu(2, energy_mj=7)]
    out = io.StringIO()
    printer = Printer(out=out, person=False)
    printer.send("graynode.samples", [encode("gpu", rows, Origin("old", "n1", 1), 1, T0)])
    (tmp_path / "dry.jsonl").write_text(out.getvalue(), encoding="utf-8")
    given = _at(Replay(machine, tmp_path / "dry.jsonl", pace=0), 0)["gpu"]
    assert given == [{k: v for k, v in row.items() if v is not None} for row in rows]


def test_messages(machine: Machine) -> None:
    """Messages of the bus are replayed too; one that cannot be read is counted and the rest goes on."""
    good = [encode("gpu", [_gpu(s)], Origin("old", "n1", 1), s, T0) for s in (1, 2)]
    bad = Message(good[0].key, b"broken", good[0].headers)
    refused: Counter[str] = Counter()
    replay = Replay(machine, rows=of_messages([good[0], bad, good[1]], refused), pace=0)
    assert _seconds(_at(replay, 0)) == [1, 2]
    assert refused.total() == 1


def test_parquet_of_a_lake(machine: Machine, tmp_path: Path) -> None:
    """Parquet files are found below a folder; the table is the file's or a folder's name; files are merged by time."""
    for folder, seconds in (("date=2026-01-05", (0, 4)), ("date=2026-01-06", (2, 6))):
        place = tmp_path / "lake" / "gpu" / folder
        place.mkdir(parents=True)
        frame = pl.from_arrow(to_batch(TABLES["gpu"], [_gpu(s) for s in seconds]))
        assert isinstance(frame, pl.DataFrame)
        pq.write_table(frame.to_arrow().cast(arrow_schema("gpu")), place / "part-00000.parquet")
    pq.write_table(_event_table(), tmp_path / "lake" / "event.2026.parquet")
    rows = _at(Replay(machine, tmp_path / "lake", pace=0), 0)
    assert _seconds(rows) == [0, 2, 4, 6]
    assert rows["gpu"][0] == _gpu(0)
    assert [row["kind"] for row in rows["event"]] == ["xid"]


def _event_table() -> Any:
    frame = pl.from_arrow(to_batch(TABLES["event"], [_row(1, event_id="e", kind="xid", code=79)]))
    assert isinstance(frame, pl.DataFrame)
    return frame.to_arrow().cast(arrow_schema("event"))


def test_lines_that_are_no_rows(machine: Machine, tmp_path: Path) -> None:
    """Bad lines are counted with their reason and the good ones still come."""
    path = _lines(tmp_path / "a.jsonl", [("gpu", _gpu(0)), ("gpu", _gpu(1, warp_factor=9))])
    path.write_text(
        path.read_text()
        + 'nonsense\n[1]\n{"table": "gpu", "power_w": 3}\n{"table": "gpu", "ts": "yesterday"}\n'
        + '{"table": "gpu", "ts": "2026-01-05T08:00:02"}\n{"table": "warp", "ts": "2026-01-05T08:00:00Z"}\n'
        + '{"table": "gpu_30s", "ts": "2026-01-05T08:00:00Z"}\n'
    )
    replay = Replay(machine, path, pace=0)
    rows = _at(replay, 0)["gpu"]
    assert len(rows) == 2
    assert "warp_factor" not in rows[1]
    assert dict(replay.refused) == {
        "gpu.warp_factor: not in the contract": 1, "line is not JSON": 1, "line of unknown table 'None'": 1,
        "gpu: row without ts": 1, "gpu.ts is not a time": 1, "gpu.ts has no zone": 1,
        "line of unknown table 'warp'": 1, "line of unknown table 'gpu_30s'": 1,
    }  # fmt: skip


def test_nothing_to_replay(machine: Machine, tmp_path: Path) -> None:
    """Without a recording there is no source, and what is wrong with the place is said."""
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    (tmp_path / "gpu.parquet").write_bytes(b"PAR1")
    for path, said in (
        (None, "name one recording"), (tmp_path / "none", "no recording there"),
        (tmp_path / "x.parquet", "neither its name"), (tmp_path / "gpu.parquet", "not a readable Parquet"),
    ):  # fmt: skip
        with pytest.raises(NoSource, match=said):
            Replay(machine, path)
    with pytest.raises(ValueError, match="pace = -1"):
        Replay(machine, tmp_path, pace=-1)


def test_closing(machine: Machine, tmp_path: Path) -> None:
    """A closed replay gives nothing more; closing twice is as good as once."""
    replay = Replay(machine, _lines(tmp_path / "a.jsonl", [("gpu", _gpu(0))]))
    replay.close()
    replay.close()
    assert _at(replay, 0) == {}


@given(st.lists(st.integers(0, 100), min_size=1).map(sorted), st.lists(st.integers(0, 120), min_size=1).map(sorted))
def test_rounds_of_any_spacing_give_every_row_once(seconds: list[int], rounds: list[int]) -> None:
    """Whenever the rounds are, each row comes once, in order, and never before its time."""
    machine = Machine("new", "l", "m", "configured", "b", Path())
    replay = Replay(machine, rows=iter([("gpu", _gpu(s)) for s in seconds]))
    taken: list[float] = []
    start = rounds[0]
    for now in [*rounds, start + 200]:
        came = _seconds(_at(replay, now))
        assert all(s - seconds[0] <= now - start for s in came)
        taken += came
    assert taken == seconds
