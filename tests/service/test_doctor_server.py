"""The doctor of the server: what it says of bus, lake, detection, receivers, tokens, ports; it changes nothing."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import bus_traffic
import http_receiver
import polars as pl
import pytest

from graynode.pipeline.bus import Partition
from graynode.pipeline.kafka import KafkaBus, KafkaSettings
from graynode.pipeline.lake import Lake
from graynode.pipeline.lake_format import VERSION_KEY, conform
from graynode.pipeline.lock_file import LockFile
from graynode.pipeline.schema import SAMPLES, TOPICS, VERSION
from graynode.pipeline.spool import SpoolBus
from graynode.service.config import Config, parse
from graynode.service.doctor_checks import Check
from graynode.service.doctor_lag import behind, lag_checks
from graynode.service.doctor_lake import lake_checks
from graynode.service.doctor_server import ports, reach, receivers, server_checks, serving

GRAYNODE = Path(sys.executable).with_name("graynode")
NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


def config(folder: Path, **more: Any) -> Config:
    """Everything below the folder, no port."""
    said: dict[str, Any] = {
        "bus": {"spool_dir": str(folder / "bus")}, "lake": {"path": str(folder / "lake")},
        "serve": {"tokens_file": str(folder / "tokens.json"), "listen": ""},
        **{role: {"metrics_listen": ""} for role in ("agent", "pipeline", "detect", "respond")},
    }  # fmt: skip
    for table, keys in more.items():
        said[table] = said.get(table, {}) | keys
    return parse(said, "test")


def put(folder: Path, table: str, ts: datetime, **fields: Any) -> Lake:
    """One row into the lake."""
    lake = Lake(str(folder / "lake"))
    row = pl.DataFrame({"ts": [ts], "cluster": ["default"], "node_id": ["n"]} | {k: [v] for k, v in fields.items()})
    lake.write(table, conform(table, row.with_columns(pl.col("ts").cast(pl.Datetime("us", "UTC")))))
    return lake


def one(checks: Iterator[Check], about: str, containing: str = "") -> Check:
    """The one check about this."""
    (found,) = [c for c in checks if c.about == about and containing in c.said]
    assert found.state != "mend" or found.way_out, "what is to mend has a way out"
    return found


# --- the command ---


def test_command_says_and_changes_nothing(tmp_path: Path) -> None:
    """On a lake of an hour ago: code and count agree, every state is one of three, nothing is left behind."""
    put(tmp_path, "host_30s", datetime.now(UTC) - timedelta(hours=1))
    file = tmp_path / "g.toml"
    file.write_text(
        f'[bus]\nspool_dir = "{tmp_path}/bus"\n[lake]\npath = "{tmp_path}/lake"\n'
        f'[serve]\ntokens_file = "{tmp_path}/tokens.json"\n'
    )
    before = sorted(tmp_path.rglob("*"))
    words = [str(GRAYNODE), "doctor", "--role", "server", "--config", str(file)]
    ended = subprocess.run([*words, "--json"], capture_output=True, text=True, timeout=90, check=False)
    told = json.loads(ended.stdout)
    assert ended.stderr == ""
    assert told["to_mend"] == sum(c["state"] == "mend" for c in told["checks"]) > 0
    assert ended.returncode == 1
    assert all(c["way_out"] for c in told["checks"] if c["state"] == "mend")
    about = {c["about"] for c in told["checks"]}
    assert {"versions", "clock", "bus", "lake", "lake age", "lake files", "detect", "prices"} <= about
    assert {"receivers", "tokens", "ports"} <= about
    assert sorted(tmp_path.rglob("*")) == before


def test_all_is_both(tmp_path: Path) -> None:
    """--role all: the node's sources and the server's checks in one answer."""
    file = tmp_path / "g.toml"
    file.write_text(
        f'[agent]\nstate_dir = "{tmp_path}/state"\ncollectors = ["host"]\n[bus]\nspool_dir = "{tmp_path}/bus"\n'
        f'[lake]\npath = "{tmp_path}/lake"\n[serve]\ntokens_file = "{tmp_path}/t.json"\n'
    )
    words = [str(GRAYNODE), "doctor", "--role", "all", "--config", str(file), "--json"]
    told = json.loads(subprocess.run(words, capture_output=True, text=True, timeout=90, check=False).stdout)
    assert [c["name"] for c in told["collectors"]] == ["host"]
    assert {"tokens", "ports", "receivers"} <= {c["about"] for c in told["checks"]}


# --- lake ---


def test_fresh_lake_is_well(tmp_path: Path) -> None:
    """A window and a round of a minute ago: nothing to mend."""
    put(tmp_path, "host_30s", NOW - timedelta(minutes=1))
    put(tmp_path, "round", NOW - timedelta(minutes=1))
    found = list(lake_checks(config(tmp_path), NOW))
    assert [c for c in found if c.state == "mend"] == []
    assert "60 s ago" in one(iter(found), "lake age").said


def test_stale_lake_and_detection_are_told(tmp_path: Path) -> None:
    """Half an hour without windows and rounds: both are to mend, with age and way out."""
    put(tmp_path, "host_30s", NOW - timedelta(minutes=30))
    put(tmp_path, "round", NOW - timedelta(minutes=30))
    found = list(lake_checks(config(tmp_path), NOW))
    assert (one(iter(found), "lake age").state, one(iter(found), "detect").state) == ("mend", "mend")
    assert "30 min" in one(iter(found), "detect").said


def test_empty_lake_is_a_note(tmp_path: Path) -> None:
    """Nothing there yet is no fault."""
    found = list(lake_checks(config(tmp_path), NOW))
    assert [c.state for c in found] == ["note"]
    assert not (tmp_path / "lake").exists()


def test_newer_lake_is_told(tmp_path: Path) -> None:
    """A table of a newer major version: update, and nothing else is said of it."""
    lake = put(tmp_path, "host_30s", NOW)
    lake.create("gpu")
    settings = {VERSION_KEY: f"{VERSION[0] + 1}.0"}
    lake.table("gpu").alter.set_table_properties(settings, raise_if_not_exists=False)
    assert one(lake_checks(config(tmp_path), NOW), "lake").way_out == "update graynode on this machine"


def test_running_detect_is_named(tmp_path: Path) -> None:
    """Its lock says its process; the look takes no lock itself."""
    put(tmp_path, "round", NOW - timedelta(minutes=1))
    with LockFile(tmp_path / "lake" / "detect-default.lock"):
        said = one(lake_checks(config(tmp_path), NOW), "detect").said
    assert f"process {os.getpid()} runs" in said


def test_unsorted_hours_are_told(tmp_path: Path) -> None:
    """Eight closed hours in two files each and nobody who sorts them."""
    for h in range(8):
        for _ in range(2):
            lake = Lake(str(tmp_path / "lake"))
            row = pl.DataFrame({"ts": [datetime.now(UTC) - timedelta(hours=3 + h)]})
            lake.write("host", conform("host", row.with_columns(pl.col("ts").cast(pl.Datetime("us", "UTC")))))
    found = one(lake_checks(config(tmp_path), datetime.now(UTC)), "lake files")
    assert (found.state, "8 hours of host" in found.said) == ("mend", True)


def test_models_without_price_are_named(tmp_path: Path) -> None:
    """A note, since graynode works without; with a price all is well; a wrong one is to mend."""
    put(tmp_path, "host_30s", NOW)
    put(tmp_path, "gpu_1h", NOW - timedelta(hours=1), gpu_model_last="NVIDIA H100 80GB HBM3")
    assert "none for NVIDIA H100" in one(lake_checks(config(tmp_path), NOW), "prices").said
    priced = config(tmp_path, cost={"per_gpu_hour": {"H100": 2.5}})
    assert one(lake_checks(priced, NOW), "prices").state == "well"


# --- bus ---


def test_lag_of_the_spool(tmp_path: Path) -> None:
    """What a group has not read is counted; one that never read is a note; the look registers no group."""
    bus = SpoolBus(tmp_path / "bus", 1 << 24)
    producer = bus.producer()
    producer.send(SAMPLES, bus_traffic.numbered(5))
    producer.close()
    assert "has not read anything yet" in one(lag_checks(config(tmp_path)), "lag").said
    consumer = bus.consumer([SAMPLES], "graynode-pipeline")
    bus_traffic.read(consumer, 5)
    consumer.commit({Partition(SAMPLES, 0): 3})
    consumer.close()
    assert one(lag_checks(config(tmp_path)), "lag").said == "pipeline: 2 messages behind"
    assert behind("pipeline", 20_000).state == "mend"
    assert not (tmp_path / "bus" / SAMPLES / "groups" / "doctor").exists()


@pytest.mark.kafka
def test_bus_of_a_real_broker(new_broker: Callable[..., Any], tmp_path: Path) -> None:
    """Topics with their retention, and how far a group is behind; before they are made, how to make them."""
    address = new_broker().address()
    kafka = {"bootstrap": address, "partitions": 1, "connect_timeout_s": 10.0}
    asked = config(tmp_path, bus={"kind": "kafka", "kafka": kafka}, pipeline={"group": "graynode-doctored"})
    bus = KafkaBus(KafkaSettings(bootstrap=address))
    bus.create_topics(1, 1)
    producer = bus.producer()
    producer.send(SAMPLES, bus_traffic.numbered(3))
    producer.close()
    consumer = bus.consumer([SAMPLES], "graynode-doctored")
    bus_traffic.read(consumer, 3)
    end = consumer.end_offsets()[Partition(SAMPLES, 0)]
    consumer.commit({Partition(SAMPLES, 0): end - 1})
    consumer.close()
    found = list(lag_checks(asked))
    assert len([c for c in found if c.about == "topics"]) == len(TOPICS)
    assert one(iter(found), "lag", "pipeline").said == "pipeline: 1 messages behind"


def test_a_broker_that_is_away_is_one_line(tmp_path: Path) -> None:
    """With the way out, within seconds, and the rest goes on."""
    asked = config(tmp_path, bus={"kind": "kafka", "kafka": {"bootstrap": "127.0.0.1:1"}})
    assert one(lag_checks(asked), "bus").state == "mend"
    assert one(server_checks(asked), "versions").state == "well"


# --- receivers, tokens, ports ---


def test_receiver_is_reached_and_told_nothing(tmp_path: Path) -> None:
    """A connection is opened and closed; the receiver got no request. One that is away is to mend, its path unsaid."""
    with http_receiver.HttpReceiver() as there:
        hooks = {
            "up": {"url": f"{there.url}/secret-path", "secret_file": "/x"},
            "down": {"url": "http://127.0.0.1:1/secret-path", "secret_file": "/x"},
        }
        found = list(receivers(config(tmp_path, respond={"webhooks": hooks}), reach))
        assert there.requests == []
    assert [c.state for c in found] == ["well", "mend"]
    assert "respond.webhooks.down.url" in found[1].said
    assert "secret-path" not in str(found)


def test_tokens(tmp_path: Path) -> None:
    """None: nobody is let in. Open to others: refused. In force: counted."""
    from graynode.service.tokens import Tokens

    asked = config(tmp_path)
    assert "lets nobody in" in one(serving(asked, NOW), "tokens").said
    Tokens(asked.serve.tokens_file).create("a", "read", NOW + timedelta(days=1), NOW)
    assert one(serving(asked, NOW), "tokens").said == "1 in force"
    assert "1 ended" in one(serving(asked, NOW + timedelta(days=2)), "tokens").said
    asked.serve.tokens_file.chmod(0o644)
    assert one(serving(asked, NOW), "tokens").way_out == f"chmod 0600 {asked.serve.tokens_file}"


def test_ports(tmp_path: Path) -> None:
    """Listened to, free, and given twice."""
    with socket.create_server(("127.0.0.1", 0)) as busy, socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{busy.getsockname()[1]}"
        free = f"127.0.0.1:{other.getsockname()[1]}"
        other.close()
        asked = config(
            tmp_path, pipeline={"metrics_listen": taken}, detect={"metrics_listen": free},
            respond={"metrics_listen": taken}, serve={"listen": "nonsense"},
        )  # fmt: skip
        found = list(ports(asked))
    assert [c.state for c in found] == ["well", "note", "mend", "mend"]
    assert "give respond.metrics_listen another port" in found[2].way_out
