"""``graynode lemons``: faults from every table, ranked, for a person and for a machine."""

import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from graynode.pipeline.lake import Lake
from graynode.pipeline.lake_format import frame_schema
from graynode.service import lemons as role
from graynode.service.config import Config, ConfigError, parse

T0 = datetime(2026, 1, 1, tzinfo=UTC)
AT = "2026-03-02T00:00:00+00:00"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return parse({"cluster": "test", "lake": {"path": str(tmp_path / "lake")}}, "test")


def land(config: Config, table: str, *rows: dict[str, Any]) -> None:
    told = [{"cluster": "test", "node": f"gpu-{row['node_id']}", **row} for row in rows]
    Lake(config.lake.path).write(table, pl.DataFrame(told, schema=frame_schema(table), orient="row"))


def day(number: float) -> datetime:
    return T0 + timedelta(days=number)


def incident(node: str, since: float, until: float | None, cause: str = "gpu_lost", **other: Any) -> dict[str, Any]:
    return {
        "ts": day(since if until is None else until), "node_id": node, "incident_id": f"{node}/{since}/{cause}",
        "revision": 0, "state": "open" if until is None else "resolved", "subject": "gpu", "cause": cause,
        "severity": "page", "since": day(since), "resolved_ts": None if until is None else day(until),
    } | other  # fmt: skip


def event(node: str, at: float, kind: str, **other: Any) -> dict[str, Any]:
    return {"ts": day(at), "node_id": node, "kind": kind, "event_id": f"{node}/{at}/{kind}", **other}


def machines(*names: str) -> list[dict[str, Any]]:
    return [{"ts": T0, "node_id": n, "kind": "node", "entity": n} for n in names]


def ranked(config: Config, at: str = AT) -> dict[str, Any]:
    sink = io.StringIO()
    role.run(config, at, as_json=True, out=sink)
    told: dict[str, Any] = json.loads(sink.getvalue())
    return told | {"by": {n["node_id"]: n for n in told["nodes"]}}


def shown(config: Config, at: str = AT, **how: Any) -> tuple[int, str]:
    sink = io.StringIO()
    code = role.run(config, at, out=sink, **how)
    return code, " ".join(sink.getvalue().split())


def test_faults_of_announced_maintenance_make_no_lemon(config: Config) -> None:
    """A node is not called one for what somebody did to it in its window."""
    land(config, "inventory", *machines("a", "b"))
    land(config, "incident", incident("a", 40, 40.1), incident("b", 40, 40.1))
    window = {"ts": day(39), "node_id": "b", "maintenance_id": "m", "scope": "node", "name": "b", "who": "kim"}
    land(config, "maintenance", window | {"since": day(39.9), "until": day(41)})
    told = ranked(config)
    assert [(told["by"][n] or {}).get("faults") for n in ("a", "b")] == [1, 0]


def test_an_empty_lake_is_a_sentence(config: Config) -> None:
    """No lake yet: said, with the place; no error text and no folder made."""
    code, text = shown(config)
    assert code == 1
    assert "No fault of cluster 'test' is known" in text
    assert not Path(config.lake.path).exists()


def test_every_witness_is_heard(config: Config) -> None:
    """Incidents, hard events, times out of service and imported records are faults, each with its end."""
    land(config, "inventory", *machines("a", "b", "c", "d", "e", "f"))
    land(config, "incident", incident("a", 50, 51))
    land(config, "event", event("b", 52, "gpu_off_bus"), event("b", 52.5, "xid", code=31))
    land(
        config,
        "event",
        event("c", 40, "fault_start", message="NIC: Lost"),
        event("c", 43, "fault_end", message="NIC: Lost"),
    )
    land(
        config, "node_state",
        {"ts": day(55), "node_id": "d", "scheduler_state": "DOWN*", "reason": "Not responding", "who": "slurm"},
        {"ts": day(56), "node_id": "d", "scheduler_state": "IDLE", "who": "slurm"},
        {"ts": day(58), "node_id": "e", "state": "in_repair", "who": "graynode"},
        {"ts": day(30), "node_id": "f", "scheduler_state": "DOWN", "reason": "maintenance", "who": "slurm"},
    )  # fmt: skip
    by = ranked(config)["by"]
    assert {n: by[n]["faults"] for n in "abcdef"} == {"a": 1, "b": 1, "c": 1, "d": 1, "e": 1, "f": 0}
    assert by["a"]["last_return"] == day(51).isoformat()
    assert by["c"]["last_return"] == day(43).isoformat()
    assert by["d"]["last_kind"] == "scheduler: DOWN*"
    assert by["d"]["probation_until"] == day(63).isoformat()
    assert by["e"]["down"]


