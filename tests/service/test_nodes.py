"""``graynode nodes``: every node with its state, since when and why."""

import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from graynode.pipeline.lake import Lake
from graynode.pipeline.lake_format import frame_schema
from graynode.service import nodes as role
from graynode.service.config import Config, ConfigError, parse

AT = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return parse({"cluster": "test", "lake": {"path": str(tmp_path / "lake")}}, "test")


def land(config: Config, table: str, *rows: dict[str, Any]) -> None:
    told = [{"cluster": "test", "node": f"gpu-{row['node_id']}", **row} for row in rows]
    Lake(config.lake.path).write(table, pl.DataFrame(told, schema=frame_schema(table), orient="row"))


def ago(hours: float) -> datetime:
    return AT - timedelta(hours=hours)


def incident(node: str, since: float, until: float | None = None) -> dict[str, Any]:
    return {
        "ts": ago(since if until is None else until), "node_id": node, "incident_id": f"{node}/{since}", "revision": 0,
        "state": "open" if until is None else "resolved", "subject": "gpu", "cause": "gpu_lost", "severity": "page",
        "title": "GPU 3 is lost", "since": ago(since), "resolved_ts": None if until is None else ago(until),
    }  # fmt: skip


def listed(config: Config, **how: Any) -> tuple[int, str]:
    sink = io.StringIO()
    return role.run(config, AT.isoformat(), out=sink, **how), sink.getvalue()


def test_each_state_and_why(config: Config) -> None:
    """Written states win; silence, an open incident and a return within the week follow; worst first."""
    land(config, "inventory", *({"ts": ago(900), "node_id": n, "kind": "node", "entity": n} for n in "abcdef"))
    land(config, "host_30s", *({"ts": ago(0.01), "node_id": n} for n in "abcde"), {"ts": ago(3), "node_id": "f"})
    land(config, "incident", incident("b", 2), incident("c", 50, 20), incident("d", 400, 300), incident("e", 5))
    land(config, "node_state", {"ts": ago(4), "node_id": "e", "state": "quarantined", "reason": "by hand"})
    code, text = listed(config, as_json=True)
    rows = {row["node_id"]: row for row in json.loads(text)["nodes"]}
    assert code == 0
    assert {n: rows[n]["state"] for n in "abcdef"} == {
        "a": "healthy", "b": "suspect", "c": "probation", "d": "healthy", "e": "quarantined", "f": "unknown",
    }  # fmt: skip
    assert list(rows) == ["e", "f", "b", "c", "a", "d"]
    assert rows["b"]["why"] == "GPU 3 is lost"
    assert rows["c"]["since"] == ago(20).isoformat()
    assert rows["c"]["why"] == f"until {ago(20) + timedelta(days=7):%Y-%m-%d %H:%M} UTC"
    assert rows["e"]["why"] == "by hand"
    assert rows["f"]["since"] == ago(3).isoformat()


def test_a_person_reads_counts_and_may_choose(config: Config) -> None:
    """How many of each state, and only those of one state."""
    land(config, "inventory", *({"ts": ago(900), "node_id": n, "kind": "node", "entity": n} for n in "ab"))
    land(config, "incident", incident("b", 2))
    code, text = listed(config, state="suspect")
    assert code == 0
    assert "2 nodes: 1 suspect, 1 healthy" in text
    assert "gpu-b" in text
    assert "gpu-a" not in text


def test_a_page_is_the_reason_before_an_older_ticket(config: Config) -> None:
    """Suspect since the first of them; why is the worst of them."""
    ticket = incident("b", 5) | {"severity": "ticket", "title": "GPU 1 is slow"}
    land(config, "incident", ticket, incident("b", 2), incident("b", 1))
    ((row,), code) = (json.loads(listed(config, as_json=True)[1])["nodes"], listed(config)[0])
    assert code == 0
    assert (row["why"], row["since"]) == ("GPU 3 is lost", ago(5).isoformat())


def test_an_imported_history_has_no_silent_nodes(config: Config) -> None:
    """Where no window is kept at all, nobody can be silent."""
    land(config, "event", {"ts": ago(30), "node_id": "a", "kind": "fault_start", "message": "x", "event_id": "1"})
    rows = json.loads(listed(config, as_json=True)[1])["nodes"]
    assert [(row["state"], row["why"]) for row in rows] == [("suspect", "down: x")]


def test_no_lake_is_a_sentence_and_a_wrong_state_is_said(config: Config) -> None:
    """Neither is a traceback."""
    code, text = listed(config)
    assert code == 1
    assert "No node of cluster 'test' is known" in text
    with pytest.raises(ConfigError, match="--state"):
        listed(config, state="ill")
