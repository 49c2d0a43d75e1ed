"""What agents of contract 1.0 sent stays readable: stored messages, byte for byte as their encoder made them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import deltalake
import polars as pl
import pytest
from landing_kit import Log, at, gpu_row, landing, message

from graynode.pipeline.bus import Partition, Received
from graynode.pipeline.codec import Message
from graynode.pipeline.decode import SOURCE, decode
from graynode.pipeline.lake import Lake
from graynode.pipeline.lake_format import CONFIGURATION, VERSION_KEY, lake_schema, to_lake
from graynode.pipeline.schema import SAMPLES, TABLES, VERSION

STORED = Path(__file__).parents[1] / "fixtures/contract_1_0"
NAMES = ("gpu", "link", "host", "quality", "inventory", "event")


def stored(table: str) -> tuple[Message, list[dict[str, Any]]]:
    """The message, and the rows that went into it."""
    said = json.loads((STORED / f"{table}.headers.json").read_text())
    return Message(said["key"], (STORED / f"{table}.message").read_bytes(), said["headers"]), said["rows"]


@pytest.mark.parametrize("table", NAMES)
def test_messages_of_1_0_are_read_as_they_were(table: str) -> None:
    """Every value that went in comes out; columns of later versions are null."""
    sent, rows = stored(table)
    assert sent.headers["v"] == "1.0"
    assert VERSION > (1, 0)
    decoded = decode([Received(sent, Partition(TABLES[table].topic, 0), 0, 0)])
    assert decoded.rejects == {}
    frame = decoded.frames[table]
    assert set(frame.columns) == {*TABLES[table].names, "_source"}
    for got, was in zip(frame.to_dicts(), rows, strict=True):
        shown = {k: v.isoformat() if hasattr(v, "isoformat") else v for k, v in got.items() if v is not None}
        assert shown == pytest.approx(was | {"_source": 0}) if table == "gpu" else shown == was | {"_source": 0}


def test_a_fleet_of_both_versions_lands_in_one_table(tmp_path: Path) -> None:
    """Old and new agents side by side, in one poll; windows are made of both."""
    log = Log()
    sent, rows = stored("gpu")
    log.add(sent, 6)
    log.add(message([gpu_row(s, node="n2") for s in range(3)], sequence=1), 6)
    lake = Lake(str(tmp_path))
    carrier = landing(lake, 10_000)
    carrier.assigned(frozenset([log.partition]))
    carrier.take(log.received)
    for _ in range(2):
        carrier.commit({log.partition: 2}, everything=True)
    raw = lake.read("gpu")
    assert raw.height == len(rows) + 3
    assert sorted(set(raw["node_id"])) == ["n1", "n2"]
    assert sorted(lake.read("gpu_30s")["node_id"]) == ["n1", "n1", "n2"]
    assert raw["ts"].min() == at(0)


def test_a_table_that_1_0_made_takes_rows_of_now(tmp_path: Path) -> None:
    """It lacks what came later; after the first commit it has that too, null in the old rows, and says its version."""
    old = lake_schema("gpu").remove(lake_schema("gpu").get_field_index("job_rank"))
    sent, rows = stored("gpu")
    frame = decode([Received(sent, Partition(SAMPLES, 0), 0, 0)]).frames["gpu"].drop(SOURCE)
    data = to_lake("gpu", frame).select(old.names)
    where = str(tmp_path / "gpu")
    settings = {name: value for name, value in CONFIGURATION.items() if name != VERSION_KEY}
    deltalake.write_deltalake(where, data, partition_by=["date", "hour"], configuration=settings)
    made = deltalake.DeltaTable(where)
    made.alter.set_table_properties({VERSION_KEY: "1.0"}, raise_if_not_exists=False)
    lake = Lake(str(tmp_path))
    lake.write("gpu", frame.with_columns(job_rank=pl.lit(7, pl.Int32)))
    assert sorted(lake.read("gpu")["job_rank"].to_list(), key=str) == [*[7] * len(rows), *[None] * len(rows)]
    said = deltalake.DeltaTable(where).metadata().configuration[VERSION_KEY]
    assert said == f"{VERSION[0]}.{VERSION[1]}"