def test_what_is_no_hardware_is_no_fault(config: Config) -> None:
    """The application's errors, blindness, shifts of the fleet and digests rank nobody."""
    land(
        config, "incident",
        incident("a", 50, 51, "application_error"), incident("a", 52, 53, "monitoring_blind"),
        incident("a", 54, 55, "fleet_shift", subject="cluster"), incident("a", 56, 57, severity="digest"),
    )  # fmt: skip
    assert ranked(config)["faults"] == 0


def test_an_incident_counts_in_its_latest_revision_then(config: Config) -> None:
    """Before its end was told it is open; what is told after ``--at`` is not known."""
    land(config, "incident", incident("a", 50, None), incident("a", 50, 52, revision=1))
    assert ranked(config, day(51).isoformat())["by"]["a"]["down"]
    assert not ranked(config, day(53).isoformat())["by"]["a"]["down"]
    assert ranked(config, day(40).isoformat())["nodes"] == []


def test_a_repair_ends_what_is_open(config: Config) -> None:
    """A logged repair is the return, and its day is shown."""
    land(config, "incident", incident("a", 50, None))
    land(config, "repair", {"ts": day(57), "node_id": "a", "what": "GPU 3 replaced"})
    row = ranked(config)["by"]["a"]
    assert row["last_return"] == row["last_repair"] == day(57).isoformat()
    assert row["probation_until"] == day(64).isoformat()
    assert "2026-02-27" in shown(config)[1]


def test_a_person_reads_the_order_and_why(config: Config) -> None:
    """Names of nodes, probability, reason, and how many are on probation."""
    land(config, "inventory", *machines("a", "b", "c"))
    land(config, "incident", incident("b", 50, 51), incident("b", 54, 55), incident("a", 20, 21))
    code, text = shown(config)
    assert code == 0
    assert text.index("gpu-b") < text.index("gpu-a")
    assert "2 faults (1 in 7 d, 2 in 28 d, 2 in 90 d)" in text
    assert "the same class as one before" in text
    assert "1 on probation" in text
    assert "Too little history" in text
    assert "gpu-a" not in shown(config, most=1)[1]


def test_the_only_cluster_is_taken(config: Config) -> None:
    """An imported trace has its own cluster name; asked from another, it is the one that there is."""
    land(config, "event", event("c", 40, "fault_start", message="x", cluster="elsewhere"))
    assert ranked(config)["cluster"] == "elsewhere"
    land(config, "event", event("c", 41, "gpu_lost"))
    assert ranked(config)["cluster"] == "test"


def test_names_from_machines_are_shown_as_text(config: Config) -> None:
    """Markup and escapes in names and kinds paint nothing."""
    land(config, "event", event("n", 40, "fault_start", message="\x1b[2J[b]x") | {"node": "[red]n\x1b"})
    text = shown(config)[1]
    assert "\x1b" not in text
    assert "[red]n" in text


@pytest.mark.parametrize("at", ["yesterday", "2026-13-01", "'; DROP"])
def test_a_wrong_time_is_said(config: Config, at: str) -> None:
    """It names the option and what is expected."""
    with pytest.raises(ConfigError, match="--at"):
        role.run(config, at)
